"""The script of house rules finds what it looks for; the rules themselves run in ``make lint``."""

from __future__ import annotations

import ast

import house
import pytest
import size


def test_docstrings_and_comments_count_nothing_and_expressions_of_f_strings_count():
    bare = size.measure("def f(x):\n    return x")
    assert (bare.statements, bare.comments) == (2, 0)
    documented = size.measure(
        '"""A module."""\n\n# A comment.\ndef f(x):\n    """Say it."""\n    return x'
    )
    assert documented == bare._replace(comments=1)
    assert size.measure("f'{a + b}'").total > size.measure("f'text'").total


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("It loses 3.1 points [1.4, 4.8].", ["3.1", "[1", "4.8"]),
        ("It keeps 90 % of them", ["90 %"]),
        ("At a sparsity of $0.9$ or `0.9`, {cite:p}`a2.5`, [Figure](x1.5.md), in 2022", []),
        ("It loses 42 percent, or 13 points", ["42 percent", "13 points"]),
        ("```{solution} a\nSee\n```python\nlr=0.1\n```\nthat it is 0.5.\n```", ["0.5"]),
    ],
)
def test_a_typed_number_is_found(text, found):
    assert house.typed_numbers(text) == found


def test_a_number_typed_into_a_computed_text_is_found():
    codes = [
        "level = 0.9",
        'prose.say(f"At 0.9 they lose {points(0.7)}, at 0.7 and 0.8 it is 2.5 points [1, 2]")',
    ]
    assert house.typed_beside_code(list(map(ast.parse, codes))) == ["0.8", "2.5", "[1"]


def test_a_body_on_two_pages_a_name_twice_and_a_sentence_without_a_head_are_found(
    tmp_path, monkeypatch
):
    """Three rules on a project of two modules that break them."""
    package = tmp_path / "fairlib"
    package.mkdir()
    text = (
        '"""What is here."""\n\nLIMIT = 1\n\n\ndef f(a, b, c, d, e, f, g, h, i, j, k):\n    pass\n'
    )
    for name in ("one", "two"):
        (package / f"{name}.py").write_text(text.replace("def f", f"def {name}"))
    monkeypatch.setattr(house, "ROOT", tmp_path)
    assert list(house.one_name_one_thing()) == [
        "LIMIT is defined in fairlib/one.py and fairlib/two.py"
    ]
    assert len(list(house.sentences_with_a_head())) == 2
    assert [line.split(" ", 1)[1] for line in house.few_parameters()] == [
        "one has 11 parameters",
        "two has 11 parameters",
    ]
