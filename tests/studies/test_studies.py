from __future__ import annotations

import math

import pandas as pd
import pytest
import torch

import fairlib
from fairlib import Arm
from fairlib.diagnostics import group_gradients, group_performance
from fairlib.studies import RunSettings, parameter_distance, study

SMALL = dict(
    data=("digits", {"size": 120}),
    model=("cnn", {"channels": (4, 8), "hidden": (16, 8)}),
    method="prune:magnitude",
    train={"epochs": 2, "lr": 0.05},
    finetune={"epochs": 1},
)
CONTRACT = [
    *(
        "data",
        "model",
        "method",
        "level",
        "kept",
        "mitigation",
        "when",
        "seed",
        "stage",
        "split",
        "group",
    ),
    *("size", "accuracy", "loss"),
]


def test_table_is_tidy_and_the_control_is_always_there():
    table = study(**SMALL, levels=[0.5, 0.9], seeds=[0, 1])
    assert list(table) == CONTRACT
    runs = table.drop_duplicates(["seed", "stage", "level"])[["seed", "stage", "level", "kept"]]
    by_hand = [("dense", 0.0), ("control", 0.0), ("compressed", 0.5), ("compressed", 0.9)]
    assert list(zip(runs["stage"], runs["level"], strict=True)) == by_hand * 2
    assert runs["kept"].tolist() == pytest.approx([1, 1, 0.5, 0.1] * 2, abs=1e-3)
    assert len(table) == 2 * 4 * 2 * 10  # seeds, stages, splits, groups
    assert set(table["mitigation"]) == {"none"} and set(table["when"]) == {"never"}
    sizes = table[(table["seed"] == 0) & (table["stage"] == "dense")].groupby("split")["size"].sum()
    splits = fairlib.load("digits", size=120, seed=0)
    assert sizes["train"] == len(splits.train) and sizes["test"] == len(splits.test)


