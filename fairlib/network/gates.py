"""ReLU gates: which ReLUs of a module are kept, and which are the identity.

A gate stands where a ReLU stood. Its buffer ``keep`` says for every unit, a channel at a position, whether the ReLU is
kept; what is not kept passes as it is. While a method learns what to keep, the gate also has a parameter ``alpha`` and
mixes the two. What computes the ReLU stays a module of its own in the gate.
"""

import copy
from collections.abc import Mapping, Sequence
from itertools import groupby

import pandas as pd
import torch
from torch import Tensor, nn

from fairlib._validation import lookup
from fairlib.data import GroupedDataset
from fairlib.network.memory import memory_of, remember
from fairlib.network.relu_calls import RELUS, refuse_unsplit, split, watch

GRANULARITIES = ("pixel", "channel", "layer")

_BUFFER = "keep"


class Gate(nn.Module):
    r"""A ReLU that is the identity where it is not kept.

    With mask :math:`m \in \{0, 1\}^{C \times H \times W}` the output is
    :math:`m \, \mathrm{ReLU}(x) + (1 - m) \, x`. While ``alpha`` is learned, :math:`\alpha m` stands in the place of
    the mask; where the ReLU is kept, the output on negative inputs is :math:`(1 - \alpha) x`: one minus a leaky slope.

    Args:
        activation: What the gate opens and closes; ``nn.ReLU``, ``nn.ReLU6`` or ``nn.LeakyReLU``.
        shape: Of its output without the batch, ``(C, H, W)`` or ``(D,)``.

    Attributes:
        keep: Buffer, bool of that shape, True where the ReLU is kept.
        alpha: Parameter while it is learned (:func:`relax`), else None.
        position: When the gate is called in a forward pass, beside the other gates of its model.

    Source:
        Cho et al., Selective network linearization for efficient private inference (ICML 2022).
    """

    keep: Tensor

    alpha: nn.Parameter | None
    keep: Tensor

    def __init__(self, activation: nn.Module, shape: Sequence[int]):
        super().__init__()
        self.activation = copy.deepcopy(activation)
        if hasattr(activation, "inplace"):
            self.activation.inplace = False
        self.register_buffer(_BUFFER, torch.ones(*shape, dtype=torch.bool))
        self.register_parameter("alpha", None)
        self.position = 0

    def forward(self, inputs: Tensor) -> Tensor:
        """Inputs and outputs ``(N, *shape)``.

        Raises:
            ValueError: If the inputs have another shape: the gates of a network belong to one image size.
        """
        if inputs.shape[1:] != self.keep.shape:
            raise ValueError(
                f"a gate of {tuple(self.keep.shape)} ReLUs met inputs (N, *{tuple(inputs.shape[1:])}): the model was "
                "gated for another image size, on which the number of ReLUs depends; gate the model that it was made "
                "from for this one"
            )
        active = self.activation(inputs)
        share = self.keep if self.alpha is None else self.alpha * self.keep
        return torch.lerp(inputs, active, share.to(inputs.dtype))  # Exact at 0 and 1, and faster than torch.where.

    def extra_repr(self) -> str:
        return f"shape={tuple(self.keep.shape)}" + (", learning" if self.alpha is not None else "")


