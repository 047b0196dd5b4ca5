import os

import numpy as np
import pytest
import torch
from PIL import Image

from fairlib.data import load, utkface
from fairlib.data.collection import Request
from fairlib.data.images import decode
from fairlib.data.utkface import ADULT, AGE4, AGE9, attributes

GOOD = [
    "14_0_0_2017011022340900.jpg.chip.jpg",  # date too short
    "24_0_1_20170116220224657 .jpg.chip.jpg",  # a space
    "28_1_2_201701161846515488.jpg.chip.jpg",  # date too long
    "55_0_0_20170116232725357jpg.chip.jpg",  # a dot is missing
    "100_1_3_20170110183726390.jpg.chip.jpg",
    "1_0_4_20161219140623097.jpg.chip.jpg",
]
BAD = [
    "39_1_20170116174525125.jpg.chip.jpg",
    "x_0_0_20170116174525125.jpg.chip.jpg",
    "._26_0_1_2017.jpg.chip.jpg",
]


def write(folder, name, colour, size=20):
    """A picture whose left half is of one colour and whose right half is black."""
    folder.mkdir(exist_ok=True)
    pixels = np.zeros((size, size, 3), dtype=np.uint8)
    pixels[:, : size // 2] = colour
    Image.fromarray(pixels).save(folder / name, format="PNG")


@pytest.fixture
def root(tmp_path):
    """60 faces: men and women of three races in turn, aged 0 to 59, none like another; and three
    bad names."""
    folder = tmp_path / "UTKFace"
    for i in range(60):
        write(
            folder, f"{i}_{i % 2}_{i % 3}_201701101837{i:05}.jpg.chip.jpg", (4 * i, 255 - 4 * i, 7)
        )
    for name in BAD:
        write(folder, name, (1, 2, 3))
    return tmp_path


def small(root, **settings):
    settings = {
        "image_size": 8,
        "target": "gender",
        "group": "gender",
        "fractions": (0.6, 0.2, 0.2),
    } | settings
    return load("utkface", root=root, **settings)


def ages(part):
    """The age of each face, from the red of its left edge."""
    return (part.inputs[:, 0, 4, 0] // 4).tolist()


def test_labels_come_from_the_names_and_pictures_are_rgb(root):
    splits = small(root)
    assert splits.train.inputs.shape[1:] == (3, 8, 8)
    assert splits.train.group_names == ("male", "female")
    seen = []
    for part in splits:
        seen += ages(part)
        assert part.groups.tolist() == [age % 2 for age in ages(part)]
        assert torch.equal(255 - part.inputs[:, 0, :, 0].int(), part.inputs[:, 1, :, 0].int())
        assert part.inputs[:, :, :, -1].sum() == 0
    assert sorted(seen) == list(range(60))


def test_malformed_names_are_skipped_counted_and_named(root):
    report = small(root).report
    assert (report["found"], report["malformed"], report["not_drawn"]) == (63, 3, 0)
    assert set(report["malformed_names"]) == set(BAD)


def test_odd_but_usable_names_are_used(tmp_path):
    for i, name in enumerate(GOOD):
        for copy in range(12):
            write(tmp_path / "UTKFace", name.replace(".chip", f"{copy}.chip"), (20 * i, copy, 0))
    splits = small(tmp_path)
    assert splits.report["malformed"] == 0
    assert sum(part.group_sizes for part in splits).to_dict() == {"male": 48, "female": 24}


def test_root_may_be_the_folder_itself(root):
    inside = small(root / "UTKFace")
    assert [a.fingerprint() for a in inside] == [b.fingerprint() for b in small(root)]


def test_attributes_have_their_edges():
    years = np.array(
        [
            0,
            1,
            2,
            9,
            10,
            12,
            13,
            14,
            15,
            17,
            18,
            19,
            20,
            24,
            25,
            29,
            30,
            39,
            40,
            49,
            50,
            59,
            60,
            64,
            65,
            116,
        ]
    )
    zeros = np.zeros_like(years)
    table = attributes(years, zeros, zeros)
    assert [name == ADULT[1] for name in table["adult"]] == [year >= 18 for year in years]
    for year, nine, four in zip(years, table["age9"], table["age4"], strict=True):
        low, high = bounds(nine)
        assert low <= year <= high
        if year < 2:
            assert four not in AGE4
        else:
            low, high = bounds(four)
            assert low <= year <= high
    assert (len(AGE9), len(AGE4)) == (9, 4)
    assert list(table["race"].cat.categories) == ["White", "Black", "Asian", "Indian", "Others"]


def bounds(name):
    """The first and last age that the name of a bin speaks of."""
    if name.startswith("under"):
        return 0, int(name.split()[1]) - 1
    if name.endswith("over"):
        return int(name.split()[0]), 200
    return tuple(map(int, name.split("-")))


def test_ages_without_a_bin_are_left_out_and_counted(root):
    for i in range(60, 84):
        write(root / "UTKFace", f"{(i - 60) * 4}_0_0_2017011018370{i}.jpg.chip.jpg", (i, 0, 200))
    splits = small(root, group="age4", fractions=(0.4, 0.3, 0.3))
    assert splits.report["undefined"] == 3  # 0 and 1 among the first 60, 0 among the others
    assert splits.train.group_names == AGE4
    assert sum(map(len, splits)) == 81


def test_a_group_without_a_face_is_named(root):
    with pytest.raises(ValueError, match="group 'male x Indian' has 0 samples in the train split"):
        small(root, group=["gender", "race"])


def test_copies_that_agree_stay_once_and_others_go(root):
    folder = root / "UTKFace"
    (folder / "77_0_0_20180101000000000.jpg.chip.jpg").write_bytes(
        (folder / "10_0_1_20170110183700010.jpg.chip.jpg").read_bytes()
    )
    by_gender, by_race = small(root), small(root, target="race")
    assert (by_gender.report["duplicates"], by_gender.report["conflicting"]) == (1, 0)
    assert (by_race.report["duplicates"], by_race.report["conflicting"]) == (0, 2)
    assert not any(10 in ages(part) for part in by_race)


def test_limit_draws_by_the_seed_before_decoding(root, monkeypatch):
    decoded = []

    def spy(files, image_size):
        decoded.append({file.name for file in files})
        return decode(files, image_size)

    monkeypatch.setattr("fairlib.data.images.decode", spy)
    for seed in (0, 1, 0):
        splits = small(root, limit=30, seed=seed)
        assert sum(map(len, splits)) == len(decoded[-1]) == splits.report["not_drawn"] == 30
    assert decoded[0] == decoded[2] != decoded[1]
    assert sum(map(len, small(root, limit=1000))) == 60


def test_an_unreadable_picture_is_named(root):
    broken = root / "UTKFace" / "30_0_0_20170110183700030.jpg.chip.jpg"
    whole = broken.read_bytes()
    for content in (b"no picture", whole[: len(whole) // 2], b""):
        broken.write_bytes(content)
        with pytest.raises(
            OSError, match=r"cannot read the image .*30_0_0_20170110183700030.jpg.chip.jpg"
        ):
            small(root)


def test_missing_or_empty_data_say_where_and_how(tmp_path):
    for place in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(FileNotFoundError) as error:
            small(place)
        message = str(error.value)
        assert str(place / "UTKFace") in message
        assert (
            "project page" in message and "Aligned & Cropped" in message and "research" in message
        )
    (tmp_path / "UTKFace").mkdir()
    with pytest.raises(FileNotFoundError, match="project page"):
        small(tmp_path)
    write(tmp_path / "UTKFace", BAD[0], (1, 2, 3))
    with pytest.raises(ValueError, match=r"none of the 1 files in .*UTKFace.* has a usable name"):
        small(tmp_path)


def test_unknown_attributes_are_refused_before_anything_is_decoded(tmp_path):
    (tmp_path / "1_0_0_2.jpg").write_bytes(b"no picture")
    with pytest.raises(
        ValueError, match="unknown attribute 'age'; known: race, gender, age9, age4, adult"
    ):
        small(tmp_path, group="age")


def test_decoding_is_that_of_pil_at_full_size(tmp_path):
    """JPEG's reduced decoding must not show: compare with decoding in full, then averaging
    blocks."""
    grid = np.linspace(0, 255, 128)
    smooth = np.stack(
        np.broadcast_arrays(grid[:, None], grid[None, :], grid[::-1, None]), axis=-1
    ).astype(np.uint8)
    file = tmp_path / "a.jpg"
    Image.fromarray(smooth).save(file, quality=95)
    expected = smooth.reshape(16, 8, 16, 8, 3).mean(axis=(1, 3)).transpose(2, 0, 1)
    assert np.abs(decode([file], 16)[0] - expected).max() < 6
    Image.fromarray(smooth[..., 0]).save(tmp_path / "grey.png")
    grey = decode([tmp_path / "grey.png"], 16)[0]
    assert (grey[0] == grey[1]).all()


@pytest.mark.skipif(
    "FAIRLIB_DATA" not in os.environ, reason="FAIRLIB_DATA names no folder that holds UTKFace"
)
def test_the_real_files():
    request = Request(os.environ["FAIRLIB_DATA"], None, (0.7, 0.1, 0.2), np.random.SeedSequence(0))
    collection = utkface.utkface(request)
    assert (collection.report["found"], collection.report["malformed"]) == (23_707, 3)
    races, genders = (
        collection.table[name].value_counts(sort=False).tolist() for name in ("race", "gender")
    )
    assert races == [10_078, 4_525, 3_434, 3_975, 1_692]
    assert genders == [12_390, 11_314]
    splits = load("utkface", root=os.environ["FAIRLIB_DATA"], image_size=32, limit=500)
    assert sum(map(len, splits)) + splits.report["duplicates"] + splits.report["conflicting"] == 500
