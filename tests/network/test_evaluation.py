from __future__ import annotations

import numpy as np
import pytest
import torch
from fairlearn.metrics import MetricFrame
from sklearn.metrics import accuracy_score, log_loss

import fairlib
from fairlib.diagnostics import group_performance, predict
from fairlib.network import evaluation
from fairlib.network.evaluation import full_precision


def test_agrees_with_fairlearn_and_scikit_learn(cnn, images):
    table = group_performance(cnn, images)
    predictions = predict(cnn, images)
    names = np.array(images.group_names)[images.groups]
    frame = MetricFrame(
        metrics=accuracy_score,
        y_true=images.targets.numpy(),
        y_pred=predictions.logits.argmax(1),
        sensitive_features=names,
    )
    probabilities = np.exp(predictions.logits) / np.exp(predictions.logits).sum(1, keepdims=True)
    assert list(table.index) == ["many", "some", "few"] and list(table) == [
        "size",
        "accuracy",
        "loss",
    ]
    for name in table.index:
        members = names == name
        assert table.loc[name, "size"] == members.sum()
        assert table.loc[name, "accuracy"] == pytest.approx(frame.by_group[name])
        expected = log_loss(
            images.targets.numpy()[members], probabilities[members], labels=[0, 1, 2]
        )
        assert table.loc[name, "loss"] == pytest.approx(expected)


def test_leaves_mode_buffers_and_gradients(images):
    model = fairlib.build("tiny-resnet", num_classes=3, in_channels=1, image_size=8).train()
    model.bn1.eval()
    model.fc.weight.grad = torch.ones_like(model.fc.weight)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    predict(model, images)
    assert model.training and not model.bn1.training and model.layer1.training
    assert bool((model.fc.weight.grad == 1).all())
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in before.items())


def test_chunks_do_not_show(cnn, images, monkeypatch):
    whole = predict(cnn, images)
    monkeypatch.setattr("fairlib.network.evaluation.SAMPLES_PER_PASS", 7)
    np.testing.assert_allclose(predict(cnn, images).logits, whole.logits, atol=1e-5)


def test_passes_hold_every_sample_once_and_are_smaller_on_a_cpu(images):
    small = images.inputs[0].numel() * 50
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fairlib.network.evaluation.NUMBERS_PER_PASS_CPU", small)
        dealt = {kind: evaluation.passes(images, torch.device(kind)) for kind in ("cpu", "cuda")}
    assert [len(index) for index in dealt["cpu"]] == [50, 50, 20] and [
        len(index) for index in dealt["cuda"]
    ] == [120]
    assert all(torch.cat(index).tolist() == list(range(120)) for index in dealt.values())


def test_an_empty_group_is_nan(cnn, images):
    table = group_performance(cnn, images.subset(range(80)))
    assert table["size"].tolist() == [80, 0, 0]
    assert table["accuracy"].isna().tolist() == [False, True, True]


def test_outputs_must_match_the_classes(images):
    model = fairlib.build("cnn", num_classes=2, in_channels=1, image_size=8)
    with pytest.raises(
        ValueError, match=r"one for each class of the data \(0, 1, 2\); it gives \(120, 2\)"
    ):
        predict(model, images)


def test_full_precision_holds_within_its_block_alone_and_leaves_torch_consistent(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    cudnn = torch.backends.cudnn
    before = cudnn.allow_tf32, cudnn.deterministic, torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        with full_precision(), full_precision():
            assert not cudnn.allow_tf32 and torch.get_float32_matmul_precision() == "highest"
            with cudnn.flags(enabled=False):  # As some models set them for a second derivative.
                pass
            assert not cudnn.allow_tf32
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before[2])
    assert (cudnn.allow_tf32, cudnn.deterministic, torch.get_float32_matmul_precision()) == before