def gate(model: nn.Module, data: GroupedDataset | Tensor | None = None) -> nn.Module:
    """A copy of a model, in eval mode, in which every ReLU is a :class:`fairlib.network.gates.Gate` that keeps it.

    A ReLU that a module calls as a function, or an ``nn.ReLU`` that is called several times in a forward pass (the
    blocks of torchvision's ResNets do that), is split by call site (:mod:`fairlib.network.relu_calls`): the module that
    calls it gets a submodule for each call. The copy is checked to compute what the model computes, with the same
    gradients. Gates that the model has stay as they are. ReLUs that run in training only stay ReLUs.

    Args:
        model: Left as it is.
        data: A data set or a tensor of inputs ``(N, ...)``; only its shape is used, on which the number of ReLUs
            depends. Not needed for models of :func:`fairlib.build`, which know what they were built for.

    Raises:
        ValueError: If the shape of the inputs is not known or the model does not take it, the model has no ReLU, an
            activation is none, a module that must be split cannot be, the gates of the model are for another shape, or
            the gated copy computes something else.
    """
    gated = copy.deepcopy(model).eval()
    inputs = example(gated, data)
    seen = watch(gated, inputs)
    for caller in seen.to_split():
        split(gated, caller)
    if seen.to_split():
        seen = watch(gated, inputs)
        refuse_unsplit(gated, seen)
    names: dict[int, list[str]] = {}
    for name, module in gated.named_modules(remove_duplicate=False):
        names.setdefault(id(module), []).append(name)
    for position, call in enumerate(seen.calls):
        activation, caller = gated.get_submodule(call.name), gated.get_submodule(call.caller)
        if isinstance(caller, Gate):
            caller.position = position
            continue
        if call.name == "":
            raise ValueError(f"the model is a {type(model).__name__} and nothing else; put it into a Sequential")
        replacement = Gate(activation, call.shape).to(inputs.device).eval()
        replacement.position = position
        for name in names[id(activation)]:
            gated.set_submodule(name, replacement)
    if not gates(gated):
        raise ValueError(f"{type(model).__name__} has no ReLU to gate")
    _refuse_change(model, gated, inputs)
    return remember(gated, input_shape=tuple(inputs.shape[1:]))


def install(model: nn.Module, state_dict: Mapping[str, Tensor]) -> nn.Module:
    """The model, in which a gate stands in the place of every ReLU that has one in ``state_dict``, in this order.

    Raises:
        ValueError: If the model has no module of a gate's name.
    """
    like = next(model.parameters(), torch.empty(0))
    modules = dict(model.named_modules(remove_duplicate=False))
    made: dict[int, Gate] = {}  # A ReLU of two names is one gate.
    for key, mask in state_dict.items():
        name, _, last = key.rpartition(".")
        if last != _BUFFER:
            continue
        if isinstance(modules.get(name), RELUS):
            replaced = modules[name]
            if id(replaced) not in made:
                made[id(replaced)] = Gate(replaced, mask.shape).to(like.device).eval()
                made[id(replaced)].position = len(made)
            model.set_submodule(name, made[id(replaced)])
        elif name not in modules:
            raise ValueError(
                f"there is a gate for {name}, and this {type(model).__name__} has no module of that name; gating "
                "splits ReLUs that are called several times: put it through fairlib.linearization.gate first"
            )
    return model


def gates(model: nn.Module) -> dict[str, Gate]:
    """The gates of a model by name, in the order in which a forward pass calls them."""
    found = {name: module for name, module in model.named_modules() if isinstance(module, Gate)}
    return dict(sorted(found.items(), key=lambda item: item[1].position))


def read(model: nn.Module) -> dict[str, Tensor]:
    """The masks of the gates: name to bool ``(C, H, W)``, True where the ReLU is kept."""
    return {name: module.keep for name, module in gates(model).items()}


def apply(model: nn.Module, keep: Mapping[str, Tensor]) -> nn.Module:
    """A copy of a gated model in eval mode with these masks.

    Args:
        model: Left as it is.
        keep: Name of a gate to bool ``(C, H, W)``, True where the ReLU is kept, or what broadcasts to it. Gates not
            named keep the mask they have.

    Raises:
        ValueError: If a name is no gate or a mask does not fit.
    """
    masked = copy.deepcopy(model)
    impose(masked, keep)
    return masked.eval()


def impose(model: nn.Module, keep: Mapping[str, Tensor]) -> None:
    """Set the masks of a gated model in place, and end the learning of these gates. Else as :func:`apply`."""
    known = gates(model)
    for name, mask in keep.items():
        target = lookup("gate", name, known)
        try:
            full = mask.expand(target.keep.shape)
        except RuntimeError:
            full = None
        if full is None or mask.dtype != torch.bool:
            raise ValueError(
                f"the mask of {name} must be bool {tuple(target.keep.shape)}, got {mask.dtype} {tuple(mask.shape)}"
            )
        target.keep.copy_(full)
        target.alpha = None


