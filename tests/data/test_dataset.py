import doctest

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch

import fairlib.data.dataset
from fairlib.data import GroupedDataset


@pytest.fixture
def pictures():
    """Six 1 x 2 x 2 pictures whose pixels tell which is which: the i-th is filled with 10 * i."""
    images = np.repeat(np.arange(6, dtype=np.uint8) * 10, 4).reshape(6, 1, 2, 2)
    return GroupedDataset(
        images,
        targets=[0, 1, 0, 1, 2, 0],
        groups=[0, 0, 1, 0, 1, 0],
        target_names=["x", "y", "z"],
        group_names=["many", "few", "none"],
    )


def which(data):
    return (data.inputs.flatten(1)[:, 0] // 10).tolist()


def test_docstring_examples_hold():
    assert doctest.testmod(fairlib.data.dataset).failed == 0


def test_what_it_holds(pictures):
    assert pictures.inputs.dtype == torch.uint8
    assert pictures.targets.dtype == pictures.groups.dtype == torch.int64
    assert (len(pictures), pictures.num_classes, pictures.num_groups) == (6, 3, 3)
    assert pictures.group_sizes.to_dict() == {"many": 4, "few": 2, "none": 0}
    assert list(pictures.group_sizes.index) == ["many", "few", "none"]
    x, y, a = pictures[4]
    assert (x.unique().item(), y.item(), a.item()) == (40, 2, 1)


def test_names_default_to_the_codes():
    data = GroupedDataset(
        np.zeros((3, 2)), np.array([0, 2, 2], dtype=np.int32), torch.tensor([1, 0, 1])
    )
    assert data.target_names == ("0", "1", "2")
    assert data.group_names == ("0", "1")


def test_the_data_are_copied():
    images = np.zeros((2, 3))
    groups = torch.tensor([0, 1])
    data = GroupedDataset(images, [0, 0], groups)
    images[:] = 7
    groups[:] = 0
    assert data.inputs.sum() == 0
    assert data.groups.tolist() == [0, 1]


def test_a_data_loader_takes_it(pictures):
    inputs, targets, groups = next(iter(torch.utils.data.DataLoader(pictures, batch_size=4)))
    assert inputs.shape == (4, 1, 2, 2)
    assert (targets.tolist(), groups.tolist()) == ([0, 1, 0, 1], [0, 0, 1, 0])


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        (
            np.zeros((3, 2), dtype=np.uint8),
            ValueError,
            r"uint8 inputs must have shape \(N, C, H, W\)",
        ),
        (np.zeros((3, 2, 2)), ValueError, r"got \(3, 2, 2\)"),
        (np.zeros((3, 2), dtype=np.int64), TypeError, "got torch.int64"),
        (np.zeros((3, 2), dtype=np.float16), TypeError, "got torch.float16"),
        (np.array([["a"], ["b"], ["c"]]), TypeError, "must be numbers"),
        (np.zeros((0, 2)), ValueError, "empty"),
        (np.zeros((3, 0)), ValueError, "empty"),
    ],
)
def test_inputs_of_another_kind_are_refused(inputs, error, message):
    with pytest.raises(error, match=message):
        GroupedDataset(inputs, [0] * len(inputs), [0] * len(inputs))


