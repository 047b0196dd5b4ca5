"""Preactivation gates: keep the ReLUs that change their inputs most."""

from functools import partial

import torch
from torch import Tensor, nn

from fairlib.data import GroupedDataset
from fairlib.models.normalization import fill_normalization
from fairlib.network import gates
from fairlib.network.copying import copied
from fairlib.network.evaluation import outputs


def preactivation(model: nn.Module, *, relus: int, data: GroupedDataset) -> nn.Module:
    r"""Keep the ReLUs with the largest mean change of their inputs on the data.

    .. math:: \frac1n \sum_i |\mathrm{ReLU}(x_i) - x_i|

    The change is the mean of :math:`|\min(x, 0)|`, by which the output at this place changes if the
    ReLU becomes the identity.

    Args:
        model: A model with gates; not changed.
        relus: Number of ReLUs to keep.
        data: The training set.

    Returns:
        A copy in eval mode; nothing is trained.

    Raises:
        ValueError: If ``relus`` is negative or more than the model has.
    """
    return gates.with_gates(model, gates.keep_relus(model, mean_changes(model, data), relus))


def mean_changes(model: nn.Module, data: GroupedDataset) -> dict[str, Tensor]:
    """Compute for every gate the mean change ``(C, H, W)`` that its ReLUs make to the data.

    ReLUs that are not kept count as if they were. For a network that was never trained, the
    normalization of inputs is filled from the data, as the first training would do.
    """
    model = copied(model)
    fill_normalization(model, data)
    by_name = gates.gates(model)
    totals = {
        name: torch.zeros_like(gate.keep, dtype=torch.float32) for name, gate in by_name.items()
    }

    def add(name: str, gate: gates.Gate, inputs: tuple[Tensor]) -> None:
        totals[name] += (gate.activation(inputs[0]) - inputs[0]).abs().sum(0)

    for name, gate in by_name.items():
        gate.register_forward_pre_hook(partial(add, name))
    outputs(model, data)  # For the hooks alone.
    return {name: total / len(data) for name, total in totals.items()}
