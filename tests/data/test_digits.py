import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from fairlib.data import load


def counts(part):
    return np.bincount(part.targets, minlength=10)


def test_class_sizes_fall_geometrically_and_the_control_has_the_same_total():
    skewed = load("digits", seed=3)
    assert sorted(counts(skewed.train), reverse=True) == [110, 85, 66, 51, 40, 31, 24, 18, 14, 11]
    assert len(skewed.train) == 450
    assert np.argsort(counts(skewed.val), kind="stable")[-1] == counts(skewed.train).argmax()
    equal = load("digits", seed=3, imbalance=1.0)
    assert counts(equal.train).tolist() == [45] * 10
    assert counts(equal.val).min() == 6
    assert counts(equal.val).sum() == pytest.approx(450 / 7, abs=1)


def test_which_digit_is_rare_is_exchangeable_over_seeds():
    rarest = [counts(load("digits", seed=seed).train).argmin() for seed in range(60)]
    times = np.bincount(rarest, minlength=10)
    assert times.max() <= 15  # 6 expected, standard deviation 2.3


def test_all_seeds_give_every_group_something_to_measure():
    for seed in range(20):
        _, val, test = load("digits", seed=seed, group="parity")
        assert counts(val).min() >= 2
        assert len(set(counts(test))) == 1
        assert counts(test)[0] >= 40


def test_pictures_are_those_of_scikit_learn_and_stand_in_one_part_only():
    bunch = load_digits()
    scaled = np.rint(bunch.images * 255 / 16).astype(np.uint8)
    original = {image.tobytes(): digit for image, digit in zip(scaled, bunch.target, strict=True)}
    seen = []
    for part in load("digits", seed=1):
        assert part.inputs.shape[1:] == (1, 8, 8)
        for image, target, group in part:
            key = image.numpy().tobytes()
            assert original[key] == target == group
            seen.append(key)
    assert len(seen) == len(set(seen))


def test_a_milder_imbalance_keeps_the_test_images_of_the_stronger():
    def test_images(imbalance, seed):
        return {
            x.numpy().tobytes() for x in load("digits", seed=seed, imbalance=imbalance).test.inputs
        }

    assert test_images(10.0, seed=2) < test_images(1.0, seed=2)
    assert len(test_images(1.0, seed=2) & test_images(1.0, seed=3)) < 0.8 * len(
        test_images(1.0, seed=2)
    )


def test_target_and_group_may_differ():
    train = load("digits", target="digit", group="parity").train
    assert train.group_names == ("even", "odd")
    assert (train.groups == train.targets % 2).all()


def test_other_image_sizes_are_scaled():
    small, large = load("digits"), load("digits", image_size=16)
    assert large.train.inputs.shape[1:] == (1, 16, 16)
    for before, after in zip(small.val.inputs[:, 0], large.val.inputs[:, 0], strict=True):
        expected = Image.fromarray(before.numpy()).resize((16, 16), Image.Resampling.BILINEAR)
        assert np.abs(np.asarray(expected).astype(int) - after.numpy()).max() <= 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"imbalance": 0.5}, r"imbalance must lie in \[1, inf\)"),
        ({"imbalance": float("inf")}, r"imbalance must lie in \[1, inf\)"),
        ({"size": 0}, "size must lie in"),
        ({"size": 900}, r"leaves fewer than 2 images of digit \d for the test part"),
        ({"imbalance": 100.0, "size": 100}, r"has [01] samples? in the train split"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        load("digits", **settings)


def test_a_part_that_is_always_drawn_must_have_a_share():
    with pytest.raises(
        ValueError, match="fractions of data set 'digits' must be positive for train and val"
    ):
        load("digits", fractions=(0, 0, 1))
