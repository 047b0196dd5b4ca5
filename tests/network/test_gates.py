from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from zoo import RECTIFIED, of_the_zoo, zoo_model

import fairlib
from fairlib.linearization import count, gate
from fairlib.linearization.deepreduce import culled_and_thinned, masks_of
from fairlib.network import gates
from fairlib.network.memory import remember

IMAGES = torch.rand(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def test_a_gate_is_a_relu_where_it_is_kept_and_the_identity_elsewhere():
    one = gates.Gate(nn.ReLU(inplace=True), (2, 3, 3))
    one.keep.copy_(torch.rand(2, 3, 3, generator=torch.Generator().manual_seed(0)) > 0.5)
    inputs = torch.randn(4, 2, 3, 3, generator=torch.Generator().manual_seed(1))
    before = inputs.clone()
    assert torch.equal(one(inputs), torch.where(one.keep.bool(), inputs.relu(), inputs))
    assert torch.equal(inputs, before)
    assert not list(one.parameters())


def test_a_learning_gate_is_a_leaky_relu_whose_gradient_is_minus_its_negative_inputs():
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU())
    gated = gate(model, torch.zeros(1, 4))
    gates.relax(gated)
    (one,) = gates.gates(gated).values()
    one.alpha.data.uniform_(-0.5, 1.5, generator=torch.Generator().manual_seed(0))
    inputs = torch.randn(7, 4, generator=torch.Generator().manual_seed(1))
    hidden = gated[0](inputs).detach()
    outputs = gated(inputs)
    assert torch.allclose(outputs, torch.where(hidden >= 0, hidden, (1 - one.alpha) * hidden))
    outputs.sum().backward()
    assert torch.allclose(one.alpha.grad, (-hidden.clamp(max=0)).sum(0))


@of_the_zoo(RECTIFIED)
def test_gated_models_of_the_zoo_compute_the_same_and_have_the_same_weights(name):
    model, inputs = zoo_model(name)
    gated = gate(model)
    assert torch.allclose(gated(inputs), model(inputs), atol=1e-5)
    assert [n for n, _ in gated.named_parameters()] == [n for n, _ in model.named_parameters()]
    activations = [m for m in model.modules() if isinstance(m, nn.ReLU | nn.ReLU6)]
    assert len(gates.gates(gated)) == len(activations) and type(gated) is type(model)


@pytest.mark.parametrize("name", ["tiny-resnet", "resnet18", "wrn-22-8"])
def test_without_any_relu_a_residual_network_is_affine(name):
    model, inputs = zoo_model(name)
    gated = gate(model)
    linear = gates.with_gates(
        gated, {n: torch.zeros_like(keep) for n, keep in gates.read_gates(gated).items()}
    ).double()
    x, y = inputs.double()[:1], inputs.double()[1:]
    middle = linear((x + y) / 2)
    assert torch.allclose(middle, (linear(x) + linear(y)) / 2, atol=1e-8)
    bent = gated.double()
    assert not torch.allclose(bent((x + y) / 2), (bent(x) + bent(y)) / 2, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "relus"), [("resnet18", 491_520), ("resnet34", 901_120), ("wrn-22-8", 1_359_872)]
)
def test_the_counts_of_the_papers_networks_at_32_pixels(name, relus):
    table = count(fairlib.build(name, num_classes=10, image_size=32), 32)
    left = table["relus"].drop("final_relu", errors="ignore")
    assert left.drop("stem", errors="ignore").sum() == relus
    if name != "wrn-22-8":
        assert table.attrs == {"total": relus + 65_536, "total_without_stem": relus}
        assert table.index[0] == "stem"
    else:
        assert table.attrs["total"] - relus == 32_768


@pytest.mark.slow
def test_the_count_depends_on_the_image_size():
    model = fairlib.build("resnet18", num_classes=10, image_size=64)
    assert count(model).attrs["total_without_stem"] == 1_966_080
    assert count(model, 64).attrs == count(model).attrs
    assert count(model, 32).attrs["total_without_stem"] == 491_520
    with pytest.raises(ValueError, match="gated for images of 64 pixels, not of 32"):
        count(gate(model), 32)


# Culled stages, ReLUs left and left when thinned (methods of Jha et al. 2021, stem always without).
TABLE = {
    "resnet18": {
        "": (491_520, 245_760),
        "1": (229_376, 114_688),
        "12": (98_304, 49_152),
        "14": (196_608, 98_304),
        "13": (163_840, 81_920),
        "23": (294_912, 147_456),
        "123": (32_768, 16_384),
        "124": (65_536, 32_768),
        "134": (131_072, 65_536),
        "234": (262_144, 131_072),
    },
    "resnet34": {
        "": (901_120, 450_560),
        "1": (507_904, 253_952),
        "12": (245_760, 122_880),
        "14": (458_752, 229_376),
        "123": (49_152, 24_576),
        "234": (393_216, 196_608),
    },
}


