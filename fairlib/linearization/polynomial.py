"""Polynomial gates: quadratics in the place of ReLUs, by channel, fitted and then trained."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fairlib.data import GroupedDataset
from fairlib.models.normalization import fill_normalization
from fairlib.network import gates
from fairlib.network.evaluation import outputs, placement


def polynomial(
    model: nn.Module,
    *,
    relus: int,
    data: GroupedDataset,
    seed: int = 0,
    granularity: str = "pixel",
) -> nn.Module:
    r"""Replace ReLUs that are drawn at random by quadratics :math:`a x^2 + b x + c`.

    Each channel of a gate has one quadratic for all its places without a ReLU. With
    :math:`\phi(x) = (x^2, x, 1)` it is the least-squares fit to the ReLU,

    .. math:: (a, b, c) = \Big(\sum \phi(x) \phi(x)^\top\Big)^+ \sum \phi(x) \, \mathrm{ReLU}(x)

    over these places and the data; for a standard normal :math:`x` that is :math:`a = c = 1 /
    (2 \sqrt{2 \pi})` and :math:`b = 1/2`. The coefficients are parameters, which the finetuning
    trains. Two parties pay one product for each quadratic, in the place of a comparison.

    Quadratics grow faster than what they were fitted to: values that leave this range leave it
    further in every layer. So layers are fitted one after the other, in the order of a forward
    pass, each to the inputs that the quadratics before it give: if all were fitted to the inputs in
    ``model``, the loss could begin at a million nats. And a step of training moves coefficients by
    the mean over their places, not by the sum (:class:`fairlib.network.gates.Gate`). All the same
    quadratics bear a lower learning rate than lines. A training that diverges is an error; one
    whose loss rises and stays finite (:func:`fairlib.history`) is not, and can end at one answer
    for everybody.

    Args:
        model: A model with gates; not changed. Places that an earlier method has made linear become
            quadratics, too, which start as what these places compute.
        relus: Largest number of ReLUs to keep; single pixels are kept to exactly this number.
        data: The training set.
        seed: Seed of the random choice. With one seed the places are those of ``"random"``, so that
            the two differ in the function alone. A choice that looks at the ReLUs would look at
            what the identity, or a quadratic, changes, and favour it.
        granularity: What is kept as a whole: ``"pixel"``, ``"channel"`` or ``"layer"``. A channel
            or layer that does not fit into the rest of the budget is skipped.

    Returns:
        A copy in eval mode; nothing is trained. Gates that keep all their ReLUs are as before.

    Raises:
        ValueError: If ``granularity`` is unknown, or ``relus`` is negative or more than the model
            has.
        FloatingPointError: If inputs of a gate are NaN or infinite on the data.

    Source:
        Mishra et al., Delphi (USENIX Security 2020), which replaces whole layers: its code has one
        quadratic for all, 0.1997, 0.5002 and 0.1992, blends it in over 100 epochs and clips
        gradients. Lou et al., SAFENet (ICLR 2021), known to us by its abstract: channels, and
        polynomials of several degrees. Peng et al., AutoReP (ICCV 2023), which learns single ReLUs
        to replace: its code has the fits to normals of variance 1 and 2. Values that escape:
        Garimella et al., Sisyphus (PPML 2021). Our choices are the random places, fits to observed
        values in their order, and coefficients that are trained.

    Example:
        >>> import torch
        >>> from fairlib import GroupedDataset
        >>> from fairlib.linearization import gate
        >>> from fairlib.linearization.polynomial import polynomial
        >>> normal = torch.distributions.Normal(0, 1).icdf((torch.arange(9999) + 1) / 10_000)
        >>> data = GroupedDataset(normal[:, None], [0] * 9999, [0] * 9999, target_names=["one"])
        >>> model = gate(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.ReLU()), data)
        >>> polynomial(model, relus=0, data=data)[1].coefficients.data.round(decimals=2)
        tensor([[0.2000, 0.5000, 0.2000]])
    """
    kept = gates.keep_relus(model, gates.drawn(model, granularity, seed), relus)
    curved, before = gates.with_gates(model, kept), gates.gates(model)
    for name, gate in gates.gates(curved).items():
        if not kept[name].all():
            fill_normalization(curved, data)
            fitted = _fitted(curved, name, before[name], data)
            gate.quadratic = nn.Parameter(fitted * gate.keep[0].numel() ** 0.5)
    return curved


def _fitted(model: nn.Module, name: str, before: gates.Gate, data: GroupedDataset) -> Tensor:
    """Fit what a gate computed before, by channel, where it has lost its ReLUs: ``(C, 3, ...)``."""
    gate = gates.gates(model)[name]
    lost, moments = gate.keep == 0, []

    def add(_: nn.Module, inputs: tuple[Tensor]) -> None:
        # Sums of x^0 ... x^4, then of y, x y and x^2 y. In float64: of three powers that are nearly
        # collinear, float32 would leave too few digits to tell them apart.
        x, y = inputs[0].double(), before(inputs[0]).double()
        factors = [lost * x**power for power in range(5)]
        factors += [y * factor for factor in factors[:3]]
        moments.append(torch.stack([part.transpose(0, 1).flatten(1).sum(1) for part in factors], 1))

    with gate.register_forward_pre_hook(add):
        outputs(model, data)
    sums = torch.stack(moments).sum(0)
    if not sums.isfinite().all():
        raise FloatingPointError(
            f"inputs of the gate {name!r} are NaN or infinite on the data, and no quadratic fits "
            "them; keep more ReLUs, or train the model again with a lower learning rate"
        )
    # In units of the channel's root mean square, so that the cutoff does not depend on its scale.
    # Where x has fewer than three values, the shortest of the best coefficients are taken.
    unit = (sums[:, [2]] / sums[:, [0]].clamp(1)).sqrt().clamp(1e-30)
    scale = unit ** torch.tensor([-2, -1, 0], device=unit.device)
    gram = sums[:, [[4, 3, 2], [3, 2, 1], [2, 1, 0]]] * scale[:, None] * scale[:, :, None]
    inverse = torch.linalg.pinv(gram, rtol=1e-10, hermitian=True)
    fitted = (inverse @ (scale * sums[:, [7, 6, 5]])[:, :, None])[..., 0] * scale
    shape = (*fitted.shape, *[1] * (lost.ndim - 1))
    return fitted.view(shape).to(placement(model)[1])
