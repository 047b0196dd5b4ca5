from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torchvision
from torch import nn
from torch.nn import functional as F

import fairlib
from fairlib.linearization import count, gate
from fairlib.network import gates
from fairlib.network.memory import memory_of

IMAGES = torch.rand(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def test_relus_that_are_called_twice_are_split_by_call_site():
    """The blocks of torchvision's ResNets call one in-place ReLU twice."""
    torch.manual_seed(0)
    model = torchvision.models.resnet18(num_classes=4)
    gated = gate(model, IMAGES)
    assert type(gated) is type(model)
    assert list(gates.gates(gated))[:3] == ["relu", "layer1.0.relu", "layer1.0.relu_2"]
    assert len(gates.gates(gated)) == 17
    own = count(fairlib.build("resnet18", num_classes=4, image_size=16, stem="imagenet"))
    assert count(gated)["relus"].tolist() == own["relus"].tolist()
    assert [n for n, _ in gated.named_parameters()] == [n for n, _ in model.named_parameters()]
    twin, original = copy.deepcopy(gated).train(), copy.deepcopy(model).train()
    assert torch.allclose(twin(IMAGES), original(IMAGES), atol=1e-5)
    assert torch.equal(twin.layer1[0].bn1.running_mean, original.layer1[0].bn1.running_mean)
    keep = {
        name: torch.zeros_like(mask)
        for name, mask in gates.read_gates(gated).items()
        if name.endswith("_2")
    }
    assert count(gates.with_gates(gated, keep)).attrs["total"] < count(gated).attrs["total"]


class _LateStem(nn.Module):
    """A residual network as many write it: its ReLUs are functions, or modules that its __init__
    makes elsewhere."""

    def __init__(self, functions: bool):
        super().__init__()
        self.layers = nn.Sequential(*(_LateBlock(functions, stride) for stride in (1, 2, 2)))
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.act = None if functions else nn.ReLU()
        self.fc = nn.Linear(4, 3)

    def forward(self, inputs):
        hidden = self.conv(inputs)
        hidden = F.relu(hidden) if self.act is None else self.act(hidden)
        return self.fc(self.layers(hidden).mean((2, 3)))


class _LateBlock(nn.Module):
    def __init__(self, functions: bool, stride: int):
        super().__init__()
        self.relu = nn.ReLU()
        self.first, self.second = nn.Conv2d(4, 4, 3, stride, 1), nn.Conv2d(4, 4, 3, 1, 1)
        self.shortcut = nn.Conv2d(4, 4, 1, stride)
        self.act = None if functions else nn.ReLU()

    def forward(self, inputs):
        hidden = self.first(inputs)
        hidden = F.relu(hidden) if self.act is None else self.act(hidden)
        return self.relu(self.second(hidden) + self.shortcut(inputs))


@pytest.mark.parametrize("functions", [True, False])
def test_gates_come_in_the_order_of_their_calls(functions):
    gated = gate(_LateStem(functions), IMAGES)
    shapes = [tuple(mask.shape[1:]) for mask in gates.read_gates(gated).values()]
    assert shapes == [(16, 16)] * 3 + [(8, 8)] * 2 + [(4, 4)] * 2
    first, stem = ("relu_2", "relu") if functions else ("act", "act")
    assert list(gates.gates(gated)) == [
        stem,
        *(f"layers.{block}.{name}" for block in range(3) for name in (first, "relu")),
    ]
    assert gates.stem(gated) == stem and count(gated).attrs["total_without_stem"] == 4 * (
        2 * 256 + 2 * 64 + 2 * 16
    )
    assert [len(names) for names in gates.stages(copy.deepcopy(gated)).values()] == [2, 2, 2]


@pytest.mark.parametrize("frozen", [False, True])
def test_gates_of_an_encoder_layer_are_called_in_evaluation_too(frozen):
    """Without gradients torch's encoder layer does not call its activation; with frozen parameters
    it never does."""
    layer = nn.TransformerEncoderLayer(6, 2, 8, activation=nn.ReLU(), batch_first=True).eval()
    inputs = torch.rand(2, 3, 6)
    gated = gate(layer.requires_grad_(not frozen), inputs)
    linear = gates.with_gates(gated, {"activation": torch.zeros((), dtype=torch.bool)})
    expected = linear(1 * inputs.clone().requires_grad_())
    with torch.no_grad():
        torch.testing.assert_close(gated(inputs), layer(inputs))
        torch.testing.assert_close(linear(inputs), expected)
        assert not torch.allclose(linear(inputs), layer(inputs), atol=1e-3)


class _Functional(nn.Module):
    """Two ReLUs that are functions, and one that is a method, around a shared module."""

    def __init__(self, dropout: bool = False, branches: bool = False):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.dropout, self.branches = dropout, branches

    def forward(self, inputs):
        hidden = F.relu(self.first(inputs))
        if self.dropout:
            hidden = F.dropout(hidden, 0.5, training=self.training)
        if self.branches and hidden.sum() > 0:
            hidden = -hidden
        return torch.relu(self.second(hidden)).relu() + inputs


class _Calls(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, inputs):
        return self.function(inputs)


class _Frozen(nn.Module):
    """What torch.fx does not see: a part without gradients."""

    def __init__(self):
        super().__init__()
        self.back, self.head = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, inputs):
        with torch.no_grad():
            hidden = F.relu(self.back(inputs))
        return self.head(hidden)


