import numpy as np
import pandas as pd
import pytest
from PIL import Image

from fairlib.data.collection import Request
from fairlib.data.face_attributes import faces_with

REQUEST = Request(root="", image_size=4, fractions=(0.6, 0.2, 0.2), seed=np.random.SeedSequence(0))


@pytest.fixture
def files(tmp_path):
    """Eight pictures, their number in red."""
    paths = [tmp_path / f"{i}.png" for i in range(8)]
    for i, path in enumerate(paths):
        Image.new("RGB", (5, 6), (10 * i, 0, 0)).save(path)
    return paths


def flags(numbers):
    """Odd numbers smile; the first half are male."""
    names = [f"{i}.png" for i in numbers]
    return pd.DataFrame(
        {"Male": [i < 4 for i in numbers], "Smiling": [i % 2 == 1 for i in numbers]}, index=names
    )


def collect(files, table):
    return faces_with(REQUEST, files, table, source="list.txt", target="Smiling")


def test_only_what_has_both_a_picture_and_a_row_is_taken_and_the_rest_counted(files):
    found = collect(files, flags([7, 9, 2, 3, 10, 11]))
    assert sorted(found.table.index) == ["2.png", "3.png", "7.png"]
    assert found.report == {"found": 8, "unlisted": 5, "missing": 3}
    rows = found.table.loc[["2.png", "3.png", "7.png"]]
    assert rows["gender"].tolist() == ["male", "male", "female"]
    assert rows["Smiling"].tolist() == ["no", "yes", "yes"]


def test_pictures_stand_in_the_order_of_the_table(files):
    found = collect(files, flags(range(8)[::-1]))
    images = found.images(np.arange(len(found.table)))
    assert images.shape == (8, 3, 4, 4)
    assert [
        f"{value // 10}.png" for value in images[:, 0, 0, 0].tolist()
    ] == found.table.index.tolist()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (flags([1, 2, 1]), "lists 1 pictures more than once, the first is '1.png'"),
        (flags([11, 12]), "lists none of the 8 pictures .* the first row .'11.png'."),
        (flags([1, 2]).drop(columns="Male"), "unknown attribute 'Male'"),
    ],
)
def test_errors(files, table, message):
    with pytest.raises(ValueError, match=message):
        collect(files, table)
