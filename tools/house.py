"""Check the rules of the house and print one report: ``python tools/house.py``, part of ``make
lint``.

Rules are about files, not about behaviour: how large the code is, how names and comments read, what
a page has and in which order, that pages, grids, tables and the bibliography name each other. A
rule is a function that yields one line for each breach; a new rule needs nothing else than a place
in :data:`RULES`."""

from __future__ import annotations

import ast
import io
import itertools
import json
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import papermill
import size
import yaml

from whopays import grids, runs

ROOT = size.ROOT
NOTEBOOKS = sorted(ROOT.glob("notebooks/*/*.ipynb"))
TEXTS = [ROOT / "README.md", *sorted((ROOT / "book").rglob("*.md"))]
STUDIES, PAPERS = (sorted(ROOT.glob(f"params/{kind}/*/*.yml")) for kind in ("study", "paper"))
LABS = [path for path in NOTEBOOKS if path.parent.name == "labs"]
EXPERIMENTS = [path for path in NOTEBOOKS if path not in LABS]
"""Notebooks that ask a question; labs ask for code."""

SECTIONS = ["What we saw", "Exercises", "Where this comes from"]
GENERATED = {"book/ledger"}
"""Pages that the build writes."""

EXPLAINS_UNTESTED = {"book/notation", "book/ledger"}
"""Pages that may say "not tested yet", since they define the words."""

MOST_PARAMETERS = {"fit": 16, "study": 16, "load": 12}
"""Most parameters of a function, by name; 10 for all others."""

Breaches = Iterator[str]


def name(path: Path) -> str:
    """Return the path from the project's root, as reports show it."""
    return path.relative_to(ROOT).as_posix()


def sources() -> Iterator[tuple[Path, str]]:
    """Yield every Python file of both packages with its text."""
    for pattern in ("fairlib/**/*.py", "book/whopays/**/*.py"):
        for path in sorted(ROOT.glob(pattern)):
            yield path, path.read_text(encoding="utf-8")


