"""A saved state put back into a freshly built model, masks and gates included."""

from collections.abc import Mapping

from torch import Tensor, nn

from fairlib.network.gates import install
from fairlib.network.masks import BUFFER, apply


def restore(module: nn.Module, state_dict: Mapping[str, Tensor]) -> nn.Module:
    """A copy of a freshly built dense module with the weights, masks *and gates* of ``state_dict``, in eval mode.

    How it was trained is in no ``state_dict``: its :func:`fairlib.history` and its price are unknown.

    Raises:
        ValueError: If a mask belongs to no prunable weight of the module, or a gate to no ReLU of it: gating has split
            its ReLUs, so that it needs :func:`fairlib.linearization.gate` first.
        RuntimeError: If the other keys do not fit the module, as from ``load_state_dict``.
    """
    keep = {name.removesuffix("_mask"): mask.bool() for name, mask in state_dict.items() if name.endswith(BUFFER)}
    restored = install(apply(module, keep), state_dict)
    restored.load_state_dict(state_dict)
    return restored
