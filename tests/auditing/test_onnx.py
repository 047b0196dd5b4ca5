"""ONNX models of all the kinds that exporters write, against the same network in numpy."""

from __future__ import annotations

import hashlib
import sys

import numpy as np
import pytest
import torch

import fairlib
from fairlib.auditing.adapters.onnx import check_model, open_model

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
helper, types = onnx.helper, onnx.TensorProto
WEIGHT = np.array([[1.0, -1.0], [0.5, 2.0], [-3.0, 1.0]], dtype=np.float32)


def numbers(batch):
    return batch.mean((2, 3)) @ WEIGHT


def write(
    path, shape=("n", 3, 4, 4), kind=types.FLOAT, outputs=("scores",), axes=(2, 3), weight=WEIGHT
):
    """The mean of every channel times a matrix; the other outputs are the means, labels, and the
    inputs."""
    made = {
        "scores": (types.FLOAT, ["n", weight.shape[1]]),
        "means": (types.FLOAT, ["n", "c"]),
        "labels": (types.INT64, ["n"]),
        "inputs": (types.FLOAT, list(shape)),
    }
    nodes = [
        helper.make_node("Cast", ["x"], ["inputs"], to=types.FLOAT),
        helper.make_node("ReduceMean", ["inputs", "axes"], ["means"], keepdims=0),
        helper.make_node("MatMul", ["means", "weight"], ["scores"]),
        helper.make_node("ArgMax", ["scores"], ["labels"], axis=1, keepdims=0),
    ]
    held = [
        onnx.numpy_helper.from_array(np.array(axes), "axes"),
        onnx.numpy_helper.from_array(weight, "weight"),
    ]
    out = [helper.make_tensor_value_info(name, *made[name]) for name in outputs]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", kind, list(shape))], out, held
    )
    model = helper.make_model(
        graph, producer_name="a test", opset_imports=[helper.make_opsetid("", 18)], ir_version=9
    )
    onnx.save(model, path)
    return path


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.onnx"


@pytest.fixture
def batch():
    return np.random.default_rng(0).integers(0, 256, (7, 3, 4, 4)).astype(np.float32) / 255


@pytest.mark.parametrize("first", ["n", 1, 3, 7, 16])
@pytest.mark.parametrize("kind", [types.FLOAT, types.FLOAT16, types.DOUBLE, types.UINT8])
def test_any_batch_size_and_type_of_inputs(path, batch, first, kind):
    call, about = open_model(write(path, (first, 3, 4, 4), kind))
    scale = 255 if kind == types.UINT8 else 1
    np.testing.assert_allclose(
        call(batch), numbers(batch * scale), rtol=2e-3 if kind == types.FLOAT16 else 1e-4
    )
    np.testing.assert_array_equal(call(torch.tensor(batch)), call(batch))
    content = path.read_bytes()
    assert about == {
        "model": "model.onnx",
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "producer": "a test",
        "output": "scores",
    }


def test_channels_last(path, batch):
    call, _ = open_model(write(path, ("n", 4, 4, 3), axes=(1, 2)))
    np.testing.assert_allclose(call(batch), numbers(batch), rtol=1e-5)


@pytest.mark.parametrize(
    ("shape", "kind", "message"),
    [
        (
            ("n", 3, 8, 8),
            types.FLOAT,
            r"takes \('n', 3, 8, 8\): --size .*index: 2 Got: 4 Expected: 8",
        ),
        (("n", 1, 4, 4), types.FLOAT, r"takes \('n', 1, 4, 4\): .*index: 1 Got: 3 Expected: 1"),
        (("n", 3, 16), types.FLOAT, r"takes \('n', 3, 16\): .*Invalid rank"),
        (("n", 3, 4, 4), types.UINT8, r"takes uint8, 0 to 255: leave out --normalize"),
    ],
)
def test_inputs_that_do_not_fit(path, batch, shape, kind, message):
    call, _ = open_model(
        write(path, shape, kind, axes=range(2, len(shape)), weight=WEIGHT[: shape[1]])
    )
    with pytest.raises(ValueError, match=rf"(?s){message}"):
        call(batch - 0.5)


def test_the_scores_among_several_outputs(path, batch):
    for outputs in (("labels", "scores"), ("inputs", "labels", "scores")):
        call, about = open_model(write(path, outputs=outputs))
        assert about["output"] == "scores"
        np.testing.assert_allclose(call(batch), numbers(batch), rtol=1e-5)
    write(path, outputs=("means", "scores"))
    with pytest.warns(UserWarning, match=r"could be scores \(means, scores\): the first is taken"):
        call, _ = open_model(path)
    assert call(batch).shape == (7, 3)
    call, _ = open_model(write(path, outputs=("labels",)))
    assert call(batch).tolist() == numbers(batch).argmax(1).tolist()


