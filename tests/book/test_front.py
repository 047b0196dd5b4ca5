"""Numbers of the prose pages, the figure of the front page and its slider say what the recorded
tables say."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import explore
import front
import pandas as pd
import pytest
import values
from built import CHROMIUM, FLAGS, ROOT

from whopays import effects

STUDY = "pruning/matthew-effect-study"


def lost(name: str, level: float, *, smallest: bool, **where: str) -> float:
    """Points that a third of the groups loses against the control, computed with pandas alone."""
    table = pd.read_csv(ROOT / f"results/{name}.csv")
    for column, value in where.items():
        table = table[table[column] == value]
    drops = []
    for _, run in table.groupby("seed"):
        sizes = run[(run["stage"] == "control") & (run["split"] == "train")].set_index("group")[
            "size"
        ]
        sizes = sizes.sort_values(ascending=smallest)
        third = sizes.index[: math.ceil(len(sizes) / 3)]
        assert sizes.is_unique or sizes.iloc[len(third) - 1] != sizes.iloc[len(third)], (
            "ties are broken elsewhere"
        )
        test = run[(run["split"] == "test") & run["group"].isin(third)]
        compressed = test[(test["stage"] == "compressed") & (test["level"] == level)][
            "accuracy"
        ].mean()
        drops.append(test[test["stage"] == "control"]["accuracy"].mean() - compressed)
    return 100 * sum(drops) / len(drops)


def of_race(race: str, after: int = 1, model: str = "tiny-resnet") -> float:
    """Points that a race loses with one ReLU in fifty left, or (0) has before, computed with pandas
    alone."""
    name = "races" if model == "tiny-resnet" else "networks-races"
    table = pd.read_csv(ROOT / f"results/linearization/who-pays-for-relus-{name}-all.csv")
    own = table[
        (table["group"] == race) & (table["split"] == "test") & (table["method"] == "linearize:snl")
    ]
    own = own[own["model"] == model]
    ends = own.pivot(index="seed", columns=["stage", "level"], values="accuracy")
    return 100 * (ends["control", 1.0] - after * ends["compressed", 0.02]).mean()


def right(mitigation: str, data: str, strength: int = 2) -> pd.Series:
    """Right answers to test images after a mitigation, over seeds, by group, with pandas alone."""
    table = pd.read_csv(ROOT / f"results/mitigation/price-of-fairness-{data}.csv")
    own = table[
        (table["mitigation"] == mitigation)
        & (table["strength"] == strength)
        & (table["stage"] == "compressed")
        & (table["budget"] == "epochs")
        & (table["split"] == "test")
    ]
    return (own["accuracy"] * own["size"]).groupby(own["group"]).mean()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("relus_others", lambda: of_race("Others")),
        ("relus_others_before", lambda: of_race("Others", after=0)),
        ("relus_vgg19_others", lambda: of_race("Others", model="vgg19")),
        ("relus_vgg19_others_before", lambda: of_race("Others", after=0, model="vgg19")),
        ("digits_smallest", lambda: lost(STUDY, 0.9, smallest=True, setting="unequal")),
        ("digits_largest", lambda: lost(STUDY, 0.9, smallest=False, setting="unequal")),
        (
            "capacity_small",
            lambda: lost(
                "pruning/compression-or-capacity-study", 0.9, smallest=True, network="small dense"
            ),
        ),
        (
            "capacity_pruned",
            lambda: lost(
                "pruning/compression-or-capacity-study", 0.9, smallest=True, network="pruned"
            ),
        ),
        (
            "relus_resnet34",
            lambda: (
                -lost(
                    "linearization/who-pays-for-relus-networks",
                    0.02,
                    smallest=True,
                    model="resnet34",
                    method="linearize:snl",
                )
            ),
        ),
    ],
)
def test_a_value_is_computed_from_its_table(name: str, expected):
    assert values.VALUES[name]() == f"{expected():.1f} points"


def test_the_net_of_mitigations_is_counted_in_answers():
    gained = [
        (right(name, data) - right("none", data, 0)).sum()
        for data in ("study", "unpruned-study")
        for name in values.MITIGATIONS
    ]
    assert values.VALUES["answers_gained"]() == f"{min(gained):.0f} to {max(gained):.0f}"
    faces = "unpruned-utkface-all"
    more = right("equal-loss", faces) - right("none", faces, 0)
    assert values.VALUES["answers_taken"]() == f"{1 - more.sum() / more['Others']:.1f}"


@pytest.mark.parametrize(
    ("name", "table", "setting", "level"),
    [
        ("gender_difference", "pruning/people-or-answers-gender-utkface-all", "all", 0.9),
        ("races_difference", "pruning/matthew-effect-utkface", "unequal", 0.9),
        ("races_equal_difference", "pruning/matthew-effect-utkface", "equal", 0.98),
    ],
)
def test_a_difference_of_races_is_that_of_two_drops(
    name: str, table: str, setting: str, level: float
):
    own = pd.read_csv(ROOT / f"results/{table}.csv")
    own = own[(own["setting"] == setting) & (own["split"] == "test")]
    own = own[own["arm"] == "prune"] if "arm" in own else own
    control = own[own["stage"] == "control"].groupby("group")["accuracy"].mean()
    pruned = own[(own["stage"] == "compressed") & (own["level"] == level)]
    drops = control - pruned.groupby("group")["accuracy"].mean()
    mean = 100 * (drops["Others"] - drops["White"])
    assert values.VALUES[name]().startswith(f"{mean:.1f} points [")


@pytest.mark.parametrize(
    ("name", "setting", "small"),
    [
        ("rare_answer", "corner", "plain, rare"),
        ("rare_mark", "corner", "marked, frequent"),
        ("rare_inverted", "inverted", "marked, frequent"),
    ],
)
def test_what_is_rare_on_digits_is_compared_with_what_is_not(name: str, setting: str, small: str):
    own = pd.read_csv(ROOT / "results/pruning/people-or-answers-study.csv")
    own = own[(own["setting"] == setting) & (own["split"] == "test") & (own["arm"] == "prune")]
    control = own[own["stage"] == "control"].groupby("group")["accuracy"].mean()
    pruned = own[(own["stage"] == "compressed") & (own["level"] == 0.9)]
    drops = control - pruned.groupby("group")["accuracy"].mean()
    assert values.VALUES[name]() == f"{100 * (drops[small] - drops['plain, frequent']):.1f} points"


def test_words_that_say_the_large_network_is_no_better_stop_the_build(monkeypatch):
    assert values.VALUES["resnet18_accuracy"]() < values.VALUES["small_accuracy"]()
    monkeypatch.setattr(values, "RESNET18", values.SMALL)
    monkeypatch.setattr(values, "SMALL", "results/pruning/matthew-effect-resnet18.csv")
    with pytest.raises(ValueError, match="change the words"):
        values.VALUES["resnet18_accuracy"]()


def test_every_value_is_used_and_every_used_one_exists():
    pages = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "book").rglob("*.md"))
    assert set(re.findall(r"\{\{ *(\w+) *\}\}", pages)) == set(values.VALUES)


def test_words_that_the_ledger_does_not_bear_stop_the_build():
    row = values.SHOWN["lost"]["relus_smallest"]
    with pytest.raises(ValueError, match="change its words"):
        values.lost(**row | {"table": "linearization/who-pays-for-relus-ages"})


def test_words_that_say_who_gains_need_an_interval_above_zero():
    sure = pd.Series([0.01, 0.02, 0.03, 0.02, 0.02])
    assert values.certain(sure) is sure
    with pytest.raises(ValueError, match="change the words"):
        values.certain(sure - 0.02)


@pytest.mark.parametrize("third", front.BOTH)
def test_the_line_of_the_figure_is_what_the_table_says(third: str):
    (line,) = front.changes(**front.PRUNED[0]["line"])
    for kept, level in ((0.1, 0.9), (0.05, 0.95)):
        means = line[third].mean()
        assert means.iloc[abs(means.index - kept).argmin()] == pytest.approx(
            -lost(STUDY, level, smallest=third == "smallest", setting="unequal")
        )
    assert list(line[third]) == sorted(line[third], reverse=True)


def compressed(name: str, where: dict | None = None) -> set[tuple[str, ...]]:
    """Data, network and compressor of each run of a table that was compared with a control and not
    mitigated."""
    table = pd.read_csv(ROOT / f"results/{name}.csv")
    if not {"kept", "stage", "level", "when", "size"} <= set(table) or "control" not in set(
        table["stage"]
    ):
        return set()
    table = effects.select(table, **where or {}) if where else table
    table = table[(table["stage"] == "compressed") & (table["when"] == "never")]
    return set(table[["data", "model", "method"]].itertuples(index=False, name=None))


def test_every_recorded_compressor_network_and_data_set_is_in_the_figure():
    names = [
        path.relative_to(ROOT / "results").with_suffix("").as_posix()
        for path in ROOT.glob("results/*/*.csv")
    ]
    names = [
        name for name in names if not name.startswith(("every-way/", "pruning/people-or-answers"))
    ]  # Over bytes, on the front page, and by what is asked, on a page of its own.
    recorded = {
        found for name in names for found in compressed(name) if found[0] not in front.TWO_GROUPS
    }
    drawn = {
        found
        for panel in front.PRUNED + front.LINEARIZED
        for source in (panel["line"], *panel.get("dots", []))
        for found in compressed(source["table"], source.get("rows"))
    }
    assert drawn == recorded and len(recorded) > 20


@pytest.mark.parametrize("title", front.COVER)
def test_a_line_of_the_cover_is_what_its_table_says(title: str):
    look = front.COVER[title]
    table = pd.read_csv(ROOT / f"results/{look['table']}.csv")
    test = table[(table["split"] == "test") & (table["arm"] == "prune")]
    for column, value in look["rows"].items():
        test = test[test[column] == value]
    drawn = front.cover_changes(look)
    for line, rows in {"small": test[test["group"] == look["small"]], "all": test}.items():
        rows = rows.assign(right=rows["accuracy"] * rows["size"])
        sums = rows.groupby(["stage", "level", "seed"])[["right", "size"]].sum()
        accuracy = (sums["right"] / sums["size"]).groupby(["stage", "level"]).mean()
        change = 100 * (accuracy["compressed", 0.9] - accuracy["control", 0.0])
        assert drawn[line].mean().iloc[1] == pytest.approx(change)
        assert next(iter(drawn[line])) == 1 and not drawn[line].iloc[:, 0].any()


@pytest.mark.slow
@pytest.mark.parametrize("title", front.ONE_BUDGET)
def test_the_one_axis_has_every_way_of_its_table(title: str):
    name = front.ONE_BUDGET[title]
    table = pd.read_csv(ROOT / f"results/{name}.csv")
    assert {look["arm"] for look in front.WAYS.values()} == set(table["arm"])
    drawn = front.ways()[f"{title}, two ways"]["pruned, fewer bits"].mean()
    assert drawn.iloc[-1] == pytest.approx(-lost(name, 2, smallest=True, arm="prune + quantize"))
    own = table[(table["arm"] == "prune + quantize") & (table["level"] == 2)]
    assert drawn.index[-1] == pytest.approx(own["kept"].mean())


def test_every_way_is_on_the_one_axis():
    """Of each table of the part that shows a network of the papers, but of lower rank once more,
    there is a line."""
    papers = {path.stem for path in (ROOT / "results" / "every-way").glob("*-resnet18.csv")}
    papers -= {"lower-rank-longer-resnet18", "lower-rank-whole-resnet18"}
    assert papers == {Path(entry["table"]).name for entry in front.RESNET18.values()}
    thin = front.ways()["faces, ResNet-18, one way"]["thin layers"].mean()
    assert thin.iloc[-1] == pytest.approx(
        -lost("every-way/lower-rank-resnet18", 0.06, smallest=True, arm="one energy")
    )


@pytest.mark.slow
def test_every_point_is_inside_its_panel():
    for axis, own in zip(front.one_axis(7.6, 8.2, 2).axes, front.ways().values(), strict=True):
        (most, least), (low, high) = axis.get_xlim(), axis.get_ylim()
        drawn = [container[0].get_xydata() for container in axis.containers]
        assert len(drawn) == len(own) and all(
            least < kept < most and low < lost < high for line in drawn for kept, lost in line
        )


def test_of_a_hundred_faces_so_many_are_recognized():
    table = pd.read_csv(ROOT / "results/every-way/one-budget-utkface-all.csv")
    own = table[
        (table["group"] == "Others")
        & (table["split"] == "test")
        & (table["arm"] == "prune + quantize")
    ]
    of = own.groupby(["stage", "level"])["accuracy"].mean() * 100
    assert values.VALUES["budget_pair"]() == f"{of['compressed', 2]:.0f}"
    assert values.VALUES["budget_before"]() == f"{of['control', 32]:.0f}"


def test_a_sentence_names_every_table_of_its_claim():
    assert values.VALUES["said_H_bits_finetuned"]().endswith(
        ": *supported* on faces, *undecided (floor)* on CelebA, *undecided* on digits"
    )
    assert values.VALUES["said_H_bits_four"]().endswith(
        ": *undecided* on digits, *no effect* on faces, *undecided (floor)* on CelebA"
    )
    with pytest.raises(ValueError, match=r"also tested by .*fewer-bits-utkface-all"):
        floor = "undecided (floor)"
        values.said("H-bits-four", "every-way/fewer-bits", {"study": "undecided", "celeba": floor})
    with pytest.raises(ValueError, match="change its words"):
        expected = dict.fromkeys(("study", "utkface-all"), "no effect")
        values.said(
            "H-bits-four",
            "every-way/fewer-bits",
            expected | {"celeba": floor, "study": "supported"},
        )


def test_monday_says_what_its_tables_and_the_ledger_say():
    rows = values.VALUES["monday"]().splitlines()
    cells = {row.split(" | ")[0].lstrip("| "): row.split(" | ")[1:] for row in rows}
    pair = -lost("every-way/one-budget-utkface-all", 2, smallest=True, arm="prune + quantize")
    assert cells["pruned, then four bits"][3].startswith(f"{pair:.1f} [")
    assert cells["four bits a weight"][4:] == ["faces only", "**do** |"]
    assert cells["two bits a weight"][5] == "**don't** / **measure** |"


def test_every_pruner_of_a_table_has_dots_of_its_own():
    pruners = pd.read_csv(ROOT / "results/pruning/which-pruner-study.csv")["pruner"].nunique()
    assert len(list(front.changes("pruning/which-pruner-study", {}))) == pruners


@pytest.mark.slow
def test_pages_are_staged(tmp_path: Path):
    shutil.copy(ROOT / "_config.yml", tmp_path)
    front.main(str(tmp_path))
    assert values.VALUES["digits_smallest"]() in (tmp_path / "_config.yml").read_text(
        encoding="utf-8"
    )
    for name in ("wide", "narrow"):
        folder = tmp_path / "book" / "_front"
        cover, texts, runs = (
            [node.text for node in ElementTree.parse(file).iter("{http://www.w3.org/2000/svg}text")]
            for file in (folder / f"{kind}{name}.svg" for kind in ("", "ways-", "runs-"))
        )
        assert {"small group", "large group", "everybody", "a rare digit"} <= set(cover)
        assert set(front.WAYS) | set(front.ways()) <= set(texts)
        assert texts.count("bytes kept, %") == (2 if name == "wide" else 1)
        assert "largest third of groups" in runs and runs.count("ReLUs kept, %") == 1


@pytest.mark.parametrize(
    ("title", "group", "level"),
    [
        ("Pruned, faces by race", "Black", 0.99),
        ("Pruned, then fewer bits, faces by race", "Asian", 2),
    ],
)
def test_the_slider_moves_over_recorded_accuracies(title: str, group: str, level: float):
    chosen = explore.CHOICES[title]
    table = pd.read_csv(ROOT / f"results/{chosen['table']}.csv").query(
        "split == 'test' and stage == 'compressed'"
    )
    for column, value in chosen["rows"].items():
        table = table[table[column] == value]
    choice = explore.choice(title)
    own = table[(table["group"] == group) & (table["level"] == level)]["accuracy"]
    shown = next(found for found in choice["groups"] if found["name"] == group)
    assert shown["accuracy"][-1] == round(100 * own.mean(), 1)
    assert shown["half"][-1] > 0
    sizes = [found["size"] for found in choice["groups"]]
    assert sizes == sorted(sizes, reverse=True) and len(choice["levels"]) == len(shown["accuracy"])


def test_where_every_seed_draws_the_sizes_groups_are_ranks():
    choice = explore.choice("Pruned, digits")
    assert [group["name"] for group in choice["groups"]] == [
        "largest",
        *(f"rank {place}" for place in range(2, 10)),
        "smallest",
    ]


TOY = """<figure class="interactive"><script type="application/json">{"label": "Fewer ReLUs", "box": [0, 0, 2, 1],
"points": [[[0.5, 0.5]], [[1.5, 0.5]]], "truth": [[1, 0], [1, 1]],
"frames": [{"lines": [[[1, 0], [1, 1]]], "text": "two"}, {"lines": [[[0, 0], [2, 1]]], "text": "one"}]}</script>
<p>still</p></figure>"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator:
    if CHROMIUM is None:
        pytest.skip("no Chromium on the PATH (Debian: apt install chromium)")
    sync_api = pytest.importorskip("playwright.sync_api")
    script = (ROOT / "book" / "_static" / "slider.js").read_text(encoding="utf-8")
    style = (ROOT / "book" / "_static" / "slider.css").read_text(encoding="utf-8")
    file = tmp_path_factory.mktemp("slider") / "page.html"
    body = f"{explore.html()}{TOY}<style>{style}</style><script>{script}</script>"
    file.write_text(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>a</title>{body}',
        encoding="utf-8",
    )
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        opened = browser.new_page(viewport={"width": 390, "height": 844})
        opened.goto(file.as_uri())
        yield opened
        browser.close()


