"""Compaction: from structured masks to a physically smaller module."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from fairlib.data import GroupedDataset
from fairlib.network import gates, masks
from fairlib.network.channels import (
    Coupled,
    Ends,
    coupled_channels,
    example_inputs,
    remaining,
    trace,
)
from fairlib.network.copying import check_module, copied
from fairlib.network.export import agree
from fairlib.network.memory import remember


def compact(model: nn.Module, data: GroupedDataset | Tensor) -> nn.Module:
    """Copy a model without the channels that nothing reads: a smaller module of the same outputs.

    A channel is removed when all the weights that read it are zero, which makes it exact whatever
    produces it; the structured methods of :func:`fairlib.prune` leave such channels, an
    unstructured one hardly ever does. Channels that removed channels alone have read are then
    removed too. One channel of a layer always stays. Where nothing can be removed, the result is a
    plain copy.

    The remaining weights keep their masks, so that training goes on as it would have in the masked
    model. The history of a training is kept, the weights that ``fit(..., keep=)`` kept are not:
    their shapes are those of the wide model.

    Args:
        model: Any module that Torch-Pruning can trace; left as it is.
        data: A data set, or a tensor of inputs ``(N, ...)``: removal needs the shape of the inputs,
            and only that.

    Returns:
        A module in eval mode, of the same class and parameter names.

    Raises:
        ValueError: If ``data`` is missing, the channels of the model cannot be removed
            (:func:`fairlib.network.channels.coupled_channels`), it was linearized before, or the
            smaller module does not give the same outputs, to 1e-5 of their size: then it holds
            something of a channel's shape that is neither a weight nor a normalization.
        TypeError: If the model is no module.

    Source:
        Fang et al. (2023), "DepGraph: towards any structural pruning", whose Torch-Pruning removes
        the channels.

    Example:
        >>> import torch, fairlib
        >>> images = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
        >>> model = fairlib.build("cnn", num_classes=10, in_channels=1, image_size=8)
        >>> pruned = fairlib.prune(model, "filter-norm", sparsity=0.75, data=images)
        >>> small = fairlib.compact(pruned, images)
        >>> weights = [sum(map(torch.numel, one.parameters())) for one in (model, pruned, small)]
        >>> weights[1] == weights[0], weights[2] < 0.3 * weights[0]  # Zeros alone save nothing.
        (True, True)
        >>> torch.allclose(small(images), pruned(images), atol=1e-5)
        True
    """
    check_module("model", model)
    inputs = example_inputs(model, data, count=2)
    sets = coupled_channels(model, inputs)
    removed = _unread(model, sets)
    smaller = any(gone.any() for gone in removed)
    if smaller and gates.gates(model):
        raise ValueError(
            "the gates of a linearized model need all of its channels: compact first, linearize "
            "then"
        )
    small = copied(model)
    graph = trace(small, inputs)
    try:
        for coupled, gone in zip(sets, removed, strict=True):
            producer = next(iter(coupled.producers))
            layer = small.get_submodule(producer.rpartition(".")[0])
            if gone.any():
                prune = graph.get_pruner_of_module(layer).prune_out_channels
                graph.get_pruning_group(layer, prune, gone.nonzero().flatten().tolist()).prune()
        _restore_state(model, small, remaining(sets, removed, model))
        same = agree(_outputs(small, inputs), _outputs(model, inputs))
    except (RuntimeError, IndexError) as error:
        raise ValueError(
            f"{type(model).__name__} does not run without its unread channels: {error}"
        ) from error
    if not same:
        raise ValueError(f"{type(model).__name__} gives other outputs without its unread channels")
    if smaller:
        remember(small, snapshots={}, recipe=None)  # Both are of the wide network.
    return small.eval()


def _unread(model: nn.Module, sets: Sequence[Coupled]) -> list[Tensor]:
    """Find the channels of each set that only zeros read: bool vectors, one channel always False.

    The weights that produce an unread channel are no readers either: so this is repeated until no
    channel is added.
    """
    alive = {name: weight.detach() != 0 for name, weight in masks.prunable(model).items()}
    removed: list[Tensor] = []
    while True:
        before, removed = removed, [_read_by_zeros(coupled, alive) for coupled in sets]
        if before and all(map(torch.equal, before, removed)):
            return removed
        for coupled, gone in zip(sets, removed, strict=True):
            for name, (channels, rows) in coupled.producers.items():
                alive[name][rows[gone[channels]]] = False


def _read_by_zeros(coupled: Coupled, alive: Mapping[str, Tensor]) -> Tensor:
    unread = torch.ones(coupled.size, dtype=torch.bool, device=next(iter(alive.values())).device)
    for name, (channels, columns) in coupled.readers.items():
        read = alive[name].transpose(0, 1).flatten(1).any(1)
        unread[channels[read[columns]]] = False
    if unread.all():
        unread[0] = False
    return unread


def _restore_state(model: nn.Module, small: nn.Module, left: Ends) -> None:
    """Give the smaller module its masks and frozen parameters, unknown to Torch-Pruning."""
    for name, mask in masks.read_masks(model).items():
        if name in left:
            rows, columns = left[name]
            layer = small.get_submodule(name.rpartition(".")[0])
            layer.weight_mask = mask[rows][:, columns].to(torch.uint8)
    for name, parameter in model.named_parameters():
        small.get_parameter(name).requires_grad_(parameter.requires_grad)


def _outputs(model: nn.Module, inputs: Tensor) -> Tensor:
    """Compute outputs in double precision on the CPU, where rounding hides nothing."""
    twin = copied(model).cpu().double().eval()
    with torch.no_grad():
        return twin(inputs.cpu().double().clone())