def read(notebook: Path) -> list[dict]:
    """Return the cells of a notebook, each with its source as one text."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [cell | {"source": "".join(cell["source"])} for cell in cells]


def code(notebook: Path) -> list[dict]:
    """Return the code cells of a notebook."""
    return [cell for cell in read(notebook) if cell["cell_type"] == "code"]


def parsed(cell: dict) -> ast.Module:
    """Parse a code cell; the line for IPython that installs becomes a ``pass``."""
    return ast.parse(re.sub(r"(?m)^(\s*)%.*$", r"\1pass", cell["source"]))


# Code


def sizes_within_caps() -> Breaches:
    """Caps are never raised to fit: code that comes in takes other code out."""
    found = size.sizes()
    for package, cap in size.CAPS.items():
        # A package over its cap may shrink until it fits; it may not grow.
        most = size.OVER.get(package, cap)
        if found[package].total > most:
            yield f"{package} has a size of {found[package].total:,}, at most {most:,}"
        elif found[package].total > cap:
            print(f"{package} has a size of {found[package].total:,}, still over its cap {cap:,}")
    density = 100 * found["fairlib"].comments / found["fairlib"].statements
    if density < size.COMMENTS:
        yield f"fairlib has {density:.1f} comments per 100 statements, at least {size.COMMENTS:g}"


HEADLESS = re.compile(r"(What|Of|Whether|Such|That is|As|Else it)\b")


def sentences_with_a_head() -> Breaches:
    """A docstring or comment begins with a verb or the noun that one would search for."""
    for path, text in sources():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                documentation = ast.get_docstring(node) or ""
                if HEADLESS.match(documentation):
                    line = getattr(node, "lineno", 1)
                    yield f"{name(path)}:{line} has no head: {documentation.splitlines()[0]}"
        before = 0
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                begins = token.start[0] != before + 1
                if begins and HEADLESS.match(token.string.lstrip("# ")):
                    yield f"{name(path)}:{token.start[0]} has no head: {token.string}"
                before = token.start[0]


def one_name_one_thing() -> Breaches:
    """A public name at the top of a module is defined once in each package."""
    places = defaultdict(list)
    for path, text in sources():
        for node in ast.parse(text).body:
            targets = getattr(node, "targets", [getattr(node, "target", None)])
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            names += [node.name] if isinstance(node, ast.FunctionDef | ast.ClassDef) else []
            for found in names:
                if not found.startswith("_"):
                    places[path.relative_to(ROOT).parts[0], found].append(name(path))
    for (_, found), where in places.items():
        if len(set(where)) > 1:
            yield f"{found} is defined in {' and '.join(sorted(set(where)))}"


def few_parameters() -> Breaches:
    """No signature is longer than one can hold in mind."""
    for path, text in sources():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                count = sum(argument.arg not in ("self", "cls") for argument in arguments)
                if count > MOST_PARAMETERS.get(node.name, 10):
                    yield f"{name(path)}:{node.lineno} {node.name} has {count} parameters"


def functions_on_one_page() -> Breaches:
    """A function body of three lines or more is on one page only: two pages share it through
    whopays. The solution of a lab may be that of a page."""
    found = defaultdict(set)
    for notebook in EXPERIMENTS:
        for cell in code(notebook):
            for node in ast.walk(parsed(cell)):
                if isinstance(node, ast.FunctionDef):
                    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
                    if sum(part.end_lineno - part.lineno + 1 for part in body) >= 3:
                        found["\n".join(map(ast.dump, body))].add(f"{name(notebook)}: {node.name}")
    for places in found.values():
        if len({place.partition(":")[0] for place in places}) > 1:
            yield f"one body on two pages: {', '.join(sorted(places))}"


# Pages


def notebooks_in_one_form() -> Breaches:
    """A notebook belongs to no machine, has no pictures, one install cell, its parts in order."""
    install = code(NOTEBOOKS[0])[0]["source"]
    for notebook in NOTEBOOKS:
        page, cells = name(notebook), code(notebook)
        metadata = json.loads(notebook.read_text(encoding="utf-8"))["metadata"]
        if metadata["kernelspec"]["name"] != "python3" or {"papermill", "widgets"} & set(metadata):
            yield f"{page} is stored with the metadata of a machine or a run"
        if cells[0]["source"] != install or cells[0]["metadata"]["tags"] != ["remove-cell"]:
            yield f"{page} has another first cell than the one that installs in Colab"
        if any("pip install" in cell["source"] for cell in cells[1:]):
            yield f"{page} installs in more than its first cell"
        kinds = [
            kind for cell in cells for output in cell["outputs"] for kind in output.get("data", {})
        ]
        if any(kind.startswith(("image/", "application/")) for kind in kinds):
            yield f"{page} is stored with pictures"
        yield from _order(page, notebook)


def _order(page: str, notebook: Path) -> Breaches:
    texts = [cell["source"] for cell in read(notebook) if cell["cell_type"] == "markdown"]
    prose = "\n".join(texts)
    outside_fences = re.sub(r"(?ms)^(`{3,}).*?^\1$", "", prose)
    headings = re.findall(r"(?m)^(#+) (.+)$", outside_fences)
    if not re.match(r"# \S.*\n\n\S", read(notebook)[0]["source"]):
        yield f"{page} does not begin with its title and the question"
    if [depth for depth, _ in headings].count("#") != 1:
        yield f"{page} has not one title"
    if any(len(below) > len(above) + 1 for (above, _), (below, _) in itertools.pairwise(headings)):
        yield f"{page} skips a level of headings"
    if "TODO" in prose:
        yield f"{page} has a TODO"
    if notebook in LABS:
        return
    if [title for depth, title in headings if depth == "##"][-3:] != SECTIONS:
        yield f"{page} does not end with the sections {', '.join(SECTIONS)}"
    if not re.search(r"[Ee]xpected time", prose):
        yield f"{page} has no expected time"


def labs_ask_check_and_solve() -> Breaches:
    """A lab has two to four exercises, each a starter, a check, a hint and a folded solution, and
    says how long they take."""
    for notebook in LABS:
        page, cells = name(notebook), read(notebook)[3:-1]
        hidden = {"tags": ["hide-cell", "solution"], "jupyter": {"source_hidden": True}}
        if (
            len(cells) % 5
            or not 2 <= len(cells) // 5 <= 4
            or "minutes" not in read(notebook)[0]["source"]
        ):
            yield f"{page} has not two to four exercises, or does not say how long they take"
        for text, starter, check, hint, solution in zip(*[iter(cells)] * 5, strict=False):
            asked = re.match(r'labs\.check\("(\w+)", \1\)$', check["source"])
            if not (
                asked
                and text["source"].startswith("## ")
                and re.search(rf"^(def|class) {asked[1]}\b", starter["source"])
                and starter["source"].endswith("    ...  # your code")
                and "{admonition} Hint" in hint["source"]
                and solution["source"].endswith(check["source"])
                and hidden.items() <= solution["metadata"].items()
            ):
                yield f"{page} lacks a part of an exercise: {text['source'].splitlines()[0]}"


def parameters_explained() -> Breaches:
    """Parameters are annotated literals with a comment each, in one cell before anything uses
    them."""
    for notebook in EXPERIMENTS:
        page, known = name(notebook), runs.parameters(notebook)
        if known.get("device") != ("str", "auto"):
            yield f"{page} has no parameter device: str = 'auto'"
        inspected = papermill.inspect_notebook(notebook)
        if set(inspected) != set(known) or not all(entry["help"] for entry in inspected.values()):
            yield f"{page} has parameters that papermill does not explain"
        cells = code(notebook)
        tagged = [
            i for i, cell in enumerate(cells) if "parameters" in cell["metadata"].get("tags", [])
        ]
        if len(tagged) != 1:
            yield f"{page} has {len(tagged)} cells tagged parameters"
            continue
        for cell in cells[: tagged[0]]:
            used = {node.id for node in ast.walk(parsed(cell)) if isinstance(node, ast.Name)}
            if used & set(known):
                yield f"{page} uses {min(used & set(known))} above its parameters"
    pages = {f"{path.parent.name}/{path.stem}" for path in NOTEBOOKS}
    for path in ROOT.glob("params/smoke/*/*.yml"):
        if f"{path.parent.name}/{path.stem}" not in pages:
            yield f"{name(path)} belongs to no notebook"


_DRAWS = r"\bnew_figure\(|\.plot\(|\bplt\.|\bprovenance\(|\.draw\("


def figures_with_a_text() -> Breaches:
    """Every figure has a text for those who do not see it."""
    for notebook in NOTEBOOKS:
        for cell in code(notebook):
            body = parsed(cell).body
            functions = {
                node.name: ast.unparse(node) for node in body if isinstance(node, ast.FunctionDef)
            }
            done = "\n".join(
                ast.unparse(node) for node in body if not isinstance(node, ast.FunctionDef)
            )
            called = [
                text for function, text in functions.items() if re.search(rf"\b{function}\(", done)
            ]
            alternative = cell["metadata"].get("mystnb", {}).get("image", {}).get("alt", "")
            if re.search(_DRAWS, "\n".join([done, *called])) and len(alternative) <= 40:
                yield f"{name(notebook)} draws without a text of 41 characters: {done[:50]!r}"


# Numbers that are no results: of theorems, in code, formulas, citations and other roles, links.
_NO_RESULT = re.compile(
    r"\b(?:Theorem|Proposition|Lemma|Section|Equation)s?\s[\d.]+"
    r"|^```python$.*?^```$|\$\$.*?\$\$|\$[^$]+\$|\{[a-z:]+\}`[^`]*`|(?<!`)`[^`\n]+`(?!`)"
    r"|\]\([^)]*\)|<[^>]*>",
    re.MULTILINE | re.DOTALL,
)
_TYPED = re.compile(r"\d+\.\d+|\d+ ?(?:%|percent\b|points\b)|\[[-\d]")


def typed_numbers(text: str) -> list[str]:
    """List the numbers in Markdown that may be results: decimals, percentages, points and
    intervals."""
    return [
        found for line in _NO_RESULT.sub(" ", text).splitlines() for found in _TYPED.findall(line)
    ]


def _shown(tree: ast.Module) -> list[list[ast.expr]]:
    """Return the parts of each text that a cell shows by ``prose.say`` or ``prose.in_short``."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    texts = [
        call.args[0] for call in calls if ast.unparse(call.func) in ("prose.say", "prose.in_short")
    ]
    return [text.values if isinstance(text, ast.JoinedStr) else [text] for text in texts]


