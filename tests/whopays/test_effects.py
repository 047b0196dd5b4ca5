"""Effects on numbers worked by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from claim_samples import TABLE, study_table
from scipy import stats

from whopays import effects


def test_drop_difference_by_hand():
    # Seed 0: C (10 images) drops .3, A (100) drops 0. Seed 1: A (10) drops .1, C (100) gains .05.
    pd.testing.assert_series_equal(
        effects.drop_difference(TABLE, level=0.9),
        pd.Series({0: 0.3, 1: 0.15}).rename_axis("seed"),
    )


def test_accuracy_change_by_hand():
    assert effects.accuracy_change(TABLE, level=0.9, groups="smallest").tolist() == pytest.approx(
        [-0.3, -0.1]
    )
    assert effects.accuracy_change(TABLE, level=0.9, groups="largest").tolist() == pytest.approx(
        [0.0, 0.05]
    )


def test_another_column_falls_in_the_place_of_the_accuracy():
    """True positive rates of .8 and .6, which fall by .5 in the small group and by .1 in the large
    one."""
    table = study_table({3: [40, 10]}, {3: [0.9, 0.9]}, {3: [0.9, 0.9]})
    before, small = table["stage"] == "control", table["group"] == "B"
    table["rate"] = np.where(small, np.where(before, 0.6, 0.1), np.where(before, 0.8, 0.7))
    given = {"level": 0.9, "column": "rate"}
    assert effects.drop_difference(table, **given).tolist() == pytest.approx([0.4])


def test_a_share_of_groups_is_averaged():
    table = study_table({3: [40, 30, 20, 10]}, {3: [0.9] * 4}, {3: [0.9, 0.8, 0.6, 0.3]})
    assert effects.drop_difference(table, level=0.9, share=0.5).tolist() == pytest.approx(
        [0.45 - 0.05]
    )
    assert effects.drop_difference(table, level=0.9, share=0.25).tolist() == pytest.approx([0.6])


def test_all_other_groups_are_compared_with_the_majority():
    """Drops of .05 for the largest, and of .1, .2 and .6 for the three others, who had .8 on
    average."""
    table = study_table(
        {3: [40, 30, 20, 10]}, {3: [1.0, 0.9, 0.8, 0.7]}, {3: [0.95, 0.8, 0.6, 0.1]}
    )
    given = {"level": 0.9, "share": 0.1}
    assert effects.accuracy_change(table, groups="others", **given).tolist() == pytest.approx(
        [-0.3]
    )
    assert effects.drop_difference(table, others=True, **given).tolist() == pytest.approx(
        [0.3 - 0.05]
    )
    relative = effects.drop_difference(table, others=True, relative=True, **given)
    assert relative.tolist() == pytest.approx([0.3 / 0.8 - 0.05])


def test_a_relative_drop_is_a_share_of_what_the_groups_had():
    """Smallest two: (.8, .4) -> (.7, .1), a drop of .2 of .6; largest two: (1, .5) -> (.9, .5), .05
    of .75."""
    table = study_table({3: [40, 30, 20, 10]}, {3: [1.0, 0.5, 0.8, 0.4]}, {3: [0.9, 0.5, 0.7, 0.1]})
    relative = effects.drop_difference(table, level=0.9, share=0.5, relative=True)
    assert relative.tolist() == pytest.approx([0.2 / 0.6 - 0.05 / 0.75])
    smallest = effects.accuracy_change(
        table, level=0.9, share=0.5, groups="smallest", relative=True
    )
    assert smallest.tolist() == pytest.approx([-0.2 / 0.6])
    nothing = study_table({3: [40, 10]}, {3: [1.0, 0.0]}, {3: [0.9, 0.5]})
    with pytest.raises(
        ValueError, match="a relative change of the smallest groups needs an accuracy above 0"
    ):
        effects.drop_difference(nothing, level=0.9, share=0.5, relative=True)


def test_a_trend_is_the_rank_correlation_with_the_distance_from_the_control():
    """Seed 0: drops of .1, .3, .2 at .5, .7, .9: 1 - 6 (0 + 1 + 1) / 24. Seed 1: steady. Seed 2:
    none."""
    drops = {0.5: (0.1, 0.1, 0.2), 0.7: (0.3, 0.2, 0.2), 0.9: (0.2, 0.5, 0.2)}
    sizes, before = {seed: [40, 10] for seed in range(3)}, {seed: [0.9, 0.9] for seed in range(3)}
    parts = []
    for level, values in drops.items():
        part = study_table(
            sizes, before, {seed: [0.9, 0.9 - drop] for seed, drop in enumerate(values)}
        )
        compressed = part[(part["stage"] == "compressed") & (part["level"] == 0.9)]
        parts += [part[part["stage"] != "compressed"]] * (level == 0.5) + [
            compressed.assign(level=level)
        ]
    table = pd.concat(parts)
    trend = effects.level_trend(table, statistic="drop_difference", share=0.5)
    assert trend.tolist() == pytest.approx([0.5, 1.0, 0.0])
    turned = effects.level_trend(table, statistic="drop_difference", share=0.5, control=1.0)
    assert turned.tolist() == pytest.approx([-0.5, -1.0, 0.0])
    with pytest.raises(ValueError, match="needs three of them"):
        effects.level_trend(table[table["level"] != 0.7], statistic="drop_difference", share=0.5)


def test_a_trend_of_a_column_is_that_of_its_means():
    """Seed 0: means of 4, 2, 1 at .02, .1, .2, which grow with the distance from 1. Seed 1: 1, 3,
    2."""
    values = {0: {0.02: 4.0, 0.1: 2.0, 0.2: 1.0}, 1: {0.02: 1.0, 0.1: 3.0, 0.2: 2.0}}
    rows = [
        {
            "seed": seed,
            "stage": "compressed",
            "split": "test",
            "level": level,
            "group": group,
            "distance": value + add,
        }
        for seed, row in values.items()
        for level, value in row.items()
        for group, add in (("A", 0.5), ("B", -0.5))
    ]
    trend = effects.level_trend(
        pd.DataFrame(rows), statistic="column_mean", column="distance", control=1.0
    )
    assert trend.tolist() == pytest.approx([1.0, -0.5])


def test_one_contrast_beyond_another():
    """A constraint gives .3 under one method and .1 under the other."""
    accuracy = {("one", True): 0.8, ("one", False): 0.5, ("two", True): 0.7, ("two", False): 0.6}
    rows = [
        {"seed": 0, "method": m, "fair": f, "accuracy": value} for (m, f), value in accuracy.items()
    ]
    sides = {
        method: {
            "where": {"method": method, "fair": True},
            "against": {"method": method, "fair": False},
        }
        for method in ("one", "two")
    }
    given = {"of": "column_mean", "column": "accuracy", **sides["one"]}
    assert effects.contrast_rows(pd.DataFrame(rows), **given).tolist() == pytest.approx([0.3])
    assert effects.contrast_rows(
        pd.DataFrame(rows), beyond=sides["two"], **given
    ).tolist() == pytest.approx([0.2])


def test_what_was_known_before_is_correlated_with_what_happened():
    """Margins of the dense network (.1, .2, .3) and drops (.3, .1, .2): ranks (1, 2, 3) and (3, 1,
    2)."""
    dense = pd.DataFrame(
        {"seed": 0, "stage": "dense", "group": list("ABC"), "margin": [0.1, 0.2, 0.3], "drop": 0.0}
    )
    after = pd.DataFrame({"seed": 0, "stage": "compressed", "group": list("ABC"), "margin": 0.5})
    table = pd.concat([dense, after.assign(drop=[0.3, 0.1, 0.2])])
    given = {"x": "margin", "y": "drop", "where": {"stage": "compressed"}}
    found = effects.group_correlation(table, x_where={"stage": "dense"}, **given)
    assert found.tolist() == pytest.approx([-0.5])
    with pytest.raises(
        ValueError, match="the rows of margin and of drop do not cover the same seeds and groups"
    ):
        effects.group_correlation(table[1:], x_where={"stage": "dense"}, **given)


def test_groups_of_one_size_are_ranked_by_the_seed_and_not_by_name():
    seeds = range(300)
    flat, before, after = (
        {seed: row for seed in seeds} for row in ([20] * 3, [0.9] * 3, [0.6, 0.9, 0.9])
    )
    table = study_table(flat, before, after)
    values = effects.drop_difference(table, level=0.9)
    assert values.round(9).value_counts(normalize=True).to_dict() == pytest.approx(
        {0.3: 1 / 3, 0.0: 1 / 3, -0.3: 1 / 3}, abs=0.08
    )
    shuffled = table.sample(frac=1, random_state=0)
    pd.testing.assert_series_equal(effects.drop_difference(shuffled, level=0.9), values)


def test_an_equal_setting_is_ranked_by_the_sizes_of_the_unequal_one():
    equal = study_table(
        sizes={0: [50, 50, 50]},
        control={0: [0.9, 0.9, 0.9]},
        compressed={0: [0.9, 0.5, 0.1]},
        setting="equal",
    )
    sizes = {"unequal": [10, 50, 90], "reversed": [90, 50, 10]}
    others = [
        study_table(sizes={0: s}, control={0: [0.9] * 3}, compressed={0: [0.9] * 3}, setting=name)
        for name, s in sizes.items()
    ]
    table = pd.concat([equal, *others])
    values = [
        effects.drop_difference(
            table, level=0.9, where={"setting": "equal"}, rank_where={"setting": name}
        )[0]
        for name in sizes
    ]
    assert values == pytest.approx([-0.8, 0.8])


def test_where_selects_one_of_several_settings():
    other = TABLE.assign(accuracy=0.5, setting="equal")
    both = pd.concat([TABLE.assign(setting="unequal"), other])
    selected = effects.drop_difference(both, level=0.9, where={"setting": "unequal"})
    pd.testing.assert_series_equal(selected, effects.drop_difference(TABLE, level=0.9))
    with pytest.raises(
        ValueError, match=r"several rows per seed and group; select with `where` one of: setting$"
    ):
        effects.drop_difference(both, level=0.9)


@pytest.mark.parametrize(
    ("table", "arguments", "message"),
    [
        (TABLE.drop(columns="size"), {}, "no column size"),
        (TABLE, {"where": {"setting": "equal"}}, "no column setting"),
        (TABLE, {"where": {"stage": "sparse"}}, "no row with stage = 'sparse'"),
        (
            TABLE,
            {"level": 0.99},
            r"no compressed test rows at level 0.99; its levels: \[0.5, 0.9\]",
        ),
        (TABLE, {"share": 0.6}, "leaves no smallest and largest apart"),
        (TABLE, {"share": 0.0}, "leaves no smallest and largest apart"),
        (
            TABLE[(TABLE["stage"] != "control") | (TABLE["seed"] != 1)],
            {},
            "do not cover the same seeds",
        ),
    ],
)
def test_a_table_that_cannot_tell_is_refused(table, arguments, message):
    with pytest.raises(ValueError, match=message):
        effects.drop_difference(table, **({"level": 0.9} | arguments))


def test_loss_and_accuracy_can_disagree_about_who_pays():
    """By hand: the small group C loses .3 of accuracy, the large one A none; A's loss rises by 2,
    C's by 1 nat."""
    table = study_table({0: [100, 50, 10]}, {0: [0.9, 0.8, 0.7]}, {0: [0.9, 0.7, 0.4]}, loss=0.5)
    after = (table["stage"] == "compressed") & (table["level"] == 0.9)
    table.loc[after, "loss"] = table.loc[after, "group"].map({"A": 2.5, "B": 1.0, "C": 1.5})
    assert effects.drop_difference(table, level=0.9).tolist() == pytest.approx([0.3])
    assert effects.loss_difference(table, level=0.9).tolist() == pytest.approx([-1.0])
    with pytest.raises(ValueError, match="no column loss"):
        effects.loss_difference(TABLE, level=0.9)


