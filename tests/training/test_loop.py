from __future__ import annotations

import copy

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import fairlib
from fairlib.models import Normalize
from fairlib.models.normalization import fill_normalization
from fairlib.network.memory import extend_history
from fairlib.training import LoopSettings, Training, carry_out, loop, taken_gradient


def _same(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def started(model: nn.Module, data: fairlib.GroupedDataset, start: int, **settings) -> nn.Module:
    return carry_out(Training(model, data, settings, LoopSettings(start=start)))


def _vectors(n: int = 24) -> fairlib.GroupedDataset:
    generator = np.random.default_rng(3)
    return fairlib.GroupedDataset(generator.normal(size=(n, 4)), np.arange(n) % 2, np.arange(n) % 3)


def test_learns_and_leaves_its_argument_alone(cnn, images):
    before = copy.deepcopy(cnn)
    trained = fairlib.fit(cnn, images, val=images, epochs=12, batch_size=12)
    assert _same(cnn, before) and not trained.training
    curves = fairlib.history(trained)
    assert list(curves.index) == list(range(1, 13))
    assert list(curves) == ["lr", "loss", "accuracy", "gradients", "val_loss", "val_accuracy"]
    assert curves["val_accuracy"].iloc[-1] > 0.95 > curves["accuracy"].iloc[0]


def test_is_stochastic_gradient_descent_by_the_book():
    """One full batch a step, in float64, against the update rule written out."""
    data, lr, momentum, decay = _vectors(), 0.1, 0.9, 0.01
    torch.manual_seed(0)
    model = nn.Linear(4, 2).double()
    settings = dict(
        batch_size=24, lr=lr, momentum=momentum, weight_decay=decay, schedule="constant"
    )
    trained = fairlib.fit(model, data, epochs=3, **settings)
    theta = [p.detach().clone().requires_grad_() for p in model.parameters()]
    velocity = [torch.zeros_like(p) for p in theta]
    for _ in range(3):
        loss = cross_entropy(data.inputs @ theta[0].T + theta[1], data.targets)
        gradients = torch.autograd.grad(loss, theta)
        with torch.no_grad():
            for p, v, g in zip(theta, velocity, gradients, strict=True):
                v.mul_(momentum).add_(g + decay * p)
                p.sub_(lr * v)
    for ours, expected in zip(trained.parameters(), theta, strict=True):
        torch.testing.assert_close(ours, expected)


def test_same_seed_same_bits_and_the_global_generators_do_not_matter(images):
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 3))
    settings = dict(epochs=2, augment="crop+flip", seed=4)
    torch.manual_seed(1)
    one = fairlib.fit(model, images, **settings)
    after_one = torch.rand(1)
    torch.manual_seed(2)
    two = fairlib.fit(model, images, **settings)
    other = fairlib.fit(model, images, **(settings | {"seed": 5}))
    torch.manual_seed(1)
    assert torch.equal(torch.rand(1), after_one)
    assert _same(one, two) and not _same(one, other)


