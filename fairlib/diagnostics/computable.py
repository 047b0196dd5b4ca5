"""Errors for what cannot be computed for a model, apart from bugs and bad input."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


class NotComputable(ValueError):
    """A diagnostic cannot be computed for this model; the message says why.

    Diagnostics raise it on purpose, and :func:`fairlib.diagnostics.diagnose` catches it and nothing
    else."""


class NotFinite(NotComputable, FloatingPointError):
    """Outputs, a loss or its derivatives are NaN or infinite."""


class SlowWarning(UserWarning):
    """A slower way is taken than for most models; the message says which, and why."""


# Torch raises RuntimeErrors for what it cannot do and for what it was asked wrongly alike. Only
# their texts tell them apart: an error that matches none of these is a bug, and is shown as one.
_REFUSALS = re.compile(
    r"derivative for .* is not implemented|no autograd formula was registered"
    r"|You must implement either the backward or vjp method"
    r"|checkpoint is incompatible with \.grad\(\)"
    r"|modified by an inplace operation|Can't call numpy\(\) on Tensor that requires grad"
    r"|Inference tensors cannot be saved for backward|The stateless API can't be used with"
)

_DEAD_ENDS = {
    "torch::autograd::Error": "it has a function that can be differentiated only once",
    "torch::autograd::WarnNotImplemented": (
        "it has an operation without a derivative, a quantized layer, say"
    ),
}


def finite(what: str, samples: Tensor) -> Tensor:
    """Return the values of samples, ``(N, ...)``, if they are finite.

    Raises:
        NotFinite: If some are NaN or infinite; the message names ``what`` and counts the samples.
    """
    broken = int((~samples.detach()[:, None].isfinite()).flatten(1).any(1).sum())
    if broken:
        raise NotFinite(f"{what} are NaN or infinite on {broken} of {len(samples)} samples")
    return samples


@contextmanager
def differentiating() -> Iterator[None]:
    """Record gradients within the block, and report what torch refuses to differentiate.

    Raises:
        NotComputable: In place of a RuntimeError in which torch refuses; any other error passes.
    """
    try:
        with torch.enable_grad():
            yield
    except RuntimeError as error:
        if _REFUSALS.search(str(error)):
            raise NotComputable(f"the model cannot be differentiated: {error}") from error
        raise


def check_differentiable(outputs: Tensor) -> None:
    """Refuse outputs of a model that have no gradient, which autograd would take for zero.

    Raises:
        NotComputable: If the outputs require no gradient, or their history stops it
            (:func:`check_graph`).
    """
    if not outputs.requires_grad:
        raise NotComputable(
            "the model cannot be differentiated: its outputs are detached, whole numbers or no_grad"
        )
    check_graph(outputs)


def check_graph(tensor: Tensor) -> None:
    """Refuse a tensor whose history has a function that autograd skips without an error.

    Differentiated again, such a function would count as a constant: a Hessian of zeros, and nobody
    would know.

    Raises:
        NotComputable: If there is such a function; the message says which kind.
    """
    seen, ahead = set(), [tensor.grad_fn]
    while ahead:
        node = ahead.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if reason := _DEAD_ENDS.get(node.name()):
            raise NotComputable(f"the model cannot be differentiated: {reason}")
        ahead += [following for following, _ in node.next_functions]
