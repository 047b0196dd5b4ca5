"""Zeros and grids hold whoever reads the weights, trains them or comes to own them."""

from __future__ import annotations

import copy
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

import fairlib
from fairlib.network import keeping, masks, quantizers


class Cosine(nn.Module):
    """A head that reads the weight of its layer."""

    def __init__(self, gain: float = 16.0):
        super().__init__()
        self.c, self.f, self.gain = nn.Conv2d(3, 16, 3), nn.Linear(16, 4, bias=False), gain

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        features = F.relu(self.c(inputs)).mean((2, 3))
        return self.gain * F.linear(F.normalize(features), F.normalize(self.f.weight))


@pytest.fixture
def faces() -> fairlib.GroupedDataset:
    torch.manual_seed(0)
    return fairlib.GroupedDataset(
        torch.rand(64, 3, 8, 8), torch.arange(64) % 4, torch.arange(64) % 2
    )


def _step(model: nn.Module, inputs: torch.Tensor, times: int = 3) -> None:
    optimizer = torch.optim.SGD(model.train().parameters(), 0.5)
    for _ in range(times):
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), torch.arange(len(inputs)) % 3).backward()
        optimizer.step()
    model.eval()


def _levels(weight: torch.Tensor) -> int:
    return max(len(row.unique()) for row in weight.detach())


def test_weights_that_a_parent_reads_are_those_that_are_measured_and_saved(faces):
    small = fairlib.quantize(fairlib.prune(Cosine(), "magnitude", sparsity=0.5), "weights", bits=2)
    before, zeros = small.f.weight.clone(), small.f.weight == 0
    small = fairlib.fit(small, faces, epochs=2, lr=0.5)
    logits = small(faces.inputs).detach()
    measured = fairlib.network.evaluation.outputs(small, faces)
    assert torch.allclose(measured.float(), logits, atol=1e-5)
    assert not torch.equal(small.f.weight, before)
    assert _levels(small.f.weight) <= 3 and not small.f.weight[zeros].any()
    saved = {name: tensor.clone() for name, tensor in small.state_dict().items()}
    assert torch.equal(small(faces.inputs), logits)
    assert torch.equal(fairlib.restore(Cosine(), saved)(faces.inputs), logits)


@pytest.mark.parametrize("kind", ["mask", "grid"])
def test_quantization_aware_training_of_torch_keeps_zeros_and_grids(kind):
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)
    dense, inputs = nn.Sequential(*layers), torch.rand(64, 3, 8, 8)
    small = (
        fairlib.prune(dense, "magnitude", sparsity=0.5)
        if kind == "mask"
        else fairlib.quantize(dense, "weights", bits=2)
    )
    small.train().qconfig = torch.ao.quantization.get_default_qat_qconfig("fbgemm")
    with warnings.catch_warnings(action="ignore"):
        aware = torch.ao.quantization.prepare_qat(small)
    _step(aware, inputs)
    aware = copy.deepcopy(aware)
    aware(inputs)
    end = "_mask" if kind == "mask" else "_residual"
    assert all(any(name.endswith(end) for name in layer.state_dict()) for layer in aware[::4])
    for place in (0, 4):
        now, then = aware[place].weight, small[place].weight
        assert _levels(now) <= 3 if kind == "grid" else not now[then == 0].any()


@pytest.mark.parametrize(
    "reparametrize", [parametrizations.weight_norm, parametrizations.spectral_norm]
)
@pytest.mark.parametrize("kind", ["mask", "grid"])
def test_parametrizations_of_torch_keep_zeros_and_grids(kind, reparametrize):
    torch.manual_seed(0)
    dense, inputs = (
        nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 3)),
        torch.rand(64, 64),
    )
    small = (
        fairlib.prune(dense, "magnitude", sparsity=0.9)
        if kind == "mask"
        else fairlib.quantize(dense, "weights", bits=2)
    )
    zeros = small[0].weight == 0
    reparametrize(small[0])
    _step(small, inputs)
    trained = copy.deepcopy(small)(inputs).detach()
    parametrize.remove_parametrizations(small[0], "weight")
    weight = small[0].weight
    assert _levels(weight) <= 3 if kind == "grid" else not weight[zeros].any()
    assert torch.allclose(small(inputs), trained, atol=1e-5)
    _step(small, inputs)
    small(inputs)
    assert _levels(weight) <= 3 if kind == "grid" else not weight[zeros].any()


