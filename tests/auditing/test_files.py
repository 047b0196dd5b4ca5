"""Audits of files, against the audit of the same arrays and against what a reader would count."""

from __future__ import annotations

import sys

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

import fairlib
from fairlib.auditing.files import Pictures, audit_models, audit_table

ASKED = {"target": "smiling", "group": ["gender"]}
PAIR = [["dense"], ["int8"]]


@pytest.fixture
def table():
    """Probabilities of "yes", before and after; the compressed model is worse for men."""
    generator = np.random.default_rng(0)
    right, male = generator.random(200) < 0.5, generator.random(200) < 0.4
    score = np.where(right, 1.5, -1.5) + generator.normal(0, 1, 200)
    worse = score + generator.normal(0, 1, 200) * np.where(male, 3, 0.3)
    columns = {"smiling": np.where(right, "yes", "no"), "gender": np.where(male, "m", "f")}
    columns["age"] = np.where(generator.random(200) < 0.5, "old", "young")
    return pd.DataFrame(
        columns | {"dense": 1 / (1 + np.exp(-score)), "int8": 1 / (1 + np.exp(-worse))}
    )


@pytest.fixture
def path(tmp_path):
    return tmp_path / "predictions.csv"


def saved(table, path):
    table.to_csv(path, index=False)
    return path


def expected(table, **settings):
    scores = [np.column_stack([1 - table[name], table[name]]) for name in ("dense", "int8")]
    return fairlib.audit(*scores, targets=table["smiling"], groups=table["gender"], **settings)


def test_probabilities_of_the_last_class(table, path):
    report = audit_table(saved(table, path), *PAIR, **ASKED)
    pd.testing.assert_frame_equal(report.table, expected(table).table)
    men = table[table["gender"] == "m"]
    assert (
        report.table.loc["m", "accuracy_after"]
        == ((men["int8"] > 0.5) == (men["smiling"] == "yes")).mean()
    )
    assert "probabilities before compression are those of 'yes'" in report.notes
    assert report.provenance["before"] == {"model": "dense"}
    assert report.provenance["data"]["file"] == "predictions.csv"


@pytest.mark.parametrize("suffix", [".xlsx", ".parquet"])
def test_other_tables(table, path, suffix):
    path = path.with_suffix(suffix)
    if suffix == ".xlsx":
        pytest.importorskip("openpyxl")
        table.to_excel(path, index=False)
    else:
        table.to_parquet(path)
    pd.testing.assert_frame_equal(audit_table(path, *PAIR, **ASKED).table, expected(table).table)


def test_another_positive_class(table, path):
    flipped = table.assign(dense=1 - table["dense"], int8=1 - table["int8"])
    report = audit_table(saved(flipped, path), *PAIR, **ASKED, positive="no")
    columns = ["accuracy_before", "drop_low", "loss_after"]
    pd.testing.assert_frame_equal(report.table[columns], expected(table).table[columns])
    assert "probabilities before compression are those of 'no'" in report.notes
    with pytest.raises(
        ValueError, match=r"--positive must be one of two classes, got 'maybe'; there are no, yes"
    ):
        audit_table(path, *PAIR, **ASKED, positive="maybe")


def test_a_column_of_scores_for_each_class(table, path):
    third = table.assign(
        a=0.0, b=1 - table["dense"], c=table["dense"], d=0.0, e=1 - table["int8"], f=table["int8"]
    )
    saved(third, path)
    report = audit_table(path, ["b", "c"], ["e", "f"], **ASKED)
    pd.testing.assert_frame_equal(report.table, expected(table).table)
    report = audit_table(
        path, ["a", "c", "b"], ["d", "f", "e"], **ASKED, classes=["maybe", "yes", "no"]
    )
    pd.testing.assert_frame_equal(report.table, expected(table).table)
    with pytest.raises(
        ValueError,
        match=r"after must have scores of 2 classes \(no, yes\), got shape \(200, 3\): .*--classes",
    ):
        audit_table(path, ["b", "c"], ["d", "e", "f"], **ASKED)
    with pytest.raises(
        ValueError, match=r"classes must name every value that occurs, lacks no; got"
    ):
        audit_table(path, ["b", "c"], ["e", "f"], **ASKED, classes=["yes", "maybe"])


def test_labels_of_any_kind(table, path):
    codes = pd.DataFrame({name: (table[name] > 0.5).astype(int) for name in ("dense", "int8")})
    codes["smiling"] = (table["smiling"] == "yes").astype(int)
    want = expected(table).table[["accuracy_before", "drop"]]
    for labels in (
        codes.replace({0: "no", 1: "yes"}),
        codes,
        codes.astype(
            {"dense": float}
        ),  # As pandas writes whole numbers of a column that had a gap.
        codes.astype({"smiling": float}),
        codes == 1,
    ):
        report = audit_table(saved(table.assign(**labels), path), *PAIR, **ASKED)
        pd.testing.assert_frame_equal(report.table[["accuracy_before", "drop"]], want)
        assert report.provenance["scores"]["before"] == "labels"