@pytest.mark.parametrize("name", TABLE)
def test_the_counts_of_deepreduce(name):
    gated = gate(fairlib.build(name, num_classes=10, image_size=32))
    for culled, wanted in TABLE[name].items():
        stages = tuple(f"layer{number}" for number in "1234" if number not in culled)
        plans = list(culled_and_thinned(gated, stages, relus=1))[:2]  # No further stage culled.
        assert [
            sum(int(mask.sum()) for mask in masks_of(gated, plan).values()) for plan in plans
        ] == [*wanted]


def test_stages_are_children_of_a_residual_network_and_resolutions_elsewhere():
    resnet = gates.stages(gate(fairlib.build("tiny-resnet", num_classes=3, image_size=8)))
    assert resnet == {f"layer{n}": [f"layer{n}.0.relu1", f"layer{n}.0.relu2"] for n in (1, 2, 3)}
    vgg = gates.stages(gate(fairlib.build("vgg19", num_classes=3, image_size=32, width=0.1)))
    assert [len(names) for names in vgg.values()] == [2, 2, 4, 4, 4]
    cnn = gates.stages(gate(fairlib.build("cnn", num_classes=3, image_size=8)))
    assert [len(names) for names in cnn.values()] == [1, 1, 2]
    wide = gates.stages(gate(fairlib.build("wrn-22-8", num_classes=3, image_size=8, width=0.1)))
    assert {stage: len(names) for stage, names in wide.items()} == {
        "layer1": 6,
        "layer2": 6,
        "layer3": 6,
        "final_relu": 1,
    }
    mobile = gates.stages(
        gate(fairlib.build("mobilenetv2", num_classes=3, image_size=16, width=0.25))
    )
    assert len(mobile) == 4


def test_other_relus_are_gated_as_they_are():
    model = nn.Sequential(
        nn.Linear(6, 6), nn.ReLU6(), nn.Linear(6, 6), nn.LeakyReLU(0.2, inplace=True)
    )
    gated = gate(model, torch.zeros(1, 6))
    inputs = 20 * torch.randn(50, 6)
    assert torch.equal(gated(inputs), model(inputs))
    half = gates.with_gates(gated, {"1": torch.zeros(6, dtype=torch.bool)})
    assert torch.allclose(half(inputs), model[3](model[2](model[0](inputs))))


def test_gating_leaves_the_model_alone_and_is_idempotent(cnn):
    before = copy.deepcopy(cnn.state_dict())
    gated = gate(cnn.train())
    assert cnn.training and not gates.gates(cnn)
    assert all(torch.equal(value, before[name]) for name, value in cnn.state_dict().items())
    some = gates.with_gates(gated, {"features.1": torch.zeros(8, 8, 8, dtype=torch.bool)})
    again = gate(some)
    assert again is not some and torch.equal(
        gates.read_gates(again)["features.1"], gates.read_gates(some)["features.1"]
    )


def test_gates_belong_to_one_image_size():
    model = gate(fairlib.build("tiny-resnet", num_classes=3, image_size=16))
    with pytest.raises(
        ValueError, match=r"gate of \(8, 16, 16\) ReLUs met inputs \(N, \*\(8, 32, 32\)\)"
    ):
        model(torch.zeros(1, 3, 32, 32))
    with pytest.raises(ValueError, match="gated for another image size"):
        gate(model, torch.zeros(1, 3, 32, 32))
    with pytest.raises(ValueError, match="does not take inputs"):
        gate(fairlib.build("mlp", num_classes=3, image_size=16), torch.zeros(1, 3, 8, 8))
    with pytest.raises(ValueError, match="depends on the inputs: give data="):
        gate(nn.Sequential(nn.Linear(3, 3), nn.ReLU()))


def test_single_relus_are_kept_exactly_and_nested(cnn):
    gated = gate(cnn)
    scores = gates.drawn(gated, "pixel", seed=0)
    flat = torch.cat([score.flatten() for score in scores.values()])
    before = None
    for relus in (864, 500, 31, 1, 0):
        keep = gates.keep_relus(gated, scores, relus)
        chosen = torch.cat([mask.flatten() for mask in keep.values()])
        assert int(chosen.sum()) == relus
        assert relus in (0, 864) or flat[chosen].min() > flat[~chosen].max()
        assert before is None or not (chosen & ~before).any()
        before = chosen
    for relus in (-1, 865):
        with pytest.raises(ValueError, match="between 0 and 864"):
            gates.keep_relus(gated, scores, relus)
    with pytest.raises(ValueError, match="hold NaN"):
        gates.keep_relus(gated, {name: score * torch.nan for name, score in scores.items()}, 5)


