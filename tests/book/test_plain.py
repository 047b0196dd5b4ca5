"""Plain notebooks: what is on a page in standard Markdown, and the notebook's own cells."""

from __future__ import annotations

import json
import re
from pathlib import Path

import nbformat
import plain
import pytest
from built import HTML, ROOT, needs_book
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from fairlib.environment import __version__

ADDRESS = "https://org.github.io/repo/"
CONFIG = {"repository": {"url": "https://github.com/org/repo"}}
MYST = re.compile(r"\{[\w:-]+\}`|^\s*(:{3,}|`{3,}\{|~{3,}\{)|^\([\w-]+\)=$", re.MULTILINE)

PAGE = r"""
<html><body><main><article class="bd-article">
<section id="title"><h1><span class="section-number">3. </span>The title<a class="headerlink" href="#title">#</a></h1>
<p>Who pays [<em>sic</em>], says Tran <em>et al.</em> [<a class="reference internal"
href="../../book/bibliography.html#id7"><span>2022</span></a>]? See <a href="https://example.org/x">there</a>,
<code class="docutils">a_b</code> and <span class="math notranslate">\(a &lt;
b\)</span>.</p>
<div class="cell tag_parameters docutils container"><div class="cell_input">seeds = 1</div></div>
<section id="below"><h2>Below</h2>
<div class="math notranslate nohighlight" id="equation-x"><span class="eqno">(3.1)<a class="headerlink">#</a></span>
\[\begin{split}x = 1 \\
y = 2\end{split}\]</div>
<div class="proof theorem admonition">
<p class="admonition-title"><span class="caption-number">Theorem 3.1 </span> (T)</p>
<section><p>For all</p><div class="math">
\[x
= y\]</div></section></div>
<div class="proof admonition"><p>Proof. By <em>looking</em>.</p></div>
<div class="exercise admonition"><p class="admonition-title"><span class="caption-number">Exercise 3.1 </span> (E)</p>
<section><p>Why?</p></section></div>
<div class="solution dropdown admonition"><p class="admonition-title">Solution to<a href="#e"> Exercise 3.1 (E)</a></p>
<section><p>Because <strong>so</strong>:</p><ul><li><p>one</p><p>more</p></li><li>two</li></ul></section></div>
<table><thead><tr><th>a</th><th><span class="math">\(|x|\)</span></th></tr></thead>
<tbody><tr><td>1|2</td><td><code>x|y</code></td></tr></tbody></table>
<figure><img alt="A dot" src="../../_images/dot.png"></figure>
<div class="plot"><svg viewBox="0 0 1 1" aria-label="A line" xmlns="http://www.w3.org/2000/svg">
<path style="fill: var(--plot-2)" d="M0 0"></path>
</svg></div>
<div class="cell tag_hide-input docutils container"><details class="hide">
<summary>Show the code</summary>plot()</details>
<figure><img src="../../_images/dot.png"><figcaption><p><span class="caption-number">Fig. 3.1 </span>
<span class="caption-text">What it shows.</span></p></figcaption></figure></div>
</section></section></article></main></body></html>
"""


@pytest.fixture
def book(tmp_path) -> Path:
    """A built book of one page, and the notebook that it was built from."""
    page = tmp_path / "html" / "notebooks" / "part" / "page.html"
    page.parent.mkdir(parents=True)
    page.write_text(PAGE, encoding="utf-8")
    (tmp_path / "html" / "_images").mkdir()
    (tmp_path / "html" / "_images" / "dot.png").write_bytes(b"a picture")
    figure = {
        "image/png": "cG5n",
        "image/svg+xml": "<svg/>",
        "text/html": "<div><svg/></div>",
        "text/plain": "<Figure>",
    }
    said = {"text/markdown": "[3 points](../other/page.ipynb#x)", "text/plain": "<Markdown>"}
    outputs = [new_output("display_data", figure), new_output("display_data", said)]
    cells = [
        new_markdown_cell("# The title"),
        new_code_cell('max([], default="")', metadata={"tags": ["remove-cell"]}),
        new_code_cell("seeds = 1", metadata={"tags": ["parameters"]}),
        new_code_cell(
            "plot()", outputs=outputs, metadata={"tags": ["hide-input"], "mystnb": {"figure": {}}}
        ),
    ]
    path = tmp_path / "source" / "notebooks" / "part" / "page.ipynb"
    path.parent.mkdir(parents=True)
    nbformat.write(
        new_notebook(
            cells=cells,
            metadata={"papermill": {}, "kernelspec": {"name": "python3", "display_name": "Python"}},
        ),
        path,
    )
    return tmp_path


def convert(book: Path, config: dict) -> NotebookNode:
    assert plain.convert(book / "html", book / "source", book / "plain", config) == 1
    written = (book / "plain" / "notebooks" / "part" / "page.ipynb").read_text(encoding="utf-8")
    assert (book / "html" / "_sources" / "notebooks" / "part" / "page.ipynb").read_text(
        encoding="utf-8"
    ) == written
    made = nbformat.reads(written, 4)
    nbformat.validate(made)
    return made


def words(made: NotebookNode) -> str:
    return "\n\n".join(cell.source for cell in made.cells if cell.cell_type == "markdown")