def typed_beside_code(codes: list[ast.Module]) -> list[str]:
    """List the numbers typed into the texts of cells that are no constant of their code."""
    texts = [parts for tree in codes for parts in _shown(tree)]
    own = {id(part) for parts in texts for part in parts}
    constants = [
        node for tree in codes for node in ast.walk(tree) if isinstance(node, ast.Constant)
    ]
    settings = re.findall(
        r"\d+\.\d+", " ".join(str(node.value) for node in constants if id(node) not in own)
    )
    words = [
        "".join(part.value if isinstance(part, ast.Constant) else "X" for part in parts)
        for parts in texts
    ]
    return [number for text in words for number in typed_numbers(text) if number not in settings]


def results_computed() -> Breaches:
    """No result is typed into an experiment's page: its numbers are computed where they are
    shown."""
    for notebook in NOTEBOOKS:
        if notebook.parent.name != "theory":
            prose = "\n\n".join(
                cell["source"] for cell in read(notebook) if cell["cell_type"] == "markdown"
            )
            found = typed_numbers(prose) + typed_beside_code(
                [parsed(cell) for cell in code(notebook)]
            )
            if found:
                yield f"{name(notebook)} has results typed as text: {', '.join(found)}"


def openings() -> Breaches:
    """A page opens with the question, then what was found, then a picture."""
    for notebook in EXPERIMENTS:
        page, (title, *rest) = name(notebook), read(notebook)
        if len(re.sub(r"^# .*", "", title["source"]).split()) > 80:
            yield f"{page} asks its question in more than 80 words"
        first = next(
            (place for place, cell in enumerate(rest) if "prose.in_short(" in cell["source"]), None
        )
        if first is None or any(cell["cell_type"] == "markdown" for cell in rest[:first]):
            yield f"{page} does not open with what was found"
        elif not any(
            "mystnb" in cell["metadata"] or "{image}" in cell["source"]
            for cell in rest[first : first + 3]
        ):
            yield f"{page} has no picture after what was found"
        for cell in rest:
            if re.search(r"prose\.(say|in_short)\(", cell["source"]) and (
                cell["metadata"].get("tags") != ["remove-input"]
                or cell["metadata"].get("jupyter") != {"source_hidden": True}
            ):
                yield f"{page} shows the code of a text: {cell['source'][:60]!r}"