def test_a_model_that_cannot_be_asked(path, batch):
    with pytest.raises(
        ValueError,
        match=r"must have one input, of type .*tensor\(uint8\); it has x tensor\(int32\)",
    ):
        open_model(write(path, kind=types.INT32))
    path.write_bytes(b"no model")
    with pytest.raises(ValueError, match=r"cannot run '.*model.onnx' as an ONNX model"):
        open_model(path)
    call, _ = open_model(write(path, ("n", "c", 4, 4), weight=WEIGHT[:2]))
    with pytest.raises(ValueError, match=r"model.onnx failed on inputs \(7, 3, 4, 4\), .*MatMul"):
        call(batch)


@pytest.mark.parametrize("name", ["model.onnx.data", "weights.bin", "größe", "w" * 127, "w" * 200])
def test_weights_beside_the_model_belong_to_it(path, name):
    """Whatever their file is called: two models with other weights have other digests."""
    path.with_name("other.onnx.data").write_bytes(b"of another model")
    found = set()
    for sign in (1, -1):
        proto = onnx.load(write(path, weight=sign * WEIGHT))
        path.with_name(name).unlink(missing_ok=True)
        onnx.save(proto, path, save_as_external_data=True, location=name, size_threshold=55)
        content = path.read_bytes() + path.with_name(name).read_bytes()
        _, about = open_model(path)
        found.add(about["sha256"])
        assert about["bytes"] == len(content)
        assert about["sha256"] == hashlib.sha256(content).hexdigest()
    assert len(found) == 2


def test_each_file_of_weights_counts(path):
    proto = onnx.load(write(path))
    (path.parent / "part").mkdir()
    extra = onnx.numpy_helper.from_array(np.zeros(100, dtype=np.float32), "extra")
    for tensor, name in ((proto.graph.initializer[1], "1.bin"), (extra, "part/2.bin")):
        onnx.external_data_helper.set_external_data(tensor, name)
    proto.graph.initializer.append(extra)
    onnx.save(proto, path)
    files = [path, path.with_name("1.bin"), path.parent / "part" / "2.bin"]
    assert open_model(path)[1]["bytes"] == sum(file.stat().st_size for file in files)


@pytest.mark.parametrize("name", ["m.pt", "m.PTH", "m.pt2", "m.pkl", "m.joblib", "m.npz"])
def test_files_that_may_run_code_are_not_read(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"")
    with pytest.raises(
        ValueError,
        match=rf"'.*{name}'. It may run code when it is read.*torch.onnx.export.*save_file",
    ):
        open_model(path)


def test_other_files(tmp_path):
    with pytest.raises(ValueError, match=r"must be a file .onnx or .safetensors, got 'm.tflite'"):
        check_model("m.tflite", (".onnx", ".safetensors"))
    with pytest.raises(FileNotFoundError, match=r"found no model file 'm.onnx'"):
        open_model("m.onnx")


def test_without_onnxruntime_the_error_says_how_to_install_it(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match=r"onnxruntime: pip install 'who-pays\[audit\]'"):
        open_model(write(path))


def test_the_package_onnx_is_not_needed(path, batch, monkeypatch):
    write(path)
    monkeypatch.setitem(sys.modules, "onnx", None)
    call, _ = open_model(path)
    np.testing.assert_allclose(call(batch), numbers(batch), rtol=1e-4)


def test_models_quantized_by_onnxruntime_are_audited_by_path(tmp_path):
    quantization = pytest.importorskip("onnxruntime.quantization")
    dense = write(tmp_path / "dense.onnx")
    generator = np.random.default_rng(1)
    images = (255 * generator.random((200, 3, 1, 1)) * generator.random((200, 3, 4, 4))).astype(
        np.uint8
    )
    batch = images.astype(np.float32) / 255

    class Calibration(quantization.CalibrationDataReader):
        rows = iter([{"x": batch}])

        def get_next(self):
            return next(self.rows, None)

    quantization.quantize_dynamic(dense, tmp_path / "dynamic.onnx")
    quantization.quantize_static(dense, tmp_path / "static.onnx", Calibration())
    test = fairlib.GroupedDataset(images, numbers(batch).argmax(1), np.arange(200) % 2)
    for small in ("dynamic.onnx", "static.onnx"):
        report = fairlib.audit(dense, tmp_path / small, test, diagnostics=())
        assert report.table.loc["all", "accuracy_before"] == 1
        assert report.table.loc["all", "accuracy_after"] > 0.9
        assert report.provenance["after"]["model"] == small
