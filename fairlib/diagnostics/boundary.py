"""Distance of a sample to the decision boundary: five measures that the literature calls by this
one name."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from fairlib._validation import check_number, check_settings, lookup
from fairlib.data import GroupedDataset
from fairlib.diagnostics.computable import (
    NotComputable,
    check_differentiable,
    differentiating,
    finite,
)
from fairlib.diagnostics.objective import by_group, differentiate
from fairlib.network.evaluation import (
    check_logits,
    chunks,
    evaluation_mode,
    full_precision,
    placement,
)
from fairlib.statistics import t_interval

CHUNK = 256  # Samples of one pass at most.
NUMBERS = (
    2**18
    # Numbers in the inputs of one pass at most: some measures keep the activations for a backward
    # pass.
)


@dataclass(frozen=True)
class Samples:
    """The samples of one pass and the classifier: what a measure is computed from.

    Attributes:
        classifier: Function from inputs ``(n, ...)`` to finite logits ``(n, C)``, C at least 2.
        inputs: Inputs ``(n, ...)`` as the model receives them.
        targets: True classes, int64 ``(n,)``, for signed distances; None for unsigned ones.
        index: Positions of the samples in the data set, int64 ``(n,)``.
    """

    classifier: Callable[[Tensor], Tensor]
    inputs: Tensor
    targets: Tensor | None
    index: Tensor


def boundary_distance(
    model: nn.Module,
    data: GroupedDataset,
    *,
    measure: str = "probability-margin",
    signed: bool = False,
    **settings: float,
) -> pd.DataFrame:
    """Average a measure of the distance to the decision boundary over the samples of every group.

    Args:
        model, data, measure, signed, settings: Arguments of :func:`sample_boundary_distance`.

    Returns: Indexed by group in the order of the codes, columns ``mean low high`` (float64), with
        Student's 95 % interval over the samples of the group. The interval is NaN where a group has
        one sample or an infinite distance; in the row of an empty group everything is NaN.

    Raises:
        NotComputable, TypeError, ValueError: What :func:`sample_boundary_distance` raises.

    Example:
        >>> import torch, fairlib
        >>> inputs = torch.tensor([[3.0, 4.0], [6.0, 8.0], [0.3, 0.4], [0.6, 0.8]])
        >>> data = fairlib.GroupedDataset(inputs, [1, 1, 1, 1], [0, 0, 1, 1], ["no", "yes"], ["far", "near"])
        >>> model = torch.nn.Linear(2, 2, bias=False)
        >>> model.weight.data = torch.tensor([[0.0, 0.0], [3.0, 4.0]])  # The boundary is the line 3 x + 4 y = 0.
        >>> fairlib.diagnostics.boundary_distance(model, data, measure="linearized")["mean"].round(3).to_dict()
        {'far': 7.5, 'near': 0.75}
    """
    distances = sample_boundary_distance(model, data, measure=measure, signed=signed, **settings)
    return by_group(
        data, ("mean", "low", "high"), lambda _, index: _summary(distances[index.numpy()])
    )


def sample_boundary_distance(
    model: nn.Module,
    data: GroupedDataset,
    *,
    measure: str = "probability-margin",
    signed: bool = False,
    **settings: float,
) -> np.ndarray:
    """Measure the distance of every sample to the decision boundary.

    Papers that explain who pays by the distance to the boundary mean different things by it, and
    the measures order samples differently. Unsigned, a confident *error* counts as far from the
    boundary.

    Args: model: Any classifier; its mode, buffers and ``.grad`` are left as they were. It is
        evaluated in eval mode.
            Distances between inputs are in the units in which it receives them: of x / 255 for
            uint8, and after ``data.normalize`` where that is set.
        data: The samples.
        measure: Name of a function in :data:`fairlib.diagnostics.MEASURES`, which defines the
            measure: ``"probability-margin"``, ``"closeness"``, ``"linearized"``,
            ``"certified-radius"`` or ``"deepfool"``.
        signed: Measure from the boundary of the *true* class instead of the predicted one, negative
            on its wrong side.
        settings: Keyword arguments of the measure's function.

    Returns:
        ``(N,)`` float64.

    Raises: NotComputable: If there is only one class, the measure needs gradients and torch cannot
        differentiate the model,
            or (NotFinite) outputs or their gradients are NaN or infinite.
        ValueError: If the measure is unknown, has no sign and one is asked for, or a setting is out
            of range.
        TypeError: If a setting is unknown.
    """
    function = lookup("measure", measure, MEASURES)
    check_settings(f"measure {measure!r}", function, settings)
    if data.num_classes < 2:
        raise NotComputable(
            f"a decision boundary needs two classes; the data have one, {data.target_names[0]!r}"
        )
    device, dtype = placement(model)

    def classifier(inputs: Tensor) -> Tensor:
        logits = model(inputs)
        check_logits(logits, data)
        return finite("the model's outputs", logits)

    distances = []
    with evaluation_mode(model), full_precision(), torch.no_grad():
        for index in chunks(data, CHUNK, NUMBERS):
            inputs = data.batch(index, dtype=dtype, device=device)
            targets = data.labels(index, device) if signed else None
            distances.append(
                function(Samples(classifier, inputs, targets, index), **settings).double().cpu()
            )
    return torch.cat(distances).numpy()


def probability_margin(samples: Samples) -> Tensor:
    r"""Subtract the runner-up's probability from the predicted class's, :math:`p_{(1)} - p_{(2)}`;
    no unit, in [0, 1].

    The signed measure is :math:`p_y - \max_{j \neq y} p_j`, in [-1, 1]. It is a distance between
    outputs: it says how far the probabilities are from a tie, not how far the input is from the
    boundary.

    Source:
        The released code of [D].
    """
    probabilities = _logits(samples).softmax(1)
    reference = _reference(samples, probabilities)
    others = probabilities.scatter(1, reference, -1.0).amax(1)
    return probabilities.gather(1, reference)[:, 0] - others


def closeness(samples: Samples) -> Tensor:
    r"""Halve the largest eigenvalue of :math:`\operatorname{diag}(p) - p p^\top`; no unit, in [0,
    1/4]; it has no sign.

    For two classes this is :math:`p(1 - p)`, the factor of Theorem 2. For more classes the
    eigenvalue takes its place in the Gauss-Newton part of the Hessian; it is halved so that the
    third class may vanish without a jump. It is *large* near the boundary, where two classes tie,
    and near zero for a confident error.

    Raises:
        ValueError: If a sign is asked for.

    Source: [T] Theorem 2, which calls it closeness and, in its appendix, distance to the decision
        boundary.
    """
    if samples.targets is not None:
        raise ValueError(
            "closeness p(1 - p) is the same on both sides of the boundary: it has no sign"
        )
    probabilities = _logits(samples).softmax(1)
    covariance = probabilities.diag_embed() - probabilities[:, :, None] * probabilities[:, None, :]
    return torch.linalg.eigvalsh(covariance)[:, -1].clamp(min=0) / 2


def linearized(samples: Samples) -> Tensor:
    r"""Measure the distance to the boundary of the linearized logits, in the input's unit
    (Euclidean norm).

    With c the predicted class (signed: the true one), :math:`\min_{j \neq c} \frac{z_c -
    z_j}{\|\nabla_x (z_c - z_j)\|_2}`: exact for a linear classifier and otherwise the first step of
    :func:`deepfool`. It is infinite where the logits differ and no difference of them varies with
    the input.

    Source: Moosavi-Dezfooli, Fawzi and Frossard, DeepFool (2016); Elsayed et al., Large margin deep
        networks (2018).
    """
    return _nearest(samples, samples.inputs, _reference(samples, _logits(samples)))[0]


def deepfool(samples: Samples, *, steps: int = 50, overshoot: float = 0.02) -> Tensor:
    r"""Measure the perturbation that repeated linearization finds, in the input's unit (Euclidean
    norm).

    The search starts at :math:`x_0 = x` and steps by :math:`r_t` to the nearest boundary of the
    classifier linearized at :math:`x_t`, until :math:`x_0 + (1 + \text{overshoot}) \sum_t r_t` has
    another class; the value is :math:`\|\sum_t r_t\|_2`. It is an upper bound of the distance, up
    to the overshoot. The signed search goes to the boundary of the true class, from whichever side.

    Args: samples: Samples of one pass and their classifier. steps: Largest number of
        linearizations; a sample that has not crossed by then is infinitely far. overshoot: Share by
        which the perturbation is lengthened to test whether it has crossed.

    Source: Moosavi-Dezfooli, Fawzi and Frossard, DeepFool: a simple and accurate method to fool
        deep neural networks (2016), Algorithm 2.
    """
    check_number("steps", steps, 1, whole=True)
    check_number("overshoot", overshoot, 0, low_open=True)
    logits = _logits(samples)
    reference = _reference(samples, logits)
    inside = _leads(logits, reference)
    moved = torch.zeros_like(samples.inputs, dtype=torch.float64)
    found = torch.full((len(moved),), torch.inf, dtype=torch.float64, device=moved.device)
    walking = torch.arange(len(moved), device=moved.device)
    for _ in range(steps):
        here = (samples.inputs[walking] + moved[walking]).to(samples.inputs)
        ratio, direction = _nearest(samples, here, reference[walking])
        found[walking[ratio == 0]] = (
            moved[walking[ratio == 0]].flatten(1).norm(dim=1)
        )  # On a boundary.
        # No boundary in sight: it stays infinitely far.
        walking, ratio, direction = (
            tensor[ratio.isfinite() & (ratio != 0)] for tensor in (walking, ratio, direction)
        )
        moved[walking] -= ratio.view(-1, *[1] * (direction.ndim - 1)) * direction
        beyond = (samples.inputs[walking] + (1 + overshoot) * moved[walking]).to(samples.inputs)
        crossed = _leads(samples.classifier(beyond), reference[walking]) != inside[walking]
        found[walking[crossed]] = moved[walking[crossed]].flatten(1).norm(dim=1)
        walking = walking[~crossed]
        if not len(walking):
            break
    return torch.where(inside, found, -found)


def certified_radius(
    samples: Samples,
    *,
    sigma: float = 0.25,
    draws: int = 1000,
    selection: int = 100,
    confidence: float = 0.999,
    seed: int = 0,
) -> Tensor:
    r"""Certify a radius within which the *smoothed* classifier keeps its class, in the input's unit
    (Euclidean norm).

    The smoothed classifier gives the class that the model gives most often to :math:`x +
    \varepsilon`, :math:`\varepsilon \sim N(0, \sigma^2 I)`. If it gives class A with probability
    :math:`p_A` and the runner-up with :math:`p_B`, no perturbation shorter than
    :math:`\frac{\sigma}{2} (\Phi^{-1}(p_A) - \Phi^{-1}(p_B))` changes it. As in the paper's
    algorithm the value is :math:`\sigma \Phi^{-1}(\underline{p_A})`, with :math:`\underline{p_A}`
    the lower Clopper-Pearson bound and :math:`1 - \underline{p_A}` in the place of :math:`p_B`; 0
    where the bound is at most 1/2 (the paper abstains). Signed: negative where A is not the true
    class. It cannot exceed :math:`\sigma \Phi^{-1}(\alpha^{1/n})` for n draws and confidence
    :math:`1 - \alpha`, 2.46 sigma by default, and is about another classifier than the model.

    Args: samples: Samples of one pass and their classifier. sigma: Standard deviation of the noise,
        in the input's unit. [T] cites the measure and prints no sigma; 0.25 is
            one of the values of Cohen et al.
        draws: Number of noisy copies that estimate :math:`p_A`; Cohen et al. take 100,000.
        selection: Number of further noisy copies, which choose A.
        confidence: Probability with which the bound of a sample holds, in (0, 1).
        seed: Seed of the noise; every sample has a generator of its own.

    Source: Cohen, Rosenfeld and Kolter, Certified adversarial robustness via randomized smoothing
        (2019), Theorem 1 and the algorithm CERTIFY; cited by [T] for the distance to the decision
        boundary.
    """
    from scipy.stats import beta, norm

    check_number("sigma", sigma, 0, low_open=True)
    check_number("draws", draws, 1, whole=True)
    check_number("selection", selection, 1, whole=True)
    check_number("confidence", confidence, 0, 1, low_open=True)
    check_number("seed", seed, 0, whole=True)
    radii: list[float] = []
    for i, inputs in zip(samples.index.tolist(), samples.inputs, strict=True):
        generator = torch.Generator().manual_seed(
            int(np.random.SeedSequence([seed, i]).generate_state(1)[0])
        )
        chosen = int(_votes(samples, inputs, sigma, selection, generator).argmax())
        agreeing = int(_votes(samples, inputs, sigma, draws, generator)[chosen])
        low = beta.ppf(1 - confidence, agreeing, draws - agreeing + 1) if agreeing else 0.0
        radius = max(0.0, sigma * float(norm.ppf(low)))
        right = samples.targets is None or chosen == int(samples.targets[len(radii)])
        radii.append(radius if right else -radius)
    return torch.tensor(radii, dtype=torch.float64)


MEASURES: dict[str, Callable[..., Tensor]] = {
    "probability-margin": probability_margin,
    "closeness": closeness,
    "linearized": linearized,
    "certified-radius": certified_radius,
    "deepfool": deepfool,
}


def _logits(samples: Samples) -> Tensor:
    return samples.classifier(samples.inputs).double()


def _reference(samples: Samples, scores: Tensor) -> Tensor:
    """The class from whose boundary distances are measured, ``(n, 1)``: the true one if signed,
    else the predicted."""
    return (scores.argmax(1) if samples.targets is None else samples.targets)[:, None]


def _leads(logits: Tensor, reference: Tensor) -> Tensor:
    """Whether the largest logit is that of the reference, ``(n,)``."""
    return logits.argmax(1) == reference[:, 0]


def _nearest(samples: Samples, inputs: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
    r"""The smallest :math:`(z_c - z_j) / \|\nabla_x (z_c - z_j)\|` over the classes j other than c,
    the reference.

    Returns: The smallest ratio, ``(n,)``, infinite where all gradients vanish, and the gradient of
        its class divided by its norm, of the shape of the inputs; float64.
    """
    with differentiating():
        inputs = inputs.detach().requires_grad_()
        logits = samples.classifier(inputs)
        check_differentiable(logits)
        columns = logits.sum(0)  # Samples do not interact: the gradient of a sum is that of each.
        slopes = torch.stack([differentiate(inputs, column, retain=True) for column in columns], 1)
    slopes = finite("the gradients of the model's outputs", slopes.double().flatten(2))
    chosen = reference[..., None].expand(-1, 1, slopes.shape[2])
    slopes = slopes.gather(1, chosen) - slopes  # (n, classes, inputs)
    gaps = logits.detach().double().gather(1, reference) - logits.detach().double()
    lengths = slopes.norm(dim=2)
    ratios = torch.where(
        lengths > 0, gaps / lengths, torch.where(gaps == 0, 0.0, gaps.sign() * torch.inf)
    )
    ratio, nearest = ratios.scatter(1, reference, torch.inf).min(1)
    each = torch.arange(len(ratio), device=ratio.device)
    direction = slopes[each, nearest] / lengths[each, nearest, None].clamp(
        min=torch.finfo(torch.float64).tiny
    )
    return ratio, direction.view_as(inputs)


def _votes(
    samples: Samples, inputs: Tensor, sigma: float, draws: int, generator: torch.Generator
) -> Tensor:
    """How often the model gives each class to one input under noise, ``(C,)``."""
    outputs = []
    for part in torch.arange(draws).split(max(1, min(CHUNK, NUMBERS // inputs.numel()))):
        noise = torch.randn((len(part), *inputs.shape), generator=generator, dtype=inputs.dtype).to(
            inputs.device
        )
        outputs.append(samples.classifier(inputs + sigma * noise))
    logits = torch.cat(outputs)
    return logits.argmax(1).bincount(minlength=logits.shape[1])


def _summary(values: np.ndarray) -> tuple[float, float, float]:
    if len(values) < 2 or not np.isfinite(values).all():
        with np.errstate(invalid="ignore"):  # Infinities of both signs have no mean: NaN.
            return float(values.mean()), np.nan, np.nan
    return t_interval(values)
