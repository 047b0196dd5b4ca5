from __future__ import annotations

import copy
import io
import threading
import warnings

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.func import functional_call
from torch.nn.utils import parametrize
from torch.nn.utils import prune as torch_prune

import fairlib
from fairlib.network import keeping, masks


def _net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def _half(model: nn.Module) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        name: torch.rand(weight.shape, generator=generator) < 0.5
        for name, weight in masks.prunable(model).items()
    }


def _train(
    model: nn.Module, optimizer: type[torch.optim.Optimizer] = torch.optim.SGD, **settings
) -> None:
    """A loop that knows nothing of masks."""
    settings = {"lr": 0.1, "weight_decay": 0.1} | settings
    steps = optimizer(model.parameters(), **settings)
    for _ in range(5):
        steps.zero_grad()
        model(torch.randn(16, 6)).square().sum().backward()
        steps.step()


def _holds(model: nn.Module, keep: dict[str, torch.Tensor]) -> bool:
    weights = dict(model.named_parameters())
    return all(
        torch.equal(mask, masks.read_masks(model)[name]) and bool((weights[name][~mask] == 0).all())
        for name, mask in keep.items()
    )


def test_prunable_are_weights_of_convolutions_and_linear_layers_only():
    names = list(
        masks.prunable(fairlib.build("tiny-resnet", num_classes=3, in_channels=1, image_size=8))
    )
    assert (
        "conv1.weight" in names and "layer2.0.downsample.0.weight" in names and "fc.weight" in names
    )
    assert not [name for name in names if "bn" in name or "bias" in name]


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_masked_weights_stay_zero_in_any_loop(optimizer, mode):
    dense = _net()
    keep = _half(dense)
    sparse = masks.with_masks(dense, keep)
    getattr(sparse, mode)()
    settings = {"momentum": 0.9} if optimizer is torch.optim.SGD else {}
    before = copy.deepcopy(sparse.state_dict())
    _train(sparse, optimizer, **settings)
    assert _holds(sparse, keep)
    assert not torch.equal(before["0.weight"], sparse.state_dict()["0.weight"])


def _lbfgs(model: nn.Module) -> None:
    steps, inputs = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3), torch.randn(16, 6)

    def closure() -> torch.Tensor:
        steps.zero_grad()
        loss = model(inputs).square().sum()
        loss.backward()
        return loss

    for _ in range(2):
        steps.step(closure)


def _sharpness_aware(model: nn.Module) -> None:
    steps = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        inputs = torch.randn(16, 6)
        model(inputs).square().sum().backward()
        moves = [0.05 * parameter.grad.sign() for parameter in model.parameters()]
        for sign in (1, -1):
            with torch.no_grad():
                for parameter, move in zip(model.parameters(), moves, strict=True):
                    parameter.add_(sign * move)
            if sign == 1:
                steps.zero_grad()
                model(inputs).square().sum().backward()
        steps.step()


def _autocast(model: nn.Module) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        _train(model, momentum=0.9)


def _distributed(model: nn.Module) -> None:
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        _train(nn.parallel.DistributedDataParallel(model), momentum=0.9)
    finally:
        torch.distributed.destroy_process_group()


LOOPS = {
    "nesterov": lambda model: _train(model, momentum=0.9, nesterov=True),
    "adafactor": lambda model: _train(model, torch.optim.Adafactor),
    "lbfgs": _lbfgs,
    "sharpness-aware": _sharpness_aware,
    "autocast": _autocast,
    "compiled": lambda model: _train(torch.compile(model, backend="eager"), momentum=0.9),
    "data-parallel": lambda model: _train(nn.DataParallel(model), momentum=0.9),
    "distributed": _distributed,
}


@pytest.mark.parametrize("loop", LOOPS)
def test_masked_weights_stay_zero_under_the_tools_of_torch(loop):
    sparse = masks.with_masks(_net(), keep := _half(_net())).train()
    before = copy.deepcopy(sparse.state_dict())
    LOOPS[loop](sparse)
    assert _holds(sparse, keep) and not torch.equal(
        before["0.weight"], sparse.state_dict()["0.weight"]
    )


