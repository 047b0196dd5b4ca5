from __future__ import annotations

import inspect
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import fairlib
from fairlib import Arm, study
from fairlib.diagnostics import group_performance
from fairlib.network import masks
from fairlib.pruning import PRUNING
from fairlib.studies import Run, RunSettings, traced
from fairlib.studies.arms import COMPRESSORS

SMALL = dict(
    data=("digits", {"size": 120}),
    model=("cnn", {"channels": (4, 8), "hidden": (16, 8)}),
    train={"epochs": 2, "lr": 0.05},
    finetune={"epochs": 2},
    seeds=[0],
    run=RunSettings(cache=None),
)
SKIP = {"run": RunSettings(cache=None, divergence="skip")}
FAIR = ("equal-loss", {"step": 5.0})


@pytest.fixture
def trainings(monkeypatch):
    """What a study has trained."""
    calls = []

    def noted(trainings, cache):
        calls.extend(training.settings for training in trainings)
        return fairlib.training.fit_all(trainings)

    monkeypatch.setattr("fairlib.studies.stages.fit_all", noted)
    return calls


@pytest.mark.slow
def test_the_rows_of_an_arm_are_those_of_a_study_with_that_arm_alone():
    arms = {
        "plain": Arm("prune:magnitude"),
        "F&P": Arm("prune:magnitude", FAIR, "before"),
        "P&F": Arm("prune:magnitude", FAIR, "after", finetune={"epochs": 3}),
        "early": Arm("prune:snip", compress="initial", levels=[0.5], train={"epochs": 1}),
    }
    table = study(**SMALL, levels=[0.5, 0.9], arms=arms)
    alone = {
        "plain": study(**SMALL, method="prune:magnitude", levels=[0.5, 0.9]),
        "F&P": study(
            **SMALL, method="prune:magnitude", levels=[0.5, 0.9], mitigation=FAIR, when="before"
        ),
        "P&F": study(
            **SMALL | {"finetune": {"epochs": 3}},
            method="prune:magnitude",
            levels=[0.5, 0.9],
            mitigation=FAIR,
            when="after",
        ),
    }
    assert list(table)[-1] == "arm" and list(table["arm"].unique()) == list(arms)
    for name, expected in alone.items():
        rows = table[table["arm"] == name].drop(columns="arm").reset_index(drop=True)
        pd.testing.assert_frame_equal(rows, expected)
    assert set(
        table.loc[(table["arm"] == "early") & (table["stage"] == "compressed"), "level"]
    ) == {0.5}


def test_arms_share_dense_networks_and_control(trainings):
    arms = {
        "a": Arm("prune:magnitude"),
        "b": Arm("prune:random"),
        "c": Arm("prune:random", when="after"),
        "d": Arm("prune:random", when="before"),
    }
    study(**SMALL, arms=arms, levels=[0.5], mitigation=FAIR)
    held = [bool(settings.get("constraint")) for settings in trainings]
    # Two dense networks, plain and fair; controls of a (and b), of c and of d; four networks that
    # were pruned.
    assert len(trainings) == 2 + 3 + 4 and sum(held) == 1 + 1 + 1


def test_an_arm_without_a_control_trains_none_and_changes_nothing_else(trainings):
    arms = {"plain": Arm("prune:magnitude"), "held": Arm("prune:magnitude", FAIR, "after")}
    both = study(**SMALL, arms=arms, levels=[0.5])
    trainings.clear()
    table = study(**SMALL, arms=arms | {"held": replace(arms["held"], control=False)}, levels=[0.5])
    assert (
        len(trainings) == 1 + 1 + 2 and sum(bool(each.get("constraint")) for each in trainings) == 1
    )
    others = both[(both["arm"] == "plain") | (both["stage"] != "control")].reset_index(drop=True)
    pd.testing.assert_frame_equal(table, others)


