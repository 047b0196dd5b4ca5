import os

import numpy as np
import pytest
from PIL import Image

from fairlib.data import celeba, load
from fairlib.data.collection import Request
from fairlib.data.images import decode

N = 60
ATTRIBUTES = ["Bald", "Blond_Hair", "Male"]


def flags(i):
    """Whether picture i has each of the attributes."""
    return [False, i % 3 == 0, i % 2 == 0]


def table(numbers=range(N), count=True):
    rows = [
        f"{i:06}.jpg " + " ".join(f"{2 * int(flag) - 1:2}" for flag in flags(i)) for i in numbers
    ]
    # As in the original: names end in a blank, and numbers stand in columns.
    return (
        "\n".join([*([str(len(rows))] if count else []), " ".join(ATTRIBUTES) + " ", *rows]) + "\n"
    )


@pytest.fixture
def root(tmp_path):
    """60 pictures, their number in red."""
    images = tmp_path / "celeba" / "img_align_celeba"
    images.mkdir(parents=True)
    for i in range(N):
        # PNG under the name of a JPEG: its bytes are exact.
        Image.new("RGB", (9, 11), (4 * i, 0, 0)).save(images / f"{i:06}.jpg", format="PNG")
    (tmp_path / "celeba" / "list_attr_celeba.txt").write_text(table())
    return tmp_path


def partition(root, part):
    """Write the official partition, with numbers outside the folder as well."""
    lines = [f"{i:06}.jpg {part(i)}" for i in range(N + 5)]
    (root / "celeba" / "list_eval_partition.txt").write_text("\n".join(lines) + "\n")


def small(root, **settings):
    return load("celeba", root=root, **{"image_size": 4, "fractions": (0.6, 0.2, 0.2)} | settings)


