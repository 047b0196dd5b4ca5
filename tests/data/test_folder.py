import numpy as np
import pandas as pd
import pytest
from PIL import Image

from fairlib.data import load

N = 60
HAIR = ["black", "blond", "red"]


def lines():
    """60 rows: hair in threes, town in twos (three undefined), size 1, 2 or 10, and the row's
    number."""
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
    settings = {
        "target": "hair",
        "group": "town",
        "image_size": 8,
        "fractions": (0.6, 0.2, 0.2),
    } | settings
    return load("folder", root=root, **{"table": "people.csv"} | settings)


def rows(*parts):
    """The row of each picture, from the red in it."""
    return [int(image[0, 4, 4]) // 4 for part in parts for image in part.inputs]


def test_labels_are_those_of_the_rows_and_empty_cells_are_undefined(root):
    splits = small(root)
    assert sorted(rows(*splits)) == list(range(3, N))
    assert (splits.report["found"], splits.report["undefined"]) == (N, 3)
    assert (splits.train.target_names, splits.train.group_names) == (
        ("black", "blond", "red"),
        ("Ur", "Uruk"),
    )
    for part in splits:
        assert part.inputs[:, 1:].sum() == 0  # The white margins are cut off.
        assert part.targets.tolist() == [row // 20 for row in rows(part)]
        assert part.groups.tolist() == [row % 2 for row in rows(part)]


def test_numbers_are_sorted_as_numbers_and_text_as_text(root):
    assert small(root, group="size").train.group_names == ("1", "2", "10")
    write(root, (line.replace(",10,", ",ten,") for line in lines()))
    assert small(root, group="size").train.group_names == ("1", "2", "ten")


def test_attributes_cross(root):
    assert small(
        root, target="town", group=["town", "size"], fractions=(0.4, 0.3, 0.3)
    ).train.group_names[:3] == (
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


@pytest.mark.parametrize(
    "names", [("train", "val", "test"), ("train", "test", "test"), ("train", "train", "val")]
)
def test_a_column_may_assign_the_parts(root, names):
    """By the row's last digit: 0-5, 6-7, 8-9. A part that is not named is drawn from train."""
    part = [names[max(0, i % 10 - 4) // 2] for i in range(N)]
    header, *others = lines()
    write(
        root,
        [f"{header},part", *(f"{line},{name}" for line, name in zip(others, part, strict=True))],
    )
    splits = small(root, split="part", group="size")
    for name, data in zip(("train", "val", "test"), splits, strict=True):
        expected = {i for i in range(N) if part[i] == (name if name in names else "train")}
        if set(names) == {"train", "val", "test"} or (name != "train" and name in names):
            assert set(rows(data)) == expected
        else:
            assert 0 < len(data) < len(expected) and set(rows(data)) < expected
    assert sorted(rows(*splits)) == list(range(N))


def test_a_split_is_one_of_three_words(root):
    write(
        root,
        (line + ("," + ("part" if line.startswith("file") else "training")) for line in lines()),
    )
    with pytest.raises(
        ValueError,
        match="column 'part' must be train, val or test in every row, got 'training' in row 1 of",
    ):
        small(root, split="part")
    with pytest.raises(
        ValueError,
        match=r"unknown column \(setting 'split'\) 'parts'; known: file, hair, .*, part$",
    ):
        small(root, split="parts")


def test_limit_draws_by_the_seed(root):
    first, again, other = (
        sorted(rows(*small(root, group="hair", limit=40, seed=seed))) for seed in (0, 0, 1)
    )
    assert first == again != other
    assert len(first) == 40
    assert rows(*small(root, group="hair", limit=0)) == rows(*small(root, group="hair"))


def test_target_and_group_have_no_default(root):
    for given, missing in (("target", "group"), ("group", "target")):
        with pytest.raises(
            ValueError,
            match=f"'folder' has no default {missing}: give {missing}=, .* hair, town, size",
        ):
            load("folder", root=root, **{given: "hair"})


def test_attributes_that_make_no_groups_are_refused(root):
    with pytest.raises(
        ValueError, match="attribute 'planet' must have at least two values, got Earth"
    ):
        small(root, group="planet")
    for i in range(N, 101):
        Image.new("RGB", (8, 8), (i, i, i)).save(root / "faces" / f"{i}.png")
    write(root, [*lines(), *(f"faces/{i}.png,red,Ur,1,{i + 0.5},Earth" for i in range(N, 101))])
    assert (
        sum(map(len, small(root))) == 98
    )  # The quantity does no harm as long as nobody asks for it.
    for role in ("group", "target"):
        with pytest.raises(
            ValueError, match=r"'number' has 101 distinct numbers, .* bins of it \(pandas.cut\)"
        ):
            small(root, **{role: "number"})


def test_what_is_missing_is_named(root):
    with pytest.raises(
        ValueError, match="unknown attribute 'age'; known: hair, town, size, number, planet"
    ):
        small(root, target="age")
    with pytest.raises(
        ValueError, match=r"unknown column \(setting 'file'\) 'path'; known: file, hair"
    ):
        small(root, file="path")
    with pytest.raises(
        FileNotFoundError, match=r"no table .*none.csv.*: it must be a CSV, an .xlsx or"
    ):
        load("folder", root=root, table="none.csv", target="hair", group="town")
    (root / "faces" / "7.png").unlink()
    (root / "faces" / "9.png").unlink()
    with pytest.raises(
        FileNotFoundError,
        match=r"2 of the 60 pictures .*people.csv' names .* first is .*7.png.*'images'",
    ):
        small(root)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([""], "is empty: it must have a header and at least one row"),
        (["file,hair"], "is empty"),
        (["file,hair,hair", "1.png,red,red"], "names a column twice: file, hair, hair"),
        (
            ["file,hair", "1.png,red", "2.png,red,tall"],
            r"row 2 of .*people.csv' has 3 cells, the header has 2",
        ),
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


def test_a_test_set_alone(root):
    """By the fractions, or by a column of nothing but test."""
    splits = small(root, fractions=(0, 0, 1))
    assert (
        splits.train is None
        and splits.val is None
        and sorted(rows(splits.test)) == list(range(3, N))
    )
    assert [splits.report[part] for part in ("train", "val", "test")] == [0, 0, N - 3]
    assert repr(splits).startswith("Splits(train=None, val=None, test=GroupedDataset(57 samples")
    thin = splits.imbalance({"Ur": 5})
    assert thin.train is None and thin.test.group_sizes.to_dict() == {"Ur": 5, "Uruk": 29}
    assert thin.report["imbalanced"] == 23 and thin.report["train"] == 0
    write(root, (f"{line},{'part' if line.startswith('file') else 'test'}" for line in lines()))
    alone = small(root, split="part")
    assert alone.train is None and alone.val is None and len(alone.test) == N - 3
    assert alone.test.fingerprint() == splits.test.fingerprint()
    with pytest.raises(
        ValueError,
        match="equal=True makes the groups of the training part equally large, but there is no",
    ):
        small(root, fractions=(0, 0, 1), equal=True)


def test_a_part_without_a_share_is_none_and_one_with_a_share_is_not_empty(root):
    assert small(root, fractions=(0.5, 0, 0.5)).val is None
    write(
        root,
        (
            f"{line},{'part' if i == 0 else ('train', 'test')[i % 2]}"
            for i, line in enumerate(lines())
        ),
    )
    train, val, test = small(root, group="size", split="part", fractions=(1, 0, 0))
    assert val is None and (len(train), len(test)) == (30, 30)
    with pytest.raises(ValueError, match="group 'Ur' has 0 samples in the val split, and needs 2"):
        small(root, limit=12, fractions=(0.5, 0.01, 0.49))


def test_a_persons_pictures_stay_in_one_part_and_groups_follow_the_fractions(root):
    """Thirty people with two pictures each."""
    write(root, [f"{line},{person(i)}" for i, line in enumerate(lines(), start=-1)])
    settings = {"group": "side", "person": "who", "fractions": (0.4, 0.3, 0.3)}
    for seed in range(3):
        splits = small(root, seed=seed, **settings)
        seen = [{row // 2 for row in rows(part)} for part in splits]
        assert sum(map(len, seen)) == 30 == len(set.union(*seen)) == splits.report["people"]
        for part, share in zip(splits, settings["fractions"], strict=True):
            assert (abs(part.group_sizes / 30 - share) <= 0.2).all()
    assert (
        rows(*splits)
        == rows(*small(root, seed=2, **settings))
        != rows(*small(root, seed=3, **settings))
    )
    assert len(rows(small(root, group="side", person="who", fractions=(0, 0, 1)).test)) == N
    with pytest.raises(
        ValueError, match="unknown attribute 'who'; known: hair, town, size, number, planet, side"
    ):
        small(root, group="who", person="who")


def person(row):
    return "who,side" if row < 0 else f"p{row // 2},{'ab'[row // 2 % 2]}"


def test_a_person_and_given_parts(root):
    """Where test is given, a person is in train or in val; somebody in both train and test is
    refused."""
    given = [
        f"{line},{person(i)},{'part' if i < 0 else ('train', 'test')[i >= 40]}"
        for i, line in enumerate(lines(), -1)
    ]
    write(root, given)
    splits = small(root, group="side", person="who", split="part", fractions=(0.4, 0.3, 0.3))
    assert set(rows(splits.test)) == set(range(40, N))
    assert not {row // 2 for row in rows(splits.train)} & {row // 2 for row in rows(splits.val)}
    write(
        root, [line.removesuffix("train") + "test" if "/39.png" in line else line for line in given]
    )
    message = (
        r"who 'p19' \(row 39 of '.*people.csv'\) has pictures in several parts of column 'part'"
    )
    with pytest.raises(ValueError, match=message):
        small(root, group="side", person="who", split="part")


def test_near_duplicates_of_other_people_are_dropped_from_later_parts(tmp_path):
    """Twins: the pictures of the second half of the people are those of the first half, a little
    darker."""
    noise = np.random.default_rng(0).integers(60, 256, (40, 16, 16, 3))
    table = ["file,side,who"]
    for i in range(80):
        Image.fromarray((noise[i % 40] - i // 40).astype(np.uint8)).save(tmp_path / f"{i}.png")
        table.append(f"{i}.png,{'ab'[i % 2]},{i // 2}")
    write(tmp_path, table)
    splits = load(
        "folder",
        root=tmp_path,
        target="side",
        group="side",
        person="who",
        image_size=16,
        fractions=(0.4, 0.3, 0.3),
    )
    assert splits.report["people"] == 40 and splits.report["near_duplicates"] == 80
    assert sum(map(len, splits)) == 80 - splits.report["near_duplicates_dropped"] < 80


def test_classes_in_the_order_of_a_model(root):
    names = ["red", "green", "blond", "black"]
    splits = small(root, classes=names)
    plain = small(root)
    for part, other in zip(splits, plain, strict=True):
        assert part.target_names == tuple(names) and part.inputs.equal(other.inputs)
        assert [names[code] for code in part.targets] == [
            other.target_names[code] for code in other.targets
        ]
    both = small(root, group="hair", classes=names)
    assert both.train.group_names == ("black", "blond", "red")
    assert small(root, target="size", classes=[10, 2, 1]).train.target_names == ("10", "2", "1")
    with pytest.raises(
        ValueError,
        match=r"must name every value that occurs, lacks red; got \['black', 'blond'\]",
    ):
        small(root, classes=["black", "blond"])


def test_normalize_goes_into_every_part(root):
    assert {part.normalize for part in small(root, normalize=([0.5] * 3, [0.25] * 3))} == {
        ((0.5,) * 3, (0.25,) * 3)
    }
    assert small(root, normalize="imagenet").test.normalize == (
        (0.485, 0.456, 0.406),
        (0.229, 0.224, 0.225),
    )
    with pytest.raises(ValueError, match="unknown normalization 'imagnet'; known: imagenet"):
        small(root, normalize="imagnet")
    with pytest.raises(ValueError, match="normalize must hold 3 means and stds"):
        small(root, normalize=([0.5], [0.5]))


@pytest.mark.parametrize("word", ["NA", "N/A", "nan", "NaN", "null", "None", " NA "])
def test_words_for_a_missing_value_are_undefined(root, word):
    write(
        root,
        (line.replace(",Ur,", f",{word},").replace(", Uruk ,10", ",Umma,10") for line in lines()),
    )
    splits = small(root)
    assert splits.train.group_names == ("Umma", "Uruk")
    assert splits.report["undefined"] == 3 + sum(",Ur," in line for line in lines())


def test_a_group_called_all_is_refused(root):
    write(root, (line.replace(",Ur,", ",all,") for line in lines()))
    with pytest.raises(
        ValueError, match="a group of 'town' is called 'all', the audit's name for everybody"
    ):
        small(root)
    assert "all x 1" in small(root, group=["town", "size"], fractions=(0, 0, 1)).test.group_names
    assert small(root, target="town", group="hair").train.target_names == ("Uruk", "all")


def test_a_table_in_excel_or_parquet_or_another_encoding(root):
    plain = small(root)
    frame = pd.read_csv(root / "people.csv")
    frame.to_parquet(root / "people.parquet")
    (root / "latin.csv").write_bytes(
        "\r\n".join(lines()).replace(",", ";").replace("Ur;", "Ür;").encode("cp1252")
    )
    (root / "wide.txt").write_bytes("\n".join(lines()).replace(",", "\t").encode("utf-16"))
    for table in ("people.parquet", "wide.txt"):
        assert small(root, table=table).train.fingerprint() == plain.train.fingerprint()
    assert small(root, table="latin.csv", group="town").train.group_names == ("Uruk", "Ür")
    pytest.importorskip("openpyxl")
    frame.to_excel(root / "people.xlsx", index=False)
    assert small(root, table="people.xlsx").train.fingerprint() == plain.train.fingerprint()
    assert small(root, table="people.xlsx", group="size").train.group_names == ("1", "2", "10")


def test_a_row_without_a_picture_or_a_person_is_named(root):
    write(root, (line.replace("faces/4.png", "NA") for line in lines()))
    with pytest.raises(ValueError, match=r"row 5 of '.*people.csv' has no value in column 'file'"):
        small(root)
    write(root, lines())
    with pytest.raises(ValueError, match=r"row 1 of '.*people.csv' has no value in column 'town'"):
        small(root, person="town", group="size")


def test_copies_are_dropped_and_conflicting_ones_all(root):
    for copy, original in ((21, 20), (41, 39)):
        (root / "faces" / f"{copy}.png").write_bytes(
            (root / "faces" / f"{original}.png").read_bytes()
        )
    write(root, [*lines(), "faces/50.png,red,Ur,10,50,Earth"])
    splits = small(root, group="hair")
    assert (splits.report["duplicates"], splits.report["conflicting"]) == (2, 2)
    assert sum(map(len, splits)) == N - 3
