"""Factorization, one method a file. :func:`factorize` calls them by name.

>>> from fairlib.factorization import METHODS
>>> list(METHODS)
['svd']
"""

from typing import Any

from torch import nn

from fairlib._validation import check_number, lookup
from fairlib.factorization.svd import svd
from fairlib.training.compressors import Compressor, Method
from fairlib.training.loop import check_arguments

__all__ = ["METHODS", "Factorization", "check", "factorize"]

METHODS: dict[str, Method] = {"svd": Method(svd)}


def factorize(model: nn.Module, method: str, *, kept: float, **settings) -> nn.Module:
    """Replace layers by products of smaller ones, by a method of the registry
    :data:`fairlib.factorization.METHODS`.

    Args: model: Any module with convolutions or linear layers that is neither pruned nor quantized;
        not changed. method: ``"svd"``. kept: Share of the prunable weights (convolution and linear)
        that are left, in (0, 1]. **settings: Further arguments of the method, such as
        ``by="energy"``.

    Returns: A factorized copy in eval mode, which is smaller without further ado, and can be
        trained, pruned, linearized and quantized. It is not finetuned. :func:`fairlib.restore` puts
        its ``state_dict`` into a freshly built model.

    Raises: ValueError: If the name is unknown, ``kept`` is out of range, or the model cannot be
        factorized. TypeError: If a setting is unknown, or an argument is of another type.

    Example:
        A layer of 64 times 64 weights becomes two of 9 times 64:

        >>> import fairlib
        >>> model = fairlib.build("mlp", num_classes=2, in_channels=1, image_size=8)
        >>> fairlib.factorize(model, "svd", kept=0.3).classifier[1]
        Factorized(
          (0): Linear(in_features=64, out_features=9, bias=False)
          (1): Linear(in_features=9, out_features=64, bias=True)
        )
    """
    check(method, **settings)
    check_number("kept", kept, 0, 1, low_open=True, high_closed=True)
    check_arguments({"model": model})
    return METHODS[method].function(model, kept=kept, **settings)


def check(method: str, **settings) -> None:
    """Check the arguments of :func:`factorize` before anything is factorized.

    Raises:
        ValueError: If the name is unknown.
        TypeError: If a setting is unknown.
    """
    lookup("factorization method", method, METHODS).check(
        f"factorization method {method!r}", settings, level="kept"
    )


class Factorization(Compressor):
    """Factorization, for a study: the level is the share of weights that are left, ``kept`` the
    share of bytes."""

    level, control, inherits, place, methods = "kept", 1.0, False, 1, METHODS

    def check(self, name: str, **settings: Any) -> None:
        check(name, **settings)

    def check_level(self, name: str, level: float) -> None:
        check_number("levels", level, 0, 1, low_open=True)

    def compress(
        self,
        model: nn.Module,
        name: str,
        level: float,
        *,
        data: Any = None,
        seed: int = 0,
        **settings: Any,
    ) -> nn.Module:
        return factorize(model, name, kept=level, **settings)