def numbers(*parts):
    return [int(image[0, 0, 0]) // 4 for part in parts for image in part.inputs]


@pytest.mark.parametrize("count", [True, False])
def test_attributes_are_those_of_the_file_with_or_without_its_count(root, count):
    (root / "celeba" / "list_attr_celeba.txt").write_text(table(count=count))
    splits = small(root)
    assert sorted(numbers(*splits)) == list(range(N))
    assert (splits.train.target_names, splits.train.group_names) == (
        ("no", "yes"),
        ("female", "male"),
    )
    for part in splits:
        assert part.inputs.shape[1:] == (3, 4, 4)
        assert part.targets.tolist() == [number % 3 == 0 for number in numbers(part)]
        assert part.groups.tolist() == [number % 2 == 0 for number in numbers(part)]


def test_any_attribute_is_a_target_or_a_group(root):
    splits = small(root, target="Male", group=["gender", "Blond Hair"])
    assert splits.train.group_names == ("female x no", "female x yes", "male x no", "male x yes")
    assert (splits.train.targets == splits.train.groups // 2).all()
    with pytest.raises(
        ValueError, match="unknown attribute 'race'; known: Bald, Blond_Hair, Male, gender"
    ):
        small(root, group="race")


def test_the_official_partition_is_kept_where_it_is_there(root):
    assert small(root).report["partition"] == "stratified"
    partition(root, lambda i: i % 5 // 2)
    for seed in (0, 1):
        splits = small(root, seed=seed)
        assert splits.report["partition"] == "official"
        for code, part in enumerate(splits):
            assert sorted(numbers(part)) == [i for i in range(N) if i % 5 // 2 == code]


@pytest.mark.parametrize(
    ("name", "header", "row"),
    [
        ("csv", "image_id,partition\n", "{:06}.jpg,{}"),  # Kaggle's copy.
        ("csv", "image_id,partition\r\n", "{:06}.png, {}\r"),
        ("csv", "", "{:06}.jpg,{}"),
        ("txt", "", "{:06}.png {}"),
        ("txt", "", "{:06}.jpg\t{}  "),
    ],
)
def test_the_official_partition_is_kept_in_every_copy(root, name, header, row):
    lines = "\n".join(row.format(i, i % 3) for i in range(3, N + 5))
    (root / "celeba" / f"list_eval_partition.{name}").write_text(header + lines)
    splits = small(root)
    assert splits.report["partition"] == "official"
    for code, part in enumerate(splits):
        assert sorted(numbers(part)) == [i for i in range(3, N) if i % 3 == code]


def test_limit_keeps_the_partition_and_decodes_no_more(root, monkeypatch):
    partition(root, lambda i: i % 3)
    decoded = []
    monkeypatch.setattr(
        "fairlib.data.images.decode",
        lambda files, size: decoded.append(len(files)) or decode(files, size),
    )
    splits = small(root, limit=50, target="Bald")
    assert decoded == [50]
    assert splits.report["not_drawn"] == 10
    assert all(number % 3 == code for code, part in enumerate(splits) for number in numbers(part))


def test_a_partition_that_leaves_a_part_without_pictures_is_not_used_and_the_report_says_so(root):
    partition(root, lambda i: 0 if i < N else i % 3)
    splits = small(root)
    assert splits.report["partition"] == "stratified"
    assert [len(part) for part in splits] == [36, 12, 12]


def test_what_is_only_in_one_of_the_two_is_counted(root):
    (root / "celeba" / "list_attr_celeba.txt").write_text(table(range(4, N + 7)))
    splits = small(root)
    assert [splits.report[name] for name in ("found", "unlisted", "missing")] == [N, 4, 7]
    assert sorted(numbers(*splits)) == list(range(4, N))


def test_root_may_be_the_folder_itself(root):
    assert small(root / "celeba").train.fingerprint() == small(root).train.fingerprint()


def test_bad_files_are_named(root):
    file = root / "celeba" / "list_attr_celeba.txt"
    file.write_text(table().replace(" -1", "  0", 1))
    with pytest.raises(
        ValueError, match=r"list_attr_celeba.txt' must hold a name and -1 or 1 for each attribute"
    ):
        small(root)
    file.write_text(table(range(100, 110)))
    with pytest.raises(
        ValueError, match=r"lists none of the 60 pictures .* is '000000.jpg', .*\['000100.jpg'\]"
    ):
        small(root)
    file.write_text(table([*range(N), 3, 4]))
    with pytest.raises(
        ValueError, match=r"lists 2 pictures more than once, the first is '000003.jpg'"
    ):
        small(root)
    file.write_text(table().replace("Male", "Tall"))
    with pytest.raises(ValueError, match="unknown attribute 'Male'; known: Bald, Blond_Hair, Tall"):
        small(root)
    file.unlink()
    with pytest.raises(
        FileNotFoundError, match=r"found no file .*list_attr_celeba.txt.*project page"
    ):
        small(root)


def test_missing_data_say_where_and_how_and_nothing_is_downloaded(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"celeba.*img_align_celeba.*non-commercial.*project page"
    ):
        small(tmp_path)
    with pytest.raises(
        TypeError, match="unknown setting 'download' for data set 'celeba'; known: none"
    ):
        small(tmp_path, download=True)


@pytest.mark.skipif(
    not os.path.isdir(os.path.join(os.environ.get("FAIRLIB_DATA", ""), "celeba")),
    reason="FAIRLIB_DATA names no folder that holds CelebA",
)
def test_the_real_files():
    """The first 10,000 pictures are the same in every copy."""
    request = Request(os.environ["FAIRLIB_DATA"], None, (0.7, 0.1, 0.2), np.random.SeedSequence(0))
    first = celeba.celeba(request).table.sort_index()[:10_000]
    male, blond = (
        first[name] == value for name, value in (("gender", "male"), ("Blond_Hair", "yes"))
    )
    assert len(first.columns) == 41
    assert (male.mean().round(3), blond.mean().round(3), (male & blond).sum()) == (0.422, 0.145, 81)