def test_spread_change_by_hand():
    """9, 8 and 6 right of 10, 11 and 12; then 1, 3 and 6, which vary alike by chance: only the
    variances differ."""
    before, after = [0.9, 8 / 11, 0.5], [0.1, 3 / 11, 0.5]
    table = study_table({0: [1, 1, 1]}, {0: before}, {0: after})
    alike = [0.9, 3 / 11, 0.5]
    mixed = study_table({0: [1, 1, 1]}, {0: before}, {0: alike})
    assert effects.spread_change(table, level=0.9).tolist() == pytest.approx([0.0])
    change = np.var(alike, ddof=1) - np.var(before, ddof=1)
    assert effects.spread_change(mixed, level=0.9).tolist() == pytest.approx([change])


def test_the_less_noisy_side_of_a_spread_change_is_thinned_by_hand():
    """Of 9, 8 and 9 right of 10, 11 and 12 under the control a share is drawn; on average that
    changes nothing."""
    before, after = [9 / 10, 8 / 11, 9 / 12], [9 / 10, 7 / 11, 5 / 12]
    seeds = range(3000)
    every = [dict.fromkeys(seeds, row) for row in ([1, 1, 1], before, after)]
    values = effects.spread_change(study_table(*every), level=0.9)
    noise = [
        np.mean([a * (1 - a) / (n - 1) for a, n in zip(row, (10, 11, 12), strict=True)])
        for row in (before, after)
    ]
    expected = np.var(after, ddof=1) - noise[1] - (np.var(before, ddof=1) - noise[0])
    assert values.nunique() > 10 and abs(values.mean() - expected) < 4 * values.sem()
    pd.testing.assert_series_equal(effects.spread_change(study_table(*every), level=0.9), values)
    one = effects.spread_change(study_table(*({7: column[7]} for column in every)), level=0.9)
    assert one[7] == values[7]
    with pytest.raises(ValueError, match="no number of right answers among as many samples"):
        effects.spread_change(TABLE, level=0.9)


