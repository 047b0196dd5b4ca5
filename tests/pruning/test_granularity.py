from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.ao.pruning import WeightNormSparsifier
from torch.nn.functional import cross_entropy, linear
from torch.sparse import to_sparse_semi_structured
from torch.sparse._semi_structured_conversions import (
    sparse_semi_structured_from_dense_cutlass,
    sparse_semi_structured_to_dense_cutlass,
)

import fairlib
from fairlib.network import masks
from fairlib.pruning.granularity import ChannelGranularity

FIRST = {"exclude": ["features.0.weight"]}
"""The layer of the small network whose inputs, grey images, do not come in fours."""


def pattern(model: nn.Module, method: str = "magnitude", **settings) -> nn.Module:
    return fairlib.prune(model, method, sparsity=0.5, granularity="2:4", **settings)


def peer(weight: torch.Tensor) -> torch.Tensor:
    """The mask of a matrix by torch's own sparsifier."""
    model = nn.Sequential(nn.Linear(*weight.shape[::-1], bias=False))
    model[0].weight.data = weight.detach().clone()
    sparsifier = WeightNormSparsifier(1.0, (1, 4), 2)
    sparsifier.prepare(model, [{"tensor_fqn": "0.weight"}])
    sparsifier.step()
    return model[0].parametrizations.weight[0].mask.bool()


def test_the_gradient_in_a_removed_channel_tells_what_its_return_would_do(images):
    """Of a channel that is gone its readers alone are zero: the objective's change with them is
    descended on."""
    model = fairlib.fit(
        fairlib.build("tiny-resnet", num_classes=3, in_channels=1, image_size=8), images, epochs=2
    )
    model = model.double()
    units = ChannelGranularity(model, images)
    entries = units.choose(units.start(), 0.6)
    inputs = images.batch(slice(None), dtype=torch.float64)

    def objective(entries):
        weights = dict(zip(units.weights, units.expand(entries), strict=True))
        products = {name: mask * units.weights[name] for name, mask in weights.items()}
        return cross_entropy(torch.func.functional_call(model, products, (inputs,)), images.targets)

    leaves = [entry.clone().requires_grad_() for entry in entries]
    found = torch.autograd.grad(objective(leaves), leaves)
    slopes, ours = [], []
    for place, entry in enumerate(entries):
        for channel in (entry == 0).nonzero().flatten().tolist():
            moved = [part.clone() for part in entries]
            moved[place][channel] = 1e-5
            slopes.append((objective(moved) - objective(entries)).item() / 1e-5)
            ours.append(found[place][channel].item())
    assert ours == pytest.approx(slopes, rel=1e-3, abs=1e-4)
    assert np.abs(slopes).max() > 1e-2
    # In the search the readers of a channel are masked, at its end what makes it is, too, which
    # changes nothing.
    chosen, keep = units.final(units.start(), 0.6)
    one = dict(zip(units.weights, units.expand(chosen), strict=True))
    both = masks.with_masks(model, keep)
    products = {name: mask * units.weights[name] for name, mask in one.items()}
    assert torch.allclose(torch.func.functional_call(model, products, (inputs,)), both(inputs))


def test_two_of_four_are_those_of_torch(cnn):
    """Torch's sparsifier takes matrices, for a convolution that of a channels-last kernel."""
    found = masks.read_masks(pattern(cnn, **FIRST))
    weights = masks.prunable(cnn)
    assert found.keys() == weights.keys() - set(FIRST["exclude"])
    for name, mask in found.items():
        rows = weights[name].movedim(1, -1).flatten(1)
        assert torch.equal(mask.movedim(1, -1).flatten(1), peer(rows)), name