@pytest.mark.parametrize("name", ["weight_norm", "spectral_norm"])
def test_what_hooks_of_torch_compute_is_refused_by_name(name):
    for small in (
        fairlib.prune(nn.Sequential(nn.Linear(6, 3)), "magnitude", sparsity=0.5),
        fairlib.quantize(nn.Sequential(nn.Linear(6, 3)), "weights", bits=3),
    ):
        with warnings.catch_warnings(action="ignore"):
            getattr(nn.utils, name)(small[0])
        with pytest.raises(ValueError, match=rf"Norm of torch\.nn\.utils.*remove_{name}\("):
            small(torch.rand(2, 6))
        getattr(nn.utils, f"remove_{name}")(small[0])
        small(torch.rand(2, 6))


@pytest.mark.parametrize("bits", [1, 4, 8])
@pytest.mark.parametrize("dims", [0, 2])
def test_a_normalization_fused_into_a_rounded_layer_changes_no_answer(bits, dims):
    torch.manual_seed(1)
    layer = nn.Conv2d(3, 8, 3) if dims else nn.Linear(3, 8)
    norm, fuse = (
        (nn.BatchNorm2d(8), fuse_conv_bn_eval) if dims else (nn.BatchNorm1d(8), fuse_linear_bn_eval)
    )
    norm.running_var.uniform_(0.1, 0.3)
    norm.weight.data.uniform_(-2, 2)
    inputs = torch.rand(16, 3, *[8] * dims)
    small = fairlib.quantize(nn.Sequential(layer, norm).eval(), "weights", bits=bits)
    expected = small(inputs).detach()
    small[0], small[1] = fuse(small[0], small[1]), nn.Identity()
    small.eval()
    for _ in range(2):
        assert torch.allclose(small(inputs), expected, atol=1e-5 * float(expected.std()))
        small = copy.deepcopy(small)
    small(inputs).square().sum().backward()
    torch.optim.SGD(small.parameters(), 0.01).step()
    small(inputs)
    assert _levels(small[0].weight) <= max(2, 2**bits - 1)


def test_another_weight_in_a_copy_of_a_rounded_layer_is_refused():
    small = copy.deepcopy(fairlib.quantize(nn.Sequential(nn.Linear(9, 3)), "weights", bits=3))
    small[0].weight = nn.Parameter(torch.rand(3, 9))
    with pytest.raises(ValueError, match="quantized weight of this Linear was replaced"):
        small(torch.rand(1, 9))


class Stop(torch.autograd.Function):
    """Has an undefined gradient, as int8 layers do."""

    @staticmethod
    def forward(context, inputs):
        return inputs.clone()

    @staticmethod
    def backward(context, gradient):
        return None


def test_an_undefined_gradient_is_none_of_a_mask():
    sparse = fairlib.prune(
        nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3)), "magnitude", sparsity=0.5
    )
    zeros = sparse[1].weight == 0
    sparse[1](Stop.apply(sparse[0](torch.rand(2, 4)))).square().sum().backward()
    assert sparse[0].weight.grad is None and not sparse[1].weight.grad[zeros].any()


