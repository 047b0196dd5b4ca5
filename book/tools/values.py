"""Numbers of the prose pages, computed from recorded tables: ``{{ name }}`` is a function's value.

``python book/tools/values.py`` prints them all. A value is a function without arguments that
returns a text; where the words beside it state a verdict, it asks the ledger for that verdict
first, and the build fails where it says otherwise.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd
import yaml
from matplotlib.figure import Figure

from fairlib.statistics import t_interval
from whopays import claims, effects
from whopays.ledger import first_written
from whopays.ledger.text import pipe_table
from whopays.prose import points, right, verdict
from whopays.runs import project
from whopays.verdict import DECIDED

VALUES: dict[str, Callable[[], str]] = {}
"""Functions that return a value, by its name."""

RESNET18, RESNET18_64 = (
    f"results/pruning/matthew-effect-{name}.csv" for name in ("resnet18", "64-resnet18")
)
SMALL = "results/pruning/matthew-effect-utkface.csv"
GRADIENTS = "results/explanation/group-gradients-utkface-all.csv"
PEOPLE = "results/pruning/people-or-answers-gender-utkface-all.csv"
PEOPLE_DIGITS = "results/pruning/people-or-answers-study.csv"
FEW = "results/pruning/people-or-answers-few-{}-utkface-all.csv"
RACES = "results/linearization/who-pays-for-relus-races-all.csv"
RACES_VGG19 = "results/linearization/who-pays-for-relus-networks-races-all.csv"
BUDGET = "results/every-way/one-budget-utkface-all.csv"
PATHS, PATHS_CLAIMS = (
    "results/benchmarks/two_paths.csv",
    "results/benchmarks/two_paths_claims.csv",
)
MITIGATIONS = ("equal-loss", "equal-curvature", "accuracy-gap", "group-dro", "reweight")

SHOWN: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("pages.yml").read_text("utf-8"))
"""Tables, rows and claims of the computed pages; the file explains its entries."""

DATA = {
    "study": "digits",
    "bilevel/does-it-hold-up-study": "artificial faces",
    "utkface": "a part of the faces",
    "pruning/matthew-effect-utkface": "faces",
    "utkface-all": "faces",
    "resnet18": "faces of 32 pixels in a ResNet-18",
    "races-all": "all faces of 16 pixels",
    "celeba": "CelebA",
}
"""Data in words, by what the name of a table ends in, or by all of it."""

SHORT = {"resnet18": "ResNet-18"}
"""Data in a word, where a cell of a table is narrow."""

YES = "supported"


def listed(names: list[str]) -> str:
    """Join names with commas and *and*."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def said(claim: str, tables: str, expect: dict[str, str]) -> str:
    """Quote the ledger on a claim by each of its recorded tables, as Markdown with a link to it.

    Args:
        claim: Id of the claim.
        tables: Beginning of the paths of its tables below ``results``.
        expect: By what a name ends in (`DATA`) the verdict that the words rest on.

    Raises:
        ValueError: If a verdict is another, or a recorded table of the claim is not among them.
    """
    recorded = claims.registered()[claim].tables.values()
    named = {f"results/{tables}-{end}.csv" for end in expect}
    # A verdict by a new table would go unmentioned, and the sentence would say less than is known.
    unsaid = sorted(
        name
        for name in {*recorded} - named
        if name.startswith("results/") and (project() / name).is_file()
    )
    if unsaid:
        raise ValueError(f"{claim} is also tested by {', '.join(unsaid)}: name them")
    data: dict[str, list[str]] = {}
    for end, wanted in expect.items():
        found = verdict(claim, f"results/{tables}-{end}.csv", expect=wanted)
        data.setdefault(found.verdict, []).append(DATA.get(f"{tables}-{end}", DATA[end]))
    words = [f"*{word}* on {listed(on)}" for word, on in data.items()]
    return f"[{claim}](#{claim}): {', '.join(words)}"


for row in SHOWN["said"]:
    VALUES[f"said_{row['claim'].replace('-', '_')}"] = functools.partial(said, **row)


