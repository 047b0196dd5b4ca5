"""Steps that many pages share."""

from __future__ import annotations

import pandas as pd
import pytest

import fairlib
from whopays import pages, prose

PARAMETERS = {
    "data": "digits", "target": "", "group": "parity", "image_size": 8, "limit": 0, "root": "data",
    "near_duplicates": "together", "model": "cnn", "seeds": 3, "first_seed": 100, "epochs": 2, "lr": 0.1,
    "weight_decay": 0.0, "batch_size": 32, "augment": "none", "precision": "float32", "device": "cpu",
}  # fmt: skip


def test_settings_are_arguments_of_load_fit_and_study():
    page = PARAMETERS | {"finetune_epochs": 1, "held_out": "train", "level": 0.9, "print": print}
    attributes, train, common = pages.settings(page)
    assert attributes == {name: PARAMETERS[name] for name in pages.OF_DATA}
    assert train == {name: PARAMETERS[name] for name in pages.OF_TRAINING}
    assert common == {
        "data": ("digits", attributes), "model": "cnn", "train": train, "finetune": {"epochs": 1},
        "seeds": range(100, 103), "held_out": "train", "device": "cpu", "progress": True,
    }  # fmt: skip
    study = fairlib.study(method="prune:magnitude", levels=[0.5], **common | {"progress": False})
    assert set(study["seed"]) == {100, 101, 102} and set(study["group"]) == {"even", "odd"}


def test_settings_leave_out_what_is_no_parameter():
    page = PARAMETERS | {"group": lambda: None}
    del page["limit"]
    attributes, _, common = pages.settings(page)
    assert not {"group", "limit"} & set(attributes)
    assert not {"finetune", "held_out"} & set(common)


def test_settings_resolve_widths_and_learning_rates_of_the_finetuning():
    page = PARAMETERS | {"width": 0.5, "finetune_epochs": 1, "finetune_lr": 0.0}
    common = pages.settings(page)[2]
    assert common["model"] == ("cnn", {"width": 0.5})
    assert common["finetune"] == {"epochs": 1, "lr": 0.02}
    assert pages.settings(page | {"finetune_lr": 0.3})[2]["finetune"]["lr"] == 0.3


def test_settings_resolve_attributes_that_pages_call_otherwise():
    assert pages.settings(PARAMETERS | {"attribute": "digit"})[0]["group"] == "digit"
    faces = pages.settings(PARAMETERS | {"data": "synthetic-faces", "rare": 0.1, "size": 400})[0]
    assert faces["rare"] == {(1, 1): 0.1} and faces["limit"] == 400
    assert faces["shares"] == (0.5, 0.5)
    assert "shares" not in pages.settings(PARAMETERS | {"rare": 0.1, "size": 400})[0]


@pytest.mark.parametrize(
    ("text", "kind", "found"),
    [("0.5, 0.9", float, [0.5, 0.9]), ("8,4", int, [8, 4]), (" snl,", str, ["snl"]), ("", str, [])],
)
def test_values_are_separated_by_commas(text, kind, found):
    assert pages.values(text, kind) == found


def test_a_recorded_table_comes_with_its_verdicts():
    path = "results/pruning/exemplars-study.csv"
    table, verdict = pages.evidence(path)
    assert table and table.path.as_posix().endswith(path)
    assert verdict("H-exemplars") == prose.verdict("H-exemplars", path)
    with pytest.raises(ValueError, match="the page says reversed"):
        verdict("H-exemplars", expect="reversed")


def study():
    parts = [(s, p) for s in ("dense", "control", "compressed") for p in ("train", "test")]
    table = pd.DataFrame(parts, columns=["stage", "split"]).assign(seed=0, group="few", size=7)
    return table.assign(accuracy=[1.0, 0.9, 1.0, 0.8, 0.6, 0.5], loss=0.1)


def test_a_lean_study_keeps_controls_and_the_test_part_of_compressed_networks():
    kept = pages.lean(study())
    assert kept.index.tolist() == [0, 1, 2]
    assert kept["stage"].tolist() == ["control", "control", "compressed"]
    assert kept["split"].tolist() == ["train", "test", "test"]


def test_what_groups_lost_is_of_compressed_networks_on_test_data_unless_asked_otherwise():
    assert pages.dropped(study())["drop"].tolist() == [0.3]
    assert pages.dropped(study(), split="train", group="few")["drop"].tolist() == [0.4]


def test_a_figure_of_a_study_says_where_it_comes_from():
    from matplotlib.figure import Figure

    drawn = []

    def empty(table, title):
        drawn.append((Figure(), title))
        return drawn[0][0]

    pages.draw(empty, study().assign(data="digits", model="cnn", method="snip"), "drops")
    figure, title = drawn[0]
    assert title == "drops"
    assert figure.get_supxlabel() == "digits, cnn, snip, 1 seed, this run"