def test_arms_that_compress_alike_share_the_compressed_network(monkeypatch):
    levels = []

    def counted(model, name, *, sparsity, **settings):
        levels.append((name, sparsity))
        return fairlib.prune(model, name, sparsity=sparsity, **settings)

    monkeypatch.setitem(COMPRESSORS, "prune", replace(PRUNING, function=counted))
    arms = {
        "plain": Arm("prune:random"),
        "fair after it": Arm("prune:random", mitigation=FAIR, when="after"),
        "fair before it": Arm("prune:random", mitigation=FAIR, when="before"),
        "by magnitude": Arm("prune:magnitude"),
    }
    study(**SMALL, arms=arms, levels=[0.5, 0.8])
    # The network that was fair before is another one, and so is what is left of it.
    assert levels == [
        (name, level) for name in ("random", "random", "magnitude") for level in (0.5, 0.8)
    ]


def test_arms_whose_settings_differ_in_data_of_one_shape_share_no_network(monkeypatch):
    given = []

    def compress(model, name, *, sparsity, val, **settings):
        given.append(val)
        return fairlib.prune(model, "magnitude", sparsity=sparsity)

    monkeypatch.setitem(COMPRESSORS, "prune", replace(PRUNING, function=compress))
    one = fairlib.load("digits", size=120).val
    other = fairlib.GroupedDataset(255 - one.inputs, one.targets, one.groups)
    assert repr(one) == repr(other)
    settings = SMALL | {"finetune": {"epochs": 0}}
    study(
        **settings,
        arms={str(i): Arm(("prune:bip", {"val": val})) for i, val in enumerate([one, other])},
        levels=[0.5],
    )
    assert given == [one, other]


def held_out_by(method, function, **settings):
    """What a method was given as held-out data in a study of one level, and the splits of that
    study."""
    given, splits = [], fairlib.load("digits", size=120)

    def spy(*arguments, **options):
        given.append(options.get("val"))
        raise StopIteration

    with pytest.MonkeyPatch.context() as patch:
        entry, name = function
        patch.setitem(entry, name, replace(entry[name], function=spy))
        with pytest.raises((StopIteration, RuntimeError)):
            trained = SMALL | {"data": splits, "train": {"epochs": 20, "lr": 0.1, "batch_size": 16}}
            study(**trained, method=method, levels=[0.5], **settings)
    return given[0], splits


HOLDING_OUT = [
    (f"{kind}:{name}", (methods, name))
    for kind, methods in (
        ("prune", fairlib.pruning.PRUNERS),
        ("linearize", fairlib.linearization.LINEARIZERS),
    )
    for name, entry in methods.items()
    if "val" in inspect.signature(entry.function).parameters
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "function"), HOLDING_OUT, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_method_that_holds_data_out_is_given_the_validation_part_or_splits_its_own(
    method, function
):
    given, splits = held_out_by(method, function)
    assert given is splits.val
    assert held_out_by(method, function, held_out="train")[0] is None


def test_the_methods_that_hold_data_out_are_these():
    assert [method for method, _ in HOLDING_OUT] == [
        "prune:bip",
        "prune:bifp",
        "linearize:deepreduce",
    ]


def test_a_function_with_an_argument_for_held_out_data_gets_them():
    given, splits = [], fairlib.load("digits", size=120)

    def own(model, *, level, data, seed, val=None):
        given.append(val)
        return fairlib.prune(model, "magnitude", sparsity=level)

    for held_out in ("val", "train"):
        study(**SMALL | {"data": splits}, method=own, levels=[0.5], held_out=held_out)
    assert given == [splits.val, None]


