import numpy as np
import pytest

from fairlib.data.splitting import (
    apportion,
    check_fractions,
    check_group_sizes,
    drop_duplicates,
    fill_parts,
    first_parts,
    seed_sequence,
    stratified_parts,
    unite,
    whole_parts,
)


@pytest.mark.parametrize(
    ("total", "weights", "counts"),
    [
        (7, [1, 1, 1], [3, 2, 2]),
        (2, [5, 3, 1], [1, 1, 0]),
        (
            10,
            [0.45, 0.22, 0.15, 0.11, 0.07],
            [5, 2, 1, 1, 1],
        ),  # remainders .5 .2 .5 .1 .7: the first .5 wins
        (450, 10.0 ** (-np.arange(10) / 9), [110, 85, 66, 51, 40, 31, 24, 18, 14, 11]),
    ],
)
def test_apportion_gives_largest_remainders(total, weights, counts):
    assert apportion(total, weights).tolist() == counts


def test_of_equal_images_one_stays_if_they_agree_and_none_if_not():
    images = np.array([5, 6, 5, 7, 6, 8, 6], dtype=np.uint8).reshape(7, 1, 1, 1)
    labels = np.array([[0, 0], [1, 0], [0, 0], [0, 0], [1, 1], [0, 0], [1, 0]])
    keep, dropped = drop_duplicates(images, labels)
    assert keep.tolist() == [0, 3, 5]
    assert dropped == {"duplicates": 1, "conflicting": 3}


def test_every_cell_and_the_whole_follow_the_fractions():
    sizes = np.array([1, 2, 3, 7, 10, 33, 100, 451])
    cells = np.repeat(np.arange(8), sizes)
    fractions = np.array([0.7, 0.1, 0.2])
    parts = stratified_parts(cells, fractions, np.random.default_rng(0))
    counts = np.array([np.bincount(parts[cells == c], minlength=3) for c in range(8)])
    assert (counts.sum(axis=1) == sizes).all()
    assert (np.abs(counts - sizes[:, None] * fractions) <= 1 + 1e-9).all()
    assert (np.abs(counts.sum(axis=0) - sizes.sum() * fractions) < 1).all()
    assert counts[4].tolist() == [7, 1, 2]
    assert counts[6].tolist() == [70, 10, 20]


def test_totals_hold_when_no_cell_fills_a_part_by_itself():
    """100 cells with one sample each: rounding each cell alone would put all of them into train."""
    parts = stratified_parts(np.arange(100), (0.7, 0.1, 0.2), np.random.default_rng(0))
    assert np.bincount(parts).tolist() == [70, 10, 20]


def test_which_sample_goes_where_is_drawn():
    cells = np.zeros(40, dtype=int)

    def draw(seed):
        return stratified_parts(cells, (0.5, 0.25, 0.25), np.random.default_rng(seed))

    assert (draw(3) == draw(3)).all()
    shares = np.mean([draw(seed) == 0 for seed in range(400)], axis=0)
    assert np.abs(shares - 0.5).max() < 0.1  # 4 standard errors


def test_a_group_with_one_sample_in_a_part_is_named():
    parts = np.array([0, 0, 1, 1, 2, 2, 0, 0, 1, 2, 2])
    groups = np.array([0] * 6 + [1] * 5)
    check_group_sizes(parts[:6], groups[:6], ["a"])
    with pytest.raises(ValueError, match="group 'b' has 1 sample in the val split"):
        check_group_sizes(parts, groups, ["a", "b"])
    with pytest.raises(ValueError, match="group 'c' has 0 samples in the train split"):
        check_group_sizes(parts[:6], groups[:6], ["a", "c"])
    check_group_sizes(parts, groups, ["a", "b"], ["train", "test"])


@pytest.mark.parametrize(
    "fractions",
    [(0.8, 0.2), (0.7, 0.2, 0.2), (0.9, -0.1, 0.2), (np.nan, 1, 0), (0, 0, 0), "abc", None, 0.7],
)
def test_fractions_must_be_three_parts_of_one(fractions):
    with pytest.raises(
        ValueError,
        match=r"fractions must be three numbers \(train, val, test\), 0 for no such part",
    ):
        check_fractions(fractions)


def test_nothing_is_drawn_for_a_part_without_a_share():
    cells, units = np.arange(100) % 7, np.arange(100) // 3
    for fractions in ((0, 0, 1), (0.5, 0, 0.5), (1, 0, 0)):
        for more in ({}, {"units": units}, {"people": units}):
            parts = fill_parts(np.full(100, -1), cells, fractions, np.random.default_rng(0), **more)
            assert set(parts) == {part for part in range(3) if fractions[part]}
    given = np.where(cells == 0, 2, -1)
    assert set(fill_parts(given, cells, (0.5, 0, 0.5), np.random.default_rng(0))) == {0, 2}
    with pytest.raises(
        ValueError, match="fractions must have a share for a part that the data set does not fill"
    ):
        fill_parts(given, cells, (0, 0, 1), np.random.default_rng(0))


