from functools import cache

import numpy as np
import pytest
from scipy import ndimage

from fairlib.data import load
from fairlib.data.face_drawing import FACTORS, draw_faces
from fairlib.data.synthetic_faces import latent_frame

EQUAL = (1, 1, 1, 1, 1)


def linear_predictions(train, test, codes, ridge=3.0):
    """What ridge regression on one-hot codes, fitted to ``train``, predicts for ``test``."""
    before, after = (
        np.pad(part.batch(slice(None)).flatten(1), ((0, 0), (0, 1)), constant_values=1)
        for part in (train, test)
    )
    wanted = np.eye(5)[getattr(train, codes)]
    weights = np.linalg.solve(
        before.T @ before + ridge * np.eye(before.shape[1]), before.T @ wanted
    )
    return (after @ weights).argmax(axis=1)


@cache
def accuracies(shares, spreads, seeds):
    """Test accuracy of a linear classifier by seed and group, ``(seeds, 5)``, of the group and of
    the expression."""
    rows = {"group": [], "expression": []}
    for seed in range(seeds):
        train, _, test = load(
            "synthetic-faces",
            target="expression",
            group="group",
            image_size=12,
            seed=seed,
            size=600,
            fractions=(0.5, 0.1, 0.4),
            shares=shares,
            spreads=spreads,
        )
        for target, codes in (("group", "groups"), ("expression", "targets")):
            right = linear_predictions(train, test, codes) == getattr(test, codes).numpy()
            rows[target].append([right[test.groups.numpy() == code].mean() for code in range(5)])
    return {target: np.array(accuracy) for target, accuracy in rows.items()}


def against_the_others(accuracy):
    """t statistic of each group against the mean of all, seeds being the unit."""
    difference = accuracy - accuracy.mean(axis=1, keepdims=True)
    return difference.mean(axis=0) / difference.std(axis=0, ddof=1) * len(accuracy) ** 0.5


@pytest.mark.parametrize("target", ["group", "expression"])
def test_equal_groups_are_equally_hard(target):
    accuracy = accuracies(EQUAL, 1.0, 40)[target]
    assert accuracy.mean() > 0.7
    assert (
        np.abs(against_the_others(accuracy)).max() < 3.5
    )  # 0.5 % for five t tests at 39 degrees of freedom


@pytest.mark.parametrize("target", ["group", "expression"])
def test_a_wider_group_is_harder(target):
    accuracy = accuracies(EQUAL, (1, 1, 1, 1, 1.6), 15)[target]
    assert against_the_others(accuracy)[4] < -3.5
    assert accuracy[:, :4].mean() - accuracy[:, 4].mean() > 0.04


def test_a_smaller_group_is_harder_to_learn():
    accuracy = accuracies((0.45, 0.22, 0.15, 0.11, 0.07), 1.0, 15)["group"].mean(axis=0)
    assert (np.diff(accuracy) < 0).all()


def test_sizes_follow_the_shares_and_expression_is_balanced_in_each():
    splits = load("synthetic-faces", size=1000, target="expression", group="group")
    total = sum(part.group_sizes for part in splits)
    assert total.to_dict() == {"A": 450, "B": 220, "C": 150, "D": 110, "E": 70}
    lively = sum(np.bincount(part.groups[part.targets == 1], minlength=5) for part in splits)
    assert lively.tolist() == [225, 110, 75, 55, 35]
    assert splits.train.target_names == ("calm", "lively")
    proportion = load("synthetic-faces", size=120, shares=(3, 2, 1))
    assert sum(part.group_sizes for part in proportion).tolist() == [60, 40, 20]


def test_the_frame_is_a_regular_simplex_and_a_direction_across_it():
    means, direction = latent_frame(5, 4.5, np.random.default_rng(0))
    between = np.linalg.norm(means[:, None] - means[None], axis=-1)
    assert between[~np.eye(5, dtype=bool)] == pytest.approx(4.5)
    assert means.sum(axis=0) == pytest.approx(0, abs=1e-12)
    assert means @ direction == pytest.approx(0, abs=1e-12)
    assert np.linalg.norm(direction) == pytest.approx(1)


def test_the_frame_points_everywhere_alike():
    """Haar: over draws each corner and the direction have mean 0 and covariance proportional to the
    identity."""
    rng = np.random.default_rng(0)
    draws = [latent_frame(3, 1.0, rng) for _ in range(3000)]
    for vectors in (np.array([m[0] for m, _ in draws]), np.array([d for _, d in draws])):
        size = (vectors**2).sum(axis=1).mean()
        assert np.abs(vectors.mean(axis=0)).max() < 5 * (size / 10 / 3000) ** 0.5
        covariance = np.cov(vectors.T) * 10 / size
        assert np.abs(covariance - np.eye(10)).max() < 0.15