def test_compression_and_finetuning_may_see_the_validation_part_alone():
    splits = fairlib.load("digits", size=240)
    found = {}

    def own(model, *, level, data, seed):
        assert data is splits.val
        return fairlib.prune(model, "magnitude", sparsity=level)

    def last(run):
        found[run.stage] = run.model
        return {}

    settings = SMALL | {
        "data": splits,
        "finetune": {"epochs": 2, "lr": 0.01},
        "run": RunSettings(cache=None, at_once=False, workers=1),
    }
    settings |= {
        "method": own,
        "levels": [0.5],
        "mitigation": FAIR,
        "when": "after",
        "held_out": "val-only",
    }
    study(**settings, measure=last)
    with pytest.raises(ValueError, match="which these data do not have"):
        study(**settings | {"data": replace(splits, val=None)})
    dense = fairlib.build("cnn", like=splits, seed=0, **SMALL["model"][1])
    dense = fairlib.fit(dense, splits.train, seed=0, **SMALL["train"])
    by_hand = {"dense": dense}
    for stage, start in {
        "control": dense,
        "compressed": fairlib.prune(dense, "magnitude", sparsity=0.5),
    }.items():
        fair = {"constraint": fairlib.EqualLoss(**FAIR[1])}
        by_hand[stage] = fairlib.fit(start, splits.val, epochs=2, lr=0.01, seed=0, **fair)
    for stage, net in by_hand.items():
        assert all(
            map(torch.equal, found[stage].state_dict().values(), net.state_dict().values())
        ), stage


def test_held_out_data_that_the_study_cannot_give_are_refused():
    with pytest.raises(
        ValueError, match="unknown source of held_out data 'test'; known: val, train, val-only"
    ):
        study(**SMALL, method="prune:magnitude", held_out="test")
    message = (
        "held_out=0.3 of 'prune:bip' is a share of the training part, .* give held_out='train'"
    )
    with pytest.raises(ValueError, match=message):
        study(**SMALL, method=("prune:bip", {"held_out": 0.3}), levels=[0.5])


def test_levels_may_come_from_an_iterator():
    settings = SMALL | {"finetune": {"epochs": 0}}
    arms = {"a": Arm("prune:magnitude"), "b": Arm("prune:random")}
    table = study(
        **settings,
        arms=arms,
        levels=iter([0.5]),
        when=iter(["never"]),
        diagnostics=iter(["gradients"] * 2),
    )
    assert table.groupby("arm")["level"].unique().map(list).tolist() == [[0, 0.5], [0, 0.5]]


def test_a_measure_cannot_take_the_place_of_a_column_of_the_study():
    with pytest.raises(
        ValueError, match="measure must give columns of its own, got accuracy, seed"
    ):
        study(
            **SMALL,
            method="prune:magnitude",
            measure=lambda run: {"accuracy": 0.1, "seed": 7, "mine": 1},
        )


def test_a_study_in_which_all_diverges_is_empty_and_says_why():
    settings = SMALL | {"train": {"epochs": 2, "lr": 1e38}}
    table = study(**settings | SKIP, method="prune:magnitude", measure=lambda run: {"mine": 1})
    assert table.empty and [run["stage"] for run in table.attrs["diverged"]] == ["dense"]


def test_an_own_function_is_a_method():
    def keep_half(model: nn.Module, *, level: float, data, seed: int) -> nn.Module:
        generator = np.random.default_rng(seed)
        keep = {
            name: torch.as_tensor(generator.random(tuple(weight.shape)) >= level)
            for name, weight in masks.prunable(model).items()
        }
        return masks.with_masks(model, keep)

    table = study(**SMALL, method=keep_half, levels=[0.5])
    assert set(table["method"]) == {"keep_half"}
    kept = table.groupby("stage")["kept"].first()
    assert kept["control"] == 1 and kept["compressed"] == pytest.approx(0.5, abs=0.1)


def test_an_own_function_builds_the_model():
    def network(splits: fairlib.Splits, seed: int) -> nn.Module:
        return fairlib.build(
            "cnn", num_classes=10, in_channels=1, image_size=8, seed=seed, **SMALL["model"][1]
        )

    own = study(**SMALL | {"model": network}, method="prune:magnitude", levels=[0.5])
    named = study(**SMALL, method="prune:magnitude", levels=[0.5])
    assert set(own["model"]) == {"network"}
    pd.testing.assert_frame_equal(own.drop(columns="model"), named.drop(columns="model"))