def test_inputs_that_are_not_finite_are_refused_with_their_number_and_place():
    inputs = np.ones((4, 3))
    inputs[2, 1], inputs[3, 0] = np.nan, -np.inf
    with pytest.raises(ValueError, match=r"2 NaN or infinite values, the first at index \(2, 1\)"):
        GroupedDataset(inputs, [0] * 4, [0] * 4)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"targets": [0, 1, 5]}, ValueError, r"targets\[2\] is 5; allowed are 0 to 1"),
        ({"groups": [0, -1, 0]}, ValueError, r"groups\[1\] is -1; allowed are 0 to 1"),
        ({"targets": [0, 1]}, ValueError, r"targets must have shape \(3,\).*got \(2,\)"),
        ({"groups": [[0], [1], [0]]}, ValueError, r"got \(3, 1\)"),
        ({"targets": [0.0, 1.0, 0.0]}, TypeError, "targets must be integers.*float64"),
        ({"groups": [True, False, True]}, TypeError, "groups must be integers.*bool"),
        ({"target_names": ["x", "x"]}, ValueError, "target_names must be distinct, but 'x'"),
        ({"group_names": "ab"}, TypeError, "group_names must be a sequence of strings"),
        ({"group_names": [0, 1]}, TypeError, "group_names must be a sequence of strings"),
        ({"group_names": []}, ValueError, r"groups\[1\] is 1"),
        ({"normalize": ([0.0], [1.0])}, ValueError, "2 means and stds"),
        ({"normalize": ([0.0, 0.0], [1.0, 0.0])}, ValueError, "positive stds"),
        ({"normalize": 3}, ValueError, "normalize must hold 2 means and stds"),
        ({"normalize": ["ab", "cd"]}, TypeError, "normalize must be"),
    ],
)
def test_codes_names_and_normalize_are_checked(changed, error, message):
    good = {
        "targets": [0, 1, 0],
        "groups": [0, 1, 0],
        "target_names": ["x", "y"],
        "group_names": ["a", "b"],
    }
    with pytest.raises(error, match=message):
        GroupedDataset(np.zeros((3, 2)), **(good | changed))


def labels_of(values, **names):
    data = GroupedDataset(np.zeros((len(values), 1)), [0] * len(values), values, **names)
    return data.groups.tolist(), data.group_names


@pytest.mark.parametrize(
    "convert",
    [
        list,
        np.array,
        pd.Series,
        pd.Categorical,
        lambda v: pd.array(v, dtype="string"),
        lambda v: np.array(v, object),
    ],
)
def test_text_names_itself(convert):
    assert labels_of(convert(["m", "f", "d", "f"])) == ([2, 1, 0, 1], ("d", "f", "m"))
    assert labels_of(convert(["m", "f", "f"]), group_names=["m", "x", "f"]) == (
        [0, 2, 2],
        ("m", "x", "f"),
    )
    with pytest.raises(ValueError, match="group_names must name every value that occurs, lacks f"):
        labels_of(convert(["m", "f", "f"]), group_names=["m", "x"])


def test_a_categorical_keeps_the_order_of_its_categories():
    sizes = pd.Categorical(["big", "small"], categories=["small", "middle", "big"])
    assert (
        labels_of(sizes)
        == labels_of(pd.Series(sizes, index=[7, 3]))
        == ([2, 0], ("small", "middle", "big"))
    )
    assert labels_of(pd.Categorical([30, 4], categories=[4, 30])) == ([1, 0], ("4", "30"))
    data = GroupedDataset(np.zeros((2, 1)), sizes, [0, 1])
    assert (data.targets.tolist(), data.target_names) == ([2, 0], ("small", "middle", "big"))


@pytest.mark.parametrize(
    ("values", "row"),
    [
        (["m", None, "f"], 1),
        (["m", "f", float("nan")], 2),
        ([0, float("nan")], 1),
        ([0, None], 1),
        (pd.array([0, None, 1], dtype="Int64"), 1),
        (pd.Categorical([None, "m"]), 0),
        (pd.Series(["m", pd.NA], index=[5, 6]), 1),
        (np.array(["m", np.nan]), 1),
        (["NA", "m"], 0),
        (pd.Categorical(["m", ""]), 1),
        (np.ma.masked_array([0, 1], [True, False]), 0),
    ],
)
def test_a_missing_label_is_refused_with_its_row(values, row):
    with pytest.raises(
        ValueError,
        match=rf"groups (must be known of every sample: it is missing in row {row}|has masked entries)",
    ):
        labels_of(values)


@pytest.mark.parametrize("convert", [list, np.array, torch.tensor])
def test_large_codes_are_labels(convert):
    """A zip code makes no group of every number below it, and costs no time."""
    assert labels_of(convert([0, 20_000, 1, 1])) == ([0, 2, 1, 1], ("0", "1", "20000"))
    assert labels_of(convert([10_115, 2_000_000_000, 10_115])) == (
        [0, 1, 0],
        ("10115", "2000000000"),
    )
    assert labels_of(convert([0, 3, 7]))[1] == tuple("01234567")
    assert len(labels_of(convert([0, 999]))[1]) == 1000
    assert len(labels_of(convert([*range(600), 1100]))[1]) == 1101  # Most of the codes occur.
    with pytest.raises(ValueError, match=r"groups\[1\] is 20000; allowed are 0 to 1 "):
        labels_of(convert([0, 20_000]), group_names=["a", "b"])


