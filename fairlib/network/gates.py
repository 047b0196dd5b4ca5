"""ReLU gates: which ReLUs of a module are kept, and which are the identity or a quadratic.

A gate takes the place of a ReLU. Its buffer ``keep`` says for every unit, a channel at a position,
whether the ReLU is kept; otherwise its input passes unchanged, or through a quadratic if the gate
has the parameter ``quadratic``. While a method learns what to keep, the gate also has a parameter
``alpha`` and mixes the two. The ReLU itself stays a module in the gate.
"""

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby

import pandas as pd
import torch
from torch import Tensor, nn

from fairlib._validation import lookup
from fairlib.data import GroupedDataset
from fairlib.network.channels import example_inputs
from fairlib.network.copying import check_module, copied
from fairlib.network.evaluation import placement
from fairlib.network.masks import check_mask, check_scores
from fairlib.network.memory import memory_of, remember
from fairlib.network.relu_calls import RELUS, refuse_unsplit, split, watch
from fairlib.randomness import generator

_BUFFER, _QUADRATIC = "keep", "quadratic"


class Gate(nn.Module):
    r"""A ReLU that is the identity, or a quadratic, where it is not kept.

    With mask :math:`m \in \{0, 1\}^{C \times H \times W}` the output is
    :math:`m \, \mathrm{ReLU}(x) + (1 - m) \, x`. While ``alpha`` is learned, :math:`\alpha m`
    takes the place of the mask; where the ReLU is kept, the output on negative inputs is
    :math:`(1 - \alpha) x`: one minus a leaky slope. With coefficients :math:`a, b, c` of a channel,
    :math:`a x^2 + b x + c` takes the place of the :math:`x` outside the ReLU.

    Args:
        activation: The ReLU, an ``nn.ReLU``, ``nn.ReLU6`` or ``nn.LeakyReLU``; the gate holds a
            copy.
        shape: Shape of the ReLU's output without the batch, ``(C, H, W)`` or ``(D,)``.
        position: Place of the gate in the order in which a forward pass calls the gates of its
            model.

    Attributes:
        keep: Buffer, uint8 ``shape``, 1 where the ReLU is kept, else 0; torch cannot average
            buffers of bools.
        alpha: Parameter while it is learned (:func:`relax`), else None.
        quadratic: Parameter ``(C, 3, 1, 1)`` or ``(D, 3)``, or None: :math:`\sqrt{HW}` times the
            ``coefficients`` of x squared, x and 1. Whichever method takes ReLUs of this gate later,
            they become quadratics.

    Source:
        Cho et al., Selective network linearization for efficient private inference (ICML 2022).
    """

    keep: Tensor
    alpha: nn.Parameter | None
    quadratic: nn.Parameter | None

    def __init__(self, activation: nn.Module, shape: Sequence[int], position: int = 0):
        super().__init__()
        self.activation, self.position = copy.deepcopy(activation), position
        if isinstance(self.activation, RELUS):
            self.activation.inplace = False
        self.register_buffer(_BUFFER, torch.ones(*shape, dtype=torch.uint8))
        self.register_parameter("alpha", None)
        self.register_parameter(_QUADRATIC, None)

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute the ReLU of inputs ``(N, *shape)`` where it is kept, and pass on the others, or
        their quadratics.

        Raises:
            ValueError: If the inputs have another shape: the gates of a network belong to one image
                size.
        """
        if inputs.shape[1:] != self.keep.shape:
            raise ValueError(
                f"a gate of {tuple(self.keep.shape)} ReLUs met inputs "
                f"(N, *{tuple(inputs.shape[1:])}): the model was gated for another image size; "
                "gate the original model for this one"
            )
        active = self.activation(inputs)
        share = self.keep if self.alpha is None else self.alpha * self.keep
        if (quadratics := self.coefficients) is not None:
            square, slope, offset = quadratics.to(inputs.dtype).unbind(1)
            inputs = (square * inputs + slope) * inputs + offset
        # Exact at 0 and 1, and faster than torch.where.
        return torch.lerp(inputs, active, share.to(inputs.dtype))

    @property
    def coefficients(self) -> Tensor | None:
        """Coefficients of the quadratics, ``(C, 3, 1, 1)`` or ``(D, 3)``; None without any."""
        # The gradient of a coefficient is a sum over all places of its channel. In the units of the
        # parameter a step moves it by their mean, as if each place had its own. Otherwise a
        # learning rate that is right for the weights lets the quadratics of large layers run away:
        # the loss stays finite, and the network comes to answer with one class.
        return None if self.quadratic is None else self.quadratic / self.keep[0].numel() ** 0.5


def gate(model: nn.Module, data: GroupedDataset | Tensor | None = None) -> nn.Module:
    """Copy a model, in eval mode, with every ReLU in a ``Gate`` that keeps all of it.

    A ReLU that a module calls as a function, or an ``nn.ReLU`` that is called several times in a
    forward pass (the blocks of torchvision's ResNets do that), is split by call site
    (:mod:`fairlib.network.relu_calls`): the module that calls it gets a submodule for each call.
    The copy is checked to compute what the model computes, with the same gradients. Gates that the
    model has stay as they are. ReLUs that run in training only stay ReLUs.

    Args:
        model: Left as it is.
        data: A data set or a tensor of inputs ``(N, ...)``; only its shape is used, on which the
            number of ReLUs depends. Not needed for models of :func:`fairlib.build`, which know what
            they were built for.

    Raises:
        ValueError: If the shape of the inputs is not known or the model does not take it, the model
            has no ReLU, an activation is no ReLU, a module that must be split cannot be, the gates
            of the model are for another shape, or the gated copy computes something else.

    Example:
        >>> import torch
        >>> from fairlib.linearization import count, gate
        >>> layers = torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)
        >>> model = torch.nn.Sequential(*layers)
        >>> count(gate(model, torch.zeros(1, 3))).attrs["total"]
        4
    """
    check_module("model", model)
    gated = copied(model).eval()
    inputs = example(gated, data)
    seen = watch(gated, inputs)
    if callers := seen.to_split():
        for name in callers:
            split(gated, name)
        seen = watch(gated, inputs)
        refuse_unsplit(gated, seen)
    for position, call in enumerate(seen.calls):
        activation, caller = gated.get_submodule(call.name), gated.get_submodule(call.caller)
        if isinstance(caller, Gate):
            caller.position = position
        elif activation is gated:
            raise ValueError(
                f"the model is a {type(model).__name__} and nothing else; put it into a Sequential"
            )
        else:
            _replace(gated, activation, Gate(activation, call.shape, position))
    if not gates(gated):
        raise ValueError(f"{type(model).__name__} has no ReLU to gate")
    _refuse_change(model, gated, inputs)
    return remember(gated, input_shape=tuple(inputs.shape[1:]))


def insert_gates(model: nn.Module, state_dict: Mapping[str, Tensor]) -> nn.Module:
    """Put a gate in the place of every ReLU that has one in a saved state, in place.

    Args:
        model: Its ReLUs become gates that keep all of them, called in the order of the state.
        state_dict: The state of a gated model; only names and shapes of its masks and quadratics
            are used.

    Returns:
        The model.

    Raises:
        ValueError: If the model has no module of a gate's name.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    for position, (key, mask) in enumerate(state_dict.items()):
        name, _, last = key.rpartition(".")
        if last != _BUFFER:
            continue
        if name not in modules:
            raise ValueError(
                f"there is a gate for {name}, and this {type(model).__name__} has no module of "
                "that name; where gating has split a ReLU that is called several times, call "
                "fairlib.linearization.gate first"
            )
        # A module that is no ReLU has a buffer of this name that is somebody else's.
        if isinstance(modules[name], RELUS):
            _replace(model, modules[name], Gate(modules[name], mask.shape, position))
        found, quadratic = model.get_submodule(name), state_dict.get(f"{name}.{_QUADRATIC}")
        if isinstance(found, Gate) and quadratic is not None:
            found.quadratic = nn.Parameter(torch.empty_like(quadratic, device=found.keep.device))
    return model