def test_safetensors_round_trip(tmp_path):
    sparse = masks.with_masks(_net(), keep := _half(_net()))
    save_file(sparse.state_dict(), tmp_path / "model.safetensors")
    assert _holds(fairlib.restore(_net(), load_file(tmp_path / "model.safetensors")), keep)


def test_apply_leaves_its_argument_alone():
    dense = _net()
    before = copy.deepcopy(dense.state_dict())
    masks.with_masks(dense, _half(dense))
    assert before.keys() == dense.state_dict().keys()
    assert all(torch.equal(value, dense.state_dict()[name]) for name, value in before.items())
    assert not dense._forward_pre_hooks


@pytest.mark.parametrize("copying", ["deepcopy", "pickle", "of a copy"])
def test_copies_keep_their_masks_in_training(copying):
    sparse = masks.with_masks(_net(), keep := _half(_net()))
    if copying == "pickle":
        file = io.BytesIO()
        torch.save(sparse, file)
        file.seek(0)
        twin = torch.load(file, weights_only=False)
    else:
        twin = copy.deepcopy(sparse)
        twin = copy.deepcopy(twin) if copying == "of a copy" else twin
    _train(twin.train(), momentum=0.9)
    assert _holds(twin, keep)


def test_a_copied_submodule_keeps_its_mask():
    sparse = masks.with_masks(_net(), keep := _half(_net()))
    layer = copy.deepcopy(sparse[0])
    _train(layer, momentum=0.9)
    assert bool((layer.weight[~keep["0.weight"]] == 0).all())


def test_state_dict_round_trip_into_the_same_module_and_into_a_fresh_one():
    sparse = masks.with_masks(_net(), keep := _half(_net()))
    state = copy.deepcopy(sparse.state_dict())
    assert set(state) == set(_net().state_dict()) | {"0.weight_mask", "3.weight_mask"}
    _train(sparse.train())
    sparse.load_state_dict(state)
    _train(sparse, momentum=0.9)
    assert _holds(sparse, keep)

    fresh = _net()
    restored = fairlib.restore(fresh, state)
    inputs = torch.randn(4, 6)
    assert torch.equal(restored(inputs), fairlib.restore(fresh, state)(inputs))
    assert all(torch.equal(value, state[name]) for name, value in restored.state_dict().items())
    assert not masks.read_masks(fresh)
    _train(restored.train(), momentum=0.9)
    assert _holds(restored, keep)


def test_loading_other_weights_leaves_masked_ones_at_zero():
    sparse = masks.with_masks(_net(), keep := _half(_net()))
    sparse.load_state_dict(_net().state_dict(), strict=False)
    assert _holds(sparse, keep)
    sparse.load_state_dict(sparse.state_dict(), assign=True)
    _train(sparse.train(), momentum=0.9)
    assert _holds(sparse, keep)


def test_loading_by_assignment_leaves_the_callers_tensors_alone():
    sparse, dense = masks.with_masks(_net(), _half(_net())), _net()
    state = dense.state_dict() | {
        k: v for k, v in sparse.state_dict().items() if k.endswith("_mask")
    }
    sparse.load_state_dict(state, assign=True)
    assert fairlib.sparsity(dense) == 0 and fairlib.sparsity(sparse) > 0.4


def test_what_comes_from_a_dense_training_is_gone_after_the_next_pass():
    dense = _net()
    optimizer = torch.optim.SGD(dense.parameters(), lr=0.1, momentum=0.9)
    dense(torch.randn(16, 6)).square().sum().backward()
    optimizer.step()
    sparse = masks.with_masks(dense, keep := _half(dense)).train()
    resumed = torch.optim.SGD(sparse.parameters(), lr=0.1, momentum=0.9)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    sparse[3].reset_parameters()
    for _ in range(2):
        resumed.zero_grad()
        sparse(torch.randn(16, 6)).square().sum().backward()
        resumed.step()
    sparse(torch.randn(2, 6))
    assert _holds(sparse, keep)


def _muon(model: nn.Module, dense: nn.Module) -> None:
    steps = torch.optim.Muon([p for p in model.parameters() if p.ndim == 2], lr=0.1)
    model(torch.randn(16, 6)).square().sum().backward()
    steps.step()


