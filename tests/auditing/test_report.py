from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from html import escape
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
import yaml

import fairlib
from fairlib.auditing import Report
from fairlib.auditing.pages import as_json, html, markdown, model_card
from fairlib.auditing.sentence import sentence, visible
from fairlib.diagnostics import DIAGNOSTICS

EVIL = ("<script>alert(1)</script>", "a|b*c*", "x\u202ey\x00\n# z", "</style><b>{0}</b>")
VOID = {"meta", "br", "hr", "img"}


def counted(groups: dict[str, tuple[int, int, int]], **settings) -> Report:
    """A report on labels: of every group its size, and how many are right before and after (the
    first ones)."""
    names = [name for name, (size, _, _) in groups.items() for _ in range(size)]
    targets = np.arange(len(names)) % 2
    said = []
    for when in (1, 2):
        right = np.concatenate([np.arange(row[0]) < row[when] for row in groups.values()])
        said.append(np.where(right, targets, 1 - targets))
    return fairlib.audit(*said, targets=targets, groups=names, **{"resamples": 200, **settings})


@pytest.fixture(scope="module")
def evil() -> Report:
    sizes = dict(zip(EVIL, (400, 300, 60, 40), strict=True))
    return counted(
        {name: (size, size, size - 2 * place) for place, (name, size) in enumerate(sizes.items())}
    )


@pytest.fixture(scope="module")
def crossed() -> Report:
    """Probabilities, two attributes crossed, a group too small to be judged."""
    generator = np.random.default_rng(0)
    targets = generator.integers(0, 2, 600)
    groups = pd.DataFrame(
        {"age": ["old"] * 200 + ["young"] * 400, "gender": (["f"] * 5 + ["m"] * 7) * 50}
    )
    groups.loc[:3, "gender"] = "x"
    before = np.clip(0.6 * targets + 0.2 + generator.normal(0, 0.2, 600), 0.01, 0.99)
    after = np.where(groups["age"] == "old", 1 - before, before)
    return fairlib.audit(before, after, targets=targets, groups=groups, resamples=100)


def stated(rows: dict[str, tuple], too_small: tuple[str, ...] = (), level: float = 0.95) -> Report:
    """A report of which only what a sentence needs is known: size, drop with bounds; difference, p
    and detectable."""
    table = pd.DataFrame.from_dict(
        {name: row[:4] for name, row in rows.items()},
        "index",
        columns=["size", "drop", "drop_low", "drop_high"],
    )
    judged = {name: row[4:] for name, row in rows.items() if len(row) > 4}
    contrasts = pd.DataFrame.from_dict(
        judged, "index", columns=["difference", "p_holm", "detectable"], dtype=float
    )
    empty = pd.DataFrame()
    return Report(table, contrasts, empty, empty, empty, empty, too_small, {"level": level})