def test_channels_and_layers_are_kept_whole_where_they_fit(cnn):
    gated = gate(cnn)  # 8 channels of 64, 16 of 16, then 64 and 32 units.
    channels = gates.keep_relus(gated, gates.drawn(gated, "channel", seed=0), 200)
    for mask in channels.values():
        whole = mask.flatten(1) if mask.ndim == 3 else mask[:, None]
        assert torch.equal(whole.any(1), whole.all(1))
    assert sum(int(mask.sum()) for mask in channels.values()) <= 200
    scores = {
        name: torch.full((1,) * mask.ndim, float(place))
        for place, (name, mask) in enumerate(channels.items())
    }
    layers = gates.keep_relus(gated, scores, 400)  # Best first: 32, 64, then 256; 512 does not fit.
    assert [int(mask.sum()) for mask in layers.values()] == [0, 256, 64, 32]


def test_what_is_linear_is_not_chosen_again(cnn):
    gated = gate(cnn)
    small = gates.with_gates(gated, gates.keep_relus(gated, gates.drawn(gated, "pixel", 0), 100))
    smaller = gates.keep_relus(small, gates.drawn(gated, "pixel", 1), 50)
    assert all(not (mask & ~gates.read_gates(small)[name]).any() for name, mask in smaller.items())
    assert sum(int(mask.sum()) for mask in smaller.values()) == 50


def test_gates_survive_copies_state_dicts_and_restoring(cnn, images):
    gated = gate(fairlib.prune(cnn, "magnitude", sparsity=0.5))
    linear = gates.with_gates(gated, gates.keep_relus(gated, gates.drawn(gated, "pixel", 0), 300))
    restored = fairlib.restore(
        fairlib.build("cnn", num_classes=3, in_channels=1, image_size=8), linear.state_dict()
    )
    inputs = images.batch(slice(5))
    assert list(gates.gates(restored)) == list(gates.gates(linear))
    for other in (copy.deepcopy(linear), restored):
        assert torch.equal(other(inputs), linear(inputs))
        assert count(other).attrs["total"] == 300 and fairlib.sparsity(other) == pytest.approx(
            0.5, abs=1e-3
        )
    trained = fairlib.fit(linear, images, epochs=2, weight_decay=0.1)
    assert all(
        torch.equal(mask, gates.read_gates(linear)[name])
        for name, mask in gates.read_gates(trained).items()
    )
    with pytest.raises(
        ValueError, match=r"a gate for features\.1, and this Sequential has no module"
    ):
        fairlib.restore(
            nn.Sequential(nn.Linear(3, 3)), {"features.1.keep": torch.ones(3, dtype=torch.bool)}
        )


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ({"nowhere": torch.ones(3, dtype=torch.bool)}, "unknown gate 'nowhere'; known: features.1"),
        ({"features.1": torch.ones(3, 5, 5, dtype=torch.bool)}, r"must be bool \(8, 8, 8\)"),
        ({"features.1": torch.ones(8, 8, 8)}, "got torch.float32"),
    ],
)
def test_masks_that_do_not_fit(cnn, mask, message):
    with pytest.raises(ValueError, match=message):
        gates.with_gates(gate(cnn), mask)


def test_learning_begins_where_the_gates_are(cnn, images):
    gated = gate(cnn)
    some = gates.with_gates(
        gated, gates.keep_relus(gated, gates.drawn(gated, "pixel", 0), 300)
    ).double()
    learning = copy.deepcopy(some)
    gates.relax(learning)
    inputs = images.batch(slice(10), dtype=torch.float64)
    assert torch.equal(learning(inputs), some(inputs))
    assert all(one.alpha.dtype == torch.float64 for one in gates.gates(learning).values())


def test_relus_beside_gates_are_gated_and_counted_too(cnn):
    grown = nn.Sequential(gate(cnn), nn.Linear(3, 10), nn.ReLU())
    remember(grown, input_shape=(1, 8, 8))
    assert count(grown).attrs["total"] == 864 + 10
    linear = gates.with_gates(gate(grown), {"2": torch.zeros(10, dtype=torch.bool)})
    assert count(linear).attrs["total"] == 864


def test_a_wrapped_residual_network_has_its_stem_and_its_stages():
    network = fairlib.build("tiny-resnet", num_classes=3, image_size=8)
    wrapped = gate(nn.Sequential(nn.Identity(), network), torch.zeros(1, 3, 8, 8))
    assert count(wrapped).attrs["total_without_stem"] == count(network).attrs["total_without_stem"]
    assert list(gates.stages(wrapped)) == ["layer1", "layer2", "layer3"]


def test_other_buffers_called_keep_are_left_alone():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)
            self.register_buffer("keep", torch.ones(3))

    model = Own()
    assert torch.equal(
        fairlib.restore(Own(), model.state_dict()).linear.weight, model.linear.weight
    )
