import itertools

import numpy as np
import pytest
from PIL import Image
from scipy.fftpack import dct

from fairlib.data.near_duplicates import near_duplicates, near_pairs, perceptual_hash


def scenes(count, side=48, channels=3, seed=0):
    """Random pictures with as much detail as photographs have: amplitudes that fall as the inverse
    of the frequency."""
    rng = np.random.default_rng(seed)
    frequency = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.rfftfreq(side)[None])
    waves = rng.normal(size=(2, count, channels, *frequency.shape)) / (frequency + 1 / side)
    fields = np.fft.irfft2(waves[0] + 1j * waves[1], s=(side, side))
    fields = fields / fields.std(axis=(1, 2, 3), keepdims=True)
    return np.clip(128 + 40 * fields, 0, 255).astype(np.uint8)


def bits_apart(one, other):
    return (perceptual_hash(one) != perceptual_hash(other)).sum(axis=1)


def resized(images, side):
    pictures = (
        Image.fromarray(image.transpose(1, 2, 0)).resize((side, side), Image.Resampling.BOX)
        for image in images
    )
    return np.stack([np.asarray(picture).transpose(2, 0, 1) for picture in pictures])


def test_the_hash_is_that_of_the_cosine_transform_written_out():
    image = scenes(1, side=16, channels=1)[0, 0].astype(float)
    place = np.arange(16)
    waves = np.cos(np.pi * (2 * place + 1) * place[:, None] / 32)
    low = (waves @ image @ waves.T * np.outer(*[np.where(place, 1, 0.5**0.5)] * 2))[
        :12, :12
    ].ravel()[1:]
    assert perceptual_hash(image[None, None]).tolist() == [(low > np.median(low)).tolist()]
    twice = dct(dct(image, axis=0, norm="ortho"), axis=1, norm="ortho")[:12, :12].ravel()[1:]
    assert ((twice > np.median(twice)) == (low > np.median(low))).all()


@pytest.mark.parametrize(
    "change",
    [
        lambda x: resized(x, 24),
        lambda x: (0.8 * x + 10).astype(np.uint8),
        lambda x: np.clip(x + np.random.default_rng(1).normal(0, 4, x.shape), 0, 255).astype(
            np.uint8
        ),
    ],
    ids=["half the size", "darker and flatter", "noise"],
)
def test_what_leaves_a_picture_the_same_changes_few_bits(change):
    images = scenes(40)
    assert bits_apart(images, change(images)).max() <= 16
    assert bits_apart(images, np.roll(change(images), 1, axis=0)).min() > 16


def test_pairs_are_those_of_comparing_all_with_all():
    """Hashes scattered around a few, at distances on both sides of the threshold."""
    rng = np.random.default_rng(0)
    centres = rng.random((5, 143)) < 0.5
    flips = rng.random((300, 143)) < rng.uniform(0, 0.12, (300, 1))
    hashes = centres[rng.integers(5, size=300)] ^ flips
    found = {
        tuple(sorted(pair))
        for i, j in near_pairs(hashes)
        for pair in zip(i.tolist(), j.tolist(), strict=True)
    }
    apart = (hashes[:, None] != hashes[None]).sum(axis=2)
    assert found == {(i, j) for i, j in itertools.combinations(range(300), 2) if apart[i, j] <= 16}
    assert (apart == 16).any() and (apart == 17).any()


def test_groups_are_chains_of_pairs():
    images = scenes(30)
    images[7] = (0.9 * images[3]).astype(np.uint8)
    images[20] = np.clip(images[7].astype(int) + 5, 0, 255)
    images[11] = (0.95 * images[2]).astype(np.uint8)
    groups = near_duplicates(images)
    assert groups.dtype == np.int64 and groups.shape == (30,) and groups.max() == 26
    assert len({*groups[[3, 7, 20]]}) == len({*groups[[2, 11]]}) == 1 and groups[3] != groups[2]


@pytest.mark.parametrize("side", [1, 8, 11])
def test_pictures_of_a_few_pixels_are_too_coarse_to_tell(side):
    images = scenes(5)[[0, 1, 2, 0, 1], :, :side, :side]
    assert near_duplicates(images).tolist() == [0, 1, 2, 3, 4]


def test_the_order_of_the_images_does_not_matter():
    images = np.concatenate([scenes(20), (0.9 * scenes(20)[:8]).astype(np.uint8)])
    order = np.random.default_rng(0).permutation(28)
    groups, mixed = near_duplicates(images), near_duplicates(images[order])
    assert ((groups[order][:, None] == groups[order]) == (mixed[:, None] == mixed)).all()
    assert groups.max() == 19