NAN = (float("nan"),) * 3
ALL = {"all": (1000, 0.03, 0.02, 0.04)}
MEN, WOMEN = (
    (700, 0.02, 0.01, 0.03, -0.021, 0.03, 0.04),
    (251, 0.02, -0.0004, 0.05, -0.01, 0.6, 0.05),
)


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        (
            stated(
                {
                    "men": MEN,
                    "women": WOMEN,
                    "nonbinary": (49, 0.12, 0.04, 0.22, 0.1, 0.0042, 0.09),
                    **ALL,
                }
            ),
            "cost nonbinary (49 samples) most: 12 points of accuracy [4, 22], 10 more than all "
            "others together, which is beyond chance (p = 0.0042, corrected for 3 groups); a "
            "difference below 9.0 points would have been missed more often than not.",
        ),
        (
            stated(
                {"men": MEN, "nonbinary": (1049, 0.082, -0.0004, 0.163, 0.062, 0.33, 0.25), **ALL},
                ("a", "b"),
            ),
            "cost nonbinary (1,049 samples) most: 8.2 points of accuracy [0.0, 16.3], 6.2 more "
            "than men, which cannot be told from chance (p = 0.33); a difference below 25 "
            "points would have been missed more often than not. 2 groups are too small to be "
            "judged: a, b.",
        ),
        (  # The largest drop is a matter of chance, a smaller one is not.
            stated(
                {
                    "few": (12, 0.2, -0.1, 0.5, 0.15, 0.4, 2.0),
                    "some": (900, 0.1, 0.08, 0.12, 0.09, 0.0009, 0.02),
                    "many": (9000, 0.01, 0.005, 0.015, -0.09, 0.001, 0.02),
                    **ALL,
                }
            ),
            "cost few (12 samples) most: 20 points of accuracy [-10, 50], 15 more than all "
            "others together, which cannot be told from chance (p = 0.4, corrected for 3 "
            "groups); no difference would have been found reliably; some fared worse than all "
            "others together, beyond chance.",
        ),
        (
            stated(
                {
                    "a": (50, -0.01, -0.03, 0.02, 0.02, 0.04, 0.1),
                    "b": (50, -0.03, -0.1, 0, -0.02, 0.04, 0.1),
                    **ALL,
                }
            ),
            "cost no group accuracy: a (50 samples) gained least, 1.0 points of accuracy [-2.0,"
            " 3.0], 2.0 less than b, which is beyond chance (p = 0.04); a difference below 10 "
            "points would have been missed more often than not.",
        ),
        (
            stated(
                {
                    "a": (50, 0.0, -0.1, 0.1, 0.0, 1, 0.1),
                    "b": (20, 0.0, -0.1, 0.1, 0.0, 1, 0.3),
                    **ALL,
                },
                ("c",),
            ),
            "changed the accuracy of no group that can be judged; for b, a difference below 30 "
            "points would have been missed more often than not. 1 group is too small to be "
            "judged: c.",
        ),
        (
            stated(
                {"a": (50, 0.04, 0, 0.1, 0.0, 1, 0.1), "b": (50, 0.04, 0, 0.1, 0.0, 1, 0.1), **ALL}
            ),
            "changed the accuracy of every group by -4.0 points; for a, a difference below 10 "
            "points would have been missed more often than not.",
        ),
        (
            stated({"only": (50, 0.04, -0.01, 0.1, *NAN), **ALL}),
            "cost only (50 samples) 4.0 points of accuracy [-1.0, 10.0]; there is no other "
            "group to compare it with.",
        ),
        (
            stated({"all": (30, -0.04, -0.1, 0.01)}, tuple("abcdefg")),
            "gave all (30 samples) 4.0 points of accuracy [-1.0, 10.0]; no group can be judged."
            " 7 groups are too small to be judged: a, b, c, d, e and 2 more.",
        ),
    ],
)
def test_the_sentence_says_who_pays_and_how_sure_that_is(report, expected):
    assert sentence(report) == f"On these samples compression {expected}"


def test_chance_is_what_the_level_says():
    rows = {
        "a": (50, 0.2, 0.1, 0.3, 0.1, 0.07, 0.1),
        "b": (50, 0.1, 0.0, 0.2, -0.1, 0.07, 0.1),
        **ALL,
    }
    assert "cannot be told from chance" in sentence(stated(rows))
    assert "is beyond chance" in sentence(stated(rows, level=0.9))


def test_the_sentence_of_an_audit_counts():
    found = counted({"many": (60, 60, 60), "few": (40, 40, 20), "tiny": (3, 3, 0)}).sentence
    assert found.startswith(
        "On these samples compression cost few (40 samples) most: 50 points of accuracy ["
    )
    assert (
        "50 more than many, which is beyond chance (p = 0.005);" in found
    )  # 1 / (1 + 200 permutations).
    assert found.endswith(" 1 group is too small to be judged: tiny.")