def relax(model: nn.Module, granularity: str = "pixel") -> None:
    """Begin the learning of every gate, in place: ``alpha`` becomes a parameter, 1 where any ReLU is kept and else 0.

    Args:
        model: A gated model.
        granularity: Who shares an ``alpha``: ``"pixel"``, nobody; ``"channel"``, the positions of a channel;
            ``"layer"``, all.
    """
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    for module in gates(model).values():
        start = pooled(module.keep.float(), granularity) > 0
        module.alpha = nn.Parameter(start.to(dtype))


def pooled(values: Tensor, granularity: str) -> Tensor:
    """The mean of ``(C, H, W)`` over what belongs together: ``(C, H, W)``, ``(C, 1, 1)`` or ``(1, 1, 1)``.

    Raises:
        ValueError: If the granularity is unknown.
    """
    lookup("granularity", granularity, dict.fromkeys(GRANULARITIES))
    first = {"pixel": values.ndim, "channel": 1, "layer": 0}[granularity]
    return values.mean(tuple(range(first, values.ndim)), keepdim=True) if first < values.ndim else values


def keep_relus(model: nn.Module, scores: Mapping[str, Tensor], relus: int) -> dict[str, Tensor]:
    """Masks that keep the ReLUs of highest score in all gates together, as many as a budget allows.

    Args:
        model: A gated model; what its gates do not keep is not chosen.
        scores: Name of a gate to scores: ``(C, H, W)``, or ``(C, 1, 1)`` and ``(1, 1, 1)`` for channels and layers
            that are kept as a whole.
        relus: How many to keep at most. Of single ReLUs exactly so many are kept, equal scores in the order of the
            gates; what is kept as a whole is taken in the order of the scores as long as it fits.

    Returns:
        Name to bool tensor ``(C, H, W)``.

    Raises:
        ValueError: If a score is NaN, or ``relus`` lies outside 0 and the number of ReLUs that the gates keep.
    """
    found = read(model)
    before = {name: found[name] for name in scores}
    check_count(relus, sum(int(keep.sum()) for keep in before.values()))
    for name, score in scores.items():
        if score.isnan().any():
            raise ValueError(f"the scores of {name} hold NaN; has training diverged?")
    sizes = torch.cat([_units(before[name], score.shape).flatten() for name, score in scores.items()])
    flat = torch.cat([score.flatten() for score in scores.values()])
    order = flat.masked_fill(sizes == 0, -torch.inf).argsort(descending=True, stable=True)
    chosen = torch.zeros(len(flat), dtype=torch.bool, device=flat.device)
    chosen[order[_fitting(sizes[order], relus)]] = True
    parts = chosen.split([score.numel() for score in scores.values()])
    return {
        name: part.reshape(score.shape) & before[name]
        for (name, score), part in zip(scores.items(), parts, strict=True)
    }


def drawn(model: nn.Module, granularity: str, seed: int) -> dict[str, Tensor]:
    """Uniformly random scores for :func:`keep_relus`, of single ReLUs or of what is kept as a whole."""
    generator = torch.Generator().manual_seed(seed)
    scores = {}
    for name, keep in read(model).items():
        shape = pooled(keep.float(), granularity).shape
        scores[name] = torch.rand(shape, generator=generator, dtype=torch.float64).to(keep.device)
    return scores


def check_count(relus: int, total: int) -> None:
    """Refuse a number of ReLUs to keep that the model does not have.

    Raises:
        ValueError: If it is negative or above the total.
    """
    if not 0 <= relus <= total:
        raise ValueError(f"relus must lie between 0 and {total}, the ReLUs that the model has, got {relus}")