def test_spread_by_hand():
    """Of the test part .8 and .8 - gap, of 30 and 10 samples: gap^2 / 2 less the mean of A(1-A)/29
    and A(1-A)/9."""
    table, test = mitigated_table(), {"split": "test"}
    never, after = (
        [
            np.mean([g**2 / 2 - (0.16 / 29 + (0.8 - g) * (0.2 + g) / 9) / 2 for g in gaps])
            for gaps in by_seed
        ]
        for by_seed in ([(0.2, 0.4), (0.3, 0.5)], [(0.1,), (0.2,)])
    )
    found = effects.spread(table.sample(frac=1, random_state=0), where=test | {"when": "never"})
    pd.testing.assert_series_equal(found, pd.Series(never).rename_axis("seed"))
    sides = {"where": test | {"when": "after"}, "against": test | {"when": "never"}}
    change = effects.contrast_rows(table, of="spread", **sides)
    assert change.tolist() == pytest.approx(np.subtract(after, never), abs=0.1)
    fewer = table[(table["when"] == "never") | (table["group"] == "A")]
    with pytest.raises(ValueError, match="do not cover the same groups"):
        effects.contrast_rows(fewer, of="spread", **sides)
    with pytest.raises(ValueError, match="two groups or more, with two samples or more in each"):
        effects.spread(table.assign(size=1), where=test)
    with pytest.raises(ValueError, match="several rows per run and group"):
        effects.spread(table, where={})


def test_spread_change_is_the_contrast_of_spread_with_the_control():
    test = {"split": "test"}
    sides = {
        "where": test | {"stage": "compressed", "level": 0.9},
        "against": test | {"stage": "control"},
    }
    before, after = (
        {0: [0.9, 8 / 11, 0.75], 1: [0.8, 1.0, 0.5]},
        {0: [0.5, 5 / 11, 0.25], 1: [0.4, 6 / 11, 0.5]},
    )
    table = study_table({0: [1, 1, 1], 1: [1, 1, 1]}, before, after)
    found = effects.contrast_rows(table, of="spread", **sides)
    pd.testing.assert_series_equal(found, effects.spread_change(table, level=0.9))
    turned = effects.contrast_rows(
        table, of="spread", where=sides["against"], against=sides["where"]
    )
    pd.testing.assert_series_equal(turned, -found)


@pytest.mark.parametrize(
    ("before", "after"),
    [([0.9] * 5, [0.5] * 5), ([0.98, 0.83], [0.65, 0.5]), ([0.95, 0.9, 0.85], [0.8, 0.5, 0.4])],
)
def test_spread_change_is_unbiased_whatever_the_accuracies(before, after):
    """Groups alike, a gap that stays, and one that widens: the mean over many seeds is the true
    change of variance."""
    rng = np.random.default_rng(0)
    sizes, seeds = np.arange(10, 10 + len(before)), range(1500)
    control, compressed = (
        {s: (rng.binomial(sizes, p) / sizes).tolist() for s in seeds} for p in (before, after)
    )
    values = effects.spread_change(
        study_table(dict.fromkeys(seeds, sizes), control, compressed), level=0.9
    )
    truth = np.var(after, ddof=1) - np.var(before, ddof=1)
    assert abs(values.mean() - truth) < 4 * values.sem()
    assert values.sem() < 0.002


def test_spread_change_refuses_what_it_cannot_compare():
    with pytest.raises(ValueError, match="two groups or more"):
        effects.spread_change(TABLE[TABLE["group"] == "A"], level=0.9)
    with pytest.raises(ValueError, match="two samples or more in each"):
        effects.spread_change(TABLE.assign(size=1), level=0.9)
    with pytest.raises(ValueError, match="cover the same groups"):
        effects.spread_change(
            TABLE[(TABLE["stage"] == "control") | (TABLE["group"] != "C")], level=0.9
        )


def test_contrast_is_the_difference_of_two_statistics():
    other = TABLE.assign(method="b")
    other.loc[other["level"] == 0.9, "accuracy"] = 0.5
    both = pd.concat([TABLE.assign(method="a"), other])
    values = effects.contrast_rows(
        both, of="drop_difference", level=0.9, where={"method": "a"}, against={"method": "b"}
    )
    one, two = (effects.drop_difference(part, level=0.9) for part in (TABLE, other))
    pd.testing.assert_series_equal(values, one - two)
    with pytest.raises(ValueError, match="do not cover the same seeds"):
        effects.contrast_rows(
            both[(both["method"] == "a") | (both["seed"] == 0)],
            of="drop_difference", level=0.9, where={"method": "a"}, against={"method": "b"},
        )  # fmt: skip
    with pytest.raises(ValueError, match="unknown statistic 'drop'"):
        effects.contrast_rows(both, of="drop", where={}, against={})