class _Page(HTMLParser):
    """Texts and tags of a page whose elements are all closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open, self.tags, self.texts = [], [], []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.open += [] if tag in VOID else [tag]

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts += [data.strip()] if data.strip() and self.open[-1] != "style" else []


@pytest.mark.parametrize("name", ["evil", "crossed"])
def test_the_page_is_whole_and_refers_to_nothing(name, request):
    page = html(request.getfixturevalue(name))
    read = _Page(page)
    assert (
        "<script" not in page
        and "http" not in page
        and "url(" not in page
        and "@import" not in page
    )
    assert not {"script", "link", "img", "iframe", "a"} & {tag for tag, _ in read.tags}
    assert not {"href", "src", "style", "onload"} & {
        name for _, attributes in read.tags for name in attributes
    }
    assert re.findall("<h2>(.*)</h2>", page) == [
        "What was audited",
        "Notes",
        "Caveats",
        "What may not be concluded",
        "All numbers",
    ]
    assert page.index('class="lead"') < page.index("<svg") < page.index("<h2>")


def test_names_are_shown_and_break_nothing(evil):
    page = html(evil)
    texts = " ".join(_Page(page).texts)
    for name in (EVIL[0], EVIL[1], r"x\u202ey\x00\n# z", EVIL[3]):
        assert name in texts and name in sentence(evil) + texts
    for shown in (page, markdown(evil), model_card(evil), sentence(evil)):
        assert "\u202e" not in shown and "\0" not in shown and "\n# z" not in shown
    assert "&lt;script&gt;" in page and "<script" not in page + markdown(evil)


def test_a_markdown_reader_finds_every_name_in_its_cell(evil):
    reader = pytest.importorskip("markdown_it").MarkdownIt("commonmark").enable("table")
    read = _Page(reader.render(markdown(evil)))
    assert [tag for tag, _ in read.tags].count("tr") == 6  # A header, four groups, all.
    start = read.texts.index("p, drop against all others") + 1
    assert sorted(read.texts[start + 6 * row] for row in range(4)) == sorted(
        [*EVIL[:2], r"x\u202ey\x00\n# z", EVIL[3]]
    )


def test_the_drawing_goes_from_the_largest_drop_to_the_smallest():
    report = counted(
        {"b": (100, 90, 80), "a": (100, 90, 45), "gains": (100, 80, 90), "tiny": (4, 4, 0)}
    )
    page = html(report)
    read = _Page(page)
    drawn = _Page(page[page.index("<svg") : page.index("</svg>")] + "</svg>").texts
    assert [text for text in drawn if text in ("a", "b", "gains", "tiny")] == [
        "a",
        "b",
        "gains",
        "tiny",
    ]
    (x, *more), (zero,), (overall,) = (
        [
            float(attributes[key])
            for tag, attributes in read.tags
            if tag == tag_ and attributes.get("class") == kind
        ]
        for tag_, key, kind in (
            ("circle", "cx", None),
            ("line", "x1", "zero"),
            ("line", "x1", "overall"),
        )
    )
    b, gains = more
    assert (x - zero) / (b - zero) == pytest.approx(4.5, 0.01) and gains - zero == pytest.approx(
        zero - b, abs=0.2
    )
    assert (overall - zero) / (b - zero) == pytest.approx((45 + 4) / 304 / 0.1, 0.01)
    assert [attributes.get("class") for tag, attributes in read.tags if tag == "g"] == [
        "beyond",
        None,
        None,
        "quiet",
    ]
    label = next(attributes["aria-label"] for tag, attributes in read.tags if tag == "svg")
    assert label.startswith("a: 45.0 [") and "all samples: 16.1 [" in label and "too small" in page


def test_tables_of_the_page(crossed):
    texts = _Page(html(crossed)).texts
    for heading in (
        "Groups, before and after",
        "Every group against all others",
        "Rates by class",
        "Calibration",
    ):
        assert texts.count(heading) == 3  # Crossed, and by each attribute.
    assert {"By age alone", "By gender alone", "too small", "old x x"} <= set(texts)
    row = crossed.table.loc["old x f"]
    cell = f"{100 * row['drop']:.1f} [{100 * row['drop_low']:.1f}, {100 * row['drop_high']:.1f}]"
    assert cell in texts and f"{row['excessive_loss']:.3f}" in " ".join(texts)
    assert "Diagnostics of the model before compression" not in texts


def test_what_labels_do_not_tell_is_left_out_with_a_reason(evil):
    texts = _Page(html(evil)).texts
    assert "Losses are left out: a model of which only labels are known has none." in texts
    assert "Left out: a model of which only labels are known has none." in texts
    assert not any("nats" in text for text in texts)
    assert "nan" not in " ".join(texts)


def test_every_diagnostic_has_a_heading(evil):
    columns = [
        column if column == name else f"{name}_{column}"
        for name, own in DIAGNOSTICS.items()
        for column in own.columns
    ]
    table = evil.table.assign(
        **{
            column: 1000 + place if column == "rate_positives" else place + 0.125
            for place, column in enumerate(columns)
        }
    )
    texts = _Page(html(replace(evil, table=table))).texts
    # A number of samples is whole: 1007 for the place 7.
    shown = [
        f"{1000 + place:,}" if column == "rate_positives" else f"{place + 0.125:.3g}"
        for place, column in enumerate(columns)
    ]
    assert all(texts.count(text) >= 4 for text in shown)


def test_one_group_and_many_classes_make_a_page():
    one = html(counted({"only": (50, 50, 40)}))
    assert one.count("Fewer than two groups can be compared.") == 2 and "<svg" in one
    targets = np.arange(2000) % 600
    many = fairlib.audit(
        targets, targets, targets=targets, groups=np.arange(2000) % 25, resamples=20
    )
    assert "These are 15,600 rows" in html(many)


def test_json_has_everything_and_null_for_nan(crossed, evil):
    def refuse(constant):
        raise AssertionError(constant)

    read = json.loads(as_json(crossed), parse_constant=refuse)
    tables = ["groups", "contrasts", "violations", "rates", "flips", "calibration", "cost"]
    assert list(read) == [
        "sentence",
        "provenance",
        "notes",
        "too_small",
        *tables,
        "train",
        "attributes",
    ]
    assert (
        read["sentence"] == crossed.sentence
        and read["too_small"] == ["old x x"]
        and read["train"] is None
    )
    again = pd.DataFrame(read["groups"]).set_index("group").astype(float)
    pd.testing.assert_frame_equal(again, crossed.table.astype(float), check_exact=True)
    assert {row["class"] for row in read["rates"]} == {"0", "1"} and list(read["attributes"]) == [
        "age",
        "gender",
    ]
    assert json.loads(as_json(evil), parse_constant=refuse)["groups"][0]["loss_before"] is None


def test_markdown_is_short_and_has_the_numbers():
    text = markdown(counted({"few": (40, 40, 30), "many": (60, 60, 60)}))
    row = re.search(
        r"^\| few \| 40 \| 100\.0 \| 75\.0 \| 25\.0 \[.*\] \| (.*) \|$", text, re.MULTILINE
    )
    assert row and float(row[1]) < 0.05
    assert re.search(
        r"^\| all \| 100 \| 100\.0 \| 90\.0 \| 10\.0 \[.*\] \| — \|$", text, re.MULTILINE
    )
    assert (
        "**few** (40 samples)" in text
        and "- only labels are known" in text
        and len(text.splitlines()) < 20
    )


def test_model_card_is_the_metadata_of_hubs(evil):
    _, front, text = model_card(evil).split("---\n", 2)
    (model,) = yaml.safe_load(front)["model-index"]
    (result,) = model["results"]
    assert model["name"] == "compressed model" and text.strip() == markdown(evil).strip()
    assert result["task"]["type"] and result["dataset"]["type"] and result["dataset"]["name"]
    metrics = {metric["name"]: metric for metric in result["metrics"]}
    assert {metric["type"] for metric in metrics.values()} == {"accuracy"} and len(metrics) == 10
    assert metrics["accuracy of a|b*c* after compression"]["value"] == round(298 / 300, 4)
    assert metrics["accuracy of all samples before compression"]["value"] == 1


@pytest.mark.parametrize("name", ["$50k-$100k", "$$x$$", r"\\(x\\)", "<b>&", "a\x1b[2J\u202eb"])
def test_a_notebook_sets_no_name_as_a_formula_or_as_html(name):
    report = counted({name: (40, 40, 30), "many": (60, 60, 60)})
    shown = report._repr_html_()
    assert shown.startswith('<div class="tex2jax_ignore mathjax_ignore">')
    assert shown.count("<div") == shown.count("</div>") == 1 and shown.endswith("</div>\n")
    escaped = escape(visible(name), quote=False)
    assert f"<strong>{escaped}</strong> (40 samples)" in shown
    assert re.search(
        rf"<th>{re.escape(escaped)}</th>\s*<td>40</td>(\s*<td>.*</td>){{2}}\s*<td>25.0 \[", shown
    )
    assert "<li>only labels are known before" in shown
    assert report._repr_markdown_() == markdown(report)


def test_without_jinja_the_error_says_what_to_install(evil, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ImportError, match=r"pip install 'who-pays\[audit\]'"):
        html(evil)
    assert markdown(evil)


def test_a_page_is_made_without_torch_and_matplotlib():
    code = """