def _fused_adam_of_the_dense_training(model: nn.Module, dense: nn.Module) -> None:
    once, resumed = (
        torch.optim.Adam(each.parameters(), lr=0.1, fused=True) for each in (dense, model)
    )
    dense(torch.randn(16, 6)).square().sum().backward()
    once.step()
    model(torch.randn(16, 6)).square().sum().backward()
    resumed.load_state_dict(copy.deepcopy(once.state_dict()))
    resumed.step()


def _vector(model: nn.Module, dense: nn.Module) -> None:
    ones = nn.utils.parameters_to_vector(dense.parameters()) * 0 + 1
    for _ in range(2):  # The second time the weights may lie where they lay when they were zeroed.
        nn.utils.vector_to_parameters(ones.clone(), model.parameters())


@torch.no_grad()
def _noise(model: nn.Module, dense: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter))


def _reset(model: nn.Module, dense: nn.Module) -> None:
    model[0].reset_parameters()


def _reload(model: nn.Module, dense: nn.Module) -> None:
    model[0].weight = nn.Parameter(dense[0].weight.detach().clone())


FOREIGN = [_muon, _fused_adam_of_the_dense_training, _vector, _noise, _reset, _reload]


@pytest.mark.parametrize("measured", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("change", FOREIGN, ids=lambda change: change.__name__.strip("_"))
def test_an_evaluation_without_gradients_is_of_the_sparse_model(change, measured):
    sparse, inputs = masks.with_masks(_net(), keep := _half(_net())), torch.randn(4, 6)
    with measured():
        sparse(inputs)
    for _ in range(2):
        change(sparse, _net())
        assert not all(
            bool((sparse.get_parameter(name)[~mask] == 0).all()) for name, mask in keep.items()
        )
        with measured():
            found = sparse(inputs)
        peer = _net()
        peer.load_state_dict(sparse.state_dict(), strict=False)
        with torch.no_grad():
            for name, mask in keep.items():
                peer.get_parameter(name).mul_(mask)
            assert torch.equal(found, peer.eval()(inputs)) and _holds(sparse, keep)


def test_what_no_hook_sees_is_zeroed_before_weights_are_read():
    sparse = masks.with_masks(_net(), keep := _half(_net()))
    zeros = fairlib.sparsity(sparse)
    with torch.no_grad():
        sparse(torch.randn(4, 6))
    for read in (fairlib.sparsity, masks.prunable, masks.read_masks, keeping.settle):
        for parameter in sparse.parameters():
            parameter.data.add_(1)
        read(sparse)
        assert _holds(sparse, keep) and fairlib.sparsity(sparse) == zeros


def test_weights_that_nothing_has_changed_are_not_written():
    sparse = masks.with_masks(_net(), _half(_net()))
    with torch.no_grad():
        sparse(torch.randn(4, 6))
        sparse[0].weight.data.add_(
            1
        )  # Not seen, on purpose: to look at every weight would cost a fifth of a pass.
        sparse(torch.randn(4, 6))
    assert bool((sparse[0].weight != 0).all())


def test_a_model_made_in_inference_mode():
    with torch.inference_mode():
        sparse = masks.with_masks(_net(), keep := _half(_net()))
        sparse[0].weight.add_(1)
    with torch.no_grad():
        sparse(torch.randn(4, 6))
        assert all(
            bool((sparse.get_parameter(name)[~mask] == 0).all()) for name, mask in keep.items()
        )


@pytest.mark.parametrize("grad", [True, False])
def test_compiled_and_exported_models_are_those_of_the_mask(grad):
    sparse, inputs = masks.with_masks(_net(), keep := _half(_net())), torch.randn(4, 6)
    with torch.set_grad_enabled(grad):
        compiled = torch.compile(sparse, fullgraph=True, backend="eager")
        compiled(inputs)
        _noise(sparse, sparse)
        assert torch.equal(compiled(inputs), sparse(inputs)) and _holds(sparse, keep)
        exported = torch.export.export(sparse, (inputs,))
    assert torch.allclose(
        exported.module()(inputs), sparse(inputs), atol=1e-6
    ) and "masked_fill" not in str(exported)


@pytest.mark.parametrize(
    "average", [None, torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)], ids=["swa", "ema"]
)
def test_averaged_models_with_their_buffers(average):
    gated = fairlib.linearization.gate(
        fairlib.build("mlp", num_classes=3, in_channels=1, image_size=4)
    )
    sparse = fairlib.prune(gated, "magnitude", sparsity=0.5)
    averaged = torch.optim.swa_utils.AveragedModel(sparse, use_buffers=True, multi_avg_fn=average)
    for _ in range(4):
        averaged.update_parameters(sparse)
    state = averaged.module.state_dict()
    assert all(torch.allclose(value, state[name]) for name, value in sparse.state_dict().items())
    for read in (masks.read_masks, fairlib.network.gates.read_gates):
        found = read(averaged.module)
        assert found and all(torch.equal(mask, found[name]) for name, mask in read(sparse).items())