def value(function: Callable[[], str]) -> Callable[[], str]:
    """Register a function as the value of its name."""
    VALUES[function.__name__] = function
    return function


@functools.cache
def table(path: str) -> pd.DataFrame:
    """Read a recorded table."""
    return pd.read_csv(project() / path)


def save_svg(figure: Figure, path: Path) -> None:
    """Save a figure with its texts as texts, in the same bytes each time."""
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "book"}):
        figure.savefig(path, metadata={"Date": None})


def gained(path: str, groups: str, level: float, **where: Any) -> pd.Series:
    """Compute what the smallest or the largest third of groups gains against the control."""
    return effects.accuracy_change(table(path), level=level, groups=groups, where=where)


def lost(
    claim: str, expect: str, table: str, groups: str, level: float, rows: dict[str, str]
) -> str:
    """Format what such a third of groups loses, on average over the seeds."""
    path = f"results/{table}.csv"
    verdict(claim, path, expect=expect)
    return points(-gained(path, groups, level, **rows))


VALUES |= {name: functools.partial(lost, **row) for name, row in SHOWN["lost"].items()}


def certain(gains: pd.Series) -> pd.Series:
    """Return values by seed for words that say they are above zero, if their interval is.

    Raises:
        ValueError: If the 95 % interval of the mean reaches down to zero.
    """
    found = t_interval(gains)
    if found.low <= 0:
        raise ValueError(f"the words say more than zero, the table {found}: change the words")
    return gains


def only_others(lost: Callable[[str], pd.Series]) -> None:
    """Hold words to it that of all races Others alone loses, whose losses a function computes.

    Raises:
        ValueError: If the 95 % interval of the mean of another race is above zero.
    """
    races = ("White", "Black", "Asian", "Indian", "Others")
    losing = [race for race in races if t_interval(lost(race)).low > 0]
    if losing != ["Others"]:
        raise ValueError(
            f"the words say that Others alone loses, the table that {losing} do: change the words"
        )


@value
def races_difference() -> str:
    return points(verdict("T-fig-1", SMALL, expect=YES).interval, interval=True)


@value
def races_equal_difference() -> str:
    equal, unequal = ({"setting": setting} for setting in ("equal", "unequal"))
    more = effects.drop_difference(
        table(SMALL), level=0.98, share=0.1, where=equal, rank_where=unequal
    )
    return points(certain(more), interval=True)


@value
def gender_difference() -> str:
    """Format what Others loses more than White where the answer is the gender, by pruning."""
    # Words that say "no more" need an interval within the margin, which the verdict asks.
    verdict("H-people-gender-pruned", PEOPLE, expect=YES)
    rows = {"where": {"arm": "prune"}, "share": 0.1, "level": 0.9}
    return points(effects.drop_difference(table(PEOPLE), **rows), interval=True)


def by_what_is_rare(claim: str, table: str = PEOPLE_DIGITS) -> str:
    """Format what the small group of a claim loses more than the large one."""
    return points(verdict(claim, table, expect=YES).interval)


VALUES |= {
    "rare_answer": functools.partial(by_what_is_rare, "H-answers-digit"),
    "rare_mark": functools.partial(by_what_is_rare, "H-people-mark"),
    "rare_inverted": functools.partial(by_what_is_rare, "H-people-inverted"),
    "few_race": functools.partial(by_what_is_rare, "H-few-answers", FEW.format("race")),
    "few_corrected": lambda: verdict("H-few-answers", FEW.format("race")).resplit,
    "few_gender": functools.partial(by_what_is_rare, "H-few-people", FEW.format("gender")),
}


@value
def resnet18_accuracy() -> str:
    """Format how many new faces the ResNet-18 recognizes, for words that say it is no better."""
    large, small = map(_recognized, (RESNET18, SMALL))
    if t_interval(large).low > t_interval(small).high:
        raise ValueError("the words say that the ResNet-18 is no better: change the words")
    return f"{large.mean():.1%}"


@value
def resnet18_difference() -> str:
    verdict("T-fig-1-majority", RESNET18, expect="reversed, negligible")
    return points(verdict("T-fig-1", RESNET18, expect="no effect").interval, interval=True)


