import gzip
import os

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import datasets
from toy_data import (
    TEST,
    TRAIN,
    pictures,
    write_cifar10,
    write_class_folders,
    write_idx,
    write_svhn,
)

from fairlib.data import load


@pytest.fixture
def unchecked(monkeypatch):
    """Torchvision's readers without the digests of the real files."""
    for name in ("train_list", "test_list"):
        files = [[file, None] for file, _ in getattr(datasets.CIFAR10, name)]
        monkeypatch.setattr(datasets.CIFAR10, name, files)
    monkeypatch.setitem(datasets.CIFAR10.meta, "md5", None)
    for part, (url, file, _) in list(datasets.SVHN.split_list.items()):
        monkeypatch.setitem(datasets.SVHN.split_list, part, [url, file, None])


WRITERS = {
    "cifar10": lambda root: write_cifar10(root),
    "cifar10 in its folder": lambda root: write_cifar10(root / "cifar10"),
    "cifar10 in class folders": write_class_folders,
    "svhn": write_svhn,
    "mnist": lambda root: write_idx(root, "MNIST"),
    "mnist gzipped": lambda root: write_idx(root, "MNIST", gzip.compress, ".gz"),
    "fashion-mnist": lambda root: write_idx(root, "FashionMNIST"),
}
SETTINGS = {"fractions": (0.6, 0.2, 0.2)}


def images_of(*parts):
    return {image.numpy().tobytes() for part in parts for image in part.inputs}


@pytest.mark.parametrize("layout", WRITERS)
def test_pixels_and_labels_are_those_of_the_files_and_the_test_part_stays(
    tmp_path, unchecked, layout
):
    WRITERS[layout](tmp_path)
    splits = load(layout.split()[0], root=tmp_path, **SETTINGS)
    channels, side = splits.train.inputs.shape[1:3]
    assert (channels, side) == ((1, 28) if "mnist" in layout else (3, 32))
    for part in splits:
        assert torch.equal(part.inputs[:, 0, 0, 0].long(), part.targets)
        assert torch.equal(part.groups, part.targets)
    train, test = (
        pictures(count, channels, side, seed)[0] for count, seed in ((TRAIN, 0), (TEST, 1))
    )
    assert images_of(splits.test) == {image.tobytes() for image in test}
    assert images_of(splits.train, splits.val) == {image.tobytes() for image in train}
    assert (len(splits.train), len(splits.val)) == (75, 25)  # 100 as .6 : .2
    assert splits.report["found"] == 140


def test_names_are_the_official_ones(tmp_path, unchecked):
    write_cifar10(tmp_path)
    write_idx(tmp_path, "FashionMNIST")
    cifar = datasets.CIFAR10(tmp_path)
    assert load("cifar10", root=tmp_path, **SETTINGS).test.target_names == tuple(cifar.classes)
    assert load("fashion-mnist", root=tmp_path, **SETTINGS).test.target_names == tuple(
        datasets.FashionMNIST.classes
    )


@pytest.mark.parametrize("layout", ["cifar10", "cifar10 in class folders", "svhn", "mnist"])
def test_root_may_be_the_folder_itself(tmp_path, unchecked, layout):
    WRITERS[layout](tmp_path)
    name = layout.split()[0]
    (inside,) = tmp_path.iterdir()
    parts = load(name, root=inside, **SETTINGS)
    assert [a.fingerprint() for a in parts] == [
        b.fingerprint() for b in load(name, root=tmp_path, **SETTINGS)
    ]


def test_one_idx_folder_is_not_taken_for_the_other(tmp_path):
    write_idx(tmp_path, "MNIST")
    with pytest.raises(FileNotFoundError, match="FashionMNIST"):
        load("fashion-mnist", root=tmp_path / "MNIST")


def test_limit_draws_from_both_parts(tmp_path):
    write_idx(tmp_path, "MNIST")
    splits = load("mnist", root=tmp_path, limit=130, **SETTINGS)
    assert sum(map(len, splits)) == 130
    assert splits.report["not_drawn"] == 10
    everything = load("mnist", root=tmp_path, **SETTINGS)
    assert images_of(splits.test) <= images_of(everything.test)
    assert images_of(splits.train, splits.val) <= images_of(everything.train, everything.val)


