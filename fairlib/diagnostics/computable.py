"""What cannot be computed for a model, told from bugs and from bad input."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


class NotComputable(ValueError):
    """A diagnostic cannot be computed for this model; the message says why.

    Diagnostics raise it on purpose, and :func:`fairlib.diagnostics.diagnose` catches it and nothing else.
    """


class NotFinite(NotComputable, FloatingPointError):
    """Outputs, a loss or its derivatives are NaN or infinite."""


_REFUSALS = re.compile(
    r"derivative for .* is not implemented|no autograd formula was registered"
    r"|You must implement either the backward or vjp method|checkpoint is incompatible with \.grad\(\)"
    r"|modified by an inplace operation|Can't call numpy\(\) on Tensor that requires grad"
    r"|Inference tensors cannot be saved for backward|The stateless API can't be used with"
)

_DEAD_ENDS = {
    "torch::autograd::Error": "it has a function that can be differentiated only once",
    "torch::autograd::WarnNotImplemented": "it has an operation without a derivative, a quantized layer, say",
}


def finite(what: str, samples: Tensor) -> Tensor:
    """What is known of samples, ``(N, ...)``, if it is finite.

    Raises:
        NotFinite: If it is NaN or infinite, and for how many samples.
    """
    broken = int((~samples.detach()[:, None].isfinite()).flatten(1).any(1).sum())
    if broken:
        raise NotFinite(f"{what} are NaN or infinite on {broken} of {len(samples)} samples")
    return samples


@contextmanager
def differentiating() -> Iterator[None]:
    """Within the block gradients are recorded, and what torch refuses to differentiate is not computable.

    Raises:
        NotComputable: In the place of torch's RuntimeErrors that say so; every other one passes.
    """
    try:
        with torch.enable_grad():
            yield
    except RuntimeError as error:
        if _REFUSALS.search(str(error)):
            raise NotComputable(f"the model cannot be differentiated: {error}") from error
        raise


def check_differentiable(outputs: Tensor) -> None:
    """Refuse outputs of a model that have no gradient, of which autograd would make zeros.

    Raises:
        NotComputable: If they are cut off from what they are to be differentiated by, or as :func:`check_graph`.
    """
    if not outputs.requires_grad:
        raise NotComputable(
            "the model cannot be differentiated: its outputs are detached, whole numbers, or computed under "
            "torch.no_grad() or torch.inference_mode()"
        )
    check_graph(outputs)


def check_graph(tensor: Tensor) -> None:
    """Refuse a tensor in whose history is something that autograd would pass over without an error.

    Raises:
        NotComputable: If there is.
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