def test_only_size_changes_with_the_shares():
    """The frame of a seed is the same for skewed and for equal groups: the group means of the
    pictures agree."""

    def means(**settings):
        train = load(
            "synthetic-faces", seed=4, size=3000, fractions=(0.9, 0.05, 0.05), **settings
        ).train
        return np.array(
            [train.group(g).batch(slice(None)).mean(dim=0).flatten().numpy() for g in range(5)]
        )

    skewed, equal = means(), means(shares=EQUAL)
    distance = np.linalg.norm(skewed[:, None] - equal[None], axis=-1)
    assert (distance.argmin(axis=1) == np.arange(5)).all()
    assert np.diag(distance).max() < 0.4 * distance[~np.eye(5, dtype=bool)].min()


@pytest.mark.parametrize("image_size", [8, 16, 32, 48])
def test_the_same_faces_at_any_size(image_size, monkeypatch):
    monkeypatch.setattr("fairlib.data.synthetic_faces.NOISE", 0.0)
    splits = load("synthetic-faces", size=100, shares=(1, 1), image_size=image_size)
    assert splits.train.inputs.shape[1:] == (1, image_size, image_size)
    small = load("synthetic-faces", size=100, shares=(1, 1), image_size=8)
    step = image_size // 8
    blocks = (
        splits.train.batch(slice(None)).unfold(2, step, step).unfold(3, step, step).mean((-1, -2))
    )
    assert (blocks - small.train.batch(slice(None))).abs().mean() < 0.03


def test_the_noise_is_as_strong_as_is_said(monkeypatch):
    def pixels(noise):
        monkeypatch.setattr("fairlib.data.synthetic_faces.NOISE", noise)
        return load("synthetic-faces", size=200, shares=(1, 1)).train.batch(slice(None))

    clean, noisy = pixels(0.0), pixels(0.05)
    middle = (clean > 0.2) & (clean < 0.8)
    assert (noisy - clean)[middle].std().item() == pytest.approx(0.05, rel=0.03)


def pose(shift=(0, 0), angle=0, scale=1, light=1, slope=(0, 0)):
    return np.array([[*shift, angle, scale, light, *slope]])


def test_every_factor_shows_and_shows_on_both_sides():
    for column in range(FACTORS):
        factors = np.zeros((3, FACTORS))
        factors[:, column] = [-0.8, 0.0, 0.8]
        low, middle, high = draw_faces(factors, pose().repeat(3, axis=0), 32)[:, 0]
        assert np.abs(low - middle).mean() > 0.0005
        assert np.abs(high - middle).mean() > 0.0005
        assert low == pytest.approx(low[:, ::-1], abs=1e-6)


def test_pose_moves_turns_and_lights_the_face():
    factors = np.zeros((1, FACTORS))

    def drawn(**change):
        return draw_faces(factors, pose(**change), 32)[0, 0]

    plain = drawn()
    shifted = drawn(shift=(0.125, -0.0625))  # two pixels to the right, one up
    assert shifted[:-1, 2:] == pytest.approx(plain[1:, :-2], abs=1e-5)
    turned = ndimage.rotate(plain, -np.degrees(0.4), reshape=False, order=1, mode="nearest")
    assert np.abs(drawn(angle=0.4) - turned).mean() < 0.4 * np.abs(plain - turned).mean()
    assert drawn(angle=np.pi / 2) == pytest.approx(np.rot90(plain, -1), abs=1e-5)
    assert drawn(light=0.5) == pytest.approx(0.5 * plain, abs=1e-6)
    assert (drawn(scale=1.2) != 0.5).sum() > 1.2 * (plain != 0.5).sum()
    slope = drawn(slope=(0.2, 0.0)) / plain
    assert (np.diff(slope[0]) > 0).all()


def test_the_seed_governs_everything():
    first, again, other = (
        load("synthetic-faces", size=200, shares=(1, 1), seed=s) for s in (0, 0, 1)
    )
    assert first.test.fingerprint() == again.test.fingerprint() != other.test.fingerprint()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"shares": (1,)}, "shares must be two to 9 positive numbers"),
        ({"shares": (1,) * 10}, "shares must be two to 9"),
        ({"shares": (1, 0)}, "shares must be"),
        ({"shares": (1, 2), "spreads": (1, 1, 1)}, "one for each of the 2 groups"),
        ({"spreads": -1.0}, "spreads must be a positive number"),
        ({"size": 0}, "size must lie in"),
        ({"size": 20}, "group 'D' has 1 sample in the train split"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        load("synthetic-faces", **settings)
