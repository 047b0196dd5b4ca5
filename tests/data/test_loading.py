import numpy as np
import pandas as pd
import pytest

from fairlib.data import DATASETS, load
from fairlib.data.collection import Collection, select_attributes


@pytest.fixture
def people(monkeypatch):
    """A data set of 120 people registered as 'people': age cycles through 3 values, town through 2,
    12 have none."""

    def source(request, *, copies=0, conflict=False, parts=None):
        n = 120
        town = np.where(np.arange(n) < 12, -1, np.arange(n) % 2)
        images = np.random.default_rng(request.seed).integers(0, 256, (n, 1, 4, 4), dtype=np.uint8)
        # Six apart: the copies have the same age and town.
        images[60 : 60 + copies] = (
            images[54 : 54 + copies] if not conflict else images[53 : 53 + copies]
        )
        table = pd.DataFrame(
            {
                "age": pd.Categorical.from_codes(np.arange(n) % 3, ["young", "middle", "old"]),
                "town": pd.Categorical.from_codes(town, ["Ur", "Uruk"]),
            }
        )
        return Collection(table, images.__getitem__, "age", "town", parts, report={"found": n})

    monkeypatch.setitem(DATASETS, "people", source)


@pytest.fixture
def photographs(monkeypatch):
    """A data set of 120 random pictures of 16 pixels; the last 24 are darker copies of the first
    24."""

    def source(request, *, photographs=True, parts=None):
        noise = np.random.default_rng(0).integers(0, 256, (96, 1, 16, 16), dtype=np.uint8)
        images = np.concatenate([noise, (0.9 * noise[:24]).astype(np.uint8)])
        table = pd.DataFrame(
            {"side": pd.Categorical.from_codes(np.arange(120) % 2, ["left", "right"])}
        )
        return Collection(
            table, images.__getitem__, "side", "side", parts, photographs, {"found": 120}
        )

    monkeypatch.setitem(DATASETS, "photographs", source)


def parts_of_twins(splits):
    """For each of the 24 pairs the numbers of parts in which its two pictures stand, two where they
    are apart."""
    images = DATASETS["photographs"](None).images(np.arange(120))
    place = {
        image.numpy().tobytes(): part for part, data in enumerate(splits) for image in data.inputs
    }
    found = [place.get(image.tobytes()) for image in images]
    return [{found[i], found[96 + i]} for i in range(24)]


def test_near_duplicates_stand_in_one_part_unless_they_are_ignored(photographs):
    together, ignored = load("photographs"), load("photographs", near_duplicates="ignored")
    assert (
        {len(parts) for parts in parts_of_twins(together)}
        == {1}
        < {len(p) for p in parts_of_twins(ignored)}
    )
    assert (together.report["near_duplicates"], together.report["near_duplicates_dropped"]) == (
        48,
        0,
    )
    assert "near_duplicates" not in ignored.report
    assert [part.group_sizes.tolist() for part in together] == [
        part.group_sizes.tolist() for part in ignored
    ]
    assert same(together, load("photographs")) and not same(together, load("photographs", seed=1))


def test_what_is_no_photograph_is_split_as_if_near_duplicates_were_ignored(photographs):
    drawings = load("photographs", photographs=False)
    assert (
        same(drawings, load("photographs", near_duplicates="ignored"))
        and "near_duplicates" not in drawings.report
    )
    assert same(load("digits"), load("digits", near_duplicates="ignored"))


def test_a_part_that_the_data_set_assigns_loses_near_duplicates_of_an_earlier_one(photographs):
    parts = np.where(np.arange(120) % 4 >= 2, 2, -1)
    parts[96:] = 2
    splits = load("photographs", parts=parts)
    assert splits.report["near_duplicates"] == 48
    assert (
        splits.report["near_duplicates_dropped"] == 12
    )  # Twelve of the 24 originals are in the test part themselves.
    assert (
        sum(map(len, splits))
        == 108
        == sum(splits.report[part] for part in ("train", "val", "test"))
    )
    assert splits.report["undefined"] == 0
    assert {len(parts - {None}) for parts in parts_of_twins(splits)} == {1}


def test_an_unknown_treatment_of_near_duplicates_is_refused(people):
    message = "unknown treatment of near_duplicates 'apart'; known: together, ignored"
    with pytest.raises(ValueError, match=message):
        load("people", near_duplicates="apart")


def pixels(*parts):
    return {image.numpy().tobytes() for part in parts for image in part.inputs}


