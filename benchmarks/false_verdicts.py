"""How often a verdict asserts an effect in tables that have none, for every statistic that claims
are tested on.

``python benchmarks/false_verdicts.py``; goal: of 2,000 simulated tables not significantly more than
5 % (one-sided binomial test at 1 % for all statistics and settings together, Bonferroni). The
groups differ in size only: their true accuracies, losses and gradient norms are the same in every
network. Compressed networks are as accurate as the control, .95, or less, for all groups alike;
every seed and every network has an effect of its own that all groups share. Each seed draws its own
test samples, 55 to 500 a group; half of them are as hard for one network of the seed as for
another.

``python benchmarks/false_verdicts.py one-pool``: the same where the seeds of a study split one pool
of samples anew, of which each tests a fifth, as real studies do; the shares of false verdicts by
the interval over seeds and by the one corrected for it. There is no goal: the first is conditional
on the pool, and says nothing of the population that the pool was drawn from.

A claim about each of several cells needs no case of its own: it is supported where all cells are,
each at the full level, and reversed where one is at the level over their number, so that its level
is theirs at most."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from whopays import effects
from whopays.verdict import Criterion, judge, side

RESULTS = Path(__file__).parents[1] / "results" / "benchmarks"
ACCURACY, MARGIN = 0.95, 0.03
SETTINGS = (
    (5, 10, 0.0), (5, 10, 0.05), (5, 10, 0.15),
    (5, 20, 0.0), (5, 20, 0.15),
    (2, 10, 0.15), (10, 10, 0.15),
)  # fmt: skip
"""Numbers of groups and of seeds, and how much accuracy compressed networks lose."""

NEVER, AFTER = {"when": "never"}, {"when": "after"}
PRUNED = {"split": "test", "stage": "compressed", "level": 0.9}
ONE = {"where": PRUNED | NEVER}
DENSE = {"split": "test", "stage": "dense"}
SIDES = {"where": PRUNED | NEVER, "against": PRUNED | AFTER}
ARMS = {"level": 0.9, "where": NEVER, "against": AFTER}
BEYOND = {"where": {"when": "again"}, "against": AFTER}


ACROSS_SEEDS = ("drop_correlation",)
"""Statistics whose value for a seed depends on the other seeds of the study."""


POOLED = ("accuracy_change smallest", "drop_difference", "overall_change")
"""Cases that are simulated with one pool of samples for each study."""

POOL_SETTINGS = ((5, 10, 0.15), (5, 20, 0.15))


class Case(NamedTuple):
    """A claim about a table without an effect: name and arguments of a statistic, its true value
    and the criterion.

    The true value is ``truth + slope * fall``, where ``fall`` is how much accuracy the compressed
    networks lose."""

    name: str
    arguments: Mapping[str, Any]
    truth: float = 0.0
    slope: float = 0.0
    direction: str = "greater"
    groups: int = 2
    holds: bool = False

    @property
    def label(self) -> str:
        words = (
            self.arguments.get(key) for key in ("of", "statistic", "column", "groups", "x", "y")
        )
        kinds = (
            "relative" * bool(self.arguments.get("relative")),
            "each" * ("each" in self.arguments),
        )
        kinds += ("beyond" * ("beyond" in self.arguments),)
        kinds += ("equal" * (self.direction == "equal"), "holds" * self.holds)
        return " ".join(filter(None, (self.name, *words, *kinds)))

    def excused(self, fall: float) -> bool:
        """Whether no claim may be decided so.

        That is `effects.BY_CONTRAST`, and where accuracies differ the gap of a loss over test
        samples: claims take the losses of the training samples, which chance did not choose."""
        if self.name != "contrast":
            return effects.STATISTICS[self.name] in effects.BY_CONTRAST
        loss = self.arguments["of"] == "group_gap" and self.arguments.get("column") == "loss"
        return fall > 0 and (loss or self.arguments["of"] == "group_gap_by_chance")

    def criterion(self, fall: float) -> Criterion:
        """Threshold at the true value; of a claim of equality the true value lies on the edge of
        the margin."""
        threshold = self.truth + self.slope * fall
        edge = MARGIN if self.direction == "equal" and not self.holds else 0.0
        return Criterion(self.direction, threshold - edge, MARGIN, self.holds)

    def values(self, table: pd.DataFrame) -> pd.DataFrame:
        """Compute one value per seed and cell."""
        if "each" in self.arguments:
            return effects.cells(table, name=self.name, **self.arguments)
        return effects.STATISTICS[self.name](table, **self.arguments).to_frame()

    def by_chance(self, table: pd.DataFrame) -> list[pd.DataFrame]:
        """Compute what chance alone gives, as the verdict of a claim takes it into account."""
        return [
            found.to_frame() for found in effects.by_chance(table, name=self.name, **self.arguments)
        ]


CASES = (
    Case("accuracy_change", {"level": 0.9, "groups": "smallest", "where": NEVER}, slope=-1),
    Case(
        "accuracy_change",
        {"level": 0.9, "groups": "largest", "relative": True, "where": NEVER},
        slope=-1 / ACCURACY,
    ),
    Case("column_mean", {"column": "loss", **ONE}, truth=0.2, slope=2),
    Case("column_mean", {"column": "identity", **ONE}, direction="equal", holds=True),
    Case("contrast", {"of": "accuracy_change", "groups": "smallest", **ARMS}, slope=-1),
    Case("contrast", {"of": "accuracy_change", "groups": "smallest", "beyond": BEYOND, **ARMS}),
    Case("contrast", {"of": "column_mean", "column": "loss", **SIDES}, slope=2),
    Case("contrast", {"of": "degradation_gap", "dense": DENSE, **SIDES}),
    Case("contrast", {"of": "drop_difference", **ARMS}),
    Case("contrast", {"of": "group_difference", "column": "loss", **SIDES}),
    Case("contrast", {"of": "group_gap", **SIDES}),
    Case("contrast", {"of": "group_gap", "column": "loss", **SIDES}),
    Case("contrast", {"of": "group_gap", "column": "gradient_norm", "relative": True, **SIDES}),
    Case("contrast", {"of": "group_gap_by_chance", "draws": 20, **SIDES}),
    Case(
        "contrast",
        {"of": "level_trend", "statistic": "drop_difference", "where": NEVER, "against": AFTER},
    ),
    Case("contrast", {"of": "overall_accuracy", **SIDES}, slope=-1),
    Case("contrast", {"of": "spread", **SIDES}),
    Case("degradation_gap", {"dense": DENSE, **ONE}),
    Case("drop_correlation", {"level": 0.9, "where": NEVER}, groups=3),
    Case("drop_difference", {"level": 0.9, "where": NEVER}),
    Case("drop_difference", {"level": 0.9, "where": NEVER}, direction="equal"),
    Case("drop_difference", {"each": {"level": "all"}, "where": NEVER}),
    Case("drop_difference", {"level": 0.9, "relative": True, "where": NEVER}),
    Case("group_correlation", {"x": "train_size", "y": "drop", **ONE}, groups=3),
    Case("group_correlation", {"x": "train_size", "y": "gradient_norm", **ONE}, groups=3),
    Case("group_difference", {"column": "gradient_norm", **ONE}),
    Case("group_gap", ONE),
    Case("group_gap_by_chance", {"draws": 20, **ONE}),
    Case("level_trend", {"statistic": "column_mean", "column": "gradient_norm", "where": AFTER}),
    Case(
        "level_trend",
        {"statistic": "contrast", "of": "spread_change", "where": NEVER, "against": AFTER},
    ),
    Case("level_trend", {"statistic": "drop_difference", "where": NEVER}),
    Case("loss_difference", {"level": 0.9, "where": NEVER}),
    Case("overall_accuracy", ONE, truth=ACCURACY, slope=-1),
    Case("overall_change", {"level": 0.9, "where": NEVER}, slope=-1),
    Case("spread", ONE),
    Case("spread_change", {"level": 0.9, "where": NEVER}),
)


def simulate(
    fall: float, groups: int, seeds: int, rng: np.random.Generator, pooled: int = 0
) -> pd.DataFrame:
    """Draw a study without an effect; with ``pooled``, each so many seeds split one pool.

    Pruned networks (``when: never`` and ``again``) lose a quarter of the fall at level .5, half of
    it at .7, three quarters at .8 and all of it at .9; the dense network and mitigated ones
    (``when: after``) lose nothing."""
    names = [f"group {i}" for i in range(groups)]
    test = np.linspace(55, 500, groups).astype(int)
    train = 4 * test + rng.integers(0, 40, (seeds, groups))
    common = rng.normal(0, 0.01, (seeds, 1))
    shared = test // 2
    hardness = rng.random((seeds, groups, shared.max()), dtype=np.float32)
    if pooled:
        pool = rng.random((seeds // pooled, groups, 5 * shared.max()), dtype=np.float32)
        keys = rng.random((seeds, groups, 5 * shared.max()), dtype=np.float32)
        keys[:, np.arange(5 * shared.max()) >= 5 * shared[:, None]] = 2  # Not in the pool.
        tested = np.argsort(keys, axis=2)[..., : shared.max()]
        hardness = np.take_along_axis(pool.repeat(pooled, axis=0), tested, axis=2)
    hardness[:, np.arange(shared.max()) >= shared[:, None]] = 2  # No sample: nobody is right.
    parts = []
    for when, stage, level, share in (
        ("never", "dense", 0.0, 0), ("never", "control", 0.0, 0),
        ("never", "compressed", 0.5, 0.25), ("never", "compressed", 0.7, 0.5),
        ("never", "compressed", 0.8, 0.75), ("never", "compressed", 0.9, 1),
        ("again", "control", 0.0, 0), ("again", "compressed", 0.9, 1), ("after", "control", 0.0, 0),
        *(("after", "compressed", level, 0) for level in (0.5, 0.7, 0.8, 0.9)),
    ):  # fmt: skip
        lost, own = share * fall, rng.normal(0, 0.01, (seeds, 1))
        accuracy = np.clip(ACCURACY - lost + common + own, 0, 1)
        noise = rng.normal(size=(2, seeds, groups)) / np.sqrt(test)
        loss = (0.2 + 2 * lost) * (1 + 0.1 * own / 0.01 + 2 * noise[0])
        norm = (1 + 5 * lost) * np.exp(own) * (1 + 2 * noise[1])
        row = {"when": when, "level": level, "stage": stage}
        row |= {"seed": np.repeat(np.arange(seeds), groups), "group": np.tile(names, seeds)}
        right = (hardness < accuracy[..., None]).sum(axis=2) + rng.binomial(
            test - shared, accuracy, (seeds, groups)
        )
        measured = {
            "size": np.tile(test, seeds),
            "accuracy": (right / test).ravel(),
            "loss": loss.ravel(),
        }
        measured |= {"gradient_norm": norm.ravel(), "identity": rng.normal(0, 1e-4, seeds * groups)}
        parts.append(pd.DataFrame(row | measured | {"split": "test"}))
        if stage == "control":
            parts.append(
                pd.DataFrame(
                    row | {"size": train.ravel(), "accuracy": 1.0, "loss": 0.0, "split": "train"}
                )
            )
    return effects.against_control(
        pd.concat(parts, ignore_index=True), on=["seed", "group", "when"]
    )


def verdicts(
    case: Case, table: pd.DataFrame, fall: float, seeds: int, overlap: float = 0.0
) -> list[str]:
    """Judge each block of as many seeds as a study has; one in which the statistic is undefined
    decides nothing."""
    parts = [part for _, part in table.groupby(table["seed"] // seeds)]
    try:
        values = None if case.name in ACROSS_SEEDS and len(parts) > 1 else case.values(table)
    except effects.UndefinedError:
        if len(parts) == 1:
            return ["undecided"]
        values = None
    if values is None:
        return [name for part in parts for name in verdicts(case, part, fall, seeds)]
    blocks = [slice(i, i + seeds) for i in range(0, len(values), seeds)]
    chance = case.by_chance(table)
    criterion = case.criterion(fall)
    return [
        judge(
            values.iloc[block], criterion, [part.iloc[block] for part in chance], overlap=overlap
        ).name
        for block in blocks
    ]


def rates(case: Case, names: list[str]) -> dict[str, float]:
    """Count the verdicts that assert an effect.

    Returns: ``simulations``; ``supported`` and ``reversed``, shares of them; ``false``, the share
        of wrong verdicts, which *supported* is not where the claim holds; and ``p_value`` of a
        level of 5 %.
    """
    sides = [side(name) for name in names]
    supported, reverse = (sides.count(name) for name in ("supported", "reversed"))
    wrong = reverse if case.holds else supported + reverse
    shares = {"supported": supported, "reversed": reverse, "false": wrong}
    p_value = stats.binomtest(wrong, len(names), 0.05, alternative="greater").pvalue
    shares = {name: count / len(names) for name, count in shares.items()}
    return {"simulations": len(names), **shares, "p_value": p_value}


def run(
    setting: tuple[int, int, float], simulations: int = 2000, at_once: int = 250
) -> pd.DataFrame:
    """Simulate all cases in one of the `SETTINGS`, one row per case."""
    groups, seeds, fall = setting
    rng = np.random.default_rng([groups, seeds, round(100 * fall)])
    cases = [case for case in CASES if case.groups <= groups]
    names: dict[str, list[str]] = {case.label: [] for case in cases}
    for _ in range(0, simulations, at_once):
        table = simulate(fall, groups, seeds * at_once, rng)
        for case in cases:
            names[case.label] += verdicts(case, table, fall, seeds)
    rows = [
        {"claim": case.label, "groups": groups, "seeds": seeds, "fall": fall}
        | rates(case, names[case.label])
        | {"excused": case.excused(fall)}
        for case in cases
    ]
    return pd.DataFrame(rows)


def one_pool(
    setting: tuple[int, int, float], simulations: int = 2000, at_once: int = 100
) -> pd.DataFrame:
    """Simulate the `POOLED` cases, one row per case: ``false`` and ``corrected`` shares."""
    groups, seeds, fall = setting
    rng = np.random.default_rng([groups, seeds, round(100 * fall), 1])
    cases = [case for case in CASES if case.label in POOLED]
    ratios = {"false": 0.0, "corrected": 0.25}
    names: dict[tuple[str, str], list[str]] = {
        (case.label, column): [] for case in cases for column in ratios
    }
    for _ in range(0, simulations, at_once):
        table = simulate(fall, groups, seeds * at_once, rng, pooled=seeds)
        for case in cases:
            for column, overlap in ratios.items():
                names[case.label, column] += verdicts(case, table, fall, seeds, overlap)
    rows = []
    for case in cases:
        shares = {column: rates(case, names[case.label, column])["false"] for column in ratios}
        row = {"claim": case.label, "groups": groups, "seeds": seeds, "fall": fall}
        rows.append(row | {"simulations": len(names[case.label, "false"])} | shares)
    return pd.DataFrame(rows)


def main() -> None:
    if sys.argv[1:] == ["one-pool"]:
        table = pd.concat(map(one_pool, POOL_SETTINGS), ignore_index=True)
        print(table.to_string(index=False))
        table.to_csv(RESULTS / "false_verdicts_one_pool.csv", index=False, float_format="%.4g")
        return
    with ProcessPoolExecutor() as pool:
        table = pd.concat(pool.map(run, SETTINGS), ignore_index=True)
    for row in table.itertuples():
        missed = (
            " missed" * (row.p_value < 0.01 / (~table["excused"]).sum()) + ", excused" * row.excused
        )
        where = f"{row.groups} groups, {row.seeds} seeds, fall {row.fall:.2f}"
        print(f"{row.claim:54s}{where:35s}{row.false:.3f}{missed}")
    table.to_csv(RESULTS / "false_verdicts.csv", index=False, float_format="%.4g")


if __name__ == "__main__":
    main()
