from __future__ import annotations

import logging

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import fairlib
from fairlib.network.compaction import compact
from fairlib.network.export import export_onnx, quiet, to_onnx
from fairlib.pruning.filter_norm import filter_norm


def test_an_exported_model_computes_the_same_for_any_batch(cnn, images, tmp_path):
    trained = fairlib.fit(cnn, images, epochs=1)
    small = compact(filter_norm(trained, sparsity=0.6, data=images), images)
    export_onnx(small, tmp_path / "small.onnx", images)
    assert [file.name for file in tmp_path.iterdir()] == ["small.onnx"]
    session = onnxruntime.InferenceSession(str(tmp_path / "small.onnx"))
    for samples in (1, 2, 120):
        inputs = images.batch(range(samples))
        (found,) = session.run(["logits"], {"inputs": inputs.numpy()})
        assert np.abs(found - small(inputs).detach().numpy()).max() < 1e-5


def test_a_wrong_export_leaves_no_file(cnn, images, tmp_path, monkeypatch):
    def export(model: nn.Module, *arguments: object, **settings: object) -> object:
        program = original(model, *arguments, **settings)
        model.classifier[4].bias = nn.Parameter(
            model.classifier[4].bias + 1e-3
        )  # The program has the one before.
        return program

    original = torch.onnx.export
    monkeypatch.setattr(torch.onnx, "export", export)
    with pytest.raises(ValueError, match="onnxruntime gives other outputs than CNN"):
        export_onnx(cnn, tmp_path / "cnn.onnx", images)
    assert not list(tmp_path.iterdir())


class Odd(nn.Module):
    """An operator that ONNX lacks."""

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.special.bessel_j0(inputs)


class Branching(nn.Module):
    """A branch on a value, which torch cannot export."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs if inputs.sum() > 0 else -inputs


def test_what_cannot_be_exported_is_refused_by_name(capfd, caplog):
    inputs = torch.rand(2, 3)
    with pytest.raises(
        ValueError, match=r"Sequential cannot be exported.*bessel_j0.*, which 1.0 \(.*Odd\) calls"
    ):
        to_onnx(nn.Sequential(nn.Linear(3, 4), nn.Sequential(Odd())), inputs)
    with pytest.raises(ValueError, match="Sequential cannot be exported to ONNX: Could not guard"):
        to_onnx(nn.Sequential(nn.Linear(3, 4), Branching()), inputs)
    broken = nn.Sequential(nn.Linear(3, 4))
    broken[0].weight.data[0, 0] = torch.nan
    with pytest.raises(ValueError, match=r"0\.weight holds NaN or infinite numbers"):
        to_onnx(broken, inputs)
    assert capfd.readouterr() == ("", "") and {record.name for record in caplog.records} <= {
        "torch.__trace"
    }


def test_a_missing_package_is_named_with_its_extra(cnn, images, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "onnxscript", None)
    with pytest.raises(
        ImportError, match=r"this needs onnxscript: pip install 'who-pays\[compact\]'"
    ):
        to_onnx(cnn, images)


def test_quiet_leaves_logging_as_it_was():
    root = logging.getLogger()
    before = root.level, [*root.handlers], root.manager.disable
    with quiet():
        logging.basicConfig(level=logging.DEBUG, force=True)
        root.setLevel(logging.DEBUG)
    assert (root.level, [*root.handlers], root.manager.disable) == before