def test_select_one_or_crossed():
    table = pd.DataFrame(
        {
            "gender": pd.Categorical.from_codes([0, 1, 1, -1], ["male", "female"]),
            "race": pd.Categorical.from_codes([2, 0, -1, 1], ["White", "Black", "Asian"]),
        }
    )
    codes, names = select_attributes(table, "race")
    assert (codes.tolist(), names) == ([2, 0, -1, 1], ("White", "Black", "Asian"))
    codes, names = select_attributes(table, ["gender", "race"])
    assert [names[c] if c >= 0 else None for c in codes] == [
        "male x Asian",
        "female x White",
        None,
        None,
    ]
    assert len(names) == 6
    with pytest.raises(ValueError, match="unknown attribute 'hair'; known: gender, race"):
        select_attributes(table, ["gender", "hair"])
    with pytest.raises(ValueError, match="each once"):
        select_attributes(table, ["race", "race"])
    with pytest.raises(ValueError, match="one or more"):
        select_attributes(table, [])


def test_select_refuses_what_divides_nobody():
    one, none = pd.Categorical(["yes", "yes"]), pd.Categorical([None, None], categories=[])
    table = pd.DataFrame(
        {"one": one, "none": none, "age": [31.5, 4.25], "Wavy_Hair": pd.Categorical(["no", "yes"])}
    )
    for name, message in (
        ("one", "two values, got yes"),
        ("none", "two values, got none"),
        ("age", "2 distinct numbers"),
    ):
        with pytest.raises(ValueError, match=f"attribute '{name}' .*{message}"):
            select_attributes(table, name)
    assert (
        select_attributes(table, "Wavy Hair")[0].tolist()
        == select_attributes(table, "Wavy_Hair")[0].tolist()
        == [0, 1]
    )


def test_defaults_undefined_samples_and_report(people):
    splits = load("people")
    train, val, test = splits
    assert train is splits.train and val is splits.val and test is splits.test
    assert splits.name == "people"
    assert train.target_names == ("young", "middle", "old")
    assert train.group_names == test.group_names == ("Ur", "Uruk")
    assert splits.report == {
        "not_drawn": 0, "found": 120, "undefined": 12, "duplicates": 0, "conflicting": 0,
        "train": len(train), "val": len(val), "test": len(test),
    }  # fmt: skip
    assert len(train) + len(val) + len(test) == 108
    assert len(pixels(*splits)) == 108
    assert sum(splits.report[part] for part in ("train", "val", "test")) == 108
    assert load("people", target="age", group="age").report["undefined"] == 0


def test_every_crossing_of_target_and_group_is_split_alike(people):
    for part, share in zip(load("people"), (0.7, 0.1, 0.2), strict=True):
        cells = np.bincount(part.groups * 3 + part.targets, minlength=6)
        assert (np.abs(cells - 18 * share) <= 1).all()


