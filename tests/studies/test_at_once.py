"""Studies whose seeds are trained at once."""

from __future__ import annotations

import json

import numpy as np
import pytest

import fairlib
from fairlib import environment
from fairlib.studies import RunSettings

SETTINGS = dict(
    data="digits", model="cnn", train={"epochs": 1}, finetune={"epochs": 1}, device="cpu"
)


def run(workers=1, **settings) -> RunSettings:
    return RunSettings(cache=None, workers=workers, **settings)


ARMS = {
    "small": fairlib.Arm("prune:magnitude", levels=[0.5]),
    "fair": fairlib.Arm("prune:random", "equal-loss", ["before", "both"], levels=[0.9]),
    "linear": fairlib.Arm("linearize:random", levels=[0.5], finetune={"epochs": 1}),
    "searched": fairlib.Arm("prune:lottery", levels=[0.2]),
}


@pytest.mark.slow
def test_the_rows_are_those_of_one_seed_after_the_other_up_to_rounding():
    settings = SETTINGS | {
        "train": {"epochs": 6, "batch_size": 16}
    }  # A teacher must know something.
    together, alone = (
        fairlib.study(**settings, arms=ARMS, seeds=range(2), run=run(at_once=flag))
        for flag in (True, False)
    )
    same = ["arm", "stage", "level", "when", "seed", "split", "group", "size", "kept"]
    assert together[same].equals(alone[same])
    np.testing.assert_allclose(together["loss"], alone["loss"], rtol=1e-3)


def test_rows_of_a_seed_depend_on_no_other_seed_and_on_no_process():
    settings = SETTINGS | dict(method="prune:magnitude", levels=[0.9])
    some = fairlib.study(**settings, seeds=[4, 11, 1], run=run(at_once=True))
    assert list(dict.fromkeys(some["seed"])) == [4, 11, 1]
    one = fairlib.study(**settings, seeds=[1, 11], run=run(workers=2, at_once=True))
    for seed in (1, 11):
        rows = (table[table["seed"] == seed].reset_index(drop=True) for table in (some, one))
        assert next(rows).equals(next(rows))


@pytest.mark.parametrize(("variable", "way"), [("1", "at once"), ("0", "alone")])
def test_small_networks_are_trained_at_once_by_themselves_and_the_table_says_so(
    variable, way, monkeypatch
):
    monkeypatch.setenv("FAIRLIB_AUTO", variable)
    settings = SETTINGS | dict(method="prune:magnitude", levels=[0.5], seeds=[0, 1])
    table = fairlib.study(**settings, run=run())
    assert table.attrs["trainings"] == {"at once": 0, "alone": 0} | {way: 2 * 3}


def test_what_is_trained_at_once_stands_in_the_provenance_of_the_run(tmp_path, monkeypatch):
    monkeypatch.setenv(environment.RUN_VARIABLE, str(tmp_path))
    for seed in (0, 1):
        settings = SETTINGS | dict(method="prune:magnitude", levels=[0.5], seeds=[seed])
        fairlib.study(**settings, run=run())
    counts = [json.loads(path.read_text()) for path in tmp_path.iterdir()]
    assert counts == [{"at once": 3, "alone": 0}] * 2


def test_a_worker_chooses_as_the_process_that_asks_it(monkeypatch):
    settings = SETTINGS | dict(method="prune:magnitude", levels=[0.5], seeds=[0, 10])
    for variable, way in (("1", "at once"), ("0", "alone")):
        monkeypatch.setenv("FAIRLIB_AUTO", variable)
        table = fairlib.study(**settings, run=run(workers=2))
        assert table.attrs["trainings"][way] == 6


def test_a_clocked_study_trains_one_after_the_other():
    settings = SETTINGS | dict(method="prune:magnitude", levels=[0.5], seeds=[0, 1])
    table = fairlib.study(**settings, run=run(clock=True))
    assert (table.loc[table["stage"] != "dense", "seconds"] > 0).all()


def test_a_diverging_seed_is_left_out_and_the_others_go_on():
    settings = SETTINGS | dict(method="prune:magnitude", levels=[0.5], seeds=[0, 1])
    settings["train"] = {"epochs": 1, "lr": 1e9}
    with pytest.raises(fairlib.DivergenceError, match="seed 0: training diverged"):
        fairlib.study(**settings, run=run(at_once=True))
    table = fairlib.study(**settings, run=run(at_once=True, divergence="skip"))
    assert [run["seed"] for run in table.attrs["diverged"]] == [0, 1] and not len(table)


@pytest.mark.slow
def test_whether_it_pays_is_asked_of_each_training():
    def model(splits, seed):
        return fairlib.build(
            "mobilenetv2" if seed == 0 else "cnn", like=splits, seed=seed, width=0.25
        )

    settings = SETTINGS | dict(model=model, method="prune:magnitude", levels=[0.5])
    both, one = (fairlib.study(**settings, seeds=seeds, run=run()) for seeds in ([0, 1], [1]))
    assert both[both["seed"] == 1].reset_index(drop=True).equals(one)


def test_unknown_ways_are_refused():
    with pytest.raises(ValueError, match="at_once"):
        run(at_once="sometimes")
