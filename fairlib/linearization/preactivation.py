"""Preactivation gates: keep the ReLUs that change most of what passes them."""

import copy

import torch
from torch import Tensor, nn

from fairlib.data import GroupedDataset
from fairlib.models.normalization import fill_normalization
from fairlib.network import gates
from fairlib.network.evaluation import evaluation_mode, passes, placement


def preactivation(model: nn.Module, *, relus: int, data: GroupedDataset, granularity: str = "pixel") -> nn.Module:
    r"""Keep the ReLUs with the largest mean change :math:`\frac1n \sum_i |\mathrm{ReLU}(x_i) - x_i|` on the data.

    For a ReLU that is the mean of :math:`|\min(x, 0)|`, and what making it linear changes at this place. A channel or a
    layer has the mean over its positions.

    Args:
        model: With gates; left as it is.
        relus: How many to keep at most; of single pixels exactly so many.
        data: The training set.
        granularity: ``"pixel"``, or ``"channel"`` and ``"layer"``, which are kept as a whole where they fit.

    Returns:
        A copy in eval mode; nothing is trained.
    """
    scores = {name: gates.pooled(change, granularity) for name, change in changes(model, data).items()}
    return gates.apply(model, gates.keep_relus(model, scores, relus))


def changes(model: nn.Module, data: GroupedDataset) -> dict[str, Tensor]:
    """For every gate the mean change ``(C, H, W)`` that its ReLUs, kept or not, make or would make to the data.

    A network that was never trained normalizes its inputs as the first training would.
    """
    model = copy.deepcopy(model)
    fill_normalization(model, data)
    found = gates.gates(model)
    totals = {name: torch.zeros(gate.keep.shape, device=gate.keep.device) for name, gate in found.items()}

    def add(name: str):
        def hook(gate: gates.Gate, inputs: tuple[Tensor]) -> None:
            totals[name] += (gate.activation(inputs[0]) - inputs[0]).abs().sum(0)

        return hook

    for name, gate in found.items():
        gate.register_forward_pre_hook(add(name))
    device, dtype = placement(model)
    with evaluation_mode(model), torch.inference_mode():
        for index in passes(data, device):
            model(data.batch(index, dtype=dtype, device=device))
    return {name: total / len(data) for name, total in totals.items()}