def test_people_whose_part_is_open_go_to_one_that_is_free():
    given = np.repeat([2, -1], 60)
    people = np.array([f"p{i // 3}" for i in range(120)])
    parts = fill_parts(
        given, np.zeros(120, dtype=int), (0.5, 0.25, 0.25), np.random.default_rng(0), people=people
    )
    assert (parts[:60] == 2).all() and set(parts[60:]) == {0, 1}
    assert all(len(set(parts[people == person])) == 1 for person in people)


@pytest.mark.parametrize(
    ("seed", "error"), [(None, TypeError), (0.5, TypeError), (True, TypeError), (-1, ValueError)]
)
def test_a_seed_is_a_whole_number(seed, error):
    with pytest.raises(error, match="seed must"):
        seed_sequence(seed)


def test_whole_units_stay_together_and_every_cell_follows_the_fractions():
    """Units of 1 to 8 samples in two cells: no part ends further than 2 from its share."""
    fractions = (0.7, 0.1, 0.2)
    sizes = 1 + np.arange(400) % 8
    cells = np.repeat([0, 1], [300, 100])
    units = np.random.default_rng(0).permutation(np.repeat(np.arange(400), sizes))
    own = cells[units]  # Every tenth sample is of the other cell, but none of a unit's majority.
    for unit in np.flatnonzero(sizes >= 3)[::10]:
        own[np.flatnonzero(units == unit)[0]] ^= 1
    for seed in range(5):
        parts = whole_parts(units, own, fractions, np.random.default_rng(seed))
        of_unit = [set(parts[units == unit]) for unit in range(400)]
        assert all(len(found) == 1 for found in of_unit)
        for cell in (0, 1):
            counts = np.bincount(parts[cells[units] == cell], minlength=3)
            assert (np.abs(counts - counts.sum() * np.array(fractions)) <= 2).all()


def test_where_a_unit_goes_is_drawn_in_proportion():
    """One unit holds nearly all: it must not always go to the largest part."""
    units = np.array([0] * 50 + [1, 2])
    first = [
        whole_parts(units, np.zeros(52, dtype=int), (0.5, 0.25, 0.25), rng)[0]
        for rng in generators(400)
    ]
    assert np.abs(np.bincount(first) / 400 - [0.5, 0.25, 0.25]).max() < 0.1  # Four standard errors.


def test_united_units_stand_in_one_part_and_no_size_changes():
    """Units of two and three within and across cells, among many samples that are alone."""
    rng = np.random.default_rng(0)
    cells = rng.integers(0, 4, 600)
    units = np.arange(600)
    for first in range(0, 90, 3):
        units[first : first + 2 + first % 2] = units[first]
    units = np.unique(rng.permutation(units), return_inverse=True)[1]
    for seed in range(5):
        before = stratified_parts(cells, (0.7, 0.1, 0.2), np.random.default_rng(seed))
        parts = unite(before, units, cells, np.random.default_rng(seed))
        assert all(len({*parts[units == unit]}) == 1 for unit in range(units.max() + 1))
        assert (np.bincount(cells * 3 + parts) == np.bincount(cells * 3 + before)).all()
        assert (parts == unite(before, units, cells, np.random.default_rng(seed))).all()
        assert 0 < (parts != before).sum() < 90


def test_a_unit_goes_to_a_part_in_proportion_to_its_members():
    units, cells = np.array([0, 0, 0, *range(1, 61)]), np.zeros(63, dtype=int)
    before = np.array([0, 0, 1, *[0, 1, 2] * 20])
    found = [unite(before, units, cells, rng)[0] for rng in generators(400)]
    assert (
        np.abs(np.bincount(found, minlength=3) / 400 - [2 / 3, 1 / 3, 0]).max() < 0.1
    )  # Four standard errors.


def test_without_anybody_to_exchange_with_a_unit_comes_together_all_the_same():
    parts = unite(
        np.array([0, 2, 0, 1]),
        np.array([0, 0, 1, 2]),
        np.array([0, 1, 2, 2]),
        np.random.default_rng(0),
    )
    assert parts[0] == parts[1] and parts[2:].tolist() == [0, 1]


def test_units_without_company_leave_a_split_and_the_generator_as_they_are():
    parts, rng = np.array([0, 1, 2, 0]), np.random.default_rng(0)
    assert (unite(parts, np.array([3, 1, 0, 2]), np.zeros(4, dtype=int), rng) == parts).all()
    assert rng.random() == np.random.default_rng(0).random()


def test_of_parts_that_a_data_set_assigns_a_unit_keeps_its_first():
    given = np.array([-1, 2, -1, 2, 2, 0, 1, 2])
    units = np.array([0, 0, 1, 1, 2, 3, 3, 3])
    assert first_parts(given, units).tolist() == [
        True,
        False,
        True,
        False,
        True,
        True,
        False,
        False,
    ]


def generators(count):
    return [np.random.default_rng(seed) for seed in range(count)]