def test_by_run_agrees_with_the_statistics_of_single_runs():
    rows = TABLE[TABLE["split"] == "test"].assign(pruner="magnitude")
    keys = ["pruner", "stage", "level", "seed"]
    found = effects.by_run(rows, keys)
    assert len(found) == len(rows.drop_duplicates(keys))
    for row in found.itertuples():
        where = {"stage": row.stage, "level": row.level, "seed": row.seed}
        assert row.accuracy == pytest.approx(effects.overall_accuracy(rows, where=where).item())
        assert row.bias == pytest.approx(effects.group_gap(rows, where=where).item())
        one = (
            rows[(rows[list(where)] == pd.Series(where)).all(axis=1)]
            .set_index("group")["accuracy"]
            .sort_index()
        )
        assert row.signed == pytest.approx(one.iloc[0] - one.iloc[-1])
    assert found[keys].equals(rows.drop_duplicates(keys)[keys].reset_index(drop=True))
    with pytest.raises(ValueError, match="several rows per group where seed are the same"):
        effects.by_run(rows, ["seed"])
    first = rows["group"] == sorted(rows["group"])[0]
    with pytest.raises(ValueError, match="the column accuracy has missing values"):
        effects.by_run(rows.assign(accuracy=rows["accuracy"].mask(first)), keys)
    without = rows.assign(accuracy=rows["accuracy"].mask(first), size=rows["size"].mask(first, 0))
    pd.testing.assert_frame_equal(effects.by_run(without, keys), effects.by_run(rows[~first], keys))


def test_by_arm_by_hand():
    table = mitigated_table().query("level == 0.9").sort_values("when", kind="stable")
    table["loss"] = table["size"] / 10 + table["seed"] * (table["group"] == "A")
    table.loc[table["split"] == "test", "size"] = (
        10  # The size in the training part ranks the groups.
    )
    found = effects.by_arm(table.assign(train_size=np.nan), ["when", "level"])
    assert found[["when", "level", "seed"]].values.tolist() == [
        ["after", 0.9, 0], ["after", 0.9, 1], ["never", 0.9, 0], ["never", 0.9, 1],
    ]  # fmt: skip
    np.testing.assert_allclose(found["accuracy"], [0.75, 0.7, 0.6, 0.55])
    np.testing.assert_allclose(found["gap"], [0.1, 0.2, 0.4, 0.5])
    np.testing.assert_allclose(found["smallest"], [0.7, 0.6, 0.4, 0.3])
    np.testing.assert_allclose(found["largest"], 0.8)
    np.testing.assert_allclose(found["loss_gap"], [2, 3, 2, 3])
    never = effects.group_gap_by_chance(table, where={"split": "test", "when": "never"})
    assert found["gap_by_chance"].tolist()[2:] == never.tolist()
    with pytest.raises(ValueError, match="no row with split = 'train'"):
        effects.by_arm(table[table["split"] == "test"], ["when", "level"])


def test_prices_are_those_of_each_arm_alone():
    table = TABLE
    two = pd.concat(
        [table.assign(arm="one"), table.assign(arm="other", accuracy=table["accuracy"] / 2)]
    )
    found = effects.arm_losses(two).set_index(["arm", "level", "seed"])
    for arm, share in (("one", 1.0), ("other", 0.5)):
        alone = effects.drop_difference(table, level=0.9)
        np.testing.assert_allclose(found.loc[(arm, 0.9), "difference"], share * alone)
        np.testing.assert_allclose(
            found.loc[(arm, 0.9), "average"], -share * effects.overall_change(table, level=0.9)
        )
    assert effects.arm_losses(two.assign(pruner=two["arm"])).columns[0] == "pruner"
    with pytest.raises(ValueError, match="no column arm or pruner"):
        effects.arm_losses(table)


def test_a_listed_value_must_be_left_when_all_conditions_hold():
    one = TABLE.assign(pruner="one")
    other = TABLE[TABLE["stage"] != "compressed"].assign(pruner="other")
    where = {"pruner": ["one", "other"], "stage": "compressed"}
    with pytest.raises(ValueError, match="no row with pruner = 'other' and the rest of"):
        effects.group_gap(pd.concat([one, other]), where=where)


def test_group_difference_by_hand():
    table = pd.DataFrame(
        {
            "seed": [0, 0, 0, 1, 1, 1] * 2,
            "group": list("ABC") * 4,
            "train_size": [30, 20, 10, 10, 20, 30] * 2,
            "share": [0.1, 0.2, 0.6, 0.3, 0.1, 0.2, *[0.0] * 6],
            "kind": ["pruned"] * 6 + ["dense"] * 6,
        }
    )
    values = effects.group_difference(table, column="share", where={"kind": "pruned"})
    assert values.tolist() == pytest.approx([0.5, 0.1])
    relative = effects.group_difference(
        table, column="share", relative=True, where={"kind": "pruned"}
    )
    assert relative.tolist() == pytest.approx([0.5 / 0.3, 0.1 / 0.2])
    with pytest.raises(
        ValueError, match="needs a positive mean over the groups; that of share is not"
    ):
        effects.group_difference(table, column="share", relative=True, where={"kind": "dense"})
    ends = effects.smallest_and_largest(table[table["kind"] == "pruned"], column="share")
    assert ends.to_dict("list") == {"smallest": [0.6, 0.3], "largest": [0.1, 0.2]} and list(
        ends.index
    ) == [0, 1]
    with pytest.raises(ValueError, match="several rows per seed and group"):
        effects.group_difference(table, column="share", where={})
    with pytest.raises(ValueError, match="no column exemplars"):
        effects.group_difference(table, column="exemplars", where={})


def test_group_correlation_by_hand_and_by_scipy():
    table = pd.DataFrame(
        {
            "seed": [0] * 4 + [1] * 4,
            "group": list("ABCD") * 2,
            "x": [1.0, 2.0, 3.0, 4.0, 5.0, 5.0, 1.0, 2.0],
            "y": [10.0, 30.0, 20.0, 40.0, -1.0, -2.0, -3.0, 7.0],
            "split": "train",
        }
    )
    values = effects.group_correlation(table, x="x", y="y", where={"split": "train"})
    assert values.loc[0] == pytest.approx(0.8)  # 1 - 6 * (0 + 1 + 1 + 0) / (4 * 15).
    second = table[table["seed"] == 1]
    assert values.loc[1] == pytest.approx(stats.spearmanr(second["x"], second["y"]).statistic)
    flat = table.assign(x=1.0)
    with pytest.raises(ValueError, match="column x has a missing value or is constant"):
        effects.group_correlation(flat, x="x", y="y", where={"split": "train"})
    with pytest.raises(ValueError, match="needs three groups, got 2"):
        effects.group_correlation(
            table[table["group"] < "C"], x="x", y="y", where={"split": "train"}
        )