def test_state_dicts_with_masks_of_bools_are_still_read():
    sparse = masks.with_masks(_net(), keep := _half(_net()))
    old = {
        name: value.bool() if name.endswith("_mask") else value
        for name, value in sparse.state_dict().items()
    }
    for model in (fairlib.restore(_net(), old), copy.deepcopy(sparse)):
        model.load_state_dict(old, assign=True)
        _train(model)
        model(torch.randn(2, 6))
        assert _holds(model, keep) and all(
            mask.dtype == torch.bool for mask in masks.read_masks(model).values()
        )


def test_masks_of_torch_on_top_of_ours_are_refused_in_the_next_pass():
    sparse = masks.with_masks(_net(), _half(_net()))
    torch_prune.l1_unstructured(sparse[0], "weight", 0.9)
    with pytest.raises(
        ValueError, match=r"overwritten fairlib's mask of this Linear.*prune\.remove"
    ):
        sparse(torch.randn(4, 6))
    torch_prune.remove(sparse[0], "weight")
    again = fairlib.prune(sparse, "magnitude", sparsity=0.9)
    _train(again.train())
    assert fairlib.sparsity(again) == pytest.approx(0.9, abs=0.01)


def test_two_forward_passes_before_a_backward_pass():
    sparse = masks.with_masks(_net(), keep := _half(_net()))
    (sparse(torch.randn(4, 6)).sum() + sparse(torch.randn(4, 6)).sum()).backward()
    assert bool((sparse[0].weight.grad[~keep["0.weight"]] == 0).all())


def test_weights_read_by_the_root_but_not_called_stay_zero_in_a_copy():
    attention = nn.MultiheadAttention(4, 2)
    keep = {"out_proj.weight": torch.eye(4) > 0}
    twin = copy.deepcopy(masks.with_masks(attention, keep))
    inputs = torch.randn(3, 2, 4)
    twin(inputs, inputs, inputs)[0].square().sum().backward()
    assert bool((twin.out_proj.weight.grad[~keep["out_proj.weight"]] == 0).all())


def test_gradients_of_kept_weights_are_those_of_the_same_function_without_masks():
    sparse = masks.with_masks(_net(), keep := _half(_net()))
    plain = _net().eval()
    plain.load_state_dict({k: v for k, v in sparse.state_dict().items() if not k.endswith("_mask")})
    inputs = torch.randn(4, 6)
    sparse(inputs).sum().backward()
    plain(inputs).sum().backward()
    assert torch.equal(sparse[0].weight.grad, plain[0].weight.grad * keep["0.weight"])


def test_a_refused_mask_leaves_the_model_as_it_was():
    model = _net()
    with pytest.raises(
        ValueError, match=r"the mask of 3\.weight must be bool \(3, 8\), got torch\.bool \(8,\)"
    ):
        masks.set_masks(
            model,
            {"0.weight": _half(model)["0.weight"], "3.weight": torch.ones(8, dtype=torch.bool)},
        )
    assert not masks.read_masks(model) and torch.equal(model[0].weight, _net()[0].weight)


def test_sparsity_counts_zeros_among_prunable_weights():
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    keep = {"0.weight": torch.tensor([[True, False], [False, False]])}
    assert fairlib.sparsity(masks.with_masks(net, keep)) == pytest.approx(3 / 6)