def gates(model: nn.Module) -> dict[str, Gate]:
    """List the gates of a model by name, in the order in which a forward pass calls them."""
    modules = {name: module for name, module in model.named_modules() if isinstance(module, Gate)}
    return dict(sorted(modules.items(), key=lambda item: item[1].position))


def read_gates(model: nn.Module) -> dict[str, Tensor]:
    """Read the masks of the gates: name to bool ``(C, H, W)``, True where the ReLU is kept."""
    return {name: module.keep.view(torch.bool) for name, module in gates(model).items()}


def with_gates(model: nn.Module, keep: Mapping[str, Tensor]) -> nn.Module:
    """Copy a gated model, in eval mode, with other masks.

    Args:
        model: Left as it is.
        keep: Name of a gate to bool ``(C, H, W)``, True where the ReLU is kept, or what broadcasts
            to it. Gates not named keep the mask they have.

    Raises:
        ValueError: If a name is no gate or a mask does not fit.
    """
    masked = copied(model)
    set_gates(masked, keep)
    return masked.eval()


def set_gates(model: nn.Module, keep: Mapping[str, Tensor]) -> None:
    """Set masks of a gated model in place, and end the learning of these gates.

    Args:
        model: Its gates get the masks, and no ``alpha``.
        keep: Name of a gate to bool ``(C, H, W)``, True where the ReLU is kept, or what broadcasts
            to it. Gates not named keep the mask they have.

    Raises:
        ValueError: If a name is no gate or a mask does not fit.
    """
    known = gates(model)
    for name, mask in keep.items():
        target = lookup("gate", name, known)
        try:
            full = mask.expand(target.keep.shape)
        except RuntimeError:
            full = mask  # Refused below.
        check_mask(name, full, target.keep.shape)
        target.keep.copy_(full)
        target.alpha = None