def test_groups_may_be_crossed(people):
    splits = load("people", group=["age", "town"], fractions=(0.6, 0.2, 0.2))
    assert splits.train.group_names[:3] == ("young x Ur", "young x Uruk", "middle x Ur")
    assert sum(part.group_sizes for part in splits).tolist() == [18] * 6
    assert (splits.train.groups // 2 == splits.train.targets).all()


def test_copies_never_stand_on_both_sides(people):
    splits = load("people", copies=5)
    assert (splits.report["duplicates"], splits.report["conflicting"]) == (5, 0)
    assert sum(map(len, splits)) == 103 == len(pixels(*splits))
    conflicting = load("people", copies=5, conflict=True)
    assert (conflicting.report["duplicates"], conflicting.report["conflicting"]) == (0, 10)
    assert sum(map(len, conflicting)) == 98


def test_labels_follow_their_images_through_all_steps(people):
    whole = DATASETS["people"](
        type("Request", (), {"seed": np.random.SeedSequence(5).spawn(2)[0]}), copies=5
    )
    label = {
        image.tobytes(): (age, town)
        for image, age, town in zip(
            whole.images(np.arange(120)),
            whole.table["age"].cat.codes,
            whole.table["town"].cat.codes,
            strict=True,
        )
    }
    for part in load("people", seed=5, copies=5):
        for image, target, group in part:
            assert label[image.numpy().tobytes()] == (target, group)


def test_what_a_data_set_assigns_stays_and_the_rest_is_dealt_out(people):
    parts = np.where(np.arange(120) >= 90, 2, -1)
    splits = load("people", group="age", parts=parts)
    assert (len(splits.train), len(splits.val), len(splits.test)) == (79, 11, 30)  # 90 as .7 : .1
    whole = DATASETS["people"](type("Request", (), {"seed": np.random.SeedSequence(0).spawn(2)[0]}))
    assert pixels(splits.test) == {image.tobytes() for image in whole.images(np.arange(90, 120))}


def test_the_seed_governs_the_split_and_nothing_global_does(people):
    first = load("people", seed=1)
    np.random.seed(0)
    again = load("people", seed=1)
    assert [a.fingerprint() for a in first] == [b.fingerprint() for b in again]
    assert first.train.fingerprint() != load("people", seed=2).train.fingerprint()


def test_errors_help(people):
    with pytest.raises(
        ValueError, match="unknown data set 'face'; known: synthetic-faces, digits, folder, utkface"
    ):
        load("face")
    with pytest.raises(
        TypeError,
        match="unknown setting 'size' for data set 'people'; known: copies, conflict, parts",
    ):
        load("people", size=3)
    with pytest.raises(ValueError, match="unknown attribute 'race'; known: age, town"):
        load("people", target="race")
    with pytest.raises(ValueError, match=r"group 'young x Ur' has 1 sample in the val split"):
        load("people", group=["age", "town"], fractions=(0.9, 0.05, 0.05))
    with pytest.raises(ValueError, match=r"image_size must lie in .* got -1"):
        load("people", image_size=-1)
    with pytest.raises(TypeError, match="seed must be an integer"):
        load("people", seed=None)


def same(one, other):
    return [part.fingerprint() for part in one] == [part.fingerprint() for part in other]


def test_an_empty_text_and_zero_stand_for_the_default_of_every_data_set(people):
    empty = {"target": "", "group": "", "image_size": 0, "limit": 0, "root": "nowhere"}
    assert same(load("people", **empty), load("people"))
    assert same(
        load("people", target=None, group=None, image_size=None, limit=None), load("people")
    )
    for name in ("digits", "synthetic-faces"):
        assert same(load(name, **empty, seed=3), load(name, seed=3))


def test_a_limit_is_the_size_of_data_that_are_drawn():
    assert same(load("synthetic-faces", limit=300), load("synthetic-faces", size=300))
    assert same(load("digits", limit=100), load("digits", size=100))
    with pytest.raises(
        ValueError,
        match="size of data set 'digits' is given twice: by limit= or equal=, and as size=",
    ):
        load("digits", limit=100, size=200)


def test_a_limit_draws_samples_by_the_seed_before_anything_else(people):
    whole = DATASETS["people"](type("Request", (), {"seed": np.random.SeedSequence(5).spawn(2)[0]}))
    rows = np.random.default_rng(np.random.SeedSequence(5).spawn(2)[0]).choice(120, 90, False)
    some = load("people", seed=5, limit=90)
    wanted = {image.tobytes() for image in whole.images(rows[rows >= 12])}  # The others: no town.
    assert pixels(*some) == wanted and some.report["not_drawn"] == 30
    assert same(load("people", limit=500), load("people"))
    for limit, error in ((-1, ValueError), (2.5, TypeError), (True, TypeError)):
        with pytest.raises(error, match="limit must"):
            load("people", limit=limit)


@pytest.mark.parametrize(
    ("name", "settings"),
    [("digits", {"imbalance": 1.0}), ("synthetic-faces", {"shares": [0.2] * 5})],
)
def test_data_that_can_be_drawn_with_equal_groups_are_drawn_so(name, settings):
    assert same(load(name, equal=True, seed=2), load(name, **settings, seed=2))
    with pytest.raises(ValueError, match="is given twice: by limit= or equal="):
        load(name, equal=True, **settings)


def test_the_training_part_of_any_other_is_cut_to_the_smallest_group(people):
    plain, equal = (
        load("people", group="age", copies=5, seed=1),
        load("people", group="age", copies=5, seed=1, equal=True),
    )
    smallest = plain.train.group_sizes.min()
    by_hand = plain.train.imbalance(dict.fromkeys(plain.train.group_names, int(smallest)), seed=1)
    assert set(equal.train.group_sizes) == {smallest} and plain.train.group_sizes.nunique() > 1
    assert equal.train.fingerprint() == by_hand.fingerprint()
    assert equal.test.fingerprint() == plain.test.fingerprint()
    assert equal.report["imbalanced"] == len(plain.train) - len(equal.train)


def test_rare_keeps_shares_of_groups_and_of_crossings_by_code_or_name(people):
    plain = load("people", target="age", group="town", seed=4)
    by_hand = plain.imbalance({("Uruk", "old"): 0.25}, seed=4)
    assert same(load("people", seed=4, rare={(1, 2): 0.25}), by_hand)
    assert same(load("people", seed=4, rare={(1, 2): 1}), plain)  # A share, never a count.
    train = load("people", seed=4, rare={1: 0.5}, rare_in=["train"])
    assert train.train.fingerprint() == plain.train.imbalance({"Uruk": 0.5}, seed=4).fingerprint()
    assert train.val.fingerprint() == plain.val.fingerprint()
    assert train.report["train"] == len(train.train) and train.report["test"] == len(plain.test)
    with pytest.raises(ValueError, match="unknown part 'tests'; known: train, val, test"):
        load("people", rare={1: 0.5}, rare_in=["tests"])