def test_a_weight_tied_to_an_embedding_is_refused():
    model = nn.ModuleDict({"read": nn.Embedding(5, 4), "write": nn.Linear(4, 5, bias=False)})
    model["write"].weight = model["read"].weight
    with pytest.raises(ValueError, match=r"write\.weight and read\.weight are one tied weight"):
        fairlib.prune(model, "magnitude", sparsity=0.5)


def test_weights_that_are_computed_are_refused():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        model = nn.utils.weight_norm(nn.Linear(4, 3))
        spectral = nn.utils.spectral_norm(nn.Linear(4, 3))
    with torch.no_grad():
        model(torch.rand(1, 4))
    for found, end in ((model, "remove_weight_norm"), (spectral, "remove_spectral_norm")):
        with pytest.raises(ValueError, match=rf"weight is computed by .*Norm of .*{end}"):
            fairlib.prune(found, "magnitude", sparsity=0.5)


def test_bad_models_and_masks_are_refused():
    with pytest.raises(ValueError, match="no prunable weight"):
        masks.prunable(nn.ReLU())
    tied = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    tied[1].weight = tied[0].weight
    with pytest.raises(ValueError, match=r"0\.weight and 1\.weight are one tied weight"):
        masks.prunable(tied)
    hooked = nn.Sequential(nn.Linear(2, 2))
    torch_prune.random_unstructured(hooked[0], "weight", 0.5)
    with pytest.raises(ValueError, match=r"prune\.remove"):
        masks.prunable(hooked)
    parametrized = nn.Linear(2, 2)
    parametrize.register_parametrization(parametrized, "weight", nn.Identity())
    with pytest.raises(ValueError, match="remove_parametrizations"):
        masks.prunable(parametrized)
    with pytest.raises(
        ValueError, match=r"unknown prunable weight '1\.weight'; known: 0\.weight, 3\.weight"
    ):
        masks.with_masks(_net(), {"1.weight": torch.ones(8, dtype=torch.bool)})
    with pytest.raises(ValueError, match=r"must be bool \(8, 6\)"):
        masks.with_masks(_net(), {"0.weight": torch.ones(8, 6)})


@pytest.mark.parametrize("grad", [False, True])
def test_functional_call_leaves_another_models_weights_alone(grad):
    dense = nn.Linear(8, 4)
    keep = torch.rand(4, 8, generator=torch.Generator().manual_seed(0)) < 0.5
    sparse = masks.with_masks(dense, {"weight": keep})
    before = dense.weight.detach().clone()
    for model in (sparse, copy.deepcopy(sparse)):
        with torch.set_grad_enabled(grad):
            functional_call(model, dict(dense.named_parameters()), (torch.ones(2, 8),))
        assert torch.equal(dense.weight, before) and not dense.weight._backward_hooks
        model.weight.data.fill_(1)
        assert torch.equal(model.state_dict()["weight"] != 0, keep)


def test_a_state_dict_has_zeros_whatever_was_written_into_the_weights():
    sparse = masks.with_masks(nn.Linear(8, 4), {"weight": torch.arange(32).reshape(4, 8) % 2 == 0})
    weight = sparse.weight.data
    weight += 1
    assert sparse.state_dict()["weight"].count_nonzero() == 16
    assert sparse.weight.data.data_ptr() == weight.data_ptr()  # In place: optimizers hold on to it.


@pytest.mark.parametrize("written", ["in place", "replaced", "loaded"])
def test_a_changed_mask_is_seen_in_the_next_pass(written):
    sparse = masks.with_masks(_net(), keep := _half(_net())).train()
    _train(sparse)
    other = {name: mask.roll(1, dims=1) for name, mask in keep.items()}
    for name, mask in other.items():
        layer = sparse.get_submodule(name.removesuffix(".weight"))
        if written == "in place":
            layer.weight_mask.copy_(mask)
        elif written == "replaced":
            layer.weight_mask = mask.to(torch.uint8)
    if written == "loaded":
        sparse.load_state_dict(
            sparse.state_dict() | {f"{name}_mask": mask.byte() for name, mask in other.items()}
        )
    for _ in range(2):
        sparse.zero_grad()
        _noise(sparse, sparse)
        sparse(torch.randn(16, 6)).square().sum().backward()
        assert _holds(sparse, other)
        assert all(
            bool((sparse.get_parameter(name).grad[~mask] == 0).all())
            for name, mask in other.items()
        )