class Text(nn.Module):
    """Reads sentences of tokens by a module that is given."""

    def __init__(self, middle: nn.Module, width: int, vocabulary: int = 12):
        super().__init__()
        self.e, self.m, self.f = nn.Embedding(vocabulary, 8), middle, nn.Linear(width, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.e(tokens.long())
        x = self.m(x, x, x) if isinstance(self.m, nn.MultiheadAttention) else self.m(x)
        return self.f((x[0] if isinstance(x, tuple) else x).mean(1))


MIDDLES = {
    "lstm": lambda: nn.LSTM(8, 10, num_layers=2, bidirectional=True, batch_first=True),
    "projected": lambda: nn.LSTM(8, 10, proj_size=7, batch_first=True),
    "gru": lambda: nn.GRU(8, 10, batch_first=True),
    "rnn": lambda: nn.RNN(8, 10, batch_first=True),
    "attention": lambda: nn.MultiheadAttention(8, 2, batch_first=True),
    "apart": lambda: nn.MultiheadAttention(8, 2, kdim=8, vdim=8, batch_first=True),
}
WIDTHS = {"lstm": 20, "projected": 7, "gru": 10, "rnn": 10}


@pytest.fixture
def sentences() -> fairlib.GroupedDataset:
    """Sentences of made-up words; the class is the commonest of the first three words."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 12, (240, 9), generator=generator)
    counts = torch.stack([(tokens == word).sum(1) for word in range(3)], 1)
    return fairlib.GroupedDataset(
        tokens.float(), counts.argmax(1), (torch.arange(240) % 4 == 0).long()
    )


@pytest.mark.filterwarnings(
    "ignore:sparsity is a share", "ignore:not all weights", "ignore:LSTM with"
)
@pytest.mark.parametrize("name", MIDDLES)
def test_recurrent_and_attention_weights_are_pruned_and_rounded(name, sentences):
    torch.manual_seed(0)
    model = Text(MIDDLES[name](), WIDTHS.get(name, 8))
    wanted = {n for n, p in model.named_parameters() if p.ndim > 1} - {"e.weight"}
    if name == "apart":
        assert "m.q_proj_weight" in wanted or "m.in_proj_weight" in wanted
    assert masks.prunable(model).keys() == wanted
    small = fairlib.quantize(fairlib.prune(model, "magnitude", sparsity=0.8), "weights", bits=3)
    zeros = {n: weight == 0 for n, weight in masks.prunable(small).items()}
    assert fairlib.sparsity(small) >= 0.8 and quantizers.read_bits(small).keys() == wanted
    _step(small, sentences.inputs)
    small(sentences.inputs)
    for n, weight in masks.prunable(small).items():
        assert not weight[zeros[n]].any() and _levels(weight) <= 7
    fresh = Text(MIDDLES[name](), WIDTHS.get(name, 8))
    assert torch.equal(
        fairlib.restore(fresh, small.state_dict())(sentences.inputs), small(sentences.inputs)
    )


def test_the_share_that_a_level_is_a_share_of_is_said(sentences):
    model = Text(nn.Linear(8, 8), 8, vocabulary=50)
    said = r"of 488 weights 88 \(18\.0%\) can be compressed; e\.weight stay as they are"
    with pytest.warns(UserWarning, match=f"sparsity is a share of what can be pruned: {said}"):
        pruned = fairlib.prune(model, "magnitude", sparsity=0.5)
    with pytest.warns(UserWarning, match=f"not all weights are rounded: {said}"):
        fairlib.quantize(model, "weights", bits=4)
    with pytest.warns(UserWarning, match=f"kept is a share of what can be pruned: {said}"):
        fairlib.factorize(model, "svd", kept=0.9)
    with warnings.catch_warnings(action="ignore"):
        report = fairlib.audit(model, pruned, sentences, resamples=20)
    assert sum("(18.0%) can be compressed" in note for note in report.notes) == 1
    assert masks.uncovered(pruned) and not masks.uncovered(Cosine())


@pytest.mark.filterwarnings("ignore")
def test_a_transformer_of_torch_goes_all_the_way(sentences):
    """Zeros, values and answers are those of the same arithmetic in plain torch."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model = Text(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), 8)
    dense = fairlib.fit(model, sentences, epochs=3, lr=0.1)
    sparse = fairlib.prune(dense, "magnitude", sparsity=0.5)
    weights = dict(dense.named_parameters())
    names = [name for name in weights if weights[name].ndim > 1 and name != "e.weight"]
    flat = torch.cat([weights[name].abs().flatten() for name in names])
    threshold = flat.sort().values[round(0.5 * len(flat)) - 1]
    assert all(
        torch.equal(sparse.get_parameter(n) == 0, weights[n].abs() <= threshold) for n in names
    )
    small = fairlib.quantize(fairlib.fit(sparse, sentences, epochs=2), "weights", bits=4)
    tuned = fairlib.fit(small, sentences, epochs=1)
    plain = copy.deepcopy(model).eval()
    state = tuned.state_dict()
    plain.load_state_dict({name: state[name] for name in plain.state_dict()})
    for name in names:
        weight, scale = plain.get_parameter(name), state[f"{name}_scale"]
        steps = weight / scale
        assert torch.allclose(steps, steps.round(), atol=1e-3) and steps.abs().max() < 7.5
        assert not weight[weights[name].abs() <= threshold].any()
    with torch.no_grad():
        expected, found = plain(sentences.inputs), tuned(sentences.inputs)
    assert torch.allclose(found, expected, atol=1e-5)
    report = fairlib.audit(dense, tuned, sentences, resamples=20)
    right = (expected.argmax(1) == sentences.targets).double()
    for group in (0, 1):
        name = sentences.group_names[group]
        assert report.table.loc[name, "accuracy_after"] == pytest.approx(
            float(right[sentences.groups == group].mean())
        )
    assert report.cost.loc["after", "bytes"] < 0.4 * report.cost.loc["before", "bytes"]
    assert _levels(tuned.m.layers[0].self_attn.in_proj_weight) <= 15
    assert keeping.kept(tuned, keeping.MASK).keys() == set(names)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("read", [lambda model: model(torch.rand(1, 4)), nn.Module.state_dict])
def test_a_weight_that_was_replaced_is_kept_while_the_old_one_lives(read, grad):
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    pruned = fairlib.prune(dense, "magnitude", sparsity=0.5)
    rounded = fairlib.quantize(dense, "weights", bits=2)
    for model in (pruned, rounded):
        old = model[0].weight
        model[0].weight = nn.Parameter(torch.randn(8, 4))
        with torch.set_grad_enabled(grad):
            read(model)
        assert model[0].weight is not old
    assert torch.equal(pruned[0].weight != 0, pruned[0].weight_mask.bool())
    assert all(len(row.unique()) <= 3 for row in rounded[0].weight)


@pytest.mark.filterwarnings("ignore:the model before compression cannot be told from chance")
def test_a_row_of_zeros_stays_finite_under_weight_norm_and_an_audit_goes_on():
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    data = fairlib.GroupedDataset(torch.rand(20, 4), torch.arange(20) % 2, torch.arange(20) // 10)
    keep = torch.ones(8, 4, dtype=torch.bool)
    keep[3] = False
    pruned = fairlib.network.masks.with_masks(dense, {"0.weight": keep})
    torch.nn.utils.parametrizations.weight_norm(pruned[0])
    assert pruned(data.inputs).isfinite().all()
    report = fairlib.audit(dense, pruned, data)
    assert report.table["accuracy_after"].notna().all()


def test_a_mask_of_another_shape_is_named():
    wide, narrow = (nn.Sequential(nn.Linear(4, width)) for width in (16, 8))
    state = fairlib.prune(wide, "magnitude", sparsity=0.5).state_dict()
    with pytest.raises(ValueError, match=r"the mask of 0\.weight must be bool \(8, 4\)"):
        fairlib.restore(narrow, state)


def test_a_quantized_model_answers_several_threads():
    torch.manual_seed(0)
    rounded = fairlib.quantize(nn.Sequential(nn.Linear(4, 64), nn.ReLU()), "weights", bits=4)
    before = rounded[0].weight.detach().clone()
    with ThreadPoolExecutor(4) as pool:
        answers = torch.stack([*pool.map(rounded, torch.ones(2000, 4))])
    assert len(answers.unique(dim=0)) == 1 and torch.equal(rounded[0].weight, before)
