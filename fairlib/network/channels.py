"""Channels: which of them belong together, and the weights that are left when some are removed.

A channel is an output of a convolution or of a hidden linear layer. It is *produced* by a row of
that layer's weight and *read* by columns of the weights of later layers. Channels that a residual
sum adds belong together, and a depthwise convolution hands its channels through, so that its rows
belong to the channels it reads. Torch-Pruning's dependency graph (Fang et al. 2023, "DepGraph")
finds them. Since it takes every operation that it does not know for an elementwise one, its answer
is checked by running the model.
"""

from __future__ import annotations

import time
import warnings
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fairlib._validation import check_type
from fairlib.data import GroupedDataset
from fairlib.network import masks
from fairlib.network.copying import copied
from fairlib.network.evaluation import placement

if TYPE_CHECKING:
    from torch_pruning import DependencyGraph
    from torch_pruning.dependency import Group

LIMIT = 60
"""Seconds that Torch-Pruning may walk over the operations of a model."""

_PRODUCTS = "Bmm", "Baddbmm", "ScaledDotProduct"
"""Beginnings of the names of operations of which both factors are activations."""

Ends = dict[str, tuple[Tensor, Tensor]]
"""Parameter name to two vectors: channels with their rows or columns, or masks of both axes."""


@dataclass(frozen=True)
class Coupled:
    """Channels of several layers that can only be removed together, channel by channel.

    Attributes:
        size: Number C of channels.
        producers: Parameter name to ``(channels, rows)``, int64 vectors: row ``rows[i]`` of the
            weight makes channel ``channels[i]``. The rows of the first parameter are the channels,
            in their order.
        readers: Parameter name to ``(channels, columns)``, int64 vectors: ``weight[:, columns[i]]``
            reads channel ``channels[i]``; after a flattening, several columns read one channel.
    """

    size: int
    producers: Ends
    readers: Ends


def example_inputs(
    model: nn.Module, data: GroupedDataset | Tensor | None, count: int = 1
) -> Tensor:
    """Make random inputs in [0, 1] of the shape of ``data``, in the model's dtype, on its device.

    Args:
        model: The model that takes the inputs.
        data: A data set, or a tensor of inputs ``(N, ...)``; only its shape is used.
        count: Number of inputs.

    Returns:
        ``(count, ...)``.

    Raises:
        ValueError: If ``data`` is None.
        TypeError: If ``data`` is neither a data set nor a tensor.
    """
    if data is None:
        raise ValueError(
            "data is needed, a GroupedDataset or a tensor (N, ...): its shape tells which channels "
            "match"
        )
    check_type("data", data, (GroupedDataset, Tensor), "a GroupedDataset or a tensor of inputs")
    inputs = data if isinstance(data, Tensor) else data.inputs
    generator = torch.Generator().manual_seed(0)
    return torch.rand((count, *inputs.shape[1:]), generator=generator).to(*placement(model))


def coupled_channels(model: nn.Module, inputs: Tensor) -> list[Coupled]:
    """Find the channels of a model that can be removed, in sets that belong together.

    No set holds the model's outputs, nor what a residual sum or a depthwise convolution ties to its
    inputs.

    Args:
        model: Any module that Torch-Pruning can trace; left as it is.
        inputs: Example inputs, such as those of ``example_inputs``.

    Raises:
        ValueError: If the model has a grouped convolution that is not depthwise, cannot be traced,
            or mixes channels on their way from the weights that make them to those that read them,
            or changes their number: a normalization over channels, say, or ``pixel_shuffle``.
    """
    _refuse_grouped(model)
    twin = copied(model)
    graph = trace(twin, inputs)
    kinds = {type(node.grad_fn).__name__ for node in graph.module2node.values()}
    products = sorted(kind for kind in kinds if kind.startswith(_PRODUCTS))
    if products:
        raise ValueError(
            f"the channels of {type(model).__name__} cannot be removed: it multiplies activations "
            f"with each other ({', '.join(products)}), as an attention does, which mixes channels"
        )
    names = {id(weight): name for name, weight in masks.prunable(twin).items()}
    sets = [
        _coupled(graph, group, names)
        for group in graph.get_all_groups()
        if not _ends_outside(graph, group)
    ]
    if not _is_sealed(model, sets, inputs):
        leaking = next((s for s in sets if not _is_sealed(model, [s], inputs)), sets[0])
        raise ValueError(
            f"the channels of {next(iter(leaking.producers))} cannot be removed: they reach the "
            f"outputs of {type(model).__name__} not only through {', '.join(leaking.readers)}; an "
            "operation in between mixes channels, such as a normalization over channels or an "
            "attention"
        )
    return sets


