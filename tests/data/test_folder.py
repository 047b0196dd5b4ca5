import numpy as np
import pytest
from PIL import Image

from fairlib.data import load

N = 60
HAIR = ["black", "blond", "red"]


def lines():
    """60 rows: hair in threes, town in twos (three undefined), size 1, 2 or 10, and the row's number."""
    yield "file,hair,town,size,number,planet"
    for i in range(N):
        town = "" if i < 3 else ("Ur", " Uruk ")[i % 2]
        yield f"faces/{i}.png,{HAIR[i // 20]},{town},{(10, 1, 2)[i % 3]},{i},Earth"


def write(root, rows):
    (root / "people.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")


@pytest.fixture
def root(tmp_path):
    """Red tells the row, the top and bottom of the tall pictures are white."""
    (tmp_path / "faces").mkdir()
    for i in range(N):
        pixels = np.full((12, 8, 3), 255, dtype=np.uint8)
        pixels[2:-2] = (4 * i, 0, 0)
        Image.fromarray(pixels).save(tmp_path / "faces" / f"{i}.png")
    write(tmp_path, lines())
    return tmp_path


def small(root, **settings):
    settings = {"target": "hair", "group": "town", "image_size": 8, "fractions": (0.6, 0.2, 0.2)} | settings
    return load("folder", root=root, table="people.csv", **settings)


def rows(*parts):
    """The row of each picture, from the red in it."""
    return [int(image[0, 4, 4]) // 4 for part in parts for image in part.inputs]


def test_labels_are_those_of_the_rows_and_empty_cells_are_undefined(root):
    splits = small(root)
    assert sorted(rows(*splits)) == list(range(3, N))
    assert (splits.report["found"], splits.report["undefined"]) == (N, 3)
    assert (splits.train.target_names, splits.train.group_names) == (("black", "blond", "red"), ("Ur", "Uruk"))
    for part in splits:
        assert part.inputs[:, 1:].sum() == 0  # The white margins are cut off.
        assert part.targets.tolist() == [row // 20 for row in rows(part)]
        assert part.groups.tolist() == [row % 2 for row in rows(part)]


def test_numbers_are_sorted_as_numbers_and_text_as_text(root):
    assert small(root, group="size").train.group_names == ("1", "2", "10")
    write(root, (line.replace(",10,", ",ten,") for line in lines()))
    assert small(root, group="size").train.group_names == ("1", "2", "ten")


def test_attributes_cross(root):
    assert small(root, target="town", group=["town", "size"], fractions=(0.4, 0.3, 0.3)).train.group_names[:3] == (
        "Ur x 1",
        "Ur x 2",
        "Ur x 10",
    )


def test_the_column_of_files_and_their_folder_can_be_named(root):
    write(root, (line.replace("file,", "Photo name,").removeprefix("faces/") for line in lines()))
    named = small(root, file="Photo name", images="faces")
    assert sorted(rows(*named)) == list(range(3, N))


def test_a_byte_order_mark_and_blank_lines_do_no_harm(root):
    text = "\ufeff" + "\r\n\r\n".join(lines())
    (root / "people.csv").write_bytes(text.encode())
    assert sum(map(len, small(root))) == N - 3


@pytest.mark.parametrize("names", [("train", "val", "test"), ("train", "test", "test"), ("train", "train", "val")])
def test_a_column_may_assign_the_parts(root, names):
    """By the row's last digit: 0-5, 6-7, 8-9. A part that is not named is drawn from train."""
    part = [names[max(0, i % 10 - 4) // 2] for i in range(N)]
    header, *others = lines()
    write(root, [f"{header},part", *(f"{line},{name}" for line, name in zip(others, part, strict=True))])
    splits = small(root, split="part", group="size")
    for name, data in zip(("train", "val", "test"), splits, strict=True):
        expected = {i for i in range(N) if part[i] == (name if name in names else "train")}
        if set(names) == {"train", "val", "test"} or (name != "train" and name in names):
            assert set(rows(data)) == expected
        else:
            assert 0 < len(data) < len(expected) and set(rows(data)) < expected
    assert sorted(rows(*splits)) == list(range(N))


def test_a_split_is_one_of_three_words(root):
    write(root, (line + ("," + ("part" if line.startswith("file") else "training")) for line in lines()))
    with pytest.raises(
        ValueError, match="column 'part' must be train, val or test in every row, got 'training' in row 1"
    ):
        small(root, split="part")
    with pytest.raises(ValueError, match=r"unknown column \(setting 'split'\) 'parts'; known: file, hair, .*, part$"):
        small(root, split="parts")


def test_limit_draws_by_the_seed(root):
    first, again, other = (sorted(rows(*small(root, group="hair", limit=40, seed=seed))) for seed in (0, 0, 1))
    assert first == again != other
    assert len(first) == 40
    with pytest.raises(ValueError, match="limit must be None or a positive integer, got -1"):
        small(root, limit=-1)
    assert rows(*small(root, group="hair", limit=0)) == rows(*small(root, group="hair"))


def test_target_and_group_have_no_default(root):
    for given, missing in (("target", "group"), ("group", "target")):
        with pytest.raises(
            ValueError, match=f"'folder' has no default {missing}: give {missing}=, .* hair, town, size"
        ):
            load("folder", root=root, **{given: "hair"})


def test_attributes_that_make_no_groups_are_refused(root):
    with pytest.raises(ValueError, match="attribute 'planet' must have at least two values, got Earth"):
        small(root, group="planet")
    for i in range(N, 101):
        Image.new("RGB", (8, 8), (i, i, i)).save(root / "faces" / f"{i}.png")
    write(root, [*lines(), *(f"faces/{i}.png,red,Ur,1,{i + 0.5},Earth" for i in range(N, 101))])
    assert sum(map(len, small(root))) == 98  # The quantity does no harm as long as nobody asks for it.
    for role in ("group", "target"):
        with pytest.raises(ValueError, match=r"'number' has 101 distinct numbers, .* bins of it \(pandas.cut\)"):
            small(root, **{role: "number"})


def test_what_is_missing_is_named(root):
    with pytest.raises(ValueError, match="unknown attribute 'age'; known: hair, town, size, number, planet"):
        small(root, target="age")
    with pytest.raises(ValueError, match=r"unknown column \(setting 'file'\) 'path'; known: file, hair"):
        small(root, file="path")
    with pytest.raises(FileNotFoundError, match=r"no table .*none.csv.*: it must be a CSV file, 'table' its path"):
        load("folder", root=root, table="none.csv", target="hair", group="town")
    (root / "faces" / "7.png").unlink()
    (root / "faces" / "9.png").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"2 of the 60 pictures .*people.csv' names .* first is .*7.png.*'images'"
    ):
        small(root)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([""], "is empty: it must have a header and a row for each picture"),
        (["file,hair"], "is empty"),
        (["file,hair,hair", "1.png,red,red"], "names a column twice: file, hair, hair"),
        (["file,hair", "1.png,red", "2.png,red,tall"], r"row 2 of .*people.csv' has 3 cells, the header has 2"),
    ],
)
def test_tables_that_are_none_are_refused(tmp_path, rows, message):
    write(tmp_path, rows)
    with pytest.raises(ValueError, match=message):
        small(tmp_path)


def test_a_picture_that_cannot_be_read_is_named(root):
    (root / "faces" / "7.png").write_bytes(b"no picture")
    with pytest.raises(OSError, match=r"cannot read the image .*7.png"):
        small(root)
