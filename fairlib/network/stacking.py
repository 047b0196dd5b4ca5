"""Several networks of one architecture as a single one that computes the same, but faster.

For small networks most of a step is launch overhead: the way from one operation to the next.
Stacked, k members take one operation where they took k: a convolution has k times the channels in k
times the groups, normalization has k times the channels, and a linear layer is one batched product.
Source: Wang et al., Horizontally fused training array (MLSys 2021).
"""

import copy
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from fairlib.network import keeping, masks
from fairlib.network.copying import copied

_ANY_WIDTH = (nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d)
WIDER: dict[type[nn.Module], tuple[str, ...]] = {
    **dict.fromkeys((*_ANY_WIDTH, nn.Identity, nn.Sequential, nn.Linear), ()),
    nn.Conv2d: ("in_channels", "out_channels", "groups"),
    nn.BatchNorm1d: ("num_features",),
    nn.BatchNorm2d: ("num_features",),
}
"""Attributes to multiply by k when k modules of a class are stacked."""

_OURS = ("fairlib.models.", "fairlib.network.gates", "fairlib.network.factors")


def obstacle(model: nn.Module) -> str | None:
    """Say why a network cannot be a member of a stack, or None if it can.

    Returns:
        The end of a sentence with "since".
    """
    for module in model.modules():
        kind = type(module)
        flattens = kind is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1)
        if not (kind.__module__.startswith(_OURS) or kind in WIDER or flattens):
            return f"a {kind.__name__} is computed one network at a time"
        padding, alpha = getattr(module, "padding_mode", "zeros"), getattr(module, "alpha", None)
        if padding != "zeros" or alpha is not None:
            return f"a {kind.__name__} of these settings is computed one network at a time"
        if reason := hooked(module):
            return reason
    if keeping.kept(model, keeping.BITS):
        return "rounded weights are computed one network at a time"
    tensors = [tensor for _, _, tensor in _tensors(model)]
    # Along its first axis a single number cannot be joined, and a shared tensor would be joined
    # twice: its two copies would then be trained apart.
    if any(isinstance(tensor, nn.Parameter) and not tensor.ndim for tensor in tensors):
        return "a parameter is a single number"
    if len(set(map(id, tensors))) < len(tensors):
        return "two of their modules share a tensor"
    return None


def hooked(module: nn.Module) -> str | None:
    """Say that somebody else's code takes part in a module's passes, or None if none does."""
    hooks = [
        *module._forward_pre_hooks.values(),
        *module._forward_hooks.values(),
        *module._backward_pre_hooks.values(),
        *module._backward_hooks.values(),
    ]
    # The hooks of masks only mask gradients, which a stack does by its joint masks.
    if "forward" in vars(module) or any(hook.__module__ != keeping.__name__ for hook in hooks):
        kind = type(module).__name__
        return f"hooks, or a forward of its own, change what a {kind} computes"
    return None


def form(model: nn.Module) -> dict[str, object]:
    """Return properties that members of a stack must share, keyed by the message if they differ."""
    modules = []
    for name, module in model.named_modules():
        # Settings that shape the output of a module, of any kind, are of one of these types.
        settings = {
            key: value
            for key, value in vars(module).items()
            if isinstance(value, (int, float, str, tuple, type(None))) and key != "training"
        }
        modules.append((name, type(module), settings))
    # Members may have different masks, so masks are left out: see Stack.
    tensors = [entry for entry in _tensors(model) if entry[1] != "weight_mask"]
    shapes = [
        (prefix, name, tensor.shape, tensor.dtype, tensor.requires_grad)
        for prefix, name, tensor in tensors
    ]
    # BatchNorm counts its steps in a single number, which a stack has once for all members.
    counts = [tensor.item() for _, _, tensor in tensors if not tensor.ndim]
    return {
        "they are not of one architecture": (modules, shapes),
        "they were trained for different numbers of steps": counts,
    }