def trace(model: nn.Module, inputs: Tensor) -> DependencyGraph:
    """Build Torch-Pruning's dependency graph of a model.

    Args:
        model: A copy that may change: it is put into eval mode, and its parameters are all
            unfrozen.
        inputs: Example inputs, such as those of ``example_inputs``.

    Raises:
        ValueError: If the model cannot be traced.
    """
    import torch_pruning  # Imported here since it takes a second.

    # The graph is of the modules and parameters that a forward pass uses, and shows neither the
    # inputs nor the outputs. As a parameter, and behind a copy each, both become nodes of it.
    leaf = nn.Parameter(inputs.detach().clone())
    model.requires_grad_(True)
    try:
        with torch.enable_grad(), warnings.catch_warnings(action="ignore"):
            graph = torch_pruning.DependencyGraph().build_dependency(
                model,
                leaf,
                forward_fn=lambda module, example: module(example.clone()),
                output_transform=lambda outputs: outputs.clone(),
                unwrapped_parameters=[(leaf, 1)],
                verbose=False,
            )
    except Exception as error:  # The forward method of a user may raise anything.
        raise ValueError(
            f"{type(model).__name__} cannot be traced with inputs {tuple(inputs.shape)} for its "
            f"channels: {type(error).__name__}: {error}"
        ) from error
    deadline = time.monotonic() + LIMIT
    for node in graph.module2node.values():
        node.dependencies = _Limited(node.dependencies, deadline)
    return graph


class _Limited(list):
    """Dependencies of a node that are walked until a deadline: some walks would not end."""

    def __init__(self, dependencies: list, deadline: float) -> None:
        super().__init__(dependencies)
        self.deadline = deadline

    def __iter__(self) -> Iterator:
        if time.monotonic() > self.deadline:
            raise ValueError(
                f"the channels that belong together were not found in {LIMIT} s: Torch-Pruning's "
                "walk over the operations of the model does not end, or takes long"
            )
        return super().__iter__()


def remaining(sets: Sequence[Coupled], removed: Sequence[Tensor], model: nn.Module) -> Ends:
    """Find the rows and the columns of each weight that are left when channels are removed.

    Args:
        sets: The sets of :func:`coupled_channels`.
        removed: For each set a bool vector ``(C,)``, True where the channel is removed.
        model: The model of the sets.

    Returns:
        Parameter name to bool vectors, over ``weight.shape[0]`` and over ``weight.shape[1]``, of
        the weights that make or read a channel of the sets.
    """
    weights = masks.prunable(model)
    left: Ends = {}
    for coupled, gone in zip(sets, removed, strict=True):
        for axis, ends in enumerate((coupled.producers, coupled.readers)):
            for name, (channels, positions) in ends.items():
                if name not in left:
                    rows, columns = weights[name].shape[:2]
                    left[name] = (gone.new_ones(rows), gone.new_ones(columns))
                left[name][axis][positions[gone[channels]]] = False
    return left


def masks_for(
    sets: Sequence[Coupled], removed: Sequence[Tensor], model: nn.Module
) -> dict[str, Tensor]:
    """Make the masks, for :func:`fairlib.network.masks.with_masks`, that remove channels.

    They zero the rows that make a channel and the columns that read it. A removed channel then has
    no effect, whatever bias or BatchNorm it passes.

    Args:
        sets: The sets of :func:`coupled_channels`.
        removed: For each set a bool vector ``(C,)``, True where the channel is removed.
        model: The model of the sets.

    Returns:
        Parameter name to bool tensor of the weight's shape, True where the weight is kept; weights
        that a mask of the model holds at zero stay masked.
    """
    weights, before = masks.prunable(model), masks.read_masks(model)
    keep = {}
    for name, (rows, columns) in remaining(sets, removed, model).items():
        block = rows[:, None] & columns
        block = block.view(*block.shape, *[1] * (weights[name].ndim - 2))
        keep[name] = block & before[name] if name in before else block.expand_as(weights[name])
    return keep