def count(model: nn.Module, image_size: int | None = None) -> pd.DataFrame:
    """The ReLUs of a model, by layer: what private inference has to compare for each image.

    Max-poolings compare as well and are not counted, here as in the papers.

    Args:
        model: With gates or without; left as it is.
        image_size: Height and width of the images in pixels. Not needed for models with gates or of
            :func:`fairlib.build`, which know what they were made for.

    Returns:
        Indexed by layer, in the order of a forward pass; columns ``relus``, those kept, and ``units``, those that
        there were before any was made linear. The stem is called ``stem``: an activation before the stages of a
        residual network, which the papers do not count. ``attrs`` has ``total`` and ``total_without_stem``, sums of
        ``relus``.

    Raises:
        ValueError: If the image size is needed and missing, or the gates are for another one; as :func:`gate` for
            models that have ReLUs without gates.
    """
    found, shape = gates(model), memory_of(model).input_shape
    if found and image_size is not None and shape is not None and shape[-1] != image_size:
        raise ValueError(f"the model was gated for images of {shape[-1]} pixels, not of {image_size}")
    inside = {id(one.activation) for one in found.values()}
    bare = any(isinstance(module, RELUS) and id(module) not in inside for module in model.modules())
    gated = gate(model, None if image_size is None else _blank(model, image_size)) if bare or not found else model
    masks, first = read(gated), stem(gated)
    table = pd.DataFrame(
        {"relus": [int(keep.sum()) for keep in masks.values()], "units": [keep.numel() for keep in masks.values()]},
        index=pd.Index(["stem" if name == first else name for name in masks], name="layer"),
    )
    total = int(table["relus"].sum())
    table.attrs |= {"total": total, "total_without_stem": total - (int(masks[first].sum()) if first else 0)}
    return table


def example(model: nn.Module, data: GroupedDataset | Tensor | None) -> Tensor:
    """Two random inputs in [0, 1] of the shape that a model takes, on its device and of its dtype.

    Raises:
        ValueError: If neither ``data``, of which only the shape is used, nor :func:`fairlib.build` tells the shape.
    """
    shape = memory_of(model).input_shape
    if data is not None:
        shape = (data if isinstance(data, Tensor) else data.inputs).shape[1:]
    elif shape is None:
        raise ValueError(
            "the number of ReLUs depends on the shape of the inputs: give data=, a GroupedDataset or a tensor (N, ...)"
        )
    like = next((tensor for tensor in model.parameters() if tensor.is_floating_point()), torch.empty(0))
    return torch.rand((2, *shape), generator=torch.Generator().manual_seed(0)).to(like)


def stem(model: nn.Module) -> str | None:
    """The gate before the stages of a residual network: the first one, if it is a child of the model by itself.

    The model may lie in others that have no ReLU, such as a normalization and the model in a Sequential.
    """
    names = list(gates(model))
    if not names:
        return None
    inside = _without_common_prefix(names)
    shared = any(len(list(part)) > 1 for _, part in groupby(inside, lambda name: name.split(".")[0]))
    return names[0] if shared and "." not in inside[0] else None


def stages(model: nn.Module) -> dict[str, list[str]]:
    """The gates by stage, in the order of a forward pass, without the stem.

    A stage is what lies in one child of the model, ``layer1`` of a ResNet, if three children or more have several gates
    and end at different resolutions. Else (VGG, MobileNetV2) consecutive gates of one resolution form a stage, called
    ``stage1`` and so on.
    """
    names = [name for name in gates(model) if name != stem(model)]
    resolution = {name: tuple(mask.shape[1:]) for name, mask in read(model).items()}
    child = dict(zip(names, (name.split(".")[0] for name in _without_common_prefix(names)), strict=True))
    children = {name: list(part) for name, part in groupby(names, child.get)}
    ends = [resolution[part[-1]] for part in children.values() if len(part) > 1]
    if len(ends) > 2 and len(set(ends)) == len(ends):
        return children
    runs = groupby(names, resolution.get)
    return {f"stage{number}": list(part) for number, (_, part) in enumerate(runs, start=1)}