@pytest.mark.slow
def test_keys_move_the_slider_and_the_bars(page):
    figure = page.locator("figure.interactive").first
    slider = figure.locator("input")
    slider.focus()
    page.keyboard.press("End")
    smallest = explore.choice("Pruned, digits")["groups"][-1]["accuracy"]
    assert f"smallest {smallest[-1]:.1f}" in slider.get_attribute("aria-valuetext")
    said = figure.locator("output").text_content()
    assert said.startswith("1 % of the weights kept: largest") and "left to lose: rank 5" in said
    assert figure.locator(".gone .bar").last.get_attribute("style") == f"width: {smallest[-1]:g}%;"


def test_another_table_can_be_chosen(page):
    figure = page.locator("figure.interactive").first
    figure.locator("select").select_option(label="Fewer ReLUs, faces by race")
    assert figure.locator(".row").count() == 5
    assert (
        figure.locator("output")
        .text_content()
        .startswith("100 % of the ReLUs kept: nothing is compressed")
    )


def test_the_boundary_moves(page):
    figure = page.locator("figure.interactive").last
    path = figure.locator(".boundary")
    assert path.get_attribute("d") == "M1 0L1 -1"
    figure.locator("input").focus()
    page.keyboard.press("ArrowRight")
    assert path.get_attribute("d") == "M0 0L2 -1"
    assert (
        figure.locator("output").text_content()
        == figure.locator("input").get_attribute("aria-valuetext")
        == "one"
    )


def test_on_paper_there_are_tables(page):
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    figure = page.locator("figure.interactive").first
    assert not figure.locator("input").is_visible() and figure.locator("table").last.is_visible()
    page.emulate_media(media="screen")


def test_without_scripts_there_are_tables(page):
    context = page.context.browser.new_context(java_script_enabled=False)
    still = context.new_page()
    still.goto(page.url)
    assert still.locator("figure.interactive table").first.is_visible()
    assert still.locator("figure.interactive p").is_visible()
    context.close()


@pytest.mark.slow
def test_nothing_is_wider_than_a_telephone(page):
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
