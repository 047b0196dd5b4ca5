"""ReLU gates: which ReLUs of a module are kept, and which are the identity.

A gate stands where a ReLU stood. Its buffer ``keep`` says for every unit, a channel at a position, whether the ReLU is
kept; what is not kept passes as it is. While a method learns what to keep, the gate also has a parameter ``alpha`` and
mixes the two. What computes the ReLU stays a module of its own in the gate.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import pandas as pd
import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node, Tracer
from torch.nn.functional import relu, relu6
from torch.utils._python_dispatch import TorchDispatchMode

from fairlib._validation import lookup
from fairlib.data import GroupedDataset

GRANULARITIES = ("pixel", "channel", "layer")

_GATED = (nn.ReLU, nn.ReLU6, nn.LeakyReLU)
_NO_ACTIVATIONS = (nn.Softmax, nn.Softmax2d, nn.LogSoftmax, nn.Softmin, nn.MultiheadAttention)
_BUFFER = "keep"

# What torch's tracer shows where a module is not called but a function, and the module that does the same.
_FUNCTIONS = {torch.relu: nn.ReLU, torch.relu_: nn.ReLU, relu: nn.ReLU, relu6: nn.ReLU6}
_METHODS = {"relu": nn.ReLU, "relu_": nn.ReLU}

_aten = torch.ops.aten
_OPERATORS = {
    _aten.relu,
    _aten.relu_,
    _aten.leaky_relu,
    _aten.leaky_relu_,
    _aten.hardtanh,
    _aten.hardtanh_,
}
_CLAMPS = {_aten.clamp, _aten.clamp_, _aten.clamp_min, _aten.clamp_min_}  # ReLUs where the minimum is zero.


class Gate(nn.Module):
    r"""A ReLU that is the identity where it is not kept.

    With mask :math:`m \in \{0, 1\}^{C \times H \times W}` the output is
    :math:`m \, \mathrm{ReLU}(x) + (1 - m) \, x`. While ``alpha`` is learned it stands in the place of the mask, and
    the output on negative inputs is :math:`(1 - \alpha) x`: one minus a leaky slope.

    Args:
        activation: What the gate opens and closes; ``nn.ReLU``, ``nn.ReLU6`` or ``nn.LeakyReLU``.
        shape: Of its output without the batch, ``(C, H, W)`` or ``(D,)``.

    Attributes:
        keep: Buffer, bool of that shape, True where the ReLU is kept.
        alpha: Parameter while it is learned (:func:`relax`), else None.

    Source:
        Cho et al., Selective network linearization for efficient private inference (ICML 2022).
    """

    keep: Tensor

    def __init__(self, activation: nn.Module, shape: Sequence[int]):
        super().__init__()
        self.activation = copy.deepcopy(activation)
        if hasattr(activation, "inplace"):
            self.activation.inplace = False
        self.register_buffer(_BUFFER, torch.ones(*shape, dtype=torch.bool))
        self.register_parameter("alpha", None)

    def forward(self, inputs: Tensor) -> Tensor:
        """Inputs and outputs ``(N, *shape)``.

        Raises:
            ValueError: If the inputs have another shape: the gates of a network belong to one image size.
        """
        if inputs.shape[1:] != self.keep.shape:
            raise ValueError(
                f"a gate of {tuple(self.keep.shape)} ReLUs met inputs (N, *{tuple(inputs.shape[1:])}): the model was "
                "gated for another image size, on which the number of ReLUs depends; gate it anew"
            )
        active = self.activation(inputs)
        share = self.keep if self.alpha is None else self.alpha
        return torch.lerp(inputs, active, share.to(inputs.dtype))  # Exact at 0 and 1, and faster than torch.where.

    def extra_repr(self) -> str:
        return f"shape={tuple(self.keep.shape)}" + (", learning" if self.alpha is not None else "")


def gate(model: nn.Module, data: GroupedDataset | Tensor | None = None) -> nn.Module:
    """A copy of a model, in eval mode, in which every ReLU is a :class:`fairlib.gates.Gate` that keeps it.

    A ReLU that a module calls as a function, or an ``nn.ReLU`` that is called several times in a forward pass (the
    blocks of torchvision's ResNets do that), is split by call site with ``torch.fx``: the module that calls it becomes
    a ``torch.fx.GraphModule`` with the same parameters under the same names, and a ReLU for each call. The copy is
    checked to compute what the model computes. A model that has gates keeps them as they are.

    Args:
        model: Left as it is.
        data: A data set or a tensor of inputs ``(N, ...)``; only its shape is used, on which the number of ReLUs
            depends. Not needed for models of :func:`fairlib.build`, which know what they were built for.

    Raises:
        ValueError: If the shape of the inputs is not known, the model has no ReLU or an activation that is none, a
            module that must be split cannot be, or the gated copy computes something else.
    """
    gated = copy.deepcopy(model).eval()
    if gates(gated):
        return gated
    inputs = example(gated, data)
    _refuse_others(gated)
    seen = _watch(gated, inputs)
    for caller in seen.to_split():
        gated = _split(gated, caller)
    if seen.to_split():
        seen = _watch(gated, inputs)
        _refuse_unsplit(seen, gated)
    if not seen.calls:
        raise ValueError(f"{type(model).__name__} has no ReLU to gate")
    names: dict[int, list[str]] = {}
    for name, module in gated.named_modules(remove_duplicate=False):
        names.setdefault(id(module), []).append(name)
    for call in seen.calls:
        activation = gated.get_submodule(call.name)
        replacement = Gate(activation, call.shape).to(inputs.device).eval()
        for name in names[id(activation)]:
            if name == "":
                raise ValueError(f"the model is a {type(model).__name__} and nothing else; put it into a Sequential")
            gated.set_submodule(name, replacement)
    with torch.no_grad():
        before, after = copy.deepcopy(model).eval()(inputs), gated(inputs)
    if not torch.allclose(before, after, rtol=1e-4, atol=1e-6 * float(before.abs().max())):
        raise ValueError(
            f"{type(model).__name__} with gates computes something else; does an in-place ReLU change a tensor that is "
            "used again? Make every ReLU a module with inplace=False"
        )
    gated.input_shape = tuple(inputs.shape[1:])
    return gated


def install(model: nn.Module, state_dict: Mapping[str, Tensor]) -> nn.Module:
    """The model, in which a gate stands in the place of every ReLU that has one in ``state_dict``.

    Raises:
        ValueError: If the model has no ReLU of a gate's name.
    """
    for key, mask in state_dict.items():
        name, _, last = key.rpartition(".")
        if last != _BUFFER:
            continue
        activation = dict(model.named_modules()).get(name)
        if isinstance(activation, _GATED):
            model.set_submodule(name, Gate(activation, mask.shape).to(mask.device).eval())
        elif not isinstance(activation, Gate):
            raise ValueError(
                f"there is a gate for {name}, which is no ReLU of this {type(model).__name__}; gating splits ReLUs "
                "that are called several times: give the module through fairlib.linearization.gate first"
            )
    return model


def gates(model: nn.Module) -> dict[str, Gate]:
    """The gates of a model by name, in the order of its modules."""
    return {name: module for name, module in model.named_modules() if isinstance(module, Gate)}


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
    for module in gates(model).values():
        start = pooled(module.keep.float(), granularity) > 0
        module.alpha = nn.Parameter(start.to(torch.get_default_dtype()))


def pooled(values: Tensor, granularity: str) -> Tensor:
    """The mean of ``(C, H, W)`` over what belongs together: ``(C, H, W)``, ``(C, 1, 1)`` or ``(1, 1, 1)``.

    Raises:
        ValueError: If the granularity is unknown.
    """
    lookup("granularity", granularity, dict.fromkeys(GRANULARITIES))
    first = {"pixel": values.ndim, "channel": 1, "layer": 0}[granularity]
    return values.mean(tuple(range(first, values.ndim)), keepdim=True) if first < values.ndim else values


def keep_highest(model: nn.Module, scores: Mapping[str, Tensor], relus: int) -> dict[str, Tensor]:
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
    before = {name: read(model)[name] for name in scores}
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
    """Uniformly random scores for :func:`keep_highest`, of single ReLUs or of what is kept as a whole."""
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
        Indexed by layer, in the order of the forward pass for a model without gates; columns ``relus``, those kept, and
        ``units``, those that there were before any was made linear. The stem is called ``stem``: an activation before
        the stages of a residual network, which the papers do not count. ``attrs`` has ``total`` and
        ``total_without_stem``, sums of ``relus``.

    Raises:
        ValueError: If the image size is needed and missing, or the gates are for another one; as :func:`gate` for
            models without gates.
    """
    found = gates(model)
    if found and image_size is not None and getattr(model, "input_shape", (image_size,))[-1] != image_size:
        raise ValueError(f"the model was gated for images of {model.input_shape[-1]} pixels, not of {image_size}")
    gated = model if found else gate(model, None if image_size is None else _blank(model, image_size))
    masks = read(gated)
    names = {stem(gated): "stem"}
    table = pd.DataFrame(
        {"relus": [int(keep.sum()) for keep in masks.values()], "units": [keep.numel() for keep in masks.values()]},
        index=pd.Index([names.get(name, name) for name in masks], name="layer"),
    )
    total = int(table["relus"].sum())
    table.attrs |= {"total": total, "total_without_stem": total - int(table["relus"].get("stem", 0))}
    return table


def example(model: nn.Module, data: GroupedDataset | Tensor | None) -> Tensor:
    """Two random inputs in [0, 1] of the shape that a model takes, on its device and of its dtype.

    Raises:
        ValueError: If neither ``data``, of which only the shape is used, nor :func:`fairlib.build` tells the shape.
    """
    if data is not None:
        shape = (data if isinstance(data, Tensor) else data.inputs).shape[1:]
    elif hasattr(model, "input_shape"):
        shape = model.input_shape
    else:
        raise ValueError(
            "the number of ReLUs depends on the shape of the inputs: give data=, a GroupedDataset or a tensor (N, ...)"
        )
    like = next((tensor for tensor in model.parameters() if tensor.is_floating_point()), torch.empty(0))
    return torch.rand((2, *shape), generator=torch.Generator().manual_seed(0)).to(like)


def stem(model: nn.Module) -> str | None:
    """The gate before the stages of a residual network: alone in its child of the model, while others share theirs."""
    names = list(gates(model))
    children = [name.split(".")[0] for name in names]
    first = names[0] if names else None
    shared = any(children.count(child) > 1 for child in children)
    return first if first and shared and children.count(children[0]) == 1 and first == children[0] else None


def stages(model: nn.Module) -> dict[str, list[str]]:
    """The gates by stage, in order, without the stem.

    A stage is a child of the model with several gates (``layer1`` of a ResNet). Where there are fewer than two of
    these (VGG), consecutive gates of one resolution form a stage, called ``stage1`` and so on.
    """
    names = [name for name in gates(model) if name != stem(model)]
    children = {child: list(part) for child, part in groupby(names, lambda name: name.split(".")[0])}
    if sum(len(part) > 1 for part in children.values()) > 1 and stem(model) is not None:
        return children
    masks = read(model)
    runs = groupby(names, lambda name: tuple(masks[name].shape[1:]))
    return {f"stage{number}": list(part) for number, (_, part) in enumerate(runs, start=1)}


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
        shape = getattr(model, "input_shape", None)
        if shape is None:
            raise ValueError(f"an image size does not tell the inputs of {type(model).__name__}; gate it with its data")
        return torch.empty(1, shape[0], image_size, image_size)
    return torch.empty(1, first.in_channels, image_size, image_size)


def _refuse_others(model: nn.Module) -> None:
    for name, module in model.named_modules():
        kind = type(module)
        is_activation = kind.__module__ == "torch.nn.modules.activation" and not isinstance(module, _NO_ACTIVATIONS)
        if is_activation and not isinstance(module, _GATED):
            raise ValueError(
                f"{name} is a {kind.__name__}, which is no ReLU: it can be neither gated nor counted; replace it by "
                f"one of {', '.join(gated.__name__ for gated in _GATED)} and train the model again"
            )


@dataclass(frozen=True)
class _Call:
    """A ReLU module was called: its name, the name of the module that called it, the shape of its output."""

    name: str
    caller: str
    shape: tuple[int, ...]


@dataclass
class _Seen:
    """What happened in a forward pass, in order."""

    calls: list[_Call] = field(default_factory=list)
    functions: list[str] = field(default_factory=list)  # Names of the modules that called a ReLU as a function.

    def repeated(self) -> list[_Call]:
        names = [call.name for call in self.calls]
        return [call for call in self.calls if names.count(call.name) > 1]

    def to_split(self) -> list[str]:
        """The modules that call a function, or a ReLU module that is called more than once; inner ones first."""
        callers = {*self.functions, *(call.caller for call in self.repeated())}
        return sorted(callers, key=lambda name: (-name.count("."), name))


class _Functions(TorchDispatchMode):
    """Notes which module computes a ReLU that is no module."""

    def __init__(self, stack: list[tuple[str, nn.Module]], seen: _Seen):
        super().__init__()
        self.stack, self.seen = stack, seen

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        packet = function.overloadpacket
        is_relu = packet in _OPERATORS or (packet in _CLAMPS and args[1:] in ((0,), (0, None)) and not kwargs)
        if is_relu and not isinstance(self.stack[-1][1], _GATED):
            self.seen.functions.append(self.stack[-1][0])
        return function(*args, **(kwargs or {}))


def _watch(model: nn.Module, inputs: Tensor) -> _Seen:
    """Run a model and note its ReLUs."""
    seen, stack = _Seen(), []
    handles = []

    def enter(name: str):
        return lambda module, _: stack.append((name, module))

    def leave(module: nn.Module, _: object, output: object) -> None:
        name, _ = stack.pop()
        if isinstance(module, _GATED):
            seen.calls.append(_Call(name, stack[-1][0] if stack else "", tuple(output.shape[1:])))

    for name, module in model.named_modules():
        handles += [module.register_forward_pre_hook(enter(name)), module.register_forward_hook(leave)]
    try:
        with torch.no_grad(), _Functions(stack, seen):
            model(inputs)
    finally:
        for handle in handles:
            handle.remove()
    return seen


class _Shallow(Tracer):
    """Traces one module, without what is below."""

    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        return True


def _split(model: nn.Module, caller: str) -> nn.Module:
    """The model, with one module replaced by its graph, in which every call of a ReLU is a module of its own."""
    module = model.get_submodule(caller)
    own = f"{caller or 'the model'} ({type(module).__name__})"
    fix = "give every call an nn.ReLU of its own in its __init__"
    try:
        graph, training = (_trace(module, mode) for mode in (False, True))
    except Exception as error:
        raise ValueError(
            f"{own} calls ReLUs as functions or one nn.ReLU several times, and torch.fx cannot trace it "
            f"({type(error).__name__}: {error}); {fix}"
        ) from error
    if str(graph) != str(training):
        raise ValueError(
            f"{own} calls ReLUs as functions or one nn.ReLU several times, and does something else in training than in "
            f"evaluation, so that its graph cannot stand for it; {fix}"
        )
    # The children are taken over, not copied: other modules may share them.
    holder = nn.Module()
    holder.__dict__.update({key: value for key, value in module.__dict__.items() if key not in ("_modules",)})
    holder._modules = dict(module._modules)
    used: set[str] = set()
    for node in list(graph.nodes):
        activation = _activation_of(node, holder)
        if activation is None:
            continue
        name = _free_name(node.target.replace(".", "_") if node.op == "call_module" else "relu", holder, used)
        holder._modules[name] = activation
        used.add(name)
        with graph.inserting_before(node):
            replacement = graph.call_module(name, (node.all_input_nodes[0],))
        node.replace_all_uses_with(replacement)
        graph.erase_node(node)
    traced = GraphModule(holder, graph, class_name=type(module).__name__)
    for hooks in ("_forward_pre_hooks", "_forward_hooks"):
        getattr(traced, hooks).update(getattr(module, hooks))
    traced.eval()
    if caller == "":
        return traced
    for name, other in list(model.named_modules(remove_duplicate=False)):
        if other is module:
            model.set_submodule(name, traced)
    return model


def _trace(module: nn.Module, training: bool) -> Graph:
    modes = [(part, part.training) for part in module.modules()]
    module.train(training)
    try:
        return _Shallow().trace(module)
    finally:
        for part, mode in modes:
            part.training = mode


def _activation_of(node: Node, module: nn.Module) -> nn.Module | None:
    """A ReLU of its own for a node that calls one; None for other nodes."""
    if node.op == "call_module":
        called = module.get_submodule(node.target)
        return copy.deepcopy(called) if isinstance(called, _GATED) else None
    kind = {"call_function": _FUNCTIONS, "call_method": _METHODS}.get(node.op, {}).get(node.target)
    return kind() if kind else None


def _free_name(wanted: str, module: nn.Module, used: set[str]) -> str:
    """``wanted`` for the first call of a module of that name, then ``wanted_2`` and so on."""
    taken = isinstance(module._modules.get(wanted), _GATED) and wanted not in used
    if taken or wanted not in module._modules:
        return wanted
    number = 2
    while f"{wanted}_{number}" in module._modules:
        number += 1
    return f"{wanted}_{number}"


def _refuse_unsplit(seen: _Seen, model: nn.Module) -> None:
    """After splitting: refuse what is still no ReLU module of its own.

    Raises:
        ValueError: Naming the module, with the fix.
    """
    if seen.functions:
        name = seen.functions[0]
        raise ValueError(
            f"{name or 'the model'} ({type(model.get_submodule(name)).__name__}) computes a ReLU by a function that "
            "cannot be swapped; make it an nn.ReLU in its __init__"
        )
    if seen.repeated():
        call = seen.repeated()[0]
        times = sum(other.name == call.name for other in seen.calls)
        raise ValueError(
            f"{call.name} is called {times} times in a forward pass, since the module around it is; give every call "
            "a module of its own"
        )