def test_who_was_low_in_the_original_network_is_ranked_against_the_drop():
    """Seed 0: A was best, then B, C; drops of 0, .1, .3: -1. Seed 1: .1, 0, .3, 2 of 3 in order:
    -.5. Seed 2: none.

    What the dense network of the same seed had is left out: .65 for A in seed 0 changes seed 1
    alone."""
    control = {seed: [0.9, 0.9, 0.9] for seed in range(3)}
    pruned = {0: [0.9, 0.8, 0.6], 1: [0.8, 0.9, 0.6], 2: [0.7, 0.7, 0.7]}
    table = study_table({seed: [30, 20, 10] for seed in range(3)}, control, pruned)
    dense = (table["stage"] == "dense") & (table["split"] == "test")
    with pytest.raises(effects.UndefinedError, match="three groups that differ in accuracy"):
        effects.drop_correlation(table, level=0.9)
    table.loc[dense, "accuracy"] = table.loc[dense, "group"].map({"A": 0.9, "B": 0.8, "C": 0.7})
    assert effects.drop_correlation(table, level=0.9).tolist() == pytest.approx([-1.0, -0.5, 0.0])
    own = dense & (table["seed"] == 0) & (table["group"] == "A")
    alone = table.assign(
        accuracy=table["accuracy"].mask(own, 0.65)
    )  # In seed 1 the others' means are .775, .8, .7.
    assert effects.drop_correlation(alone, level=0.9).tolist() == pytest.approx([-1.0, -1.0, 0.0])
    with pytest.raises(effects.UndefinedError, match="needs two seeds"):
        effects.drop_correlation(table[table["seed"] == 0], level=0.9)
    with pytest.raises(ValueError, match="do not cover the same seeds and groups"):
        effects.drop_correlation(table[~dense | (table["seed"] != 1)], level=0.9)
    with pytest.raises(effects.MissingRowsError, match="no row with stage = 'dense'"):
        effects.drop_correlation(table[table["stage"] != "dense"], level=0.9)


def test_column_mean_by_hand():
    table = pd.DataFrame(
        {"seed": [0, 0, 1], "statement": ["one", "two", "one"], "violated": [0.25, 0.75, 1.0]}
    )
    assert effects.column_mean(table, column="violated").to_dict() == {0: 0.5, 1: 1.0}
    assert effects.column_mean(table, column="violated", where={"statement": "one"}).to_dict() == {
        0: 0.25,
        1: 1.0,
    }
    with pytest.raises(ValueError, match="has missing values"):
        effects.column_mean(table.assign(violated=np.nan), column="violated")


def mitigated_table() -> pd.DataFrame:
    """Two seeds, two groups, three runs each; the rows of the training set mislead."""
    rows = [
        (
            seed,
            "compressed",
            level,
            when,
            split,
            group,
            size,
            (accuracy if split == "test" else 0.5),
        )
        for seed, shift in ((0, 0.0), (1, 0.1))
        for level, when, gap in ((0.5, "never", 0.2), (0.9, "never", 0.4), (0.9, "after", 0.1))
        for split in ("train", "test")
        for group, size, accuracy in (("A", 30, 0.8), ("B", 10, 0.8 - gap - shift))
    ]
    return pd.DataFrame(
        rows, columns=["seed", "stage", "level", "when", "split", "group", "size", "accuracy"]
    )


def test_degradation_gap_by_hand():
    # Seed 0: A drops .1 and B .3; seed 1: A gains .1 and B drops .1.
    table = study_table(
        {0: [9, 9], 1: [9, 9]}, {0: [0.9, 0.8], 1: [0.7, 0.6]}, {0: [0.8, 0.5], 1: [0.8, 0.5]}
    )
    table = table.assign(when="never")
    where = {"stage": "compressed", "split": "test", "level": 0.9}
    dense = {"stage": "control", "split": "test"}
    found = effects.degradation_gap(table, where=where, dense=dense)
    pd.testing.assert_series_equal(found, pd.Series({0: 0.2, 1: 0.2}).rename_axis("seed"))
    runs = pd.DataFrame(
        {"seed": [0, 0, 1, 1], "pruner": ["dense", "x"] * 2, "signed": [0.1, 0.3, 0.1, -0.4]}
    )
    where, dense = {"pruner": "x"}, {"pruner": "dense"}
    assert effects.degradation_gap(runs, where=where, dense=dense).tolist() == pytest.approx(
        [0.2, 0.5]
    )
    with pytest.raises(ValueError, match="a seed has no run"):
        effects.degradation_gap(runs.drop(2), where=where, dense=dense)
    with pytest.raises(ValueError, match="not one run per seed"):
        effects.degradation_gap(runs.assign(pruner="x"), where=where, dense=where)


def test_group_gap_by_hand():
    table, test = mitigated_table(), {"split": "test"}
    gap = effects.group_gap(table, where=test | {"level": [0.5, 0.9], "when": "never"})
    pd.testing.assert_series_equal(gap, pd.Series({0: 0.3, 1: 0.4}).rename_axis("seed"))
    shuffled = table.sample(frac=1, random_state=0)
    assert effects.group_gap(shuffled, where=test | {"when": "after"}).tolist() == pytest.approx(
        [0.1, 0.2]
    )
    relative = effects.group_gap(table, relative=True, where=test | {"when": "after"})
    assert relative.tolist() == pytest.approx([0.1 / 0.75, 0.2 / 0.7])
    several = effects.group_gap(table, relative=True, where=test | {"when": "never"})
    assert several.tolist() == pytest.approx(
        [(0.2 / 0.7 + 0.4 / 0.6) / 2, (0.3 / 0.65 + 0.5 / 0.55) / 2]
    )
    change = effects.contrast_rows(
        table,
        of="group_gap",
        where=test | {"when": "after"},
        against=test | {"when": "never", "level": 0.9},
    )
    assert change.tolist() == pytest.approx([-0.3, -0.3])
    fewer = table[(table["when"] == "never") | (table["group"] == "A")]
    with pytest.raises(ValueError, match="do not cover the same groups"):
        effects.contrast_rows(
            fewer, of="group_gap", where=test | {"when": "after"}, against=test | {"when": "never"}
        )