def test_a_run_is_what_the_single_steps_give():
    """The same steps by hand, on one thread as in a study."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    splits = fairlib.load("digits", size=120, seed=3)
    model = fairlib.build(
        "cnn", num_classes=10, in_channels=1, image_size=8, seed=3, **SMALL["model"][1]
    )
    dense = fairlib.fit(model, splits.train, epochs=2, lr=0.05, seed=3)
    small = fairlib.prune(dense, "magnitude", sparsity=0.9)
    tuned = fairlib.fit(small, splits.train, epochs=1, lr=0.005, seed=3)
    control = fairlib.fit(dense, splits.train, epochs=1, lr=0.005, seed=3)
    torch.set_num_threads(threads)
    table = study(**SMALL, levels=[0.9], seeds=[3], diagnostics=["gradient"]).query(
        "split == 'test'"
    )
    for stage, by_hand in (("dense", dense), ("control", control), ("compressed", tuned)):
        rows = table[table["stage"] == stage].set_index("group")
        expected = group_performance(by_hand, splits.test)
        pd.testing.assert_frame_equal(rows[["size", "accuracy", "loss"]], expected)
        gradients = group_gradients(by_hand, splits.test)
        pd.testing.assert_series_equal(rows["gradient_norm"], gradients["norm"], check_names=False)


def test_results_do_not_depend_on_the_number_of_processes():
    one, two = (
        study(**SMALL, levels=[0.9], seeds=range(3), run=RunSettings(cache=None, workers=workers))
        for workers in (1, 2)
    )
    pd.testing.assert_frame_equal(one, two)


def test_mitigation_at_each_time():
    when = ["never", "before", "after", "both"]
    mitigation = ("equal-loss", {"step": 5.0})
    finetune = {"epochs": 2}  # The multipliers are zero in the first.
    table = study(
        **(SMALL | {"finetune": finetune}),
        levels=[0.9],
        seeds=[0],
        mitigation=mitigation,
        when=when,
    )
    assert list(table["when"].unique()) == when
    assert table.groupby("when")["mitigation"].first().to_dict() == {
        "never": "none",
        "before": "equal-loss",
        "after": "equal-loss",
        "both": "equal-loss",
    }
    loss = (
        table.query("split == 'test'")
        .groupby(["when", "stage"], observed=True)["loss"]
        .sum()
        .unstack()
    )
    assert loss.loc["never", "dense"] == loss.loc["after", "dense"] != loss.loc["before", "dense"]
    assert loss.loc["before", "dense"] == loss.loc["both", "dense"]
    assert loss["compressed"].nunique() == 4


def test_fixed_data_seed_fixes_the_data():
    table = study(**SMALL, levels=[], seeds=[0, 1], run=RunSettings(data_seed=7)).query(
        "split == 'train' and stage == 'dense'"
    )
    sizes = table.pivot(index="group", columns="seed", values="size")
    assert (sizes[0] == sizes[1]).all()
    free = study(**SMALL, levels=[], seeds=[0, 1]).query("split == 'train' and stage == 'dense'")
    sizes = free.pivot(index="group", columns="seed", values="size")
    assert (sizes[0] != sizes[1]).any()


def test_ready_splits_are_taken(images):
    splits = fairlib.Splits(images, images, images, name="mine")
    table = study(splits, "cnn", "prune:magnitude", [0.5], seeds=[0], train={"epochs": 1})
    assert set(table["data"]) == {"mine"} and list(table["group"].unique()) == [
        "many",
        "some",
        "few",
    ]


def test_vectors_are_studied_too():
    part = fairlib.GroupedDataset(
        torch.randn(40, 6), torch.arange(40) % 2, torch.arange(40) % 4 // 2
    )
    table = study(
        fairlib.Splits(part, part, part, "vectors"),
        "mlp",
        "prune:magnitude",
        [0.5],
        seeds=[0],
        train={"epochs": 1},
    )
    assert set(table["stage"]) == {"dense", "control", "compressed"}


def test_a_function_of_the_seed_gives_the_data():
    by_name = study(**SMALL, levels=[], seeds=[2])
    by_hand = study(
        **(SMALL | {"data": lambda seed: fairlib.load("digits", size=120, seed=seed)}),
        levels=[],
        seeds=[2],
    )
    pd.testing.assert_frame_equal(by_name, by_hand)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "magnitude"}, "unknown kind of compression 'magnitude'; known: prune"),
        ({"method": "prune:magnitud"}, "unknown pruning method 'magnitud'; known: magnitude"),
        (
            {"method": ("prune:magnitude", {"schedule": "gradua"})},
            "unknown schedule 'gradua'; known: one-shot, it",
        ),
        (
            {"arms": {"a": Arm("prune:lottery", compress="initial")}},
            "arm 'a': compress='initial' needs a method that does not train",
        ),
        (
            {"arms": {"a": Arm(compress="dense")}},
            "arm 'a': unknown network to compress 'dense'; known: trained, initial",
        ),
        ({"levels": [0.5, 1.0]}, r"levels must lie in \[0, 1\)"),
        ({"when": "after"}, "needs a mitigation; known: equal-loss, equal-curvature"),
        (
            {"mitigation": "equal-los"},
            "unknown mitigation 'equal-los'; known: equal-loss, equal-curvature",
        ),
        (
            {"mitigation": "equal-loss", "when": "later"},
            "unknown time of mitigation 'later'; known: never, before",
        ),
        ({"seeds": []}, "at least one seed"),
        ({"seeds": [0, 0]}, "each once"),
        ({"train": {"lr": 1e38, "epochs": 1}}, "seed 0: training diverged"),
        ({"diagnostics": ["hessian"]}, "unknown diagnostic 'hessian'; known: gradient"),
        ({"data": "digit"}, "unknown data set 'digit'"),
        ({"model": "cn"}, "unknown model 'cn'"),
    ],
)
def test_bad_input_is_refused(change, message):
    with pytest.raises((ValueError, fairlib.DivergenceError), match=message):
        study(**(SMALL | {"levels": [0.5], "seeds": [0]} | change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"method": ("prune:magnitude", {"scop": "layer"})},
            "unknown setting 'scop' for pruning method 'magnitude'",
        ),
        ({"finetune": {"epoch": 1}}, "unknown setting 'epoch' for finetune="),
        ({"train": {"constraint": fairlib.EqualLoss()}}, "unknown setting 'constraint' for train="),
        ({"levels": ["0.5"]}, r"levels must be a number, got '0\.5'"),
    ],
)
def test_settings_are_checked_before_anything_is_trained(change, message, monkeypatch):
    monkeypatch.setattr("fairlib.studies.stages.fit_all", None)
    with pytest.raises(TypeError, match=message):
        study(**(SMALL | {"levels": [0.5], "seeds": [0]} | change))


def test_the_weights_kept_on_the_way_are_of_the_dense_training_alone():
    table = study(**(SMALL | {"train": {"epochs": 2, "keep": 3}}), levels=[], seeds=[0])
    assert set(table["stage"]) == {"dense", "control"}


def test_the_network_at_initialization_is_compressed_then_trained_like_the_dense_one():
    splits = fairlib.load("digits", size=120, seed=3)
    start = fairlib.build(
        "cnn", num_classes=10, in_channels=1, image_size=8, seed=3, **SMALL["model"][1]
    )
    small = fairlib.prune(
        fairlib.fit(start, splits.train, epochs=0), "snip", sparsity=0.5, data=splits.train
    )
    trained = fairlib.fit(small, splits.train, epochs=2, lr=0.05, seed=3)
    tuned = fairlib.fit(trained, splits.train, epochs=1, lr=0.005, seed=3)
    arms = {"early": Arm("prune:snip", compress="initial")}
    table = study(**SMALL, levels=[0.5], seeds=[3], arms=arms)
    rows = table.query("stage == 'compressed' and split == 'test'").set_index("group")
    pd.testing.assert_frame_equal(
        rows[["size", "accuracy", "loss"]], group_performance(tuned, splits.test)
    )


def test_a_method_that_trains_gets_the_arguments_of_the_dense_training():
    settings = {
        "train": {"epochs": 3, "keep": 2, "lr": 0.1},
        "method": ("prune:lottery", {"rewind": 2, "rate": 0.6}),
    }
    table = study(**(SMALL | settings), levels=[0.5], seeds=[0])
    assert table.query("stage == 'compressed'")["kept"].iloc[0] == pytest.approx(0.5, abs=1e-3)


LINEAR = SMALL | dict(
    model="tiny-resnet", method="linearize:random", train={"epochs": 8, "lr": 0.05}
)


def test_a_study_of_linearization_has_budgets_and_a_distilled_control():
    """The same steps by hand, on one thread as in a study."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    splits = fairlib.load("digits", size=120, seed=1)
    dense = fairlib.fit(
        fairlib.build("tiny-resnet", num_classes=10, in_channels=1, image_size=8, seed=1),
        splits.train,
        epochs=8,
        lr=0.05,
        seed=1,
    )
    tune = dict(finetune={"epochs": 1, "lr": 0.005}, data=splits.train, seed=1)
    small = fairlib.linearize(dense, "random", budget=0.2, **tune)
    control = fairlib.linearize(dense, "random", budget=1.0, **tune)
    torch.set_num_threads(threads)
    table = study(**LINEAR, levels=[1, 0.2, 0], seeds=[1], run=RunSettings(at_once=False))
    table = table.query("split == 'test'")
    runs = table.drop_duplicates(["stage", "level"])[["stage", "level", "kept"]]
    expected = [
        ("dense", 1.0, 1),
        ("control", 1.0, 1),
        ("compressed", 0.0, 0),
        ("compressed", 0.2, 461 / 2304),
    ]
    assert [tuple(row) for row in runs.to_numpy()] == [
        (a, b, pytest.approx(c)) for a, b, c in expected
    ]
    for stage, level, by_hand in (
        ("dense", 1, dense),
        ("control", 1, control),
        ("compressed", 0.2, small),
    ):
        rows = table[(table["stage"] == stage) & (table["level"] == level)].set_index("group")
        pd.testing.assert_frame_equal(
            rows[["size", "accuracy", "loss"]], group_performance(by_hand, splits.test)
        )