def test_normalization_is_filled_once_from_the_first_training_set(cnn, images):
    first = fairlib.fit(cnn, images, epochs=0)
    layer = next(m for m in first.modules() if isinstance(m, Normalize))
    pixels = images.inputs.double() / 255
    torch.testing.assert_close(
        layer.mean.double().flatten(), pixels.mean((0, 2, 3)), atol=1e-6, rtol=0
    )
    torch.testing.assert_close(
        layer.std.double().flatten(), pixels.std((0, 2, 3), correction=0), atol=1e-6, rtol=0
    )
    darker = fairlib.GroupedDataset(images.inputs // 2, images.targets, images.groups)
    assert _same(first, fairlib.fit(first, darker, epochs=0))


def test_keep_gives_back_the_weights_on_the_way(cnn, images):
    trained = fairlib.fit(cnn, images, epochs=3, batch_size=60, keep=[0, 2, 6])
    start = fairlib.weights_at(trained, 0)
    assert torch.equal(start["classifier.0.weight"], cnn.state_dict()["classifier.0.weight"])
    assert all(
        torch.equal(value, trained.state_dict()[name])
        for name, value in fairlib.weights_at(trained, 6).items()
    )
    constant = dict(batch_size=60, schedule="constant")
    whole = fairlib.fit(cnn, images, epochs=2, keep=2, **constant)
    part = fairlib.fit(cnn, images, epochs=1, **constant)
    assert all(
        torch.equal(value, part.state_dict()[name])
        for name, value in fairlib.weights_at(whole, 2).items()
    )
    with pytest.raises(ValueError, match=r"step 1 were not kept; kept: \[0, 2, 6\]"):
        fairlib.weights_at(trained, 1)
    with pytest.raises(ValueError, match=r"keep must lie in \[0, 7\), got 7"):
        fairlib.fit(cnn, images, epochs=3, batch_size=60, keep=7)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [1, 1, 1, 1]),
        ("step", [1, 1, 0.1, 0.01]),
        ("cosine", [1, 0.853553, 0.5, 0.146447]),
    ],
)
def test_schedules(schedule, expected):
    trained = fairlib.fit(
        nn.Linear(4, 2), _vectors(), epochs=4, batch_size=24, lr=0.2, schedule=schedule
    )
    np.testing.assert_allclose(fairlib.history(trained)["lr"], 0.2 * np.array(expected), rtol=1e-5)


def test_augmentations_shift_and_mirror_by_the_sample():
    images = (
        torch.arange(2 * 3 * 8 * 8, dtype=torch.float32).reshape(2, 3, 8, 8).repeat(200, 1, 1, 1)
    )
    torch.manual_seed(0)

    def augmented(name: str) -> torch.Tensor:
        augmentation = fairlib.training.AUGMENTATIONS[name]
        return augmentation.apply(images, augmentation.draw(len(images), images.shape[1:]))

    flipped = augmented("flip")
    mirrored = torch.tensor(
        [torch.equal(a, b.flip(2)) for a, b in zip(flipped, images, strict=True)]
    )
    untouched = torch.tensor([torch.equal(a, b) for a, b in zip(flipped, images, strict=True)])
    assert bool((mirrored ^ untouched).all()) and 150 < int(mirrored.sum()) < 250
    cropped = augmented("crop")
    assert cropped.shape == images.shape
    shifts = {(int(a[0, 4, 4] - b[0, 4, 4])) for a, b in zip(cropped, images, strict=True)}
    assert shifts == {8 * dy + dx for dy in (-1, 0, 1) for dx in (-1, 0, 1)}


def test_a_last_batch_of_one_joins_the_one_before(cnn, images):
    sizes = [len(part) for part in loop._split(torch.arange(121), 60)]
    assert sizes == [60, 61]
    resnet = fairlib.build("tiny-resnet", num_classes=3, in_channels=1, image_size=8)
    fairlib.fit(resnet, images.subset(range(61)), epochs=1, batch_size=60)


def test_bfloat16_and_channels_last_learn_the_same_task(cnn, images, monkeypatch):
    monkeypatch.setattr(loop, "trains_channels_last", lambda model, data: True)
    trained = fairlib.fit(cnn, images, epochs=12, batch_size=12, precision="bfloat16")
    assert all(p.dtype == torch.float32 for p in trained.parameters())
    assert trained.features[3].weight.is_contiguous()
    assert fairlib.history(trained)["accuracy"].iloc[-1] > 0.9


@pytest.mark.parametrize(
    ("side", "variable", "last"), [(16, "1", True), (15, "1", False), (16, "0", False)]
)
def test_images_from_16_pixels_on_are_trained_in_channels_last_by_itself(
    side, variable, last, monkeypatch
):
    monkeypatch.setenv("FAIRLIB_AUTO", variable)
    formats = []
    inputs = np.random.default_rng(0).integers(0, 256, (24, 3, side, side)).astype(np.uint8)
    data = fairlib.GroupedDataset(inputs, np.arange(24) % 2, np.arange(24) % 2)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
    )
    model[0].register_forward_pre_hook(
        lambda module, given: formats.append(
            given[0].is_contiguous(memory_format=torch.channels_last)
        )
    )
    trained = fairlib.fit(model, data, epochs=1, batch_size=24, device="cpu")
    assert formats[0] == last and trained[0].weight.is_contiguous()


