"""Several networks of one architecture as a single one, which computes what each of them computes,
but faster.

A small network keeps a processor waiting: most of a step is the way from one operation to the next.
Stacked, k members take one operation where they took k: a convolution has k times the channels in k
times the groups, normalization has k times the channels, and a linear layer is one batched product.
Source: Wang et al., Horizontally fused training array (MLSys 2021)."""

import copy
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from fairlib.network import masks

WIDER: dict[type[nn.Module], tuple[str, ...]] = {
    nn.Conv2d: ("in_channels", "out_channels", "groups"),
    nn.BatchNorm1d: ("num_features",),
    nn.BatchNorm2d: ("num_features",),
    nn.Linear: (),
} | dict.fromkeys(
    (
        nn.ReLU,
        nn.ReLU6,
        nn.LeakyReLU,
        nn.MaxPool2d,
        nn.AvgPool2d,
        nn.AdaptiveAvgPool2d,
        nn.Identity,
        nn.Sequential,
    ),
    (),
)
"""What torch's modules count that is k times as many in a stack of k members, by their class."""


def why_not(model: nn.Module) -> str | None:
    """Say why a network cannot be a member of a stack, or None if it can: the end of a sentence
    with "since"."""
    for module in model.modules():
        kind = type(module)
        ours = kind.__module__.startswith(
            ("fairlib.models.", "fairlib.network.gates", "fairlib.network.factors")
        )
        if not (
            ours
            or kind in WIDER
            or (kind is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1))
        ):
            return f"a {kind.__name__} is computed one network at a time"
        if (
            getattr(module, "padding_mode", "zeros") != "zeros"
            or getattr(module, "alpha", None) is not None
        ):
            return f"a {kind.__name__} of these settings is computed one network at a time"
        hooks = (
            module._forward_pre_hooks,
            module._forward_hooks,
            module._backward_pre_hooks,
            module._backward_hooks,
        )
        foreign = any(hook.__module__ != masks.__name__ for each in hooks for hook in each.values())
        if "forward" in vars(module) or foreign:
            return f"hooks, or a forward of its own, change what a {kind.__name__} computes"
    tensors = [tensor for _, _, tensor in _slots(model)]
    if any(isinstance(tensor, nn.Parameter) and not tensor.ndim for tensor in tensors):
        return "a parameter is a single number"
    if len(set(map(id, tensors))) < len(tensors):
        return "two of their modules share a tensor"
    return None


def form(model: nn.Module) -> dict[str, object]:
    """Describe what the members of a stack have in common: values, each under what to say where
    they differ."""
    modules = []
    for name, module in model.named_modules():
        plain = {
            key: value
            for key, value in vars(module).items()
            if isinstance(value, _PLAIN) and key != "training"
        }
        modules.append((name, type(module), plain))
    tensors = [
        (prefix, name, tensor) for prefix, name, tensor in _slots(model) if name != masks.BUFFER
    ]
    shapes = [
        (prefix, name, tensor.shape, tensor.dtype, tensor.requires_grad)
        for prefix, name, tensor in tensors
    ]
    return {
        "they are not of one architecture": (modules, shapes),
        "they were trained for different numbers of steps": [
            t.item() for _, _, t in tensors if not t.ndim
        ],
    }


def agrees(model: nn.Module, inputs: Tensor) -> bool:
    """Whether two of a model, stacked, compute what it computes in eval mode, as far as one batch
    can tell."""
    alone = copy.deepcopy(model).eval()
    stack = Stack([copy.deepcopy(alone), copy.deepcopy(alone)]).eval()
    with torch.no_grad():
        try:
            return torch.allclose(
                stack(torch.cat([inputs, inputs])), torch.cat([alone(inputs)] * 2), atol=1e-4
            )
        except (IndexError, RuntimeError, TypeError, ValueError):
            return False