def test_many_names_are_checked_quickly():
    names = [str(i) for i in range(100_000)]
    assert labels_of([0, 99_999], group_names=names)[1] == tuple(names)
    with pytest.raises(ValueError, match="distinct, but '7' occurs more than once"):
        labels_of([0], group_names=[*names, "7"])


@pytest.mark.parametrize(
    "values", [[b"m", b"f"], ["m", 1.5], [["m"], ["f"]], [[0, 1], [0]], [0.0, 1.0], [1j, 0]]
)
def test_labels_of_another_kind_are_refused(values):
    with pytest.raises((TypeError, ValueError), match=r"^groups must"):
        labels_of(values)


def test_sparse_and_ragged_inputs_are_refused():
    with pytest.raises(TypeError, match=r"inputs must be dense, got Tensor: give .to_dense\(\)"):
        GroupedDataset(torch.eye(2).to_sparse(), [0, 1], [0, 1])
    with pytest.raises(TypeError, match="inputs must be an array, got rows of different lengths"):
        GroupedDataset([[1.0], [1.0, 2.0]], [0, 1], [0, 1])


def test_normalize_by_name():
    data = GroupedDataset(np.zeros((1, 3, 2, 2)), [0], [0], normalize="imagenet")
    assert data.normalize == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    with pytest.raises(ValueError, match="normalize must hold 1 means and stds"):
        GroupedDataset(np.zeros((1, 1, 2, 2)), [0], [0], normalize="imagenet")


def test_negative_codes_are_refused_without_names_too():
    with pytest.raises(ValueError, match=r"groups\[0\] is -1"):
        GroupedDataset(np.zeros((2, 1)), [0, 0], [-1, 0])
    with pytest.raises(ValueError, match=r"groups\[0\] is -1"):
        GroupedDataset(np.zeros((2, 1)), [0, 0], [-1, -1])


@pytest.mark.parametrize(
    ("index", "chosen"),
    [
        ([4, 0, 4], [4, 0, 4]),
        (slice(1, None, 2), [1, 3, 5]),
        (np.array([False, True, False, False, False, True]), [1, 5]),
        (torch.tensor([-1, 2]), [5, 2]),
        (3, [3]),
        ((0, 1), [0, 1]),
    ],
)
def test_subset_takes_integers_slices_and_masks(pictures, index, chosen):
    subset = pictures.subset(index)
    assert which(subset) == chosen
    assert subset.targets.tolist() == [[0, 1, 0, 1, 2, 0][i] for i in chosen]
    assert subset.groups.tolist() == [[0, 0, 1, 0, 1, 0][i] for i in chosen]
    assert subset.group_names == pictures.group_names
    assert torch.equal(pictures.batch(index), subset.batch(slice(None)))


def test_an_index_that_selects_nothing_or_too_much_is_refused(pictures):
    for nothing in ([], np.zeros(6, dtype=bool), slice(0, 0)):
        with pytest.raises(ValueError, match="selects none of the 6"):
            pictures.subset(nothing)
    with pytest.raises(IndexError):
        pictures.subset([6])
    with pytest.raises(IndexError, match=r"6 but .* is 2"):
        pictures.subset([True, False])
    for wrong in ([0.5], None, ...):
        with pytest.raises(IndexError, match="integer"):
            pictures.subset(wrong)


def test_group_by_name_and_by_code(pictures):
    assert which(pictures.group("few")) == which(pictures.group(1)) == [2, 4]
    with pytest.raises(ValueError, match="unknown group 'others'; known: many, few, none"):
        pictures.group("others")
    with pytest.raises(ValueError, match="unknown group 3"):
        pictures.group(3)
    with pytest.raises(ValueError, match="group 'none' has no sample"):
        pictures.group("none")


def test_upsample_repeats_one_group_only(pictures):
    larger = pictures.upsample("few", 3)
    assert sorted(which(larger)) == [0, 1, 2, 2, 2, 3, 4, 4, 4, 5]
    assert larger.group_sizes.to_dict() == {"many": 4, "few": 6, "none": 0}
    assert pictures.upsample("few", 1).fingerprint() == pictures.fingerprint()
    assert len(pictures) == 6
    for times, error in ((0, ValueError), (1.5, TypeError), (True, TypeError)):
        with pytest.raises(error, match="times must"):
            pictures.upsample("few", times)