HIDING = {"hide-input", "hide-cell", "remove-input", "remove-cell", "parameters"}
"""Tags of cells whose code a reader does not see at once."""

OPEN_LINES = {"theory": 20}
"""Fewest open lines of code on a page, by part; 8 in all others."""

MOST_HIDDEN = 3
"""Most hidden lines for each open one, over the book."""


def lines_of_code(notebook: Path) -> tuple[int, int]:
    """Count the open and the hidden lines of code of a page, without comments and blank lines."""
    found = [0, 0]
    for cell in code(notebook):
        lines = [line.strip() for line in cell["source"].splitlines()]
        hidden = bool(HIDING & set(cell["metadata"].get("tags", [])))
        found[hidden] += sum(bool(line) and line[0] not in "#%" for line in lines)
    return found[0], found[1]


def code_that_teaches() -> Breaches:
    """A page shows the code that is its lesson; one line of the report for each page."""
    pages = [notebook for notebook in NOTEBOOKS if notebook.parent.name != "labs"]
    counts = {notebook: lines_of_code(notebook) for notebook in pages}
    print(f"{'page':54}  open  hidden  words  numbers a paragraph")
    for notebook, (shown, hidden) in counts.items():
        prose = [cell["source"] for cell in read(notebook) if cell["cell_type"] == "markdown"]
        paragraphs = [
            text for text in "\n\n".join(prose).split("\n\n") if re.match(r"[A-Z*\[]", text)
        ]
        numbers = sum(
            len(re.findall(r"\d+(?:\.\d+)?", _NO_RESULT.sub(" ", text))) for text in paragraphs
        )
        words = sum(len(text.split()) for text in prose)
        density = numbers / max(len(paragraphs), 1)
        print(f"{name(notebook):54}{shown:6}{hidden:8}{words:7}{density:8.1f}")
        least = OPEN_LINES.get(notebook.parent.name, 8)
        if shown < least:
            yield f"{name(notebook)} has {shown} open lines of code, at least {least}"
    shown, hidden = map(sum, zip(*counts.values(), strict=True))
    print(f"{'all':54}{shown:6}{hidden:8}")
    if hidden > MOST_HIDDEN * shown:
        yield f"{hidden} lines of code are hidden, at most {MOST_HIDDEN} for each of {shown} open"