def test_a_picture_in_both_parts_stays_in_the_training_part(tmp_path):
    write_idx(tmp_path, "MNIST")
    file = tmp_path / "MNIST" / "raw" / "t10k-images-idx3-ubyte"
    copy = pictures(TRAIN, 1, 28, 0)[0][0].tobytes()
    content = bytearray(file.read_bytes())
    content[16 : 16 + 784] = copy
    file.write_bytes(content)
    splits = load("mnist", root=tmp_path, **SETTINGS)
    assert (splits.report["duplicates"], splits.report["conflicting"], len(splits.test)) == (
        1,
        0,
        39,
    )
    assert copy in images_of(splits.train, splits.val)


def test_other_sizes_are_scaled_as_pil_does(tmp_path):
    write_idx(tmp_path, "MNIST")
    splits = load("mnist", root=tmp_path, image_size=14, **SETTINGS)
    scaled = [
        np.asarray(Image.fromarray(image[0]).resize((14, 14), Image.Resampling.BILINEAR)).astype(
            int
        )
        for image in pictures(TEST, 1, 28, 1)[0]
    ]
    assert splits.test.inputs.dtype == torch.uint8
    for image in splits.test.inputs:
        assert min(np.abs(image[0].numpy() - other).max() for other in scaled) <= 2


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("cifar10", "cifar10"),
        ("svhn", "svhn"),
        ("mnist", "MNIST/raw"),
        ("fashion-mnist", "FashionMNIST/raw"),
    ],
)
def test_missing_data_say_where_and_how(tmp_path, name, place):
    with pytest.raises(FileNotFoundError) as error:
        load(name, root=tmp_path)
    assert str(tmp_path / place) in str(error.value) and "download=True" in str(error.value)


@pytest.mark.parametrize("name", ["cifar10", "svhn"])
def test_files_that_are_not_the_original_ones_are_not_opened(tmp_path, name):
    WRITERS[name](tmp_path)
    with pytest.raises(FileNotFoundError, match=r"found no original files in .*corrupted"):
        load(name, root=tmp_path)


@pytest.mark.parametrize("name", ["cifar10", "svhn", "mnist", "fashion-mnist"])
def test_download_is_left_to_torchvision_and_is_off_by_default(
    tmp_path, unchecked, monkeypatch, name
):
    """The download writes the files where the reader finds them."""
    reader = {
        "cifar10": "CIFAR10",
        "svhn": "SVHN",
        "mnist": "MNIST",
        "fashion-mnist": "FashionMNIST",
    }[name]
    asked = []

    def download(self):
        if not asked:
            WRITERS[name](tmp_path)
        asked.append(self.root)

    monkeypatch.setattr(getattr(datasets, reader), "download", download)
    with pytest.raises(FileNotFoundError):
        load(name, root=tmp_path, **SETTINGS)
    assert not asked
    fresh = load(name, root=tmp_path, download=True, **SETTINGS)
    assert {str(root) for root in asked} == {str(tmp_path / "svhn" if name == "svhn" else tmp_path)}
    assert fresh.train.fingerprint() == load(name, root=tmp_path, **SETTINGS).train.fingerprint()


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_broken_idx_file_is_named(tmp_path, suffix):
    write_idx(tmp_path, "MNIST", gzip.compress if suffix else bytes, suffix)
    file = tmp_path / "MNIST" / "raw" / f"t10k-images-idx3-ubyte{suffix}"
    whole = file.read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"no idx file at all"):
        file.write_bytes(content)
        with pytest.raises(OSError, match=r"cannot read .*t10k-images-idx3-ubyte"):
            load("mnist", root=tmp_path)


def test_a_class_folder_of_another_name_is_refused(tmp_path):
    write_class_folders(tmp_path)
    (tmp_path / "cifar10" / "test" / "truck").rename(tmp_path / "cifar10" / "test" / "lorry")
    with pytest.raises(
        ValueError, match="unknown class folder 'lorry'; known: airplane, automobile"
    ):
        load("cifar10", root=tmp_path)


@pytest.mark.skipif(
    "FAIRLIB_DATA" not in os.environ, reason="FAIRLIB_DATA names no folder that holds MNIST"
)
def test_the_real_digits():
    splits = load("mnist", root=os.environ["FAIRLIB_DATA"])
    assert splits.test.group_sizes.tolist() == [
        980,
        1135,
        1032,
        1010,
        982,
        892,
        958,
        1028,
        974,
        1009,
    ]
    assert len(splits.train) + len(splits.val) == 60_000
    assert (splits.report["duplicates"], splits.report["conflicting"]) == (0, 0)