@value
def resnet18_64_difference() -> str:
    return points(
        verdict("H-matthew-64-pixels", RESNET18_64, expect="undecided").interval, interval=True
    )


VALUES |= {
    "small_accuracy": lambda: f"{_recognized(SMALL).mean():.1%}",
    "resnet18_64_accuracy": lambda: f"{_recognized(RESNET18_64).mean():.1%}",
    "seeds_64_pixels": lambda: f"{table(RESNET18_64)['seed'].nunique()}",
}


def _others(arm: str, level: float | None = 2) -> str:
    """Count the faces of Others recognized of a hundred, with the bytes of two bits a weight."""
    return right(table(BUDGET), "Others", arm, level)


ARMS = {"pair": "prune + quantize", "bits": "quantize", "small": "small dense"}
VALUES |= {f"budget_{name}": functools.partial(_others, arm) for name, arm in ARMS.items()}
VALUES["budget_before"] = functools.partial(_others, "quantize", None)


@value
def budget_kept() -> str:
    verdict("H-budget-pair-quantize", BUDGET, expect="supported")
    kept = effects.select(table(BUDGET), arm="prune + quantize", stage="compressed", level=2)[
        "kept"
    ]
    return f"{kept.mean():.0%}"


def _asian(arm: str, level: float | None = 0.12) -> str:
    """Count the faces of Asian recognized of a hundred by a ResNet-18 in thin layers."""
    return right(table("results/every-way/lower-rank-whole-resnet18.csv"), "Asian", arm, level)


VALUES["floor_percent"] = lambda: f"{100 * effects.FLOOR:.0f}"
VALUES["monday_seeds"] = lambda: f"{table(BUDGET)['seed'].nunique()}"
VALUES["time_int8"] = lambda: times()["int8"]
VALUES["asian_before"] = functools.partial(_asian, "one energy", None)
VALUES["asian_whole"] = functools.partial(_asian, "one energy")


@value
def monday() -> str:
    """Tabulate the ways of *What to do on Monday*: kept, time, who loses, and what to do."""
    lines = []
    for way, row in SHOWN["monday"].items():
        path, level, where = f"results/{row['table']}.csv", row["level"], {"arm": row["arm"]}
        kept = effects.select(table(path), **where, stage="compressed", level=level)["kept"]
        average = 100 * effects.overall_change(table(path), level=level, where=where).mean()
        smallest = points(gained(path, "smallest", level, **where), interval=True)
        cells = [f"{kept.mean():.0%}", times().get(row["time"], row["time"]), f"{average:.1f}"]
        advice = advised(row["claims"], row["supported"])
        on = [
            f"{word}: " * (len(advice) > 1) + ", ".join(data) + " only" * (len(data) == 1)
            for word, data in advice.items()
        ]
        words = " / ".join(f"**{word}**" for word in advice)
        lines.append([way, *cells, smallest.replace(" points", ""), "; ".join(on), words])
    head = ["way", "bytes", "time", "average", "smallest", "shown on", "do or don't"]
    return "\n".join(pipe_table(head, lines, "--- --: --- --: --: --- ---"))


def advised(names: list[str], supported: str) -> dict[str, list[str]]:
    """Sort the data of claims by the advice that their verdicts give.

    Args:
        names: Ids of claims, each an entry of ``said``.
        supported: The advice where they are supported; where they are decided otherwise it is *do*
            for *don't*, and *don't* for any other. In a ResNet-18, which hardly knows the smallest
            group, a loss that is not larger is no advice: *measure*.

    Returns:
        Data in words, by the advice. Data that decide nothing give none.
    """
    other = "do" if supported == "don't" else "don't"
    found: dict[str, list[str]] = {}
    for row in SHOWN["said"]:
        for end in row["expect"] if row["claim"] in names else ():
            said = verdict(row["claim"], f"results/{row['tables']}-{end}.csv").verdict
            if said in DECIDED:
                advice = supported if said.startswith(YES) else other
                advice = "measure" if advice == "do" and end == "resnet18" else advice
                found.setdefault(advice, []).append(SHORT.get(end, DATA[end]))
    return found