def relax(model: nn.Module) -> None:
    """Begin the learning of every gate, in place: ``alpha`` is 1 where any ReLU is kept, else 0.

    Args:
        model: A gated model.
    """
    dtype = placement(model)[1]
    for one in gates(model).values():
        one.alpha = nn.Parameter(one.keep.to(dtype))


def pooled(values: Tensor, granularity: str) -> Tensor:
    """Average values ``(C, H, W)`` over the ReLUs that are kept or not as a whole.

    Args:
        values: One for each ReLU of a gate.
        granularity: ``"pixel"`` for single ReLUs, ``"channel"`` or ``"layer"``.

    Returns:
        ``(C, H, W)``, ``(C, 1, 1)`` or ``(1, 1, 1)``.

    Raises:
        ValueError: If the granularity is unknown.
    """
    first = lookup("granularity", granularity, {"pixel": values.ndim, "channel": 1, "layer": 0})
    pooled_axes = tuple(range(first, values.ndim))
    # Without this, torch would take no axes for all of them.
    return values.mean(pooled_axes, keepdim=True) if pooled_axes else values


def keep_relus(model: nn.Module, scores: Mapping[str, Tensor], relus: int) -> dict[str, Tensor]:
    """Make masks that keep the ReLUs of highest score in all gates, as many as a budget allows.

    Args:
        model: A gated model; ReLUs that its gates do not keep are not chosen.
        scores: Name of a gate to scores: ``(C, H, W)``, or ``(C, 1, 1)`` and ``(1, 1, 1)`` for
            channels and layers that are kept as a whole.
        relus: How many ReLUs to keep at most. Single ReLUs: exactly so many are kept, equal scores
            in the order of the gates. Whole channels or layers: they are taken in the order of the
            scores as long as they fit.

    Returns:
        Name to bool tensor ``(C, H, W)``.

    Raises:
        ValueError: If a score is NaN, or ``relus`` is negative or more than the gates keep.
    """
    masks = read_gates(model)
    check_relus(relus, sum(int(masks[name].sum()) for name in scores))
    check_scores(scores)
    # The number of ReLUs behind each score, which is 1 or 0 where single ones are scored. Those
    # that an earlier mask has made linear do not count, and are never taken.
    sizes = torch.cat(
        [masks[name].long().sum_to_size(score.shape).flatten() for name, score in scores.items()]
    )
    flat = torch.cat([score.flatten() for score in scores.values()])
    order = flat.masked_fill(sizes == 0, -torch.inf).argsort(descending=True, stable=True)
    taken, left = [], relus
    for position, size in enumerate(sizes[order].tolist()):
        if 0 < size <= left:
            taken.append(position)
            left -= size
    chosen = torch.zeros(len(flat), dtype=torch.bool, device=flat.device)
    chosen[order[taken]] = True
    parts = chosen.split([score.numel() for score in scores.values()])
    return {
        name: part.reshape(score.shape) & masks[name]
        for (name, score), part in zip(scores.items(), parts, strict=True)
    }


