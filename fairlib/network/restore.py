"""A saved state put back into a freshly built model, masks, gates and factors included."""

from collections.abc import Mapping

from torch import Tensor, nn

from fairlib._validation import check_type, lookup
from fairlib.network import factors, keeping
from fairlib.network.copying import copied
from fairlib.network.gates import insert_gates
from fairlib.network.masks import check_mask, prunable


def restore(module: nn.Module, state_dict: Mapping[str, Tensor]) -> nn.Module:
    """Copy a freshly built dense module, in eval mode, with the weights, masks, gates and factors
    of ``state_dict``.

    How it was trained is in no ``state_dict``: its :func:`fairlib.history` and its price are
    unknown.

    Args:
        module: Left as it is.
        state_dict: The state of a pruned, linearized, factorized or dense module of the same
            architecture.

    Raises:
        ValueError: If a mask belongs to no prunable weight of the module, or a gate to no module of
            it. The latter happens where gating has split ReLUs: call
            :func:`fairlib.linearization.gate` on the module first. Also if other keys do not fit
            the module.
        TypeError: If the module is no module, or the state no mapping.

    Example:
        >>> import torch, fairlib
        >>> model = fairlib.build("mlp", num_classes=2, in_channels=1, image_size=4)
        >>> state = fairlib.prune(model, "random", sparsity=0.75).state_dict()  # For torch.save.
        >>> fresh = fairlib.build("mlp", num_classes=2, in_channels=1, image_size=4, seed=1)
        >>> restored = fairlib.restore(fresh, state)
        >>> fairlib.sparsity(fresh), round(fairlib.sparsity(restored), 3)
        (0.0, 0.75)
    """
    check_type("module", module, nn.Module, "a torch.nn.Module")
    check_type("state_dict", state_dict, Mapping, "the state_dict of a module")
    # Factors first: masks and quantizers belong to the weights of the factors.
    restored = factors.insert_factors(copied(module), state_dict)
    weights = prunable(restored)
    kept: dict[str, dict[str, Tensor]] = {}
    for key in state_dict:
        name, end = key[: key.rfind("_")], key[key.rfind("_") :]
        # A scale without a residual beside it is a buffer of another library.
        ours = end == keeping.MASK or name + keeping.RESIDUAL in state_dict
        if end in keeping.NAME_ENDS and name in state_dict and ours:
            lookup("prunable weight", name, weights)
            tensor = state_dict[key].to(weights[name].device, copy=True)
            if end == keeping.MASK:
                check_mask(name, tensor.bool(), weights[name].shape)
            kept.setdefault(name, {})[end] = tensor
    keeping.keep(restored, kept)
    restored = insert_gates(restored, state_dict).eval()
    try:
        restored.load_state_dict(state_dict)
    except RuntimeError as error:
        raise ValueError(
            f"state_dict does not fit this {type(module).__name__}: {error}"
        ) from error
    return restored