def test_numbers_with_decimal_commas(table, path):
    table.to_csv(path, index=False, sep=";", decimal=",")
    pd.testing.assert_frame_equal(audit_table(path, *PAIR, **ASKED).table, expected(table).table)


def test_scores_that_are_whole_numbers(table, path):
    whole = table.assign(dense=(table["dense"] > 0.5) * 2 - 1, int8=(table["int8"] > 0.5) * 2 - 1)
    with pytest.raises(
        ValueError,
        match=r"row 1 of column 'dense': unknown class '-?1'; known: no, yes.*--scores",
    ):
        audit_table(saved(whole, path), *PAIR, **ASKED)
    report = audit_table(path, *PAIR, **ASKED, scores="logits")
    assert report.table["accuracy_before"].equals(expected(table).table["accuracy_before"])


def test_rows_without_target_or_group_are_left_out_and_counted(table, path):
    gaps = table.astype(object)
    gaps.loc[[3, 5], "smiling"] = gaps.loc[[5, 8, 9], "gender"] = gaps.loc[[3, 5, 8, 9], "int8"] = (
        None
    )
    report = audit_table(saved(gaps, path), *PAIR, **ASKED)
    pd.testing.assert_frame_equal(report.table, expected(table.drop([3, 5, 8, 9])).table)
    assert report.notes[0] == "4 of 200 rows are left out: 2 without smiling, 3 without gender"
    with pytest.raises(
        ValueError, match=r"no row of '.*csv' has both a target \(smiling\) and a group \(gender\)"
    ):
        audit_table(saved(gaps.assign(gender=None), path), *PAIR, **ASKED)


def test_a_missing_prediction_is_refused(table, path):
    table.loc[16, "int8"] = np.nan
    with pytest.raises(
        ValueError,
        match=r"row 17 has no prediction in column 'int8'. Rows are not dropped silently",
    ):
        audit_table(saved(table, path), *PAIR, **ASKED)


def test_predictions_that_are_neither_class_nor_number(table, path):
    broken = table.astype({"dense": object})
    broken.loc[4, "dense"] = "O.5"
    with pytest.raises(ValueError, match=r"scores must be numbers, got O.5 in row 5"):
        audit_table(saved(broken, path), *PAIR, **ASKED)
    labels = table.assign(dense="yes", int8="no")
    labels.loc[7, "int8"] = "none"
    with pytest.raises(
        ValueError,
        match=r"row 8 of column 'int8': unknown class 'none'; known: no, yes.*--classes",
    ):
        audit_table(saved(labels, path), *PAIR, **ASKED)
    with pytest.warns(UserWarning, match="cannot be told from chance"):
        report = audit_table(path, *PAIR, **ASKED, classes=["no", "yes", "none"])
    assert report.table.loc["all", "accuracy_after"] < (table["smiling"] == "no").mean() + 1e-9


def test_several_attributes_are_crossed_and_reported_one_by_one(table, path):
    report = audit_table(saved(table, path), *PAIR, **ASKED | {"group": ["gender", "age"]})
    assert list(report.table.index) == ["f x old", "f x young", "m x old", "m x young", "all"]
    pd.testing.assert_frame_equal(report.attributes["gender"].table, expected(table).table)
    assert list(report.attributes) == ["gender", "age"]


def test_arguments_that_name_nothing(table, path):
    saved(table, path)
    with pytest.raises(
        ValueError, match=r"unknown column of '.*' 'int4'; known: smiling, gender, age, dense, int8"
    ):
        audit_table(path, ["dense"], ["int4"], **ASKED)
    with pytest.raises(ValueError, match=r"'p.npz' may run code when it is read: write a table"):
        audit_table("p.npz", *PAIR, **ASKED)


@pytest.fixture
def folder(tmp_path):
    """Pictures, red for "yes" and blue for "no", with a table; the last row has no group."""
    generator = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    rows = []
    for i in range(41):
        picture = generator.integers(0, 256, (8, 8, 3)).astype(np.uint8)
        picture[..., 0 if i % 2 else 2] //= 4
        Image.fromarray(picture).save(tmp_path / "photos" / f"{i}.png")
        rows.append([f"{i}.png", "no" if i % 2 else "yes", "mf"[i % 3 == 0] if i < 40 else ""])
    pd.DataFrame(rows, columns=["file", "smiling", "gender"]).to_csv(
        tmp_path / "photos" / "people.csv", index=False
    )
    return tmp_path


class Colours(nn.Module):
    """Logits of blue and red; bias favours blue."""

    def __init__(self, bias=0.0, order=(2, 0)):
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.linear.weight.data = torch.eye(3)[list(order)]
        self.linear.bias.data = torch.tensor([bias, 0.0])

    def forward(self, inputs):
        return self.linear(inputs.mean((2, 3)))


@pytest.fixture
def exported(folder):
    """Paths of two ONNX models: one that is right, and one that says "no" to all."""
    for name, bias in (("dense", 0.0), ("small", 9.0)):
        model = Colours(bias).eval()
        options = {"dynamo": False, "input_names": ["x"], "dynamic_axes": {"x": {0: "n"}}}
        with pytest.warns(DeprecationWarning):
            torch.onnx.export(model, (torch.zeros(2, 3, 8, 8),), folder / f"{name}.onnx", **options)
    return folder / "dense.onnx", folder / "small.onnx"