class Stack(nn.Module):
    """Networks of one architecture as one module, whose parameters and buffers the networks share.

    Every tensor of the stack is that of the members one after the other along the first axis. The
    members' own tensors become views of it, in place, until :meth:`release`: what trains the stack
    trains them, and each can be evaluated.

    Args: members: At least one network; :func:`why_not` is None for each, and :func:`form` the same
        for all. One that
            lacks a mask of another gets one there, in the stack, that keeps all.
        layout: Memory format of the weights of convolutions.
    """

    def __init__(
        self, members: Sequence[nn.Module], layout: torch.memory_format = torch.contiguous_format
    ) -> None:
        super().__init__()
        self.members, count = (
            tuple(members),
            len(members),
        )  # A tuple, so that they are no submodules.
        self.net = copy.deepcopy(members[0])
        masked = {
            name: torch.ones_like(mask)
            for member in members
            for name, mask in masks.read_masks(member).items()
        }
        masks.set_masks(
            self.net,
            {name: masked[name] for name in masked.keys() - masks.read_masks(self.net).keys()},
        )
        for module in self.net.modules():
            for name in WIDER.get(type(module), ()):
                setattr(module, name, count * getattr(module, name))
            if type(module) is nn.Linear:
                module.__class__ = _StackedLinear
        for prefix, name, tensor in list(_slots(self.net)):
            parts = [_tensor(member, prefix, name, tensor) for member in members]
            joined = (
                torch.cat([part.detach() for part in parts])
                if tensor.ndim
                else tensor.detach().clone()
            )
            if joined.ndim == 4:
                joined = joined.contiguous(memory_format=layout)
            if isinstance(tensor, nn.Parameter):
                joined = nn.Parameter(joined, tensor.requires_grad)
            setattr(self.net.get_submodule(prefix), name, joined)
            for part, own in zip(
                parts,
                joined.detach().chunk(count) if joined.ndim else [joined] * count,
                strict=True,
            ):
                part.data = own

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute the outputs ``(k * B, C)`` of inputs ``(k * B, ...)``, the first B for the first
        member."""
        count = len(self.members)
        parts = inputs.unflatten(0, (count, -1)).transpose(0, 1).flatten(1, 2)
        if parts.ndim == 4:
            parts = parts.contiguous(memory_format=torch.channels_last)
        return self.net(parts).unflatten(1, (count, -1)).transpose(0, 1).flatten(0, 1)

    def release(self, layout: torch.memory_format = torch.contiguous_format) -> None:
        """Give every member tensors of its own again, the weights of its convolutions in this
        memory format."""
        for member in self.members:
            for _, _, tensor in _slots(member):
                tensor.data = tensor.detach().clone(memory_format=torch.contiguous_format)
            member.to(memory_format=layout)


class _StackedLinear(nn.Linear):
    """Linear layers side by side: inputs ``(B, k * D)`` to outputs ``(B, k * C)``, weights ``(k *
    C, D)``."""

    def forward(self, inputs: Tensor) -> Tensor:
        parts = inputs.unflatten(1, (-1, self.in_features)).transpose(0, 1)
        weight = self.weight.unflatten(0, (-1, self.out_features)).mT
        if self.bias is None:
            outputs = torch.bmm(parts, weight)
        else:
            outputs = torch.baddbmm(
                self.bias.unflatten(0, (-1, 1, self.out_features)), parts, weight
            )
        return outputs.transpose(0, 1).flatten(1)


_PLAIN = (int, float, str, tuple, type(None))  # Kinds of settings of a module.


def _slots(model: nn.Module) -> Iterable[tuple[str, str, Tensor]]:
    """Every parameter and buffer, under the names of its module and its own."""
    for prefix, module in model.named_modules():
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:
                yield prefix, name, tensor


def _tensor(member: nn.Module, prefix: str, name: str, like: Tensor) -> Tensor:
    """A member's tensor; where it has no mask, one that keeps everything."""
    found = getattr(member.get_submodule(prefix), name, None)
    return torch.ones_like(like) if found is None else found
