import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from fairlib.data import load

PEOPLE = {f"{'Bo' if i % 2 else 'Al'}_van_{chr(65 + i)}": 1 + i % 4 for i in range(24)}
"""Names - every second one a woman's - and how many pictures there are: 60 in all."""
PICTURES = [(name, number) for name, count in PEOPLE.items() for number in range(1, count + 1)]


def male(name):
    return name.startswith("Al")


def wavy(i):
    return i % 3 == 0


@pytest.fixture(params=["lfw", "lfw-deepfunneled", "lfw_funneled"])
def root(tmp_path, request):
    """A picture's number in red."""
    write_images(tmp_path / request.param)
    return tmp_path


@pytest.fixture
def plain(tmp_path):
    write_images(tmp_path / "lfw")
    return tmp_path


def write_images(folder):
    for i, (name, number) in enumerate(PICTURES):
        (folder / name).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (10, 10), (4 * i, 0, 0)).save(
            folder / name / f"{name}_{number:04}.jpg", format="PNG"
        )


def write_kumar(folder, ends="", pictures=PICTURES):
    lines = ["# lfw_attributes.txt", "#\tperson\timagenum\tMale\tWavy Hair\t5 o' Clock Shadow"]
    for i, (name, number) in enumerate(pictures):
        scores = (0.7 if male(name) else -1.2, 1e-4 if wavy(i) else -3, -0.5)
        lines.append("\t".join([name.replace("_", " "), str(number), *map(str, scores)]) + ends)
    (folder / "lfw_attributes.txt").write_text("\n".join(lines) + "\n")


def write_lfwa(folder, pictures=PICTURES):
    def cells(values):
        return np.array(values, dtype=object)[:, None]

    content = {
        "name": cells([f"{name}\\{name}_{number:04}.jpg" for name, number in pictures]),
        "AttrName": cells(["Wavy_Hair", "Male", "Big_Nose"]),
        "label": np.array(
            [[wavy(i), male(name), 1] for i, (name, _) in enumerate(pictures)], dtype=float
        ),
    }
    savemat(folder / "lfw_att_40.mat", content)


def small(root, **settings):
    return load("lfw", root=root, **{"image_size": 4, "fractions": (0.5, 0.25, 0.25)} | settings)


def numbers(*parts):
    return [int(image[0, 0, 0]) // 4 for part in parts for image in part.inputs]


@pytest.mark.parametrize(
    "write", [write_kumar, write_lfwa, lambda folder: write_kumar(folder, ends="\t")]
)
def test_attributes_are_those_of_the_file(root, write):
    write(root)
    splits = small(root, target="Wavy Hair")
    assert sorted(numbers(*splits)) == list(range(60))
    assert (splits.train.target_names, splits.train.group_names) == (
        ("no", "yes"),
        ("female", "male"),
    )
    for part in splits:
        assert part.targets.tolist() == [wavy(i) for i in numbers(part)]
        assert part.groups.tolist() == [male(PICTURES[i][0]) for i in numbers(part)]


def test_attributes_may_lie_beside_or_inside_and_the_source_can_be_chosen(plain):
    write_lfwa(plain)
    assert small(plain).report["attributes"] == "lfwa"
    write_kumar(plain / "lfw")
    assert (
        small(plain).report["attributes"]
        == small(plain, source="kumar").report["attributes"]
        == "kumar"
    )
    with pytest.raises(
        ValueError, match="unknown attribute 'race'; known: Wavy_Hair, Male, Big_Nose, gender"
    ):
        small(plain, source="lfwa", group="race")
    inside = small(plain / "lfw", source="lfwa")
    assert inside.train.fingerprint() == small(plain, source="lfwa").train.fingerprint()
    with pytest.raises(ValueError, match="unknown source 'celeba'; known: auto, kumar, lfwa"):
        small(plain, source="celeba")


def test_no_person_stands_in_two_parts_and_the_seed_deals(plain):
    write_kumar(plain)
    dealt = []
    for seed in range(5):
        splits = small(plain, seed=seed)
        people = [{PICTURES[i][0] for i in numbers(part)} for part in splits]
        assert (
            sum(map(len, people))
            == len(PEOPLE)
            == len(set.union(*people))
            == splits.report["people"]
        )
        for part, share in zip(splits, (0.5, 0.25, 0.25), strict=True):
            assert (
                np.abs(part.group_sizes / np.array([36, 24]) - share) < 0.2
            ).all()  # 36 pictures of women
        dealt.append(tuple(sorted(people[0])))
    assert len(set(dealt)) == 5
    assert [a.fingerprint() for a in small(plain)] == [b.fingerprint() for b in small(plain)]


def test_limit_and_what_is_only_in_one_of_the_two(plain):
    write_kumar(plain, pictures=[*PICTURES[4:], ("Cy_A", 1)])
    splits = small(plain, limit=50, target="Male")
    assert [splits.report[name] for name in ("found", "unlisted", "missing", "not_drawn")] == [
        60,
        4,
        1,
        6,
    ]
    assert sum(map(len, splits)) == 50


def test_missing_data_say_where_and_how(plain, tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"found no lfw_attributes.txt or lfw_att_40.mat in .*lfw.*Kumar"
    ):
        small(plain)
    with pytest.raises(FileNotFoundError, match=r"found no lfw_att_40.mat in "):
        small(plain, source="lfwa")
    (plain / "lfw_attributes.txt").write_text("Al A\t1\t0.5\n")
    with pytest.raises(
        ValueError, match=r"lfw_attributes.txt' has no line '# person imagenum Male ...'"
    ):
        small(plain)
    with pytest.raises(FileNotFoundError, match=r"lfw-deepfunneled.*project page"):
        small(tmp_path / "nowhere")