def test_two_onnx_models_on_a_folder(folder, exported):
    pytest.importorskip("onnxruntime")
    report = audit_models(*exported, Pictures(folder / "photos", **ASKED, size=8))
    assert report.table["size"].to_dict() == {"f": 14, "m": 26, "all": 40}
    assert report.table.loc["all", ["accuracy_before", "accuracy_after"]].tolist() == [1, 0.5]
    assert report.notes[0] == "of 41 pictures are left out: 1 without target or group"
    assert report.provenance["data"]["file"] == "people.csv"
    assert report.provenance["after"]["model"] == "small.onnx"
    with pytest.warns(UserWarning, match="chance"):
        report = audit_models(
            *exported, Pictures(folder / "photos", **ASKED, size=8, positive="no")
        )
    assert report.table.loc["all", "accuracy_before"] == 0
    shifted = {"normalize": [["0", "0", "9"], ["1", "1", "1"]]}  # Blue counts less than it is.
    with pytest.warns(UserWarning, match="chance"):
        report = audit_models(*exported, Pictures(folder / "photos", **ASKED, size=8, **shifted))
    assert report.table.loc["all", "accuracy_before"] == 0.5
    with pytest.raises(ValueError, match=r"dense.onnx failed .* takes \('n', 3, 8, 8\): --size"):
        audit_models(*exported, Pictures(folder / "photos", **ASKED))


def test_weights_of_a_model_of_the_library(folder):
    dense = fairlib.build("tiny-resnet", num_classes=2, image_size=8, seed=3)
    small = fairlib.prune(dense, "magnitude", sparsity=0.7)
    save_file(dense.state_dict(), folder / "dense.safetensors")
    save_file(small.half().state_dict(), folder / "small.safetensors")
    paths = [folder / f"{name}.safetensors" for name in ("dense", "small")]
    with pytest.warns(UserWarning, match="chance"):
        report = audit_models(
            *paths, Pictures(folder / "photos", **ASKED, size=8), model="tiny-resnet"
        )
    asked = {"fractions": (0, 0, 1), "image_size": 8, "root": folder / "photos"}
    test = fairlib.load("folder", target="smiling", group="gender", **asked).test
    with pytest.warns(UserWarning, match="chance"):
        pd.testing.assert_frame_equal(report.table, fairlib.audit(dense, small, test).table)
    assert report.provenance["sparsity"]["after"] == pytest.approx(0.7, abs=0.01)
    assert report.provenance["after"]["file"] == "small.safetensors"
    with pytest.raises(ValueError, match=r"state_dict does not fit this CNN"):
        audit_models(*paths, Pictures(folder / "photos", **ASKED, size=8), model="cnn")
    with pytest.raises(ValueError, match=r"unknown model 'resnet'; known: mlp"):
        audit_models(*paths, Pictures(folder / "photos", **ASKED, size=8), model="resnet")


def test_weights_of_a_model_of_ones_own(folder, exported, monkeypatch):
    pytest.importorskip("onnxruntime")
    (folder / "mine.py").write_text(
        "from test_files import Colours\ndef colours():\n    return Colours(order=(0, 2))\n"
    )
    monkeypatch.chdir(folder)
    monkeypatch.setitem(sys.modules, "test_files", sys.modules[__name__])
    save_file(Colours().state_dict(), "dense.safetensors")
    asked = Pictures("photos", **ASKED, size=8)
    report = audit_models("dense.safetensors", "small.onnx", asked, factory="mine:colours")
    assert report.table.loc["all", ["accuracy_before", "accuracy_after"]].tolist() == [1, 0.5]
    assert "gradient_norm" in report.table
    for factory in ("mine", "mine:none", "no_such_module:f"):
        with pytest.raises(
            ValueError, match=f"--factory must be package.module:function, got '{factory}'"
        ):
            audit_models("dense.safetensors", "small.onnx", asked, factory=factory)
    assert str(folder) not in sys.path


def test_files_that_are_no_models(folder, exported):
    for name in ("dense.pt", "dense.pkl"):
        (folder / name).write_bytes(b"")
        with pytest.raises(
            ValueError, match=r"may run code when it is read.*save_file\(model.state_dict"
        ):
            audit_models(folder / name, exported[1], Pictures(folder / "photos", **ASKED))
    (folder / "dense.safetensors").write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match=r"cannot read '.*dense.safetensors' as safetensors"):
        audit_models(
            folder / "dense.safetensors",
            exported[1],
            Pictures(folder / "photos", **ASKED),
            model="cnn",
        )
    for paths, more in (
        ([folder / "dense.safetensors", exported[1]], {}),
        ([folder / "dense.safetensors", exported[1]], {"model": "cnn", "factory": "a:b"}),
        (exported, {"model": "cnn"}),
    ):
        with pytest.raises(ValueError, match=r"--model or --factory is needed for .safetensors"):
            audit_models(*paths, Pictures(folder / "photos", **ASKED), **more)