class _Rich(nn.Module):
    """A root that has to be split, with all that a graph does not name."""

    def __init__(self):
        super().__init__()
        self.linear, self.unused = nn.Linear(6, 6), nn.Linear(3, 3)
        self.register_buffer("steps", torch.zeros(()))
        self.relu = F.relu

    def forward(self, inputs, skip=None):
        hidden = self.relu(self.linear(inputs)) * torch.tensor(2.0)
        return hidden if skip is None else hidden + skip

    def predict(self, inputs):
        return self(inputs).argmax(1)


def test_all_else_of_a_split_module_stays_and_survives_copies_and_pickling():
    model = _Rich()
    model.register_forward_hook(lambda module, inputs, output: output + module.linear.bias.sum())
    gated = gate(model, torch.zeros(1, 6))
    inputs = torch.randn(5, 6)
    model_without_lambda = gate(_Rich(), torch.zeros(1, 6))
    thawed = pickle.loads(pickle.dumps(model_without_lambda))
    assert torch.equal(thawed(inputs), model_without_lambda(inputs))
    for each in (gated, copy.deepcopy(gated), gates.with_gates(gated, {})):
        assert torch.equal(each(inputs), model(inputs)) and torch.equal(
            each.predict(inputs), model.predict(inputs)
        )
        assert isinstance(each, _Rich) and memory_of(each).input_shape == (6,)
        assert set(each.state_dict()) == {
            *model.state_dict(),
            *(f"{name}.keep" for name in gates.gates(each)),
        }
    linear = gates.with_gates(
        gated, {name: torch.zeros(6, dtype=torch.bool) for name in gates.gates(gated)}
    )
    again = gates.with_gates(gated, {})
    assert not torch.equal(linear(inputs), again(inputs))


@pytest.mark.parametrize("wrapped", [False, True])
def test_functional_relus_become_gates(wrapped):
    model = _Functional()
    model = nn.Sequential(nn.Linear(6, 6), model) if wrapped else model
    gated = gate(model, torch.zeros(1, 6))
    prefix = "1." if wrapped else ""
    assert list(gates.gates(gated)) == [f"{prefix}relu", f"{prefix}relu_2", f"{prefix}relu_3"]
    inputs = torch.randn(5, 6)
    assert torch.equal(gated(inputs), model(inputs))
    assert set(model.state_dict()) < set(gated.state_dict())