def test_the_gap_by_chance_of_two_groups_is_that_of_two_binomial_variables():
    table = mitigated_table()
    found = effects.group_gap_by_chance(
        table, where={"split": "test", "when": "after"}, draws=20_000
    )
    for gap, accuracy in zip(found, (0.8 - 0.1 / 4, 0.8 - 0.2 / 4), strict=True):
        first, second = (stats.binom.pmf(range(n + 1), n, accuracy) for n in (30, 10))
        gaps = abs(np.arange(31)[:, None] / 30 - np.arange(11) / 10)
        assert gap == pytest.approx(first @ gaps @ second, abs=0.003)
    again = effects.group_gap_by_chance(
        table, where={"split": "test", "when": "after"}, draws=20_000
    )
    pd.testing.assert_series_equal(found, again)


def test_the_gap_of_losses_by_chance_has_the_chance_of_the_dense_network_too():
    """Two groups, both .95 before and .8 after: the gap is that of the difference of four binomial
    variables."""
    table = study_table({0: [9, 9]}, {0: [0.95, 0.95]}, {0: [0.8, 0.8]}).assign(
        when="never", size=20
    )
    where = {"stage": "compressed", "split": "test", "level": 0.9}
    found = effects.group_gap_by_chance(
        table, where=where, dense={"stage": "control", "split": "test"}, draws=20_000
    )
    before, after = (stats.binom.pmf(range(21), 20, accuracy) for accuracy in (0.95, 0.8))
    lost = np.convolve(before, after[::-1])
    difference = np.convolve(lost, lost[::-1])
    expected = difference @ abs(np.arange(len(difference)) - len(difference) // 2) / 20
    assert found.item() == pytest.approx(expected, abs=0.003)
    dense = {"stage": "control", "split": "test"}
    nested = effects.group_gap_by_chance(table, where=where, dense=dense, nested=True, draws=20_000)
    lost = stats.binom.pmf(range(21), 20, 0.15)  # Of those that the dense network answers rightly.
    difference = np.convolve(lost, lost[::-1])
    assert nested.item() == pytest.approx(difference @ abs(np.arange(-20, 21)) / 20, abs=0.003)


def test_chance_has_a_part_in_the_contrast_of_gaps_in_accuracy_alone():
    table, sides = mitigated_table(), {"where": {"split": "test", "level": 0.9, "when": "after"}}
    sides["against"] = sides["where"] | {"when": "never"}
    (found,) = effects.by_chance(table, name="contrast", of="group_gap", **sides)
    pd.testing.assert_series_equal(
        found, effects.contrast_rows(table, of="group_gap_by_chance", **sides)
    )
    assert (found < 0).all()  # The network that is less accurate is the one without mitigation.
    (each,) = effects.by_chance(
        table, name="contrast", of="group_gap", each={"level": [0.9]}, **sides
    )
    assert each["level 0.9"].tolist() == found.tolist()
    for other in ({"of": "overall_accuracy"}, {"of": "group_gap", "column": "size"}):
        assert effects.by_chance(table, name="contrast", **other, **sides) == []
    with pytest.raises(effects.MissingRowsError, match="no column size"):
        effects.by_chance(table.drop(columns="size"), name="contrast", of="group_gap", **sides)
    assert effects.by_chance(table, name="group_gap", where=sides["where"]) == []
    dense = {"dense": {"split": "test", "level": 0.5}}
    both = effects.by_chance(table, name="contrast", of="degradation_gap", **dense, **sides)
    asked = [
        effects.contrast_rows(table, of="group_gap_by_chance", **dense, **sides, nested=how)
        for how in (False, True)
    ]
    for one, other in zip(both, asked, strict=True):
        pd.testing.assert_series_equal(one, other)
    assert (both[0] != both[1]).all()


def test_overall_accuracy_by_hand():
    table = mitigated_table()
    values = effects.overall_accuracy(table, where={"split": "test", "when": "never"})
    assert values.tolist() == pytest.approx([0.8 - 0.3 / 4, 0.8 - 0.4 / 4])


def test_runs_that_cannot_be_compared_are_refused():
    table = mitigated_table()
    with pytest.raises(ValueError, match="several rows per run and group"):
        effects.group_gap(table, where={})
    partial = table[(table["seed"] == 0) | (table["level"] == 0.5)]
    with pytest.raises(ValueError, match="a seed lacks a run"):
        effects.group_gap(partial, where={"split": "test"})
    missing = table.assign(accuracy=table["accuracy"].where(table["group"] == "A"))
    with pytest.raises(ValueError, match="missing value"):
        effects.overall_accuracy(missing, where={"split": "test"})
    with pytest.raises(ValueError, match="no row with when = 'both'"):  # One of several is missing.
        effects.group_gap(table, where={"split": "test", "when": ("never", "both")})
    with pytest.raises(ValueError, match="needs a positive mean"):
        effects.group_gap(table.assign(accuracy=0.0), relative=True, where={"split": "test"})
    with pytest.raises(ValueError, match="needs groups with samples"):
        effects.overall_accuracy(table.assign(size=0), where={"split": "test"})


def test_select_gives_the_rows_with_the_values_asked_for():
    found = effects.select(TABLE, stage="compressed", split="test", level=[0.5, 0.9])
    assert found.equals(TABLE[(TABLE["stage"] == "compressed") & (TABLE["split"] == "test")])
    with pytest.raises(ValueError, match=r"the table has no row with level = 0\.7"):
        effects.select(TABLE, level=[0.5, 0.7])
    with pytest.raises(ValueError, match="the table has no column setting"):
        effects.select(TABLE, setting="equal")


def test_attach_puts_the_value_of_other_rows_beside_each_row():
    on = ["seed", "group"]
    found = effects.attach(
        TABLE, {"train_size": "size"}, on=on, where={"stage": "dense", "split": "train"}
    )
    sizes = {0: {"A": 100, "B": 50, "C": 10}, 1: {"A": 10, "B": 50, "C": 100}}
    assert found["train_size"].tolist() == [
        sizes[seed][group] for seed, group in TABLE[["seed", "group"]].to_numpy()
    ]
    assert found.drop(columns="train_size").equals(TABLE) and "train_size" not in TABLE
    one = effects.attach(TABLE, {"first": "size"}, on=on, where={"seed": 0, "split": "train"})
    assert (
        one.loc[one["seed"] == 1, "first"].isna().all()
        and one.loc[one["seed"] == 0, "first"].notna().all()
    )
    with pytest.raises(
        ValueError, match="several values of size where seed, group are the same; select rows"
    ):
        effects.attach(TABLE, {"size_of": "size"}, on=on, where={"stage": "dense"})


def test_what_was_lost_is_measured_against_the_control_of_the_same_part():
    study = effects.against_control(TABLE.assign(loss=1 - TABLE["accuracy"]))
    found = effects.select(study, stage="compressed", split="test", level=0.9)
    seeds = found.sort_values(["seed", "group"]).groupby("seed")
    assert seeds["train_size"].apply(list).tolist() == [[100, 50, 10], [10, 50, 100]]
    np.testing.assert_allclose(
        seeds["drop"].apply(list).tolist(), [[0, 0.1, 0.3], [0.1, 0, -0.05]], atol=1e-12
    )
    np.testing.assert_allclose(found["excessive_loss"], found["drop"], atol=1e-12)
    control = effects.select(study, stage="control")
    assert not control["drop"].any() and not control["excessive_loss"].any()
    with pytest.raises(ValueError, match="no row with stage = 'control'"):
        effects.against_control(effects.select(study, stage="compressed"))


def test_a_price_is_in_trainings_of_the_plain_dense_network():
    stages, seeds = ["dense", "compressed", "dense", "compressed"], [0, 0, 1, 1]
    plain = pd.DataFrame(
        {"seed": seeds, "stage": stages, "arm": "plain", "gradients": [100, 150, 200, 200]}
    )
    fair = pd.DataFrame(
        {"seed": seeds, "stage": stages, "arm": "fair", "gradients": [110, 330, 220, 500]}
    )
    table = pd.concat([plain, fair], ignore_index=True)
    assert effects.price(table).tolist() == pytest.approx([0, 0.5, 0, 0, 0.1, 2.3, 0.1, 1.5])
    with pytest.raises(ValueError, match="no row with stage = 'dense'"):
        effects.price(table[table["stage"] != "dense"])


def test_overall_change_weighs_the_groups_by_their_test_samples():
    """Seed 0: (.9, .7, .4) after (.9, .8, .7) of 10, 11 and 12 samples; seed 1: (.8, .8, .75)."""
    found = effects.overall_change(TABLE, level=0.9)
    assert found.tolist() == pytest.approx(
        [-(11 * 0.1 + 12 * 0.3) / 33, (10 * -0.1 + 12 * 0.05) / 33]
    )


def test_by_level_is_the_statistic_at_every_level():
    table = pd.concat([TABLE.assign(setting="a"), TABLE.assign(setting="b", accuracy=0.5)])
    where = {"setting": "a"}
    drops = effects.by_level(table, of="drop_difference", where=where, share=1 / 3)
    assert list(drops) == [0.5, 0.9] and drops.index.tolist() == [0, 1]
    pd.testing.assert_series_equal(
        drops[0.9], effects.drop_difference(TABLE, level=0.9), check_names=False
    )
    gaps = effects.by_level(table, of="group_gap", where=where, control=True)
    assert list(gaps) == [0.0, 0.5, 0.9]
    assert gaps.to_numpy() == pytest.approx(np.array([[0.2, 0.0, 0.5], [0.2, 0.0, 0.05]]))
    train = effects.by_level(table, of="overall_accuracy", where=where | {"split": "train"})
    assert (train == 1.0).all(axis=None) and list(train) == [0.5, 0.9]
    with pytest.raises(ValueError, match="unknown statistic 'drop'"):
        effects.by_level(table, of="drop")


def test_arms_are_runs_of_their_own():
    """One arm has a gap of .2 at .9, the other none: the mean over both runs."""
    rows = effects.select(TABLE, split="test", stage="control", seed=0)
    both = pd.concat([rows.assign(arm="one"), rows.assign(arm="other", accuracy=0.5)])
    assert effects.group_gap(both, where={}).tolist() == pytest.approx([0.1])
    with pytest.raises(ValueError, match="several rows per run and group"):
        effects.group_gap(both.drop(columns="arm"), where={})


def test_cells_are_the_statistic_at_each_level():
    found = effects.cells(TABLE, name="drop_difference", each={"level": [0.9, 0.5]}, share=1 / 3)
    assert list(found) == ["level 0.9", "level 0.5"]
    for level in (0.5, 0.9):
        alone = effects.drop_difference(TABLE, level=level)
        pd.testing.assert_series_equal(found[f"level {level}"], alone, check_names=False)
    every = effects.cells(TABLE, name="drop_difference", each={"level": "all"})
    pd.testing.assert_frame_equal(every, found[["level 0.5", "level 0.9"]])


def rivals() -> pd.DataFrame:
    """Gaps of .2, .5 and .3 of the pruners a, b and c at level .5, and twice as wide at .9."""
    rows = [
        (seed, "compressed", level, "never", pruner, group, 0.9 - (group == "B") * gap * scale)
        for seed in range(2)
        for level, scale in ((0.5, 0.5), (0.9, 1.0))
        for pruner, gap in (("a", 0.2), ("b", 0.5), ("c", 0.3))
        for group in "AB"
    ]
    return pd.DataFrame(
        rows, columns=["seed", "stage", "level", "when", "pruner", "group", "accuracy"]
    )


def test_cells_of_a_contrast_vary_both_sides_and_the_rival_alone():
    sides = {"where": {"pruner": "a"}, "against": {"pruner": "b"}}
    both = effects.cells(rivals(), name="contrast", of="group_gap", each={"level": "all"}, **sides)
    assert both.iloc[0].to_dict() == pytest.approx({"level 0.5": -0.15, "level 0.9": -0.3})
    each = {"level": [0.5, 0.9], "against": {"pruner": ["b", "c"]}}
    found = effects.cells(
        rivals(), name="contrast", of="group_gap", each=each, where={"pruner": "a"}, against={}
    )
    assert found.iloc[1].to_dict() == pytest.approx(
        {
            "level 0.5, against pruner b": -0.15, "level 0.5, against pruner c": -0.05,
            "level 0.9, against pruner b": -0.3, "level 0.9, against pruner c": -0.1,
        }
    )  # fmt: skip
    fixed = {"where": {"pruner": "a"}, "against": {"pruner": "a", "level": 0.5}}
    grown = effects.cells(rivals(), name="contrast", of="group_gap", each={"level": [0.9]}, **fixed)
    assert grown["level 0.9"].tolist() == pytest.approx([0.1, 0.1])


def test_a_cell_that_the_table_lacks_is_named():
    with pytest.raises(effects.MissingRowsError, match=r"cell 'level 0\.99': .* at level 0\.99"):
        effects.cells(TABLE, name="drop_difference", each={"level": [0.9, 0.99]})
    with pytest.raises(
        effects.MissingRowsError, match=r"cell 'against pruner d': .* no row with pruner = 'd'"
    ):
        each = {"against": {"pruner": ["b", "d"]}}
        effects.cells(
            rivals(),
            name="contrast",
            of="group_gap",
            each=each,
            where={"pruner": "a", "level": 0.5},
        )
    fewer = TABLE[(TABLE["level"] != 0.5) | (TABLE["seed"] == 0)]
    with pytest.raises(
        ValueError, match=r"the cells do not have the same seeds: 'level 0\.5' lacks one"
    ):
        effects.cells(fewer, name="drop_difference", each={"level": "all"})
    fewer = rivals().query("seed == 0 or level == 0.9")
    with pytest.raises(
        ValueError, match=r"the cells do not have the same seeds: 'level 0\.5' lacks one"
    ):
        effects.cells(fewer, name="group_gap", each={"level": "all"}, where={"pruner": "a"})
    with pytest.raises(ValueError, match="unknown statistic 'drop'"):
        effects.cells(TABLE, name="drop", each={"level": "all"})


def floor_table(
    accuracy: dict[str, float], constant: dict[str, float] | None = None
) -> pd.DataFrame:
    """Ten seeds, a control and a compressed network that is never right; groups of 10, 20, 30 test
    samples."""
    rows = [
        {"seed": seed, "stage": stage, "split": "test", "group": group, "size": 10 * i,
         "accuracy": right if stage == "control" else 0.0} | ({"constant": constant[group]} if constant else {})
        for seed in range(10)
        for stage in ("control", "compressed")
        for i, (group, right) in enumerate(accuracy.items(), start=1)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def test_a_group_that_the_control_has_not_learned_is_at_the_floor():
    assert effects.at_floor(floor_table({"A": 0.99, "B": 0.8, "C": 0.1})) == []
    assert effects.at_floor(floor_table({"A": 0.09, "B": 0.8, "C": 0.004})) == ["A", "C"]
    other = floor_table({"A": 0.0, "B": 0.8, "C": 0.9}).assign(pruner="other")
    both = pd.concat([floor_table({"A": 0.5, "B": 0.8, "C": 0.9}).assign(pruner="one"), other])
    assert effects.at_floor(both, where={"pruner": "other"}) == ["A"]
    assert effects.at_floor(both, where={"pruner": "one"}) == []


def test_the_floor_is_what_a_constant_answer_has():
    """A constant answer is right for .4 of A and B, .6 of C: A avoids .061 of .6 of its errors, B
    .05, C .3 of .4."""
    constant = {"A": 0.4, "B": 0.4, "C": 0.6}
    assert effects.at_floor(floor_table({"A": 0.461, "B": 0.45, "C": 0.9}, constant)) == ["B"]
    assert effects.at_floor(floor_table({"A": 0.9, "B": 0.9, "C": 0.6}, constant)) == ["C"]
    every = dict.fromkeys("ABC", 0.79)
    assert effects.at_floor(floor_table(every, every)) == ["A", "B", "C"]


def test_a_group_that_a_constant_serves_is_at_the_floor():
    """Men: *not blond* is right for .98, the control for .97. Women: .77 and .9, so that they can
    lose .13."""
    blond = floor_table({"men": 0.97, "women": 0.9}, {"men": 0.98, "women": 0.77})
    assert effects.at_floor(blond) == effects.at_floor(blond, classes=False) == ["men"]
    assert effects.at_floor(blond, least=0.14) == ["men", "women"]
    assert effects.at_floor(blond, overall=True) == []
    # Of blond men one in twenty is called blond, of blond women most.
    rates = blond.assign(rate_true_positive=blond["group"].map({"men": 0.05, "women": 0.8}))
    assert effects.at_floor(rates, column="rate_true_positive", classes=False) == ["men"]
    lacking = rates.assign(rate_true_positive=float("nan"))
    with pytest.raises(ValueError, match="the column rate_true_positive has missing values"):
        effects.at_floor(lacking, column="rate_true_positive")
    assert effects.at_floor(floor_table({"A": 0.98}, {"A": 0.98}), overall=True) == ["A"]


def test_the_class_that_is_most_frequent_can_lose_its_recall():
    classes = {"Others": 0.0, "Black": 0.0, "White": 1.0}
    known = {"Others": 0.4, "Black": 0.8, "White": 0.9}
    assert effects.at_floor(floor_table(known, classes)) == []
    assert effects.at_floor(floor_table(known | {"Others": 0.09}, classes)) == ["Others"]


def test_groups_that_are_not_the_classes_need_the_accuracy_of_a_constant_answer():
    table = floor_table({"A": 0.9, "B": 0.8})
    with pytest.raises(effects.MissingRowsError, match="no column constant"):
        effects.at_floor(table, classes=False)
    every = dict.fromkeys("AB", 0.79)
    assert effects.at_floor(floor_table(every, every), classes=False) == ["A", "B"]
    with pytest.raises(ValueError, match="column accuracy has missing values"):
        effects.at_floor(table.assign(accuracy=np.nan))


def test_a_floor_needs_a_control():
    table = floor_table({"A": 0.9, "B": 0.8})
    with pytest.raises(effects.MissingRowsError, match="no row with stage = 'control'"):
        effects.at_floor(table[table["stage"] != "control"])
    with pytest.raises(effects.MissingRowsError, match="no column size"):
        effects.at_floor(table.drop(columns="size"))