def drawn(model: nn.Module, granularity: str, seed: int) -> dict[str, Tensor]:
    """Draw uniformly random scores for :func:`keep_relus`.

    Args:
        model: A gated model.
        granularity: Unit that gets a score: each ReLU (``"pixel"``), channel (``"channel"``) or
            layer (``"layer"``).
        seed: Seed of the scores.

    Returns:
        Name of a gate to float64 ``(C, H, W)``, ``(C, 1, 1)`` or ``(1, 1, 1)`` in [0, 1).
    """
    draw = generator(seed)
    scores = {}
    for name, keep in read_gates(model).items():
        shape = pooled(keep.double(), granularity).shape
        scores[name] = torch.rand(shape, generator=draw, dtype=torch.float64).to(keep.device)
    return scores


def check_relus(relus: int, total: int) -> None:
    """Refuse a number of ReLUs to keep that the model does not have.

    Raises:
        ValueError: If it is negative or above the total.
    """
    if not 0 <= relus <= total:
        raise ValueError(
            f"relus must lie between 0 and {total}, the ReLUs that the model has, got {relus}"
        )


def count(model: nn.Module, image_size: int | None = None) -> pd.DataFrame:
    """Count the ReLUs of a model by layer: the comparisons of private inference for each image.

    Max-poolings compare as well and are not counted, here as in the papers.

    Args:
        model: A model with gates or without; left as it is.
        image_size: Height and width of the images in pixels. Not needed for models with gates or of
            :func:`fairlib.build`, which know what they were made for.

    Returns:
        Indexed by layer, in the order of a forward pass; columns ``relus``, the ReLUs that are
        kept, and ``units``, the ReLUs that there were before any was made linear. The stem is
        called ``stem``: an activation before the stages of a residual network, which the papers do
        not count. ``attrs`` has ``total`` and ``total_without_stem``, sums of ``relus``.

    Raises:
        ValueError: If the image size is needed and missing, the gates are for another one, or the
            model has ReLUs without gates that :func:`gate` refuses.

    Example:
        >>> import fairlib
        >>> digits = fairlib.load("digits").train
        >>> cnn = fairlib.build("cnn", like=digits)
        >>> model = fairlib.linearize(cnn, "random", data=digits, relus=100, finetune=0)
        >>> table = fairlib.linearization.count(model)
        >>> table.attrs["total"], int(table["relus"].sum())
        (100, 100)
        >>> list(table.index)
        ['features.1', 'features.4', 'classifier.1', 'classifier.3']
    """
    known, shape = gates(model), memory_of(model).input_shape
    if known and image_size is not None and shape is not None and shape[-1] != image_size:
        raise ValueError(
            f"the model was gated for images of {shape[-1]} pixels, not of {image_size}"
        )
    # Each gate holds a ReLU: any more of them are not gated yet.
    if not known or sum(isinstance(module, RELUS) for module in model.modules()) > len(known):
        model = gate(model, None if image_size is None else _blank(model, image_size))
    masks, first = read_gates(model), stem(model)
    table = pd.DataFrame(
        [(int(keep.sum()), keep.numel()) for keep in masks.values()],
        columns=["relus", "units"],
        index=pd.Index(["stem" if name == first else name for name in masks], name="layer"),
    )
    total = int(table["relus"].sum())
    of_stem = int(masks[first].sum()) if first else 0
    table.attrs |= {"total": total, "total_without_stem": total - of_stem}
    return table


def example(model: nn.Module, data: GroupedDataset | Tensor | None) -> Tensor:
    """Make two inputs of the shape that a model takes, on its device and of its dtype.

    Args:
        model: The model that takes the inputs.
        data: A data set or a tensor of inputs ``(N, ...)``; only its shape is used. Not needed for
            models of :func:`fairlib.build`, which know what they were built for.

    Raises:
        ValueError: If neither tells the shape.
    """
    if data is None:
        shape = memory_of(model).input_shape
        if shape is None:
            raise ValueError(
                "the number of ReLUs depends on the inputs: give data=, a GroupedDataset or a "
                "tensor (N, ...)"
            )
        data = torch.empty(1, *shape)
    return example_inputs(model, data, count=2)