HIDDEN = [  # Activations, written as comparisons.
    (lambda x: torch.where(x > 0, x, 0), "computes gt"),
    (lambda x: x.masked_fill(x.lt(0), 0), "computes lt"),
    (lambda x: x * (x >= 0), "computes ge"),
    (lambda x: torch.maximum(x, torch.zeros_like(x)), "computes maximum"),
    (lambda x: x.minimum(x.flip(1)), "computes minimum"),
    (lambda x: x.clamp(max=1), "computes clamp"),
    (lambda x: x.clamp(-1, 1), "computes clamp"),
    (lambda x: x.clamp(min=0.1), "computes clamp"),
    (lambda x: (x + x.abs()) / 2, "computes abs"),
    (lambda x: x * torch.sign(x), "computes sign"),
    (lambda x: x * (1 + torch.erf(x)), "computes erf"),
]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            _Functional(dropout=True),
            "the model .*_Functional.* does something else in training than in evaluation",
        ),
        (nn.Sequential(_Functional(branches=True)), "0 .*_Functional.* torch.fx cannot trace it"),
        (nn.Sequential(nn.Linear(6, 6), nn.GELU()), r"1 \(GELU\) computes gelu, which is no ReLU"),
        (nn.Sequential(nn.Linear(6, 6), nn.Softsign()), r"1 \(Softsign\) computes abs"),
        (
            nn.Sequential(nn.Linear(6, 6), _Calls(F.gelu)),
            r"1 \(_Calls\) computes gelu, which is no ReLU",
        ),
        (
            nn.Sequential(nn.Linear(6, 6), _Calls(F.leaky_relu)),
            "cannot be swapped; .*nn.ReLU6, nn.LeakyReLU",
        ),
        (
            nn.Sequential(nn.Linear(6, 6), _Calls(lambda x: x.clamp(0, 6))),
            "1 .* by a function that cannot be swapped",
        ),
        *(
            (nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), _Calls(function)), message)
            for function, message in HIDDEN
        ),
        *(
            (nn.Sequential(nn.ReLU(), _Calls(lambda x: x[:, None]), layer), message)
            for layer, message in (
                (nn.LSTM(6, 3, batch_first=True), r"2 \(LSTM\) computes mkldnn_rnn_layer"),
                (nn.GRU(6, 3, batch_first=True), r"2 \(GRU\) computes sigmoid"),
                (nn.RNN(6, 3, batch_first=True), r"2 \(RNN\) computes tanh"),
            )
        ),
        (
            nn.Sequential(nn.Linear(6, 6), _Calls(lambda x: F.relu(x.view(-1, 2)).view(-1, 6))),
            "1.relu gives .* batch of 2",
        ),
        (_Frozen(), "with other gradients"),
        (nn.Sequential(nn.Linear(6, 6)), "has no ReLU"),
        (nn.ReLU(), "nothing else"),
    ],
)
def test_what_cannot_be_gated_is_named(model, message):
    with pytest.raises(ValueError, match=message):
        gate(model, torch.zeros(1, 6))


def test_every_activation_of_torch_that_is_no_relu_is_refused():
    counted = {"ReLU", "ReLU6", "LeakyReLU", "MultiheadAttention"}
    softmax = {"Softmax", "Softmax2d", "Softmin", "LogSoftmax"}
    for name in set(nn.modules.activation.__all__) - counted - softmax:
        activation = nn.Threshold(0.1, 0) if name == "Threshold" else getattr(nn, name)()
        with pytest.raises(ValueError, match=rf"1 \({name}\) computes"):
            gate(nn.Sequential(nn.Linear(6, 6), activation, nn.ReLU()), torch.zeros(1, 6))


class _Careful(nn.Module):
    """Comparisons that are no activations: of the inputs, of weights, for errors, for branches."""

    def __init__(self):
        super().__init__()
        self.linear, self.scale = nn.Linear(6, 6), nn.Parameter(torch.ones(()))
        self.relu = nn.ReLU()

    def forward(self, inputs):
        padding = inputs > 0.9
        hidden = self.linear(inputs * self.scale.clamp(max=4)).masked_fill(padding, 0)
        assert torch.isfinite(hidden).all() and not hidden.isinf().any()
        hidden = self.relu(hidden - F.linear(inputs, self.linear.weight.abs()))
        hidden = F.normalize(hidden / hidden.abs().sum(1, keepdim=True).clamp(min=1e-6))
        similar = F.cosine_similarity(hidden, inputs)
        return hidden if hidden.sum() < 0 else hidden + similar[:, None]


