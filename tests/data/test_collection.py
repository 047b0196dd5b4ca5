import pandas as pd
import pytest

from fairlib._tables import in_order
from fairlib.data.collection import select_attributes

TABLE = pd.DataFrame(
    {
        "gender": pd.Categorical(["female", "male", None, "male"], ["female", "male"]),
        "Wavy_Hair": pd.Categorical(["no", "yes", "yes", "no"], ["no", "yes"]),
        "age": [1.0, 20.0, 30.0, 70.0],
        "only": pd.Categorical(["a"] * 4),
    }
)


def test_a_crossing_counts_the_last_attribute_fastest_and_is_undefined_where_one_of_them_is():
    codes, names = select_attributes(TABLE, ["gender", "Wavy Hair"])
    assert names == ("female x no", "female x yes", "male x no", "male x yes")
    assert codes.tolist() == [0, 3, -1, 2]
    codes, names = select_attributes(TABLE, "gender")
    assert codes.tolist() == [0, 1, -1, 1] and names == ("female", "male")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "one or more names, each once"),
        (["gender", "gender"], "one or more names, each once"),
        (3, r"attributes to cross must hold several values.* got 3"),
        (["gender", None], "unknown attribute 'None'"),
        ("hair", "unknown attribute 'hair'; known: gender, Wavy_Hair, age, only"),
        ("age", "attribute 'age' has 4 distinct numbers"),
        ("only", "attribute 'only' must have at least two values, got a"),
    ],
)
def test_attributes_that_are_refused(names, message):
    with pytest.raises((TypeError, ValueError), match=message):
        select_attributes(TABLE, names)


def test_classes_in_another_order_and_more_of_them():
    places, names = in_order(("1", "2", "10"), [10, 3, 1, 2])
    assert names == ("10", "3", "1", "2") and places.tolist() == [2, 3, 0]
    places, names = in_order(("1", "2", "10"), None)
    assert names == ("1", "2", "10") and places.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("classes", "error", "message"),
    [
        (["no"], ValueError, "classes must name every value that occurs, lacks yes, maybe; got"),
        ("no yes maybe", TypeError, "classes must hold several values.* got 'no yes maybe'"),
        (3, TypeError, "classes must hold several values.* got 3"),
        (["no", "yes", "maybe", "yes"], ValueError, "classes must name every value once"),
    ],
)
def test_classes_that_lack_one_are_refused(classes, error, message):
    with pytest.raises(error, match=message):
        in_order(("no", "yes", "maybe"), classes)