def select_channels(
    model: nn.Module,
    data: GroupedDataset | Tensor | None,
    scores_of: Callable[[Tensor], Tensor],
    sparsity: float,
) -> dict[str, Tensor]:
    """Make masks that remove the channels of lowest score, at one rate in all layers.

    Args:
        model: Left as it is.
        data: A data set or a tensor of inputs ``(N, ...)``; only its shape is used.
        scores_of: Function from filters ``(n, F)`` to scores ``(n,)``. A filter is the
            concatenation of the weights that produce a channel, in all the layers of its set.
            Channels that are masked already are left out.
        sparsity: Share of zeros among the prunable weights, in [0, 1).

    Returns:
        Parameter name to bool tensor of the weight's shape, True where the weight is kept.

    Raises:
        ValueError: If the model's channels cannot be removed (:func:`coupled_channels`), a score is
            NaN, or the sparsity is out of reach (:func:`lowest`).
    """
    sets = coupled_channels(model, example_inputs(model, data))
    scores = channel_scores(model, sets, scores_of)
    return masks_for(sets, lowest(model, sets, scores, sparsity), model)


def channel_scores(
    model: nn.Module, sets: Sequence[Coupled], scores_of: Callable[[Tensor], Tensor]
) -> list[Tensor]:
    r"""Score the channels of each set.

    Args:
        model: The model of the sets.
        sets: The sets of :func:`coupled_channels`.
        scores_of: Function from filters ``(n, F)`` to scores ``(n,)``, for :func:`select_channels`.

    Returns:
        For each set ``(C,)``; :math:`-\infty` for a channel of which a mask has left nothing.
    """
    weights, before = masks.prunable(model), masks.read_masks(model)
    scores = []
    for coupled in sets:
        parts, alive = [], torch.zeros(coupled.size, dtype=torch.bool)
        for name, (channels, rows) in coupled.producers.items():
            weight = weights[name].detach().flatten(1)
            part = weight.new_zeros(coupled.size, weight.shape[1])
            parts.append(part.index_copy(0, channels, weight[rows]))
            left = before[name].flatten(1).any(1)[rows].cpu() if name in before else True
            alive[channels.cpu()] |= left
        filters = torch.cat(parts, dim=1)
        scored = filters.new_full((coupled.size,), -torch.inf)
        scored[alive] = scores_of(filters[alive])
        scores.append(scored)
    return scores


def lowest(
    model: nn.Module, sets: Sequence[Coupled], scores: Sequence[Tensor], sparsity: float
) -> list[Tensor]:
    r"""Select the channels of lowest score, at one rate in all layers, that reach a sparsity.

    Of a set of C coupled channels :math:`\min(\lfloor r C \rfloor, C - 1)` are removed: those that
    are masked already, then those of lowest score, equal ones in their order. The last channel of a
    layer always stays. The rate :math:`r` is the smallest at which ``round(sparsity * n)`` of all n
    prunable weights are masked, before or now; so the masks of growing sparsity are nested, and a
    model that is as sparse already loses nothing.

    Args:
        model: The model of the sets; left as it is.
        sets: The sets of :func:`coupled_channels`.
        scores: For each set the scores ``(C,)`` of its channels.
        sparsity: Share of zeros among the prunable weights, in [0, 1).

    Returns:
        For each set a bool vector ``(C,)``, True where the channel is removed.

    Raises:
        ValueError: If a score is NaN, if one channel a layer is still denser than ``sparsity``, or
            if an earlier mask and this one together would empty a layer.
    """
    masks.check_scores(
        {", ".join(coupled.producers): score for coupled, score in zip(sets, scores, strict=True)}
    )
    weights, before = masks.prunable(model), masks.read_masks(model)
    ranks = [score.argsort(stable=True).argsort() for score in scores]
    # The removed channels change at rates i / C only, for i = 0 to C - 1 of C channels.
    rates = {count / coupled.size for coupled in sets for count in range(coupled.size)}
    steps = sorted(rates | {0.0})

    def removed_at(rate: float) -> list[Tensor]:
        # The nudge makes up for rounding: 1/3 of 6 channels are 2, whatever the quotient is.
        return [rank < int(rate * len(rank) + 1e-9) for rank in ranks]

    def zeros(rate: float) -> int:
        keep = before | masks_for(sets, removed_at(rate), model)
        return sum(int((~mask).sum()) for mask in keep.values())

    total = sum(weight.numel() for weight in weights.values())
    wanted, most = round(sparsity * total), zeros(steps[-1])
    if most < wanted:
        raise ValueError(
            f"sparsity {sparsity} is out of reach: with one channel left in every layer {most} of "
            f"{total} weights are zero, a sparsity of {most / total:.4f}"
        )
    removed = removed_at(steps[bisect_left(steps, wanted, key=zeros)])
    emptied = [name for name, mask in masks_for(sets, removed, model).items() if not mask.any()]
    if emptied:
        raise ValueError(
            f"sparsity {sparsity} would leave nothing of {emptied[0]}, where an earlier mask left "
            "little"
        )
    return removed