def test_comparisons_that_are_no_activations_are_no_reason_to_refuse():
    torch.manual_seed(0)
    model, inputs = _Careful().eval(), torch.rand(3, 6)
    gated = gate(model, inputs)
    torch.testing.assert_close(gated(inputs), model(inputs))
    assert count(gated).attrs["total"] == 6


def test_a_block_that_is_called_twice_cannot_be_split():
    block = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
    with pytest.raises(ValueError, match=r"0.1 is called 2 times"):
        gate(nn.Sequential(block, nn.Linear(6, 6), block), torch.zeros(1, 6))


def test_a_relu_that_two_modules_share_is_split():
    relu = nn.ReLU()
    model = nn.Sequential(
        nn.Sequential(nn.Linear(6, 6), relu), nn.Sequential(nn.Linear(6, 6), relu)
    )
    gated = gate(model, torch.zeros(1, 6))
    inputs = torch.randn(5, 6)
    assert len(gates.gates(gated)) == 2 and torch.equal(gated(inputs), model(inputs))


def test_an_in_place_relu_whose_input_is_used_again_is_refused():
    class Careless(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.relu = nn.Linear(6, 6), nn.ReLU(inplace=True)

        def forward(self, inputs):
            hidden = self.linear(inputs)
            return self.relu(hidden) + hidden

    with pytest.raises(ValueError, match="in-place ReLU"):
        gate(Careless(), torch.zeros(1, 6))


def test_a_module_under_two_names_is_replaced_under_both():
    class Alias(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(6, 6), nn.ReLU()])
            self.act = self.layers[1]

        def forward(self, inputs):
            return self.act(self.layers[0](inputs))

    gated = gate(Alias(), torch.zeros(1, 6))
    assert gated.act is gated.layers[1] and isinstance(gated.act, gates.Gate)
    some = gates.with_gates(gated, {"layers.1": torch.arange(6) < 2})
    for model in (Alias(), gated):
        restored = fairlib.restore(model, some.state_dict())
        assert (
            restored.act is restored.layers[1]
            and restored.act.keep.tolist() == [True] * 2 + [False] * 4
        )


def test_a_relu_that_is_called_from_above_its_parent_is_split():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.inner = nn.Linear(6, 6), nn.Sequential(nn.Linear(6, 6), nn.ReLU())

        def forward(self, inputs):
            return self.inner[1](self.linear(self.inner(inputs)))

    model = Outer()
    gated = gate(model, torch.zeros(1, 6))
    inputs = torch.randn(5, 6)
    assert len(gates.gates(gated)) == 2 and torch.equal(gated(inputs), model(inputs))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["resnet50", "densenet121", "googlenet", "mobilenet_v2", "shufflenet_v2_x0_5", "squeezenet1_1"],
)
def test_torchvision_networks_compute_the_same_in_both_modes(name):
    torch.manual_seed(0)
    settings = {"init_weights": True} if name == "googlenet" else {}
    model = getattr(torchvision.models, name)(num_classes=4, **settings).eval()
    inputs = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    if name == "googlenet":
        model.aux_logits, model.aux1, model.aux2 = False, None, None
    relus = []
    handles = [
        m.register_forward_hook(lambda m, i, o: relus.append(o[0].numel()))
        for m in model.modules()
        if isinstance(m, nn.ReLU | nn.ReLU6)
    ]
    with torch.no_grad():
        expected = model(inputs)
    for handle in handles:
        handle.remove()
    gated = gate(model, inputs)
    assert torch.allclose(
        gated(inputs), expected, rtol=1e-3, atol=1e-4 * expected.abs().max().item()
    )
    if name in (
        "resnet50",
        "mobilenet_v2",
        "shufflenet_v2_x0_5",
        "squeezenet1_1",
    ):  # The others call functions.
        assert count(gated).attrs["total"] == sum(relus)
    assert not any(isinstance(m, nn.Dropout) and m.training for m in gated.modules())