@functools.cache
def times() -> dict[str, str]:
    """Read the share of the whole network's time that versions of a ResNet-18 take."""
    ratios = table("results/benchmarks/int8.csv").set_index("version")["ratio"]
    return ratios.map("{:.0%}".format).to_dict()


@value
def relus_others() -> str:
    verdict("D-fig-6-r18-snl-race", RACES, expect="supported")
    only_others(_dropped)
    return points(certain(_dropped("Others")))


VALUES |= {
    "relus_others_before": lambda: points(_control(RACES, method="linearize:snl")),
    "relus_vgg19_others_before": lambda: points(_control(RACES_VGG19, model="vgg19")),
    "others_32_pixels": lambda: f"{_control(RESNET18, setting='unequal').mean():.0%}",
    "others_64_pixels": lambda: f"{_control(RESNET18_64, setting='unequal').mean():.0%}",
}


@value
def relus_vgg19_others() -> str:
    verdict("D-fig-7a", RACES_VGG19, expect="supported")
    return points(certain(_dropped("Others", RACES_VGG19, model="vgg19")))


@value
def relus_resnet34() -> str:
    networks = "results/linearization/who-pays-for-relus-networks.csv"
    verdict("D-fig-11-r34-cifar10", networks, expect="reversed")
    return points(gained(networks, "smallest", 0.02, model="resnet34", method="linearize:snl"))


VALUES["gradient_correlation"] = lambda: _correlation("study")


@value
def gradient_correlation_faces() -> str:
    only_others(_pruned)
    return _correlation("utkface-all")


def _narrowed(data: str) -> str:
    """Format by how much the mitigations narrow the gap between groups: the least and the most."""
    path = f"results/mitigation/price-of-fairness-{data}.csv"
    found = [verdict(f"H-price-{name}", path, expect=YES).interval.estimate for name in MITIGATIONS]
    return f"{-100 * max(found):.0f} to {-100 * min(found):.0f} points"


for name, data in (("digits", "study"), ("races", "utkface")):
    VALUES[f"mitigations_{name}"] = functools.partial(_narrowed, data)


def _more_right(data: str, mitigation: str) -> pd.DataFrame:
    """Compute how many more test answers are right after a mitigation, by seed and group."""
    rows = effects.select(
        table(f"results/mitigation/price-of-fairness-{data}.csv"),
        **{"strength": [0, 2], "stage": "compressed", "budget": "epochs", "split": "test"},
    )
    rows = rows.assign(right=rows["accuracy"] * rows["size"])
    right = rows.pivot(index="seed", columns=["mitigation", "group"], values="right")
    return right[mitigation] - right["none"]


@value
def answers_gained() -> str:
    """Format how many more digits are right after each mitigation: the least and the most."""
    tables = product(("study", "unpruned-study"), MITIGATIONS)
    found = [certain(_more_right(*each).sum(axis=1)).mean() for each in tables]
    return f"{min(found):.0f} to {max(found):.0f}"


@value
def answers_taken() -> str:
    """Format how many right answers other races lose under equal losses for one of Others."""
    more = _more_right("unpruned-utkface-all", "equal-loss")
    gained = certain(more["Others"])
    return f"{certain(gained - more.sum(axis=1)).mean() / gained.mean():.1f}"


@value
def gap_of_pruning() -> str:
    """Format by how much pruning itself had widened the gap between races."""
    pruned, whole = (
        effects.group_gap(
            table("results/mitigation/price-of-fairness-utkface.csv"),
            where={"mitigation": "none", "stage": stage, "split": "test"},
        )
        for stage in ("compressed", "control")
    )
    return points(certain(pruned - whole))


@value
def largest_false() -> str:
    simulated = table("results/benchmarks/false_verdicts.csv")
    return f"{100 * simulated.loc[~simulated['excused'], 'false'].max():.1f} %"


POOL = "results/benchmarks/false_verdicts_one_pool.csv"
for column in ("false", "corrected"):
    VALUES[f"pool_{column}"] = lambda column=column: f"{100 * table(POOL)[column].max():.0f} %"