def agrees(model: nn.Module, inputs: Tensor) -> bool:
    """Tell whether two of a model, stacked, compute the model's outputs of one batch in eval mode.

    A module of unknown code may mix up the members in its ``forward``; only a trial shows that.
    """
    alone = copied(model).eval()
    stack = Stack([copy.deepcopy(alone), copy.deepcopy(alone)]).eval()
    with torch.no_grad():
        try:
            found, expected = stack(torch.cat([inputs, inputs])), torch.cat([alone(inputs)] * 2)
            return torch.allclose(found, expected, atol=1e-4)
        except (IndexError, RuntimeError, TypeError, ValueError):
            return False


class Stack(nn.Module):
    """Networks of one architecture as one module, whose parameters and buffers the networks share.

    Every tensor of the stack holds the members' tensors one after the other along the first axis.
    The members' tensors become views of it, in place, until :meth:`release`: a loop that trains the
    stack trains them, and each can be evaluated.

    Args:
        members: At least one network; :func:`obstacle` is None for each, and :func:`form` the same
            for all. If one has a mask that another lacks, the other gets one in the stack that
            keeps all. Weights of convolutions are channels-last.
    """

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        # A tuple, so that torch does not register the members: their parameters are views of the
        # stack's, and an optimizer would step them twice.
        self.members, count = tuple(members), len(members)
        self.net = copy.deepcopy(members[0])
        missing = {
            name: torch.ones_like(mask)
            for member in members[1:]
            for name, mask in masks.read_masks(member).items()
            if name not in masks.read_masks(self.net)
        }
        masks.set_masks(self.net, missing)
        for module in self.net.modules():
            for name in WIDER.get(type(module), ()):
                setattr(module, name, count * getattr(module, name))
            if type(module) is nn.Linear:
                module.__class__ = _StackedLinear
        for prefix, name, tensor in list(_tensors(self.net)):
            self._join(prefix, name, tensor)

    def _join(self, prefix: str, name: str, tensor: Tensor) -> None:
        """Put one tensor of all members, joined, in the place of the first member's."""
        count, parts = len(self.members), []
        for member in self.members:
            part = getattr(member.get_submodule(prefix), name, None)
            # Only a mask can be missing in a member.
            parts.append(torch.ones_like(tensor) if part is None else part)
        joined = torch.cat([part.detach() for part in parts]) if tensor.ndim else tensor.clone()
        if joined.ndim == 4:
            joined = joined.contiguous(memory_format=torch.channels_last)
        if isinstance(tensor, nn.Parameter):
            joined = nn.Parameter(joined, tensor.requires_grad)
        setattr(self.net.get_submodule(prefix), name, joined)
        views = joined.detach().chunk(count) if joined.ndim else [joined] * count
        for part, view in zip(parts, views, strict=True):
            part.data = view

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute the outputs ``(k * B, C)`` of inputs ``(k * B, ...)``, the first B for the first
        member."""
        count = len(self.members)
        parts = inputs.unflatten(0, (count, -1)).transpose(0, 1).flatten(1, 2)
        if parts.ndim == 4:
            parts = parts.contiguous(memory_format=torch.channels_last)
        return self.net(parts).unflatten(1, (count, -1)).transpose(0, 1).flatten(0, 1)

    def release(self) -> None:
        """Give every member tensors that it does not share, in torch's ordinary memory format."""
        for member in self.members:
            for _, _, tensor in _tensors(member):
                tensor.data = tensor.detach().clone(memory_format=torch.contiguous_format)


class _StackedLinear(nn.Linear):
    """Linear layers side by side, ``(B, k * D)`` to ``(B, k * C)``, with weights ``(k * C, D)``."""

    def forward(self, inputs: Tensor) -> Tensor:
        # The attributes still have the sizes of one layer, so -1 is the number of members.
        parts = inputs.unflatten(1, (-1, self.in_features)).transpose(0, 1)
        weight = self.weight.unflatten(0, (-1, self.out_features)).mT
        if self.bias is None:
            outputs = torch.bmm(parts, weight)
        else:
            outputs = torch.baddbmm(
                self.bias.unflatten(0, (-1, 1, self.out_features)), parts, weight
            )
        return outputs.transpose(0, 1).flatten(1)


def _tensors(model: nn.Module) -> Iterable[tuple[str, str, Tensor]]:
    """Yield every parameter and buffer with the name of its module and its name there."""
    for prefix, module in model.named_modules():
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:
                yield prefix, name, tensor