def _said(page: Path) -> str:
    """Return the text and code of a page without the examples in fences."""
    if page.suffix == ".ipynb":
        return "\n".join(cell["source"] for cell in read(page))
    return re.sub(r"(?ms)^(`{3,}|:{3,}).*?^\1$", "", page.read_text(encoding="utf-8"))


def files_that_exist() -> Breaches:
    """Tables and parameter files that a page names exist or have a study that records them, and
    nothing is called untested that is tested."""
    planned = {runs.read_yaml(study)["table"] for study in STUDIES}
    for page in [*NOTEBOOKS, *TEXTS]:
        text = _said(page)
        named = re.findall(r"results/[\w./-]+\.(?:csv|json)|params/[\w./-]+\.yml", text)
        for path in dict.fromkeys(named):
            if path not in planned and not (ROOT / path).is_file():
                yield f"{name(page)} names {path}, which does not exist"
        if name(page.with_suffix("")) not in EXPLAINS_UNTESTED and re.search(
            "not tested yet", text, re.IGNORECASE
        ):
            yield f"{name(page)} says 'not tested yet'"


# The book


def book_complete() -> Breaches:
    """The table of contents has every page once, the bibliography every citation, prose plain
    characters."""
    contents = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    chapters = [chapter for part in contents["parts"] for chapter in part["chapters"]]
    chapters += [section for chapter in chapters for section in chapter.get("sections", [])]
    listed = [contents["root"], *(chapter["file"] for chapter in chapters)]
    pages = {name(path.with_suffix("")) for path in [*NOTEBOOKS, *TEXTS[1:]]} | GENERATED
    for page in sorted(pages ^ set(listed)) + [
        page for page in set(listed) if listed.count(page) > 1
    ]:
        yield f"{page} is not once both in _toc.yml and among the files"
    if (
        "suppress_warnings" in config["sphinx"]["config"]
        or config["execute"]["execute_notebooks"] != "off"
    ):
        yield "_config.yml suppresses warnings, or lets the book builder execute notebooks"
    bibliography = (ROOT / "book" / "references.bib").read_text(encoding="utf-8")
    keys = re.findall(r"(?m)^@\w+\{([^,]+),", bibliography)
    texts = [path.read_text(encoding="utf-8") for path in [*NOTEBOOKS, *TEXTS]]
    cited = {
        key.strip()
        for text in texts
        for keys in re.findall(r"\{cite(?::\w+)?\}`([^`]+)`", text)
        for key in keys.split(",")
    }
    for key in sorted(cited - set(keys)) + [key for key in set(keys) if keys.count(key) > 1]:
        yield f"{key} is not once in book/references.bib"
    for path in [*ROOT.glob("*.md"), *TEXTS[1:]]:
        text = path.read_text(encoding="utf-8")
        if re.search("[\u2018\u2019\u201c\u201d\u2013\u2014\u00a0]", text):
            yield f"{name(path)} has typographic quotes, dashes or spaces"
        if re.search(r"(?<![\w.])/(?:home|root|tmp|work|Users)/", text):
            yield f"{name(path)} has a path of somebody's machine"
    yield from _mathjax(config)


def _mathjax(config: dict) -> Breaches:
    folder = ROOT / "book" / "_static" / "mathjax"
    script = folder / config["sphinx"]["config"]["mathjax_path"].removeprefix("mathjax/")
    fonts = list((folder / "output" / "chtml" / "fonts" / "woff-v2").glob("*.woff"))
    whole = 'VERSION="3.2.2"' in script.read_text(encoding="utf-8") and len(fonts) >= 20
    whole &= (folder / "input" / "tex" / "extensions" / "boldsymbol.js").is_file()
    if not whole or "Apache License" not in (folder / "LICENSE").read_text(encoding="utf-8"):
        yield "book/_static/mathjax lacks version 3.2.2, fonts, boldsymbol.js or the license"


# Grids