@pytest.mark.slow
def test_a_mitigated_study_of_linearization_is_algorithm_1():
    longer = LINEAR | {"finetune": {"epochs": 3}}  # Multipliers are zero in the first epoch.
    table = study(
        **longer,
        levels=[0.1],
        seeds=[1],
        mitigation=("equal-loss", {"step": 1.0}),
        when=["never", "after"],
    )
    compressed = table[table["stage"] == "compressed"]
    assert set(compressed["when"]) == {"never", "after"}
    losses = compressed.pivot_table(index=["split", "group"], columns="when", values="loss")
    assert not losses["never"].equals(losses["after"])


@pytest.mark.parametrize("name", ["finetune", "constraint"])
def test_the_finetuning_of_a_study_is_the_studys(name):
    with pytest.raises(TypeError, match=f"'linearize:snl' has no setting '{name}' in a study"):
        study(**LINEAR | {"method": ("linearize:snl", {name: None})}, levels=[0.1])


def test_gates_that_no_training_chooses_can_come_before_any_training():
    arms = {"early": Arm(compress="initial")}
    table = study(**LINEAR, levels=[0.5], seeds=[0], arms=arms)
    assert table[table["stage"] == "compressed"]["kept"].eq(0.5).all()
    with pytest.raises(ValueError, match="compress='initial' needs a method that does not train"):
        study(**LINEAR | {"method": "linearize:snl"}, levels=[0.5], arms=arms)