def _without_common_prefix(names: Sequence[str]) -> list[str]:
    """Dotted names without the modules that all of them lie in."""
    parts = [name.split(".") for name in names]
    shared = 0
    while all(len(part) > shared + 1 and part[shared] == parts[0][shared] for part in parts):
        shared += 1
    return [".".join(part[shared:]) for part in parts]


def _refuse_change(model: nn.Module, gated: nn.Module, inputs: Tensor) -> None:
    """Refuse a gated copy with other outputs than the model in eval mode, or with other gradients of them.

    With all gates closed, too, it must compute the same with gradients and without: torch's TransformerEncoderLayer has
    a faster way for evaluation, which calls no activation module.
    """
    outputs, gradients = zip(*(_behaviour(each, inputs) for each in (copy.deepcopy(model).eval(), gated)), strict=True)
    same = gradients[0].keys() == gradients[1].keys() and _close(*outputs)
    if not (same and all(_close(gradients[0][name], gradients[1][name]) for name in gradients[0])):
        raise ValueError(
            f"{type(model).__name__} with gates computes something else, or with other gradients. Does an in-place "
            "ReLU change a tensor that is used again, or a module whose ReLUs are functions use torch.no_grad()? Make "
            "every ReLU a module with inplace=False"
        )
    linear = apply(gated, {name: torch.zeros((), dtype=torch.bool) for name in gates(gated)})
    with torch.enable_grad():
        expected = linear(1 * inputs.clone().requires_grad_()).detach()
    with torch.no_grad():
        outputs = linear(inputs)
    if not _close(expected, outputs):
        raise ValueError(
            f"{type(model).__name__} computes something else without gradients, since gates are not called: "
            "a module such as torch's TransformerEncoderLayer has a fast path of its own for evaluation"
        )


def _behaviour(model: nn.Module, inputs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Outputs, and the gradients of a sum of them with respect to the parameters that have one."""
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    with torch.enable_grad():
        outputs = model(inputs)
        if not (parameters and outputs.requires_grad):
            return outputs.detach(), {}
        weights = torch.linspace(1, 2, outputs.numel(), dtype=outputs.dtype, device=outputs.device)
        total = (outputs * weights.reshape(outputs.shape)).sum()
        found = torch.autograd.grad(total, list(parameters.values()), allow_unused=True)
    return outputs.detach(), {name: g for name, g in zip(parameters, found, strict=True) if g is not None}


def _close(one: Tensor, other: Tensor) -> bool:
    scale = float(one.abs().max()) if one.numel() else 0.0
    return torch.allclose(one, other, rtol=1e-3, atol=1e-4 * scale)


def _units(keep: Tensor, shape: torch.Size) -> Tensor:
    """How many kept ReLUs each score of a shape stands for."""
    if keep.shape == shape:
        return keep.long()
    shared = tuple(axis for axis, size in enumerate(shape) if size == 1)
    return keep.sum(shared, keepdim=True)


def _fitting(sizes: Tensor, limit: int) -> Tensor:
    """Positions, in order, of the sizes that fit within a limit after those taken before them."""
    if int(sizes.max()) <= 1:
        return torch.arange(len(sizes), device=sizes.device)[(sizes > 0) & (sizes.cumsum(0) <= limit)]
    taken, left = [], limit
    for position, size in enumerate(sizes.tolist()):
        if 0 < size <= left:
            taken.append(position)
            left -= size
    return torch.tensor(taken, dtype=torch.long, device=sizes.device)


def _blank(model: nn.Module, image_size: int) -> Tensor:
    """Images of a size, with the channels that the model's first layer reads."""
    layers = (module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear))
    first = next(layers, None)
    if not isinstance(first, nn.Conv2d):
        shape = memory_of(model).input_shape
        if shape is None:
            raise ValueError(f"an image size does not tell the inputs of {type(model).__name__}; gate it with its data")
        return torch.empty(1, shape[0], image_size, image_size)
    return torch.empty(1, first.in_channels, image_size, image_size)