@pytest.mark.parametrize("method", ["magnitude", "snip", "wanda", "random"])
def test_two_of_four_inputs_are_zero_in_each_place_and_stay_so(cnn, images, method):
    """Counted as TensorRT's guide does, for each output and each position of the kernel."""
    pruned = pattern(cnn, method, data=images, **FIRST)
    trained = fairlib.fit(pruned, images, epochs=1, lr=0.1)
    for module in (pruned, trained):
        weights = {name: weight.detach().numpy() for name, weight in masks.prunable(module).items()}
        assert weights.pop("features.0.weight").all()
        for weight in weights.values():
            blocks = np.split(weight, weight.shape[1] // 4, axis=1)
            assert {int(n) for block in blocks for n in (block != 0).sum(axis=1).flat} == {2}
    rest = sum(weight.size for weight in weights.values())
    assert fairlib.sparsity(trained) == pytest.approx(rest / 2 / (rest + 72), abs=1e-12)


def test_two_of_four_keep_what_is_pruned_and_settle_ties_by_position():
    model = nn.Linear(8, 1)
    nn.init.constant_(model.weight, 1.0)
    keep = torch.tensor([[True, True, True, False, True, True, True, True]])
    kept = masks.read_masks(pattern(masks.with_masks(model, {"weight": keep})))["weight"]
    assert kept.int().tolist() == [[0, 1, 1, 0, 0, 0, 1, 1]]
    keep[0, :2] = False
    with pytest.raises(ValueError, match="2 zeros among 4 weights of weight, where more are"):
        pattern(masks.with_masks(model, {"weight": keep}))


def test_two_of_four_and_bad_input(cnn, images):
    fits = r"exclude=\['features.0.weight'\] .* fits features.3.weight, classifier.0.weight, cl"
    with pytest.raises(ValueError, match=fits):
        pattern(cnn)
    with pytest.raises(ValueError, match="scope must be 'global', 'layer' or 'output', got 'row'"):
        pattern(cnn, scope="row", **FIRST)
    with pytest.raises(ValueError, match="granularity '2:4' prunes two of every four"):
        fairlib.prune(cnn, "random", sparsity=0.6, granularity="2:4", **FIRST)
    with pytest.raises(ValueError, match="granularity '2:4' none; schedule must be"):
        pattern(cnn, schedule="gradual", data=images, train={"epochs": 1}, **FIRST)
    with pytest.raises(ValueError, match="unknown granularity '1:4'; known: weight, 2:4"):
        fairlib.prune(cnn, "snip", sparsity=0.5, data=images, granularity="1:4")
    with pytest.raises(ValueError, match=r"unknown prunable weight 'features\.0'; known: features"):
        pattern(cnn, exclude=["features.0"])
    with pytest.raises(TypeError, match="exclude must hold several values"):
        pattern(cnn, exclude="features.0.weight")
    with pytest.raises(ValueError, match="exclude must leave a weight to prune, got all"):
        pattern(cnn, exclude=list(masks.prunable(cnn)))


def test_two_of_four_are_all_that_torch_stores_of_a_block():
    """Its compression for CUTLASS runs on a CPU, too: of three weights in a block one is lost."""
    model = nn.Sequential(nn.Conv2d(64, 64, 3), nn.Flatten(), nn.Linear(128, 64))
    convolution, _, last = pattern(model).half()
    for weight in (convolution.weight.movedim(1, -1).flatten(1), last.weight):
        stored = sparse_semi_structured_from_dense_cutlass(weight.detach())
        assert torch.equal(sparse_semi_structured_to_dense_cutlass(*stored), weight)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.filterwarnings("ignore:The PyTorch API of SparseSemiStructuredTensor")
def test_a_sparse_kernel_reads_two_of_four():
    """A kernel that found more than two weights in a block would lose some of them."""
    draws = torch.Generator().manual_seed(0)
    dense = nn.Linear(128, 192)
    dense.weight.data = torch.randn(192, 128, generator=draws)
    layer = pattern(dense).half().cuda()
    inputs = torch.randn(64, 128, generator=draws).half().cuda()
    with torch.no_grad():
        sparse = to_sparse_semi_structured(layer.weight.detach().clone())
        ours = linear(inputs, sparse, layer.bias)
        assert torch.allclose(ours, layer(inputs), rtol=1e-2, atol=1e-2)