@pytest.mark.parametrize(("channels", "kernel", "stride", "groups", "last"), [
    (4, 1, 2, 1, False), (7, 1, (1, 2), 1, False), (8, 1, 2, 1, True), (4, 1, 1, 1, True), (4, 3, 2, 1, True),
    (4, 1, 2, 2, True),
])  # fmt: skip
def test_a_layer_in_which_torch_writes_past_a_buffer_is_not_trained_in_channels_last(
    channels, kernel, stride, groups, last
):
    layer = nn.Conv2d(channels, 8, kernel, stride, groups=groups)
    data = fairlib.GroupedDataset(torch.zeros(4, channels, 16, 16), [0, 1, 0, 1], [0, 1, 0, 1])
    assert loop.trains_channels_last(nn.Sequential(layer), data) == last


def test_a_narrow_shortcut_is_trained_as_in_double_precision():
    """In channels-last this ends the process on a CPU with AVX2 alone; elsewhere it passes."""
    inputs = np.random.default_rng(0).integers(0, 256, (64, 3, 16, 16)).astype(np.uint8)
    data = fairlib.GroupedDataset(inputs, np.arange(64) % 2, np.arange(64) % 2)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 1), nn.Conv2d(4, 8, 1, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    model.append(nn.Linear(8, 2))
    trained, wanted = (
        fairlib.fit(model.to(dtype), data, epochs=2, batch_size=16, device="cpu")
        for dtype in (torch.float32, torch.float64)
    )
    assert torch.allclose(trained[1].weight, wanted[1].weight.float(), atol=1e-5)


def test_divergence_names_epoch_and_remedy(cnn, images):
    with pytest.raises(
        fairlib.DivergenceError, match=r"diverged at epoch \d of 9 .*lower lr \(100000.0\)"
    ):
        fairlib.fit(cnn, images, epochs=9, lr=1e5)


@pytest.mark.parametrize("val", [True, False])
def test_a_last_step_that_leaves_the_numbers_is_not_given_back(cnn, images, val):
    with pytest.raises(fairlib.DivergenceError, match="diverged at epoch 1 of 1"):
        fairlib.fit(cnn, images, val=images if val else None, epochs=1, batch_size=120, lr=1e38)


def test_objective_replaces_the_loss():
    data = _vectors()
    model = nn.Linear(4, 2).double()

    def halved(inputs, logits, targets):
        return 0.5 * cross_entropy(logits, targets, reduction="none")

    common = dict(epochs=2, batch_size=24, weight_decay=0.0, momentum=0.0)
    one = fairlib.fit(model, data, lr=0.2, objective=halved, **common)
    two = fairlib.fit(model, data, lr=0.1, **common)
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(a, b)


class Pair(nn.Sequential):
    def forward(self, inputs):
        return super().forward(inputs.flatten(1)), inputs


def test_bad_input(cnn, images):
    with pytest.raises(ValueError, match=r"must give logits \(N, 3\).*gives \(64, 5\)"):
        fairlib.fit(fairlib.build("cnn", num_classes=5, in_channels=1, image_size=8), images)
    with pytest.raises(TypeError, match="tensor of logits, it gives tuple"):
        fairlib.fit(Pair(nn.Linear(64, 3)), images)
    with pytest.raises(ValueError, match=r"inputs of 3 channels, got \(120, 1, 8, 8\)"):
        fairlib.fit(fairlib.build("cnn", num_classes=3, in_channels=3, image_size=8), images)
    with pytest.raises(TypeError, match=r"epochs must be an integer, got 2\.0"):
        fairlib.fit(cnn, images, epochs=2.0)
    with pytest.raises(ValueError, match="unknown schedule 'cos'; known: constant, cosine, step"):
        fairlib.fit(cnn, images, schedule="cos")
    with pytest.raises(ValueError, match="unknown augment "):
        fairlib.fit(cnn, images, augment="rotate")
    with pytest.raises(ValueError, match=r"lr must lie in \(0, inf\), got -1"):
        fairlib.fit(cnn, images, lr=-1)
    with pytest.raises(ValueError, match=r"epochs must lie in \[0, inf\), got -1"):
        fairlib.fit(cnn, images, epochs=-1)
    with pytest.raises(ValueError, match=r"not trained by fairlib\.fit"):
        fairlib.history(cnn)


def test_history_of_no_epochs_is_empty(cnn, images):
    assert isinstance(fairlib.history(fairlib.fit(cnn, images, epochs=0)), pd.DataFrame)
    assert fairlib.history(fairlib.fit(cnn, images, epochs=0)).empty


@pytest.mark.parametrize("step", [0, 3, 10, 13])
def test_a_training_from_a_step_on_is_the_rest_of_the_whole_training(cnn, images, step):
    """Without momentum, which is not kept, it gives the same bits: weights, batches, learning rates
    and history."""
    settings = dict(epochs=3, batch_size=12, momentum=0.0, schedule="cosine", seed=2)
    whole = fairlib.fit(cnn, images, keep=step, **settings)
    rewound = copy.deepcopy(whole)
    rewound.load_state_dict(fairlib.weights_at(whole, step))
    rest = started(rewound, images, step, keep=step, **settings)
    assert _same(rest, whole)
    kept = fairlib.weights_at(rest, step).values()
    assert all(torch.equal(a, b) for a, b in zip(kept, rewound.state_dict().values(), strict=True))
    untouched = range(2 + step // 10, 4)  # Epochs of ten steps; the first one is cut short.
    pd.testing.assert_frame_equal(
        fairlib.history(rest).loc[untouched], fairlib.history(whole).loc[untouched]
    )
    rate = 0.05 * (1 + np.cos(np.pi * step / 30)) / 2
    assert fairlib.history(rest)["lr"].iloc[0] == pytest.approx(rate)


def test_a_training_from_its_last_step_on_changes_nothing(cnn, images):
    rest = fairlib.fit(cnn, images, epochs=0)
    again = started(rest, images, 20, epochs=2, batch_size=12)
    assert _same(rest, again) and fairlib.history(again).empty
    with pytest.raises(ValueError, match=r"start must lie in \[0, 21\), got 21"):
        started(cnn, images, 21, epochs=2, batch_size=12)
    with pytest.raises(ValueError, match=r"keep must lie in \[4, 21\), got 3"):
        started(cnn, images, 4, epochs=2, batch_size=12, keep=3)


def test_masks_that_come_in_training_hold_from_then_on(cnn, images):
    name = "classifier.0.weight"
    seen = []

    def sparsify(model, progress):
        seen.append(progress)
        mask = torch.ones_like(model.get_parameter(name), dtype=torch.bool)
        mask[: round(progress * 40)] = False
        return {name: mask}

    settings = {"epochs": 4, "lr": 0.1, "momentum": 0.99}
    trained = carry_out(Training(cnn, images, settings, LoopSettings(sparsify=sparsify)))
    assert seen == [0.25, 0.5, 0.75, 1.0]
    assert not trained.classifier[0].weight[:40].any() and trained.classifier[0].weight[40:].all()
    assert (
        fairlib.network.masks.read_masks(cnn) == {}
        and fairlib.network.masks.read_masks(trained)[name].sum() == 24 * 64
    )


def test_vectors_are_normalized_feature_by_feature():
    model = fairlib.build("mlp", num_classes=2, in_channels=4, image_size=1, hidden=(8,))
    data = _vectors(40)
    trained = fairlib.fit(model, data, epochs=1)
    torch.testing.assert_close(trained.normalize.mean.flatten(), data.inputs.mean(0).float())
    torch.testing.assert_close(
        trained.normalize.std.flatten(), data.inputs.std(0, correction=0).float()
    )
    with pytest.raises(ValueError, match=r"takes inputs of 4 channels, got \(40, 3\)"):
        fairlib.fit(model, fairlib.GroupedDataset(data.inputs[:, :3], data.targets, data.groups))


def test_adam_is_torchs(cnn, images):
    settings = {"epochs": 1, "lr": 0.01, "batch_size": 120, "weight_decay": 0.1}
    trained = carry_out(Training(cnn, images, settings, LoopSettings(optimizer="adam")))
    twin = copy.deepcopy(cnn)
    fill_normalization(twin, images)
    optimizer = torch.optim.Adam(twin.train().parameters(), lr=0.01, weight_decay=0.1)
    torch.nn.functional.cross_entropy(twin(images.batch(slice(None))), images.targets).backward()
    optimizer.step()
    for one, other in zip(trained.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-5)
    with pytest.raises(ValueError, match="unknown optimizer 'lbfgs'; known: sgd, adam"):
        carry_out(Training(cnn, images, loop=LoopSettings(optimizer="lbfgs")))


def test_a_training_can_be_stopped_after_an_epoch(cnn, images):
    loop_settings = LoopSettings(stop=lambda row: row["epoch"] == 3)
    settings = {"epochs": 9, "schedule": "constant"}
    stopped = carry_out(Training(cnn, images, settings, loop_settings))
    assert fairlib.history(stopped).index.tolist() == [1, 2, 3]
    short = fairlib.fit(cnn, images, epochs=3, schedule="constant")
    assert torch.equal(next(stopped.parameters()), next(short.parameters()))


def test_a_history_can_go_on_from_an_earlier_one(cnn, images):
    first = fairlib.fit(cnn, images, epochs=2)
    second = extend_history(first, fairlib.fit(first, images, epochs=3))
    assert fairlib.history(second).index.tolist() == [1, 2, 3, 4, 5]
    assert fairlib.history(second)["loss"].tolist()[:2] == fairlib.history(first)["loss"].tolist()
    late = started(cnn, images, 4, epochs=4, batch_size=60)  # Epochs 3 and 4.
    assert fairlib.history(
        extend_history(late, fairlib.fit(cnn, images, epochs=1))
    ).index.tolist() == [3, 4, 5]
    assert extend_history(cnn, second) is second


def test_gradients_of_samples_are_counted_over_all_trainings_of_a_module(cnn, images):
    assert fairlib.gradient_evaluations(cnn) == 0
    once = started(cnn, images, 3, epochs=2, batch_size=50)
    assert fairlib.history(once)["gradients"].tolist() == [
        120
    ]  # Three batches an epoch; the first three are passed over.
    twice = fairlib.fit(once, images, epochs=1)
    assert fairlib.gradient_evaluations(twice) == 240 and fairlib.gradient_evaluations(once) == 120
    assert fairlib.gradient_evaluations(copy.deepcopy(twice)) == 240


def test_what_a_constraint_differentiates_counts_too(cnn, images):
    """Equal gradients: one more of each sample that a batch has, one nearby, and those of the
    training set."""

    class Reporting:
        def start(self, model, data, objective):
            return self

        def loss(self, batch):
            return batch.losses.mean()

        def end_epoch(self):
            return {"gradients": 7, "other": 1.0}

    history = fairlib.history(fairlib.fit(cnn, images, epochs=2, constraint=Reporting()))
    assert history["gradients"].tolist() == [127, 127] and history["other"].tolist() == [1, 1]
    curved = fairlib.fit(
        cnn, images, epochs=1, constraint=fairlib.EqualCurvature(step=0.1, eigenvalue_step=0.0)
    )
    products = fairlib.gradient_evaluations(curved) - 120 * (
        1 + 2
    )  # The losses', and those of the groups, twice.
    assert products > 0 and products % 20 == 0  # Two a product, of groups of 80, 30 and 10.
    longer = fairlib.gradient_evaluations(
        fairlib.fit(cnn, images, epochs=2, constraint=fairlib.EqualCurvature(step=0.1))
    )
    # In every batch of the second epoch a gradient, a slope and a bend nearby.
    assert longer >= products + 120 * (2 + 3 + 2 + 2)


def test_a_loss_whose_gradient_is_taken_keeps_value_and_gradient(cnn, images):
    def loss(model):
        return cross_entropy(model(images.batch(slice(None), dtype=torch.float32)), images.targets)

    expected = loss(cnn)
    expected.backward()
    wanted = [parameter.grad.clone() for parameter in cnn.parameters()]
    cnn.zero_grad()
    value, found = taken_gradient(loss(cnn), cnn)
    assert value.item() == expected.item()
    (2 * value).backward()
    for parameter, gradient in zip(cnn.parameters(), wanted, strict=True):
        assert torch.equal(found[parameter], gradient) and torch.allclose(
            parameter.grad, 2 * gradient
        )


def test_a_network_that_comes_in_channels_last_format_is_trained_by_the_rule_all_the_same(images):
    """On images of 8 pixels: in ordinary format, so that both end in the same bits."""
    model = fairlib.build("cnn", num_classes=3, in_channels=1, image_size=8, seed=0)
    other = copy.deepcopy(model).to(memory_format=torch.channels_last)
    one, two = (fairlib.fit(net, images, epochs=1) for net in (model, other))
    for name, value in one.state_dict().items():
        assert torch.equal(value, two.state_dict()[name]), name


def test_a_misspelt_setting_of_a_training_is_refused(images, cnn):
    with pytest.raises(TypeError, match="unknown setting 'epoch'"):
        Training(cnn, images, {"epoch": 1})


@pytest.mark.parametrize("normalization", [nn.BatchNorm1d(8), nn.BatchNorm1d(8, affine=False)])
@pytest.mark.parametrize(("samples", "batch_size"), [(20, 1), (1, 64), (1, 1)])
def test_a_batch_of_one_sample_has_no_variance(normalization, samples, batch_size):
    codes = [0, 1] * 10
    data = fairlib.GroupedDataset(torch.rand(20, 6), codes, codes).subset(range(samples))
    model = nn.Sequential(nn.Linear(6, 8), normalization, nn.ReLU(), nn.Linear(8, 2))
    message = f"batch_size={batch_size} leaves one sample in a batch of {samples}, of which"
    with pytest.raises(ValueError, match=message):
        fairlib.fit(model, data, epochs=1, batch_size=batch_size)
    fairlib.fit(nn.Sequential(nn.Linear(6, 2)), data, epochs=1, batch_size=batch_size)


def test_a_batch_of_one_image_has_one(images):
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 3))
    trained = fairlib.fit(model, images.subset(range(3)), epochs=1, batch_size=1, lr=1e-3)
    assert np.isfinite(fairlib.history(trained)["loss"]).all()


@pytest.mark.parametrize(
    "layer", [nn.LazyLinear(3), nn.LazyBatchNorm1d(affine=False)], ids=["weight", "buffer"]
)
def test_lazy_layers_need_an_input_first(layer, images):
    lazy = nn.Sequential(nn.Flatten(), layer, nn.ReLU(), nn.Linear(3, 3))
    calls = [
        lambda: fairlib.fit(lazy, images),
        lambda: fairlib.linearization.gate(lazy, images),
        lambda: fairlib.compact(lazy, images),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=f"1 of the model is a lazy {type(layer).__name__}"):
            call()


@pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning")
def test_torchscript_cannot_be_changed(cnn, images):
    traced = torch.jit.trace(cnn.eval(), images.batch(range(2)))
    scripted = nn.Sequential(nn.Flatten(), torch.jit.script(nn.Linear(64, 3)))

    def filtered(model, data):
        return fairlib.prune(model, "filter-norm", sparsity=0.5, data=data)

    for model in (traced, scripted):
        calls = [fairlib.fit, fairlib.linearization.gate, fairlib.compact]
        for call in (*calls, filtered):
            with pytest.raises(
                TypeError, match="model must be a module of Python, got TorchScript"
            ):
                call(model, images)