@pytest.fixture
def many():
    groups = np.repeat([0, 1, 2], [50, 30, 20])
    return GroupedDataset(np.arange(100.0)[:, None], np.zeros(100, dtype=int), groups)


def test_imbalance_keeps_counts_and_shares(many):
    small = many.imbalance({"0": 7, 2: 0.5})
    assert small.group_sizes.to_dict() == {"0": 7, "1": 30, "2": 10}
    kept = small.inputs.flatten()
    assert torch.equal(kept, kept.unique())
    assert torch.equal(small.groups, many.groups[kept.long()])
    assert many.imbalance({"2": 0.001}).group_sizes["2"] == 1


def test_imbalance_is_drawn_by_its_seed_nested_and_apart_for_each_group(many):
    def rows(sizes, seed=0):
        return set(many.imbalance(sizes, seed=seed).inputs.flatten().tolist())

    state = np.random.get_state()[1].copy(), torch.get_rng_state()
    assert rows({"0": 10}) == rows({"0": 10}) != rows({"0": 10}, seed=1)
    assert rows({"0": 10}) < rows({"0": 20})
    both = rows({"0": 10, "1": 10})
    assert {r for r in both if r < 50} == {r for r in rows({"0": 10}) if r < 50}
    halves = GroupedDataset(
        np.arange(60.0)[:, None], np.zeros(60, dtype=int), np.repeat([0, 1], 30)
    )
    kept = halves.imbalance({"0": 15, "1": 15}).inputs.flatten().reshape(2, 15)
    assert not torch.equal(kept[0], kept[1] - 30)
    assert (np.random.get_state()[1] == state[0]).all()
    assert torch.equal(torch.get_rng_state(), state[1])


@pytest.mark.parametrize(
    ("sizes", "error", "message"),
    [
        ({"2": 21}, ValueError, r"sizes\['2'\], a count, must lie in \[1, 20\], got 21"),
        ({"2": 0}, ValueError, r"must lie in \[1, 20\], got 0"),
        ({"2": 1.5}, ValueError, r"a share \(a count is an int\), must lie in \(0, 1\], got 1.5"),
        ({"2": float("nan")}, ValueError, r"a share .* must lie in \(0, 1\], got nan"),
        ({"2": True}, TypeError, "count"),
        ({"9": 1}, ValueError, "unknown group '9'; known: 0, 1, 2"),
        ({"2": 3, 2: 4}, ValueError, "twice"),
        ({"2": 3, ("2", 0): 2}, ValueError, "twice"),
        ({("2", "lively"): 0.5}, ValueError, "unknown target 'lively'; known: 0"),
    ],
)
def test_imbalance_refuses_what_it_cannot_give(many, sizes, error, message):
    with pytest.raises(error, match=message):
        many.imbalance(sizes)


def test_imbalance_of_a_target_within_a_group_leaves_all_else():
    targets, groups = np.tile([0, 1], 50), np.repeat([0, 1], 50)
    data = GroupedDataset(np.arange(100.0)[:, None], targets, groups, ("no", "yes"), ("A", "B"))
    thin = data.imbalance({("B", "yes"): 0.2, ("A", 0): 10}, seed=1)
    crossed = thin.groups * 2 + thin.targets
    assert crossed.bincount().tolist() == [10, 25, 25, 5]
    assert torch.equal(thin.groups, data.groups[thin.inputs.flatten().long()])
    assert set(data.imbalance({("B", "yes"): 5}, seed=1).inputs.flatten().tolist()) < set(
        data.imbalance({("B", "yes"): 6}, seed=1).inputs.flatten().tolist()
    )