class _Reader(nn.Module):
    """Reads the weights of a layer that it calls on demand only."""

    def __init__(self, fail: bool = False):
        super().__init__()
        self.layer, self.fail, self.seen = nn.Linear(6, 8), fail, None

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.seen = self.layer.weight.detach().clone()
        if self.fail:
            raise RuntimeError("on purpose")
        return self.layer(inputs) if self.training else inputs @ self.layer.weight.T


@pytest.mark.parametrize("fail", [False, True])
def test_a_layer_guards_itself_again_after_a_pass_of_its_root(fail):
    reader = masks.with_masks(
        _Reader(fail), keep := {"layer.weight": torch.arange(48).reshape(8, 6) % 2 == 0}
    )
    reader.layer.weight.data.add_(1)
    if fail:
        with pytest.raises(RuntimeError, match="on purpose"):
            reader(torch.randn(2, 6))
    else:
        reader(torch.randn(2, 6))
    assert bool((reader.seen[~keep["layer.weight"]] == 0).all())
    reader.layer.weight.data.add_(1)  # Which changes no version.
    reader.layer(torch.randn(2, 6))
    assert _holds(reader, keep)


def test_a_pass_of_a_root_in_one_thread_is_none_in_another():
    sparse = masks.with_masks(_net(), keep := _half(_net()))
    began, go = threading.Event(), threading.Event()

    def wait(*_: object) -> None:
        began.set()
        go.wait(10)

    sparse[1].register_forward_pre_hook(wait)
    other = threading.Thread(target=sparse, args=(torch.randn(4, 6),))
    other.start()
    assert began.wait(10)
    sparse[0].weight.data.add_(1)
    sparse[0](torch.randn(2, 6))
    go.set()
    other.join()
    assert _holds(sparse, keep)


def test_a_pass_with_gradients_guards_each_layer_once():
    sparse = masks.with_masks(_net(), keep := _half(_net())).train()

    def spoil(*_: object) -> None:
        sparse[3].weight.data.add_(1)

    sparse[1].register_forward_pre_hook(spoil)
    sparse[0].weight.data.add_(1)
    sparse(torch.randn(4, 6))
    assert bool(
        (sparse[0].weight[~keep["0.weight"]] == 0).all()
    )  # The root has guarded both before the pass...
    assert bool(
        (sparse[3].weight[~keep["3.weight"]] != 0).any()
    )  # ... and the layers have not done so again.


def test_gradients_are_turned_on_within_a_pass_without_them():
    inputs, keep = torch.randn(4, 6), torch.eye(8, 6) > 0
    sparse = masks.with_masks(nn.Sequential(nn.Linear(6, 8), nn.Identity()), {"0.weight": keep})
    twin, found = copy.deepcopy(sparse), []
    twin[1].register_forward_hook(lambda *_: found.append(torch.enable_grad()(twin[0])(inputs)))
    with torch.no_grad():
        twin(inputs)
    found[0].square().sum().backward()
    assert bool((twin[0].weight.grad[~keep] == 0).all()) and bool(twin[0].weight.grad.any())


@pytest.mark.parametrize("first", ["inference", "vmap", "grad"])
def test_what_is_known_of_a_mask_is_never_of_a_mode_or_a_transform(first):
    sparse, inputs = (
        copy.deepcopy(masks.with_masks(_net(), keep := _half(_net()))),
        torch.randn(4, 6),
    )
    with torch.inference_mode(first == "inference"):
        torch.vmap(sparse)(torch.ones(2, 4, 6)) if first == "vmap" else sparse(inputs)
    if first == "grad":
        weights = {name: weight.detach().clone() for name, weight in sparse.named_parameters()}
        torch.func.grad(lambda weights: functional_call(sparse, weights, (inputs,)).sum())(weights)
    gradients = torch.autograd.grad(
        sparse(inputs).square().sum(), list(sparse.parameters()), create_graph=True
    )
    sum(gradient.square().sum() for gradient in gradients).backward()
    assert bool((sparse[0].weight.grad[~keep["0.weight"]] == 0).all())
    assert not [name for name in sparse.state_dict() if "held" in name]
    torch.compile(sparse, fullgraph=True, backend="eager")(inputs)