def test_the_gradients_are_those_of_all_trainings():
    """Two epochs of the dense network, one of finetuning, and a score."""
    table = study(
        **SMALL | {"method": "prune:snip"}, levels=[0.9], seeds=[2], diagnostics=["gradients"]
    )
    size = table.loc[table["split"] == "train", "size"].groupby(table["stage"]).sum().iloc[0]
    taken = table.groupby("stage")["gradients"].first()
    assert taken.to_dict() == {"dense": 2 * size, "control": 3 * size, "compressed": 4 * size}


def test_the_distance_is_that_of_all_parameters_from_the_dense_model():
    table = study(**SMALL, levels=[0.9], seeds=[2], diagnostics=["distance"])
    distances = table.groupby("stage")["distance"].unique()
    splits = fairlib.load("digits", size=120, seed=2)
    model = fairlib.build(
        "cnn", num_classes=10, in_channels=1, image_size=8, seed=2, **SMALL["model"][1]
    )
    dense = fairlib.fit(model, splits.train, epochs=2, lr=0.05, seed=2)
    small = fairlib.fit(
        fairlib.prune(dense, "magnitude", sparsity=0.9), splits.train, epochs=1, lr=0.005, seed=2
    )
    vectors = [torch.nn.utils.parameters_to_vector(each.parameters()) for each in (small, dense)]
    assert distances["dense"].tolist() == [0] and distances["control"][0] > 0
    assert distances["compressed"].tolist() == pytest.approx(
        [(vectors[0] - vectors[1]).norm().item()], rel=1e-3
    )
    assert math.isnan(parameter_distance(small, torch.nn.Linear(3, 3)))


def test_a_teacher_at_chance_is_named_by_its_seed():
    untrained = LINEAR | {"train": {"epochs": 0}}
    with pytest.raises(ValueError, match="seed 3: the teacher performs at chance"):
        study(**untrained, levels=[0.5], seeds=[3])
    table = study(**untrained | {"finetune": {"epochs": 0}}, levels=[0.5], seeds=[3])
    assert table["kept"].min() == 0.5


@pytest.mark.slow
def test_a_diagnostic_may_have_settings():
    model = ("cnn", {"channels": (4, 8), "hidden": (16, 8)})
    settings = dict(
        data=("digits", {"size": 120}), model=model, method="prune:magnitude", seeds=[0]
    )
    settings |= dict(train={"epochs": 2}, finetune={"epochs": 0})
    settings["run"] = RunSettings(cache=None, workers=1)
    steps = []
    with pytest.MonkeyPatch.context() as patch:
        found = fairlib.diagnostics.group_eigenvalues
        patch.setattr(
            "fairlib.diagnostics.group_eigenvalues",
            lambda *a, **s: steps.append(s["least"]) or found(*a, **s),
        )
        study(**settings, diagnostics=[("curvature", {"least": 3}), "boundary"])
        study(**settings, diagnostics=["curvature"])
    assert set(steps) == {3, 8}
    with pytest.raises(
        TypeError, match="unknown setting 'most' for diagnostic 'curvature'; known: least"
    ):
        study(**settings, diagnostics=[("curvature", {"most": 3})])
    with pytest.raises(
        TypeError, match="unknown setting 'least' for diagnostic 'distance'; known: none"
    ):
        study(**settings, diagnostics=[("distance", {"least": 3})])