def test_imbalance_of_splits_is_that_of_every_part_and_is_reported():
    splits = fairlib.load(
        "synthetic-faces", target="expression", size=400, image_size=8, shares=(0.5, 0.5)
    )
    thin = splits.imbalance({("B", "lively"): 0.1}, seed=2)
    for part, whole in zip(thin, splits, strict=True):
        lively = (whole.groups == 1) & (whole.targets == 1)
        rare = (part.groups == 1) & (part.targets == 1)
        assert int(rare.sum()) == max(1, round(0.1 * int(lively.sum())))
        assert len(part) == len(whole) - int(lively.sum()) + int(rare.sum())
    assert [thin.report[name] for name in ("train", "val", "test")] == [len(part) for part in thin]
    assert thin.report["imbalanced"] == sum(map(len, splits)) - sum(map(len, thin))
    assert thin.name == splits.name


def test_a_held_out_part_has_its_share_of_every_crossing():
    targets, groups = np.repeat([0, 1], [60, 40]), np.tile([0, 0, 0, 1], 25)
    data = GroupedDataset(np.arange(100.0)[:, None], targets, groups)
    rest, held = data.hold_out(0.2, seed=3)
    assert sorted([*rest.inputs[:, 0].tolist(), *held.inputs[:, 0].tolist()]) == list(range(100))
    for target in (0, 1):
        for group in (0, 1):
            whole, part = (
                int(((d.targets == target) & (d.groups == group)).sum()) for d in (data, held)
            )
            assert abs(part - 0.2 * whole) <= 1
    assert data.hold_out(0.2, seed=3)[1].fingerprint() == held.fingerprint()
    assert data.hold_out(0.2, seed=4)[1].fingerprint() != held.fingerprint()
    with pytest.raises(ValueError, match=r"share must lie in \(0, 1\)"):
        data.hold_out(1.0)
    with pytest.raises(ValueError, match="leaves a part without samples"):
        data.subset([0]).hold_out(0.2)


def test_batch_feeds_uint8_as_fractions_of_255_and_floats_as_they_are(pictures):
    batch = pictures.batch([5, 1], dtype=torch.float64)
    assert batch.dtype == torch.float64
    expected = torch.tensor([50.0, 10.0], dtype=torch.float64) / 255
    assert torch.equal(batch, expected.view(2, 1, 1, 1).expand(2, 1, 2, 2))
    floats = GroupedDataset(np.array([[300.0, -2.0]]), [0], [0])
    assert floats.batch([0]).tolist() == [[300.0, -2.0]]
    assert floats.batch(0).dtype == torch.float32


def test_batch_normalizes_by_channel_after_scaling():
    images = np.array([255, 51], dtype=np.uint8).reshape(1, 2, 1, 1)
    data = GroupedDataset(images, [0], [0], normalize=([0.5, 0.1], [0.25, 0.1]))
    assert data.normalize == ((0.5, 0.1), (0.25, 0.1))
    assert data.batch([0]).flatten().tolist() == pytest.approx([2.0, 1.0])
    vectors = GroupedDataset(np.array([[1.0, 4.0]]), [0], [0], normalize=([0.0, 2.0], [1.0, 4.0]))
    assert vectors.batch([0]).tolist() == [[1.0, 0.5]]
    assert vectors.inputs.tolist() == [[1.0, 4.0]]


def test_the_fingerprint_is_that_of_the_contents():
    def build(inputs=(1.0, 2.0), targets=(0, 1), groups=(0, 1), **names):
        return GroupedDataset(
            np.array(inputs, dtype=np.float32)[:, None], targets, groups, **names
        ).fingerprint()

    others = [
        build(inputs=(1.0, 2.5)),
        build(targets=(1, 0)),
        build(groups=(1, 0)),
        build(target_names=["a", "b"]),
        build(group_names=["a", "b"]),
        build(normalize=([0.0], [2.0])),
    ]
    assert build() == build(target_names=["0", "1"])
    assert len({build(), *others}) == 7
    assert len(build()) == 64


def test_to_gives_a_data_set_and_leaves_the_old_one(pictures):
    moved = pictures.to("meta")
    assert (
        moved.inputs.device.type == moved.targets.device.type == moved.groups.device.type == "meta"
    )
    assert pictures.inputs.device.type == "cpu"
    assert pictures.to("cpu").fingerprint() == pictures.fingerprint()