import sys, fairlib
truth = {"targets": [0, 1] * 20, "groups": ["a"] * 20 + ["b"] * 20}
report = fairlib.audit([0, 1] * 20, [0, 0] * 20, **truth, resamples=20)
from fairlib.auditing.pages import html
assert "<svg" in html(report) and not {"torch", "matplotlib"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_a_group_in_markdown_is_nobodys_name():
    report = fairlib.audit(
        [0, 1] * 20, [0, 0] * 20, targets=[0, 1] * 20, groups=["@octocat", "b"] * 20, resamples=20
    )
    assert "@octocat" not in markdown(report) and "@<!-- -->octocat" in markdown(report)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("#12", r"\#<!-- -->12"),
        ("owner/name#7", r"owner/name\#<!-- -->7"),
        ("GH-12", "GH-<!-- -->12"),
        ("gh-3", "gh-<!-- -->3"),
        ("https://a.example/b", "https:<!-- -->//a.example/b"),
        ("WWW.a.example", "WWW<!-- -->.a.example"),
        ("a@b.example", "a@<!-- -->b.example"),
        ("high-12", "high-12"),
        ("C# 3: x", r"C\# 3: x"),
    ],
)
def test_a_group_in_markdown_is_no_link(name, shown):
    text = markdown(counted({name: (40, 40, 30), "many": (60, 60, 60)}))
    assert f"| {shown} | 40 |" in text and f"**{shown}** (40 samples)" in text