@value
def claims_late() -> str:
    path = project() / "book" / "claims.yml"
    written = first_written(path, [*claims.registered().values()], project())
    # A shallow clone does not know when claims and tables were written.
    late = {claim for (claim, _), found in written.items() if found.late}
    return f"{len(late)}" if written else "an unknown number of"


@value
def model_families() -> str:
    """Tabulate of how many networks of a family each function gives the right numbers."""
    return (
        table("results/benchmarks/model-families.csv")
        .pivot_table(
            "verdict",
            "family",
            "function",
            lambda each: f"{(each == 'right').sum()} of {len(each)}",
            sort=False,
        )
        .rename(columns={"group_gradients": "group gradients"})
        .to_markdown()
    )


VALUES |= {
    "paths_statistics": lambda: f"{len(table(PATHS))}",
    "paths_alike": lambda: f"{table(PATHS)['holds_zero'].sum()}",
    "paths_claims": lambda: f"{len(table(PATHS_CLAIMS))}",
    "paths_claims_alike": lambda: f"{table(PATHS_CLAIMS)['holds_zero'].sum()}",
    "paths_verdicts": lambda: f"{len(_verdicts_by_path())}",
    "claims_count": lambda: f"{len(claims.registered())}",
}


@value
def paths_claims_seeds() -> str:
    seeds = table(PATHS_CLAIMS)["seeds"]
    return f"{seeds.min()} to {seeds.max()}"


@value
def paths_changed() -> str:
    found = _verdicts_by_path()
    return f"{(found['verdict_alone'] != found['verdict_at_once']).sum()}"


def _hours(paper: str) -> str:
    """Format the hours that a paper's grids take a GPU, to the longest that is allowed."""
    found = table("results/benchmarks/grid_work.csv")
    own = found[found["table"].str.fullmatch(f".*/{paper}-(fig|tab)-(?!1-small).*")]
    # Two digits: passes were counted to within a fifth.
    ends = (own[way].sum() / claims.PFLOP_PER_HOUR for way in ("pflop", "most"))
    low, most = (f"{float(f'{end:.2g}'):,g}" for end in ends)
    return low if low == most else f"{low} to {most}"


VALUES |= {
    **{f"hours_{paper}": functools.partial(_hours, paper) for paper in "tbd"},
    "gpu_share": lambda: f"{table('results/benchmarks/gpu_shares.csv')['share'].max():.1%}",
}


def _correlation(run: str) -> str:
    """Format how far gradient norms of groups before pruning agree with what they lose."""
    said = verdict(
        "T-verbal-c2-gradient", f"results/explanation/group-gradients-{run}.csv", expect="supported"
    )
    return f"{said.interval.estimate:.2f}"


def _control(path: str, **where: str) -> pd.Series:
    """Look up the test accuracy of Others under the control, by seed."""
    rows = effects.select(table(path), stage="control", split="test", group="Others", **where)
    return rows["accuracy"]


def _recognized(path: str) -> pd.Series:
    """Compute the share of new faces that the control recognizes, by seed."""
    where = {"setting": "unequal", "stage": "control", "split": "test"}
    return effects.overall_accuracy(table(path), where=where)


def _pruned(race: str) -> pd.Series:
    """Compute what a race loses with nine tenths of the weights pruned, by seed."""
    where = {"setting": "unequal", "group": race}
    return -effects.overall_change(table(GRADIENTS), level=0.9, where=where)


def _dropped(race: str, path: str = RACES, **network: str) -> pd.Series:
    """Compute what a race loses with one ReLU in fifty left, by seed."""
    where = {
        "method": "linearize:snl",
        "stage": "compressed",
        "level": 0.02,
        "split": "test",
        "group": race,
    }
    return effects.select(table(path), **where, **network)["drop"]


def _verdicts_by_path() -> pd.DataFrame:
    return table(PATHS_CLAIMS).drop_duplicates(["table", "claim", "reading"])


def texts() -> dict[str, str]:
    """Compute all values, by name."""
    return {name: function() for name, function in VALUES.items()}


if __name__ == "__main__":
    for name, text in texts().items():
        print(f"{name}: {text}")
