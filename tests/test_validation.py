from __future__ import annotations

import numpy as np
import pytest

from fairlib._validation import (
    check_many,
    check_number,
    check_seed,
    check_settings,
    check_type,
    lookup,
    name_and_settings,
)


def test_lookup_lists_what_is_known():
    assert lookup("color", "red", {"red": 1, "blue": 2}) == 1
    for name in ("green", ["red"], None):
        with pytest.raises(ValueError, match=r"unknown color .*; known: red, blue"):
            lookup("color", name, {"red": 1, "blue": 2})


def test_settings_are_the_keyword_only_parameters_that_the_library_does_not_fill_in():
    def method(model, *, sparsity, rate=0.2, data=None):
        pass

    check_settings("method 'm'", method, {"rate": 0.1}, given=["sparsity", "data"])
    for name in ("model", "data", "speed"):
        with pytest.raises(
            TypeError, match=f"unknown setting '{name}' for method 'm'; known: rate$"
        ):
            check_settings("method 'm'", method, {name: 1}, given=["sparsity", "data"])
    with pytest.raises(TypeError, match="known: none"):
        check_settings("method 'n'", lambda model: None, {"rate": 1})


def test_types_and_how_long_values_are_shown():
    check_type("data", 3, (int, type(None)), "an integer")
    with pytest.raises(TypeError, match=r"^data must be an integer, got 'x'$"):
        check_type("data", "x", int, "an integer")
    with pytest.raises(TypeError, match=r"^data must be an integer, got list$"):
        check_type("data", list(range(100)), int, "an integer")


def test_several_values_are_neither_one_nor_a_text():
    assert check_many("levels", range(2)) == check_many("levels", np.arange(2)) == (0, 1)
    for value in (0.5, "05", None):
        with pytest.raises(TypeError, match="levels must hold several values"):
            check_many("levels", value)


def test_choices_are_a_name_or_a_name_and_settings():
    assert name_and_settings("model", "cnn") == ("cnn", {}) and name_and_settings(
        "model", ["cnn", {"width": 2}]
    ) == (
        "cnn",
        {"width": 2},
    )
    for choice in (None, 3, ("cnn",), ("cnn", 3), ("cnn", {}, {}), (3, {})):
        with pytest.raises(TypeError, match=r"model must be a name or \(name, settings\), got"):
            name_and_settings("model", choice)


def test_settings_may_follow_the_name():
    assert name_and_settings("model", "resnet18:stem=imagenet:width=0.5") == (
        "resnet18",
        {"stem": "imagenet", "width": 0.5},
    )
    assert name_and_settings("method", "prune:bifp:val=null") == ("prune:bifp", {"val": None})
    assert name_and_settings("model", ("cnn:channels=[4, 8]", {"width": 2})) == (
        "cnn",
        {"channels": [4, 8], "width": 2},
    )
    assert name_and_settings("mitigation", "equal-loss:step=1e-3") == (
        "equal-loss",
        {"step": 0.001},
    )
    assert name_and_settings("method", "prune:snip:granularity=2:4:exclude=[a.b]") == (
        "prune:snip",
        {"granularity": "2:4", "exclude": ["a.b"]},
    )
    for choice in (("cnn:width=1", {"width": 2}), "cnn:width=1:width=2"):
        with pytest.raises(TypeError, match="width of model 'cnn' is given twice"):
            name_and_settings("model", choice)
    with pytest.raises(ValueError, match=r"channels of model 'cnn' cannot be read: '\[4, 8'"):
        name_and_settings("model", "cnn:channels=[4, 8")


def test_seeds_are_integers_of_64_bits():
    check_seed("seed", np.int64(-3))
    for seed, error in ((1.0, TypeError), (True, TypeError), (2**70, ValueError)):
        with pytest.raises(error, match="seed must"):
            check_seed("seed", seed)


@pytest.mark.parametrize("value", [0, 1, 0.5, np.float32(0.5), np.int64(1)])
def test_numbers_in_range(value):
    check_number("x", value, 0, 2)


@pytest.mark.parametrize(
    ("value", "error"), [(True, TypeError), ("1", TypeError), (None, TypeError), (2, ValueError)]
)
def test_numbers_that_are_refused(value, error):
    with pytest.raises(error, match=r"x must (be a number|lie in \[0, 2\)), got"):
        check_number("x", value, 0, 2)


def test_ends_of_a_range_nan_and_whole_numbers():
    with pytest.raises(ValueError, match=r"x must lie in \(0, inf\), got 0"):
        check_number("x", 0, 0, low_open=True)
    for value in (float("nan"), float("inf"), -1e-9):
        with pytest.raises(ValueError, match=r"x must lie in \[0, inf\)"):
            check_number("x", value, 0)
    with pytest.raises(TypeError, match=r"x must be an integer, got 1.0"):
        check_number("x", 1.0, 0, whole=True)
