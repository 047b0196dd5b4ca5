from __future__ import annotations

import code_size
import pytest


def test_what_is_counted():
    source = '"""A module.\n\nIts docstring."""\n\n# A comment.\ndef f(x):\n    """Say it."""\n    return """two\nlines"""'
    assert code_size.code_lines(source) == 3


def test_the_library_stays_small():
    assert sum(code_size.library().values()) <= code_size.LIBRARY


def test_the_root_of_the_library_has_few_modules():
    assert (
        len([path for path in (code_size.ROOT / "fairlib").glob("*.py") if path.stem != "__init__"])
        <= 9
    )


def test_the_notebooks_stay_small():
    assert sum(code_size.notebooks().values()) <= code_size.NOTEBOOKS


@pytest.mark.parametrize("page", code_size.pages())
def test_a_page_stays_small(page):
    most = code_size.cap(page)
    assert most is None or code_size.notebooks()[page] <= most


def test_no_function_stands_on_two_pages():
    assert code_size.stand_twice() == []