def test_the_words_are_those_of_the_page(book):
    text = words(convert(book, CONFIG))
    assert text.startswith("# 3. The title\n\nWho pays \\[*sic*\\], says Tran *et al.* ")
    assert f"\\[[2022]({ADDRESS}book/bibliography.html#id7)\\]" in text
    assert "[there](https://example.org/x), `a_b` and $a < b$." in text
    assert r"$$ \begin{split}x = 1 \\ y = 2\end{split} \tag{3.1} $$" in text
    assert (
        "> **Theorem 3.1 (T)**\n>\n> For all\n>\n> $$ x = y $$\n\n> Proof. By *looking*.\n\n> **Exercise 3.1"
        in text
    )
    folded = "<details>\n<summary>Solution to Exercise 3.1 (E)</summary>\n\nBecause **so**:\n\n- one\n  \n  more\n- two"
    assert folded + "\n\n</details>" in text
    assert "| a | $ \\vert x \\vert $ |\n| --- | --- |\n| 1\\|2 | `x\\|y` |" in text
    assert "**Fig. 3.1** What it shows." in text
    assert text.endswith(
        f"a plain copy of [a page]({ADDRESS}notebooks/part/page.html) of the book Who Pays?*"
    )


def test_pictures_travel_along(book):
    cells = [cell for cell in convert(book, CONFIG).cells if "attachments" in cell]
    (cell,) = cells
    assert (
        "![A dot](attachment:dot.png)" in cell.source
        and "![A line](attachment:drawing-2.svg)" in cell.source
    )
    assert set(cell.attachments) == {"dot.png", "drawing-2.svg"}
    drawing = plain.base64.b64decode(cell.attachments["drawing-2.svg"]["image/svg+xml"]).decode()
    assert "fill: #d55e00" in drawing and 'viewBox="0 0 1 1"' in drawing and "var(" not in drawing
    assert 'xmlns="http://www.w3.org/2000/svg"' in drawing


def test_the_cells_are_the_notebooks_own_and_folded_as_on_the_page(book):
    made = convert(book, CONFIG)
    install, parameters, drawn = (cell for cell in made.cells if cell.cell_type == "code")
    assert (
        install.source
        == f'max([], default="{ADDRESS}wheel/who_pays-{__version__}-py3-none-any.whl")'
    )
    assert parameters.metadata == {"tags": ["parameters"]}
    assert (
        drawn.metadata
        == install.metadata
        == {"jupyter": {"source_hidden": True}, "cellView": "form"}
    )
    figure, said = (output.data for output in drawn.outputs)
    assert set(figure) == {"image/png", "text/plain"}
    assert said["text/markdown"] == f"[3 points]({ADDRESS}notebooks/other/page.html#x)"
    assert made.metadata == {"kernelspec": {"name": "python3", "display_name": "Python"}}


def test_without_an_address_links_within_the_book_are_words(book):
    made = convert(book, {"repository": {"url": ""}})
    assert "says Tran *et al.* \\[2022\\]?" in words(
        made
    ) and "[there](https://example.org/x)" in words(made)
    install, _, drawn = (cell for cell in made.cells if cell.cell_type == "code")
    assert 'default=""' in install.source
    assert drawn.outputs[1].data["text/markdown"] == "3 points"


def test_moved_and_removed_cells_stand_where_they_run(book):
    page = book / "html" / "notebooks" / "part" / "page.html"
    html = page.read_text(encoding="utf-8")
    start, end = html.index('<div class="cell tag_p'), html.index('<section id="below">')
    setup = html[start:end].replace("docutils", "moved-2 docutils")
    html = html[:start] + html[end:].replace("</section></section>", f"</section>{setup}</section>")
    page.write_text(html, encoding="utf-8")
    path = book / "source" / "notebooks" / "part" / "page.ipynb"
    notebook = nbformat.read(path, 4)
    notebook.cells.insert(3, new_code_cell("more"))
    notebook.cells.append(new_code_cell("last", metadata={"tags": ["remove-cell"]}))
    nbformat.write(notebook, path)
    kinds = [cell.source.split("\n")[0][:9] for cell in convert(book, CONFIG).cells]
    assert kinds[1:4] == ["max([], d", "seeds = 1", "more"] and kinds[-1] == "last"


def test_a_page_of_another_notebook_is_refused(book):
    path = book / "source" / "notebooks" / "part" / "page.ipynb"
    notebook = nbformat.read(path, 4)
    for cells, problem in (
        ([*notebook.cells, new_code_cell("more")], "not on"),
        (notebook.cells[:-1], "more code cells"),
    ):
        nbformat.write(new_notebook(cells=cells), path)
        with pytest.raises(ValueError, match=problem):
            convert(book, CONFIG)


@needs_book
def test_every_notebook_of_the_book_has_a_plain_copy():
    copies, source = ROOT / "_build" / "plain", ROOT / "_build" / "source"
    names = sorted(path.relative_to(source) for path in source.glob("notebooks/*/*.ipynb"))
    if not copies.is_dir():
        pytest.skip("make notebooks")
    assert sorted(path.relative_to(copies) for path in copies.rglob("*.ipynb")) == names
    for name in names:
        made = nbformat.read(copies / name, 4)
        nbformat.validate(made)
        assert json.loads((HTML / "_sources" / name).read_text(encoding="utf-8")) == json.loads(
            nbformat.writes(made)
        )
        original = [
            cell.source
            for cell in nbformat.read(source / name, 4).cells
            if cell.cell_type == "code"
        ]
        assert [cell.source for cell in made.cells if cell.cell_type == "code"][1:] == original[
            1:
        ], name
        for cell in made.cells:
            if cell.cell_type == "markdown":
                assert not MYST.search(cell.source), f"{name}: {cell.source}"
                assert all(line.count("$$") % 2 == 0 for line in cell.source.splitlines()), (
                    f"{name}: {cell.source}"
                )
            kinds = [set(output.get("data", {})) for output in cell.get("outputs", [])]
            assert not any("image/svg+xml" in kind for kind in kinds), name
            said = "".join(
                output.get("data", {}).get("text/markdown", "")
                for output in cell.get("outputs", [])
            )
            assert not MYST.search(said), f"{name}: {said}"