def test_channels_last_and_reversed_arrays():
    images = np.arange(2 * 8 * 8 * 3, dtype=np.uint8).reshape(2, 8, 8, 3)
    with pytest.raises(ValueError, match=r"\(2, 8, 8, 3\) look like \(N, H, W, C\)"):
        GroupedDataset(images, [0, 1], [0, 1])
    reversed_channels = images.transpose(0, 3, 1, 2)[:, ::-1]
    assert np.array_equal(
        GroupedDataset(reversed_channels, [0, 1], [0, 1]).inputs.numpy(), reversed_channels
    )


def test_random_groups_keep_samples_targets_and_group_sizes():
    data = GroupedDataset(
        np.eye(6), [0, 1, 0, 1, 0, 1], [0, 0, 0, 0, 1, 2], group_names=["a", "b", "c"]
    )
    drawn = data.random_groups(3)
    assert torch.equal(drawn.inputs, data.inputs) and torch.equal(drawn.targets, data.targets)
    assert drawn.group_sizes.equals(data.group_sizes) and drawn.group_names == data.group_names
    assert (
        drawn.groups.tolist()
        == np.array([0, 0, 0, 0, 1, 2])[np.random.default_rng(3).permutation(6)].tolist()
    )


def test_rows_of_another_index_are_refused():
    inputs = pd.DataFrame(np.eye(4), index=[3, 1, 2, 0])
    labels = pd.Series(["a", "b", "a", "b"], inputs.index)
    data = GroupedDataset(inputs, labels, labels)
    assert data.groups.tolist() == [0, 1, 0, 1]
    other = labels.sort_index()
    for arguments in (
        (inputs, other, [0] * 4),
        (inputs, labels, other),
        (np.eye(4), labels, other),
    ):
        with pytest.raises(ValueError, match=r"and (inputs|targets) must have the same index"):
            GroupedDataset(*arguments)
    with pytest.raises(ValueError, match="groups and inputs must have the same index"):
        GroupedDataset(inputs, [0] * 4, {"a": ["x", "y"] * 2, "b": other})
    assert GroupedDataset(inputs, other.to_numpy(), labels).targets.tolist() == [1, 1, 0, 0]


def test_attributes_by_name_are_crossed():
    gender, race = ["f", "f", "m", "m"], ["x", "y", "x", "y"]
    for groups in (
        {"gender": gender, "race": race},
        pd.DataFrame({"gender": gender, "race": race}),
    ):
        data = GroupedDataset(np.eye(4), [0, 1, 0, 1], groups)
        assert data.group_names == ("f x x", "f x y", "m x x", "m x y")
        assert data.groups.tolist() == [0, 1, 2, 3]
        assert data.subset([0]).attributes == {"gender": ("f", "m"), "race": ("x", "y")}
    alone = GroupedDataset(np.eye(4), [0, 1, 0, 1], {"gender": gender})
    assert alone.group_names == ("f", "m") and not alone.attributes
    named = GroupedDataset(np.eye(4), [0, 1, 0, 1], {"gender": gender}, group_names=["m", "f"])
    assert named.group_names == ("m", "f") and named.groups.tolist() == [1, 1, 0, 0]
    twice = pd.concat([pd.Series(gender, name="value"), pd.Series(race, name="value")], axis=1)
    with pytest.raises(ValueError, match=r"groups must be attributes.* got \['value', 'value'\]"):
        GroupedDataset(np.eye(4), [0, 1, 0, 1], twice)


def test_arrays_of_other_libraries_are_read_or_refused():
    for values in (
        np.array([0, 1, 1], ">i8"),
        pd.array([0, 1, 1], "Int64"),
        np.ma.array([0, 1, 1]),
    ):
        assert labels_of(values) == ([0, 1, 1], ("0", "1"))
    big = GroupedDataset(np.eye(3, dtype=">f4"), [0, 1, 1], np.array(["b", "a", "a"], ">U1"))
    assert big.inputs.dtype == torch.float32 and torch.equal(big.inputs, torch.eye(3))
    assert big.groups.tolist() == [1, 0, 0]
    for inputs, message in (
        (np.ma.masked_array(np.eye(3), np.eye(3) > 0), "inputs has masked entries"),
        (scipy.sparse.coo_array(np.eye(3)), r"inputs must be dense, got coo_array"),
        (
            torch.eye(3).to(torch.float8_e5m2),
            "inputs must be uint8, float32 or float64, got torch.",
        ),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            GroupedDataset(inputs, [0, 1, 1], [0, 1, 1])