def stem(model: nn.Module) -> str | None:
    """Name the gate before the stages of a residual network, or None if there is none.

    It is the first gate, if no other is in its child of the model. The model may be in a Sequential
    with others that have no ReLU, such as a normalization.
    """
    names = list(gates(model))
    paths = _paths(names)
    several = Counter(path[0] for path in paths).most_common(1)
    return names[0] if paths and several[0][1] > 1 and len(paths[0]) == 1 else None


def stages(model: nn.Module) -> dict[str, list[str]]:
    """List the gates by stage, in the order of a forward pass, without the stem.

    A stage is a child of the model, ``layer1`` of a ResNet, if three children or more have several
    gates and end at different resolutions. Otherwise (VGG, MobileNetV2) consecutive gates of one
    resolution form a stage, called ``stage1`` and so on.
    """
    names = [name for name in gates(model) if name != stem(model)]
    resolution = {name: mask.shape[1:] for name, mask in read_gates(model).items()}
    children: dict[str, list[str]] = {}
    for name, path in zip(names, _paths(names), strict=True):
        children.setdefault(path[0], []).append(name)
    ends = [resolution[child[-1]] for child in children.values() if len(child) > 1]
    if len(ends) > 2 and len(set(ends)) == len(ends):
        return children
    runs = [list(run) for _, run in groupby(names, resolution.get)]
    return {f"stage{number}": run for number, run in enumerate(runs, start=1)}


def _paths(names: Sequence[str]) -> list[list[str]]:
    """Split dotted names, without the modules that hold all of them."""
    paths = [name.split(".") for name in names]
    while paths and all(len(path) > 1 and path[0] == paths[0][0] for path in paths):
        paths = [path[1:] for path in paths]
    return paths


def _replace(model: nn.Module, relu: nn.Module, by: Gate) -> None:
    """Put a gate, in eval mode, in the place of a ReLU, under every name that the ReLU has."""
    by.to(placement(model)[0]).eval()
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if module is relu:
            model.set_submodule(name, by)
            layer = model.get_submodule(name.rpartition(".")[0])
            if isinstance(layer, nn.TransformerEncoderLayer):
                # Switches off its faster way for evaluation, which calls no activation module.
                layer.activation_relu_or_gelu = 0


def _refuse_change(model: nn.Module, gated: nn.Module, inputs: Tensor) -> None:
    """Refuse a gated copy with other outputs than the model in eval mode, or other gradients."""
    before = _behaviour(copied(model).eval(), inputs)
    after = _behaviour(gated, inputs)
    if len(before) != len(after) or not all(map(_close, before, after)):
        raise ValueError(
            f"{type(model).__name__} with gates computes something else, or with other gradients "
            "(an in-place ReLU on what is used again? functions under torch.no_grad()?); make "
            "every ReLU a module with inplace=False"
        )


def _behaviour(model: nn.Module, inputs: Tensor) -> list[Tensor]:
    """Compute the outputs, and the gradients of a weighted sum of them by each parameter."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with torch.enable_grad():
        outputs = model(inputs.clone())
        if not (parameters and outputs.requires_grad):
            return [outputs.detach()]
        weights = torch.linspace(1, 2, outputs.numel()).to(outputs).view_as(outputs)
        gradients = torch.autograd.grad(outputs, parameters, weights, materialize_grads=True)
    return [outputs.detach(), *gradients]


def _close(one: Tensor, other: Tensor) -> bool:
    scale = float(one.abs().max()) if one.numel() else 0.0
    return torch.allclose(one, other, rtol=1e-3, atol=1e-4 * scale)


def _blank(model: nn.Module, image_size: int) -> Tensor:
    """Make images of a size, with the channels that the model was built for or reads first."""
    layers = (layer for layer in model.modules() if isinstance(layer, nn.Conv2d | nn.Linear))
    built_for = memory_of(model).input_shape
    channels = built_for[0] if built_for else getattr(next(layers, None), "in_channels", None)
    if channels is None:
        raise ValueError(
            f"an image size does not tell the inputs of {type(model).__name__}; gate it with its "
            "data"
        )
    return torch.empty(1, channels, image_size, image_size)