def studies_named_after_their_tables() -> Breaches:
    """A study is named after its notebook and its table, which was recorded with what the study
    says."""
    for study in STUDIES:
        part, stem = study.parent.name, study.stem
        points = grids.expand(study)  # Fails where a notebook does not know a parameter.
        for point in points:
            notebook = point.notebook.stem
            wanted = (
                ROOT
                / "results"
                / part
                / (f"{stem}-study.csv" if stem == notebook else f"{stem}.csv")
            )
            if not (
                point.notebook.parent.name == part
                and stem.startswith(notebook)
                and point.table.resolve() == wanted
            ):
                yield f"{name(study)} has another name than {notebook} and {point.table}"
        provenance = (ROOT / runs.read_yaml(study)["table"]).with_suffix(".json")
        if provenance.exists():
            recorded = json.loads(provenance.read_text(encoding="utf-8"))
            for parameter in points[0].parameters:
                values = [
                    runs.resolve_parameters(point.notebook, point.parameters)[parameter]
                    for point in points
                ]
                found = recorded["parameters"][parameter]
                if (found if isinstance(found, list) else [found]) != list(dict.fromkeys(values)):
                    yield f"{name(provenance)} has another {parameter} than {name(study)}"
            if recorded["runs"] != len(points):
                yield f"{name(provenance)} has {recorded['runs']} runs, not {len(points)}"


def _served(grid: Path) -> set[str]:
    """Name the figures and tables that a paper's grid serves by the beginning of its comment:
    t-fig-4c."""
    lines = grid.read_text(encoding="utf-8").splitlines()
    comment = " ".join(line[2:] for line in lines if line.startswith("#"))
    kind, places, paper = re.match(r"(Figure|Table)s? ([\w, ]+) of \[([TBD])\]", comment).groups()
    return {f"{paper}-{kind[:3]}-{place}".lower() for place in re.split(", | and ", places)}


def _is_among(place: str, places: set[str]) -> bool:
    """Return True if a place is named, or a part of it (4c of 4), or the whole that it is a part
    of."""
    number = place.rstrip("abcdefgh")
    return bool({place, number} & places) or (
        place == number and place in {p.rstrip("abcdefgh") for p in places}
    )


def papers_have_their_grids() -> Breaches:
    """Every figure and table of a paper that has data has a grid, named after it, in the notebook
    that tests it."""
    found = []
    for grid in PAPERS:
        served, points = _served(grid), grids.expand(grid)
        if not _is_among(re.match(r"[tbd]-(?:fig|tab)-\d+[a-h]?", grid.stem)[0], served):
            yield f"{name(grid)} is not named after {', '.join(served)}"
        for point in points:
            table = ROOT / "results" / grid.parent.name / f"{grid.stem}.csv"
            if point.notebook.parent.name != grid.parent.name or point.table.resolve() != table:
                yield f"{name(grid)} has another part or table than its name: {point.table}"
            found.append((served, {point.notebook.stem, *map(str, point.parameters.values())}))
    for claim in yaml.safe_load((ROOT / "book" / "claims.yml").read_text(encoding="utf-8")):
        place = re.match(r"\[([TBD])\] (Fig|Tab)\w+ (\d+[a-h]?)", claim["source"])
        notebook = Path(claim.get("notebook") or "")
        # B-fig-2 is a sketch, and proofs need no data.
        if not place or claim["id"] == "B-fig-2" or notebook.parent.name == "theory":
            continue
        wanted = {notebook.stem, *(claim.get("data") or "").split("/")} - {""}
        figure = "-".join(place.groups()).lower()
        if not any(_is_among(figure, places) and wanted <= values for places, values in found):
            yield f"{claim['id']}: no grid of {figure} runs {', '.join(sorted(wanted))}"


RULES: tuple[Callable[[], Breaches], ...] = (
    sizes_within_caps,
    sentences_with_a_head,
    one_name_one_thing,
    few_parameters,
    functions_on_one_page,
    notebooks_in_one_form,
    labs_ask_check_and_solve,
    parameters_explained,
    figures_with_a_text,
    results_computed,
    openings,
    code_that_teaches,
    files_that_exist,
    book_complete,
    studies_named_after_their_tables,
    papers_have_their_grids,
)


def main() -> int:
    """Print every breach under its rule; return 1 if there is one."""
    breaches = 0
    for rule in RULES:
        found = list(rule())
        breaches += len(found)
        if found:
            print(f"{rule.__name__}: {rule.__doc__}", *(f"  {line}" for line in found), sep="\n")
    print(f"{len(RULES)} rules of the house, {breaches} breaches")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