def test_a_measure_adds_columns_to_rows_and_rows_to_the_table():
    def measured(run: Run) -> pd.DataFrame:
        val = group_performance(run.model, run.splits.val).reset_index().assign(split="val")
        known = pd.DataFrame(
            {"group": run.splits.train.group_names, "split": "train", "twice": 2 * run.seed + 2}
        )
        return pd.concat([val, known])

    table = study(**SMALL, method="prune:magnitude", levels=[0.5], measure=measured)
    assert set(table["split"]) == {"train", "test", "val"}
    assert (table.loc[table["split"] == "train", "twice"] == 2).all()
    assert table.loc[table["split"] != "train", "twice"].isna().all()
    splits = fairlib.load("digits", size=120, seed=0)
    val = table[(table["split"] == "val") & (table["stage"] == "dense")]
    assert val["size"].sum() == len(splits.val) and set(val["method"]) == {"prune:magnitude"}


def test_what_a_constraint_did_epoch_by_epoch_are_rows_of_their_own():
    histories = {}

    def measured(run: Run) -> pd.DataFrame:
        histories[run.arm, run.stage] = fairlib.history(run.model)
        return traced(run)

    arms = {"plain": Arm(), "held": Arm(mitigation=FAIR, when="after")}
    table = study(**SMALL, method="prune:magnitude", arms=arms, levels=[0.5], measure=measured)
    rows = table[table["epoch"].notna()].set_index(["arm", "stage"]).sort_index()
    for name in ("multiplier[3]", "violation[0]"):
        for stage in ("control", "compressed"):
            assert (
                rows.loc[("held", stage), name].tolist() == histories["held", stage][name].tolist()
            )
        assert (
            rows.loc["plain", name].isna().all()
            and table.loc[table["split"].notna(), name].isna().all()
        )
    assert rows.loc[("held", "compressed"), "epoch"].tolist() == [1, 2]
    assert "lr" not in table


def test_scalars_of_a_measure_become_columns_and_a_measure_sees_the_other_arms():
    def between(run: Run) -> dict[str, float]:
        return {"apart": fairlib.studies.parameter_distance(run.model, run.other("a").model)}

    arms = {"a": Arm("prune:magnitude"), "b": Arm("prune:random")}
    table = study(**SMALL, arms=arms, levels=[0.5], measure=between)
    apart = table.drop_duplicates(["arm", "stage"]).set_index(["arm", "stage"])["apart"]
    assert (apart["a"] == 0).all() and apart["b", "dense"] == 0 and apart["b", "compressed"] > 0


@pytest.mark.parametrize("what", ["columns", "rows"])
def test_a_measure_that_gives_something_else_for_another_seed_is_refused(what):
    def fickle(run: Run) -> dict[str, float] | pd.DataFrame:
        if what == "columns":
            return {f"of seed {run.seed}": 1.0}
        return pd.DataFrame({"point": range(run.seed + 1)})

    with pytest.raises(ValueError, match=f"measure gives other {what} for seed 1"):
        study(**SMALL | {"seeds": [0, 1]}, method="prune:magnitude", levels=[0.5], measure=fickle)


def test_the_clock_tells_what_the_finetuning_took():
    full = Arm("prune:magnitude", ("equal-loss", {"step": 1.0}), "after", finetune={"epochs": 8})
    arms = {"plain": Arm("prune:magnitude", finetune={"epochs": 1}), "held": full}
    clocked = {"run": RunSettings(cache=None, clock=True)}
    table = study(**SMALL | clocked, arms=arms, levels=[0.5])
    runs = table.drop_duplicates(["arm", "stage"]).set_index(["arm", "stage"])
    assert runs.loc[("plain", "dense"), ["seconds", "dual_seconds"]].isna().all()
    assert runs.loc[("plain", "compressed"), "dual_seconds"] == 0
    assert (
        0
        < runs.loc[("held", "compressed"), "dual_seconds"]
        < runs.loc[("held", "compressed"), "seconds"]
    )
    plain = study(**SMALL, arms=arms, levels=[0.5])
    pd.testing.assert_frame_equal(table[list(plain)], plain)