def _refuse_grouped(model: nn.Module) -> None:
    for name, layer in model.named_modules():
        if not isinstance(layer, nn.modules.conv._ConvNd):
            continue
        depthwise = layer.groups == layer.in_channels == layer.out_channels
        if layer.transposed or not (layer.groups == 1 or depthwise):
            raise ValueError(
                f"{name} is {layer}; only ordinary and depthwise convolutions can lose channels"
            )


def _ends_outside(graph: DependencyGraph, group: Group) -> bool:
    """Return True if a group holds outputs of the model, or is tied to its inputs."""
    leaf = graph.unwrapped_parameters[0][0]
    return any(
        item.dep.target.type.name == "OUTPUT" or item.dep.target.module is leaf for item in group
    )


def _coupled(graph: DependencyGraph, group: Group, names: dict[int, str]) -> Coupled:
    producers: Ends = {}
    readers: Ends = {}
    for item in group:
        layer = item.dep.target.module
        name = names.get(id(getattr(layer, "weight", None)))
        if name is None:
            continue
        produces = graph.is_out_channel_pruning_fn(item.dep.handler)
        ends, limit = (producers if produces else readers), layer.weight.shape[0 if produces else 1]
        channels, positions = (
            torch.tensor(ids, device=layer.weight.device) for ids in (item.root_idxs, item.idxs)
        )
        if int(positions.max()) >= limit:
            raise ValueError(
                f"the channels that meet {name} cannot be removed: it has {limit}, and "
                f"{len(group[0].idxs)} reach it; an operation in between changes their number, "
                "such as pixel_shuffle"
            )
        ends[name] = channels, positions
    size = len(group[0].idxs)
    read = {channel for channels, _ in readers.values() for channel in channels.tolist()}
    if len(read) < size:
        raise ValueError(
            f"{size - len(read)} of the {size} channels of {next(iter(producers))} are read by no "
            "weight of their own, so that they cannot be removed one by one"
        )
    return Coupled(size, producers, readers)


def _is_sealed(model: nn.Module, sets: list[Coupled], inputs: Tensor) -> bool:
    """Return True if channels have no effect once the weights that read them are zero.

    Every second channel of the sets is tried, by turning round the weights that produce it.
    """
    removed = [torch.arange(coupled.size, device=inputs.device) % 2 == 0 for coupled in sets]
    probe = copied(model).eval()
    left = remaining(sets, removed, probe)
    weights = masks.prunable(probe)
    # Random parameters: layers that start at zero, such as the last one of a block, would hide a
    # leak. And statistics of normalization as they are at first, so that nothing overflows.
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in probe.parameters():
            spread = parameter[0].numel() ** -0.5 if parameter.ndim > 1 else 1.0
            parameter.copy_(spread * torch.randn(parameter.shape, generator=generator))
        for layer in probe.modules():
            if isinstance(layer, nn.modules.batchnorm._NormBase):
                layer.reset_running_stats()
        for name, (_, columns) in left.items():
            weights[name][:, ~columns] = 0
        before = probe(inputs.clone())
        for name, (rows, _) in left.items():
            weights[name][~rows] *= -1
        change = (probe(inputs.clone()) - before).abs()
        return bool((change <= 1e-5 * before.abs().max()).all())