def test_a_run_that_diverges_is_listed_where_it_may_be_skipped():
    arms = {"good": Arm("prune:magnitude"), "bad": Arm("prune:magnitude", finetune={"lr": 1e38})}
    table = study(**SMALL | SKIP, arms=arms, levels=[0.5])
    assert set(table.loc[table["arm"] == "bad", "stage"]) == {"dense"}
    assert [run["stage"] for run in table.attrs["diverged"]] == ["control", "compressed"]
    assert all("diverged" in run["reason"] for run in table.attrs["diverged"])
    with pytest.raises(fairlib.DivergenceError, match="seed 0: training diverged"):
        study(**SMALL, arms=arms, levels=[0.5])


@pytest.mark.parametrize(
    ("arms", "message"),
    [
        ({"a": Arm()}, "arm 'a': a method is needed"),
        (
            [("a", Arm("prune:magnitude")), ("a", Arm("prune:random"))],
            r"arms must have names, each once; got \['a', 'a'\]",
        ),
        ({}, "arms must have names"),
        (
            {"a": Arm("prune:magnitude", train={"epochs": 9})},
            "'epochs': 9} asks for another dense network",
        ),
        (
            {"a": Arm("prune:magnitude", when="after")},
            r"arm 'a': when=\['after'\] needs a mitigation",
        ),
        (
            {"a": Arm("prune:magnitude", mitigation=FAIR)},
            "arm 'a': mitigation='equal-loss' never acts",
        ),
        (
            {"a": Arm("prune:magnitude", mitigation=FAIR, when=["after"] * 2)},
            "when must name .* each once",
        ),
        (
            {"a": Arm("prune:magnitude", mitigation=FAIR, when=[])},
            "when must name at least one time",
        ),
        (
            {"a": Arm("linearize:snl", train={"epochs": 1})},
            "arm 'a': train={'epochs': 1} is a setting of the method",
        ),
        ({"a": Arm("prune:magnitude", levels=[2.0])}, "arm 'a': levels must lie in"),
    ],
)
def test_arms_that_make_no_sense_are_refused(arms, message):
    with pytest.raises(ValueError, match=message):
        study(**SMALL, arms=arms, levels=[0.5])


def test_what_is_no_arm_is_refused():
    with pytest.raises(TypeError, match="arm 'a': an arm must be an Arm, got 'prune:magnitude'"):
        study(**SMALL, arms={"a": "prune:magnitude"}, levels=[0.5])


def test_a_study_without_any_method_is_refused():
    with pytest.raises(ValueError, match="a method is needed"):
        study(**SMALL, levels=[0.5])


def test_a_diagnostic_that_cannot_be_computed_is_warned_of_once_with_the_reason(monkeypatch):
    def nothing(name, model, data):
        empty = pd.DataFrame(
            {f"{name}_norm": float("nan")}, index=pd.Index(data.group_names, name="group")
        )
        return empty, f"{name}: no derivative"

    monkeypatch.setattr("fairlib.studies.rows.diagnose", nothing)
    with pytest.warns(UserWarning, match="gradient: no derivative") as warned:
        table = study(
            **SMALL | {"seeds": [0, 1]},
            method="prune:magnitude",
            levels=[0.5],
            diagnostics=["gradient"],
        )
    assert len(warned) == 1 and table["gradient_norm"].isna().all()


def test_an_unknown_answer_to_divergence_is_refused():
    with pytest.raises(
        ValueError, match="unknown answer to divergence 'ignore'; known: raise, skip"
    ):
        RunSettings(divergence="ignore")
