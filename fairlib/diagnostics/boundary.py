"""Distance of a sample to the decision boundary: five measures that go by this one name."""

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
from fairlib.diagnostics.objective import differentiate, group_table
from fairlib.network.evaluation import (
    check_logits,
    chunks,
    evaluation_mode,
    full_precision,
    placement,
)
from fairlib.statistics import t_interval

# Samples of one pass, and numbers in its inputs, at most. Passes are smaller than those that only
# predict: some measures keep the activations for a backward pass.
PASS_SAMPLES, PASS_NUMBERS = 256, 2**18


@dataclass(frozen=True)
class InputBatch:
    """The inputs of one pass and the classifier: what a measure is computed from.

    Attributes:
        classifier: Function from inputs ``(n, ...)`` to finite logits ``(n, C)``, C at least 2.
        inputs: Inputs ``(n, ...)`` as the model receives them.
        index: Positions of the samples in the data set, int64 ``(n,)``.
    """

    classifier: Callable[[Tensor], Tensor]
    inputs: Tensor
    index: Tensor

    def logits(self) -> Tensor:
        """Compute the logits of the inputs, float64 ``(n, C)``."""
        return self.classifier(self.inputs).double()


def boundary_distance(
    model: nn.Module,
    data: GroupedDataset,
    *,
    measure: str = "probability-margin",
    **settings: float,
) -> pd.DataFrame:
    """Average a measure of the distance to the decision boundary over the samples of every group.

    Args:
        model, data, measure, settings: Arguments of :func:`sample_boundary_distance`.

    Returns:
        Indexed by group in the order of the codes, columns ``mean low high`` (float64), with
        Student's 95 % interval over the samples of the group. The interval is NaN where a group has
        one sample or an infinite distance; in the row of an empty group everything is NaN.

    Raises:
        NotComputable, TypeError, ValueError: What :func:`sample_boundary_distance` raises.

    Example:
        >>> import torch, fairlib
        >>> inputs = torch.tensor([[3.0, 4.0], [6.0, 8.0], [0.3, 0.4], [0.6, 0.8]])
        >>> groups = ["far", "near"]
        >>> data = fairlib.GroupedDataset(inputs, [1, 1, 1, 1], [0, 0, 1, 1], ["no", "yes"], groups)
        >>> model = torch.nn.Linear(2, 2, bias=False)
        >>> model.weight.data = torch.tensor([[0.0, 0.0], [3.0, 4.0]])  # At 3 x + 4 y = 0.
        >>> table = fairlib.diagnostics.boundary_distance(model, data, measure="linearized")
        >>> table["mean"].round(3).to_dict()
        {'far': 7.5, 'near': 0.75}
    """
    distances = sample_boundary_distance(model, data, measure=measure, **settings)

    def row(_: str, index: Tensor) -> tuple[float, float, float]:
        values = distances[index.numpy()]
        if len(values) < 2 or not np.isfinite(values).all():
            return float(values.mean()), np.nan, np.nan
        return t_interval(values)

    return group_table(data, ("mean", "low", "high"), row)


def sample_boundary_distance(
    model: nn.Module,
    data: GroupedDataset,
    *,
    measure: str = "probability-margin",
    **settings: float,
) -> np.ndarray:
    """Measure the distance of every sample to the decision boundary.

    Papers that explain who pays by the distance to the boundary mean different things by it, and
    the measures order samples differently. A confident *error* counts as far from the boundary.

    Args:
        model: Any classifier; its mode, buffers and ``.grad`` are left as they were. It is
            evaluated in eval mode. Distances between inputs are in the units in which it receives
            them: of x / 255 for uint8, and after ``data.normalize`` where that is set.
        data: The samples.
        measure: Name of a function in :data:`fairlib.diagnostics.MEASURES`, which defines the
            measure: ``"probability-margin"``, ``"closeness"``, ``"linearized"``,
            ``"certified-radius"`` or ``"deepfool"``.
        settings: Keyword arguments of the measure's function.

    Returns:
        ``(N,)`` float64.

    Raises:
        NotComputable: If there is only one class, the measure needs gradients and torch cannot
            differentiate the model, or (NotFinite) outputs or their gradients are NaN or infinite.
        ValueError: If the measure is unknown, or a setting is out of range.
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
        for index in chunks(data, PASS_SAMPLES, PASS_NUMBERS):
            inputs = data.batch(index, dtype=dtype, device=device)
            measured = function(InputBatch(classifier, inputs, index), **settings)
            distances.append(measured.double().cpu())
    return torch.cat(distances).numpy()


def probability_margin(batch: InputBatch) -> Tensor:
    r"""Subtract the runner-up's probability from the predicted class's, :math:`p_{(1)} - p_{(2)}`.

    It has no unit and is in [0, 1]. It is a distance between outputs: it says how far the
    probabilities are from a tie, not how far the input is from the boundary.

    Source:
        The released code of [D].
    """
    first, second = batch.logits().softmax(1).topk(2, dim=1).values.unbind(1)
    return first - second


def closeness(batch: InputBatch) -> Tensor:
    r"""Halve the largest eigenvalue of :math:`\operatorname{diag}(p) - p p^\top`; no unit.

    It is in [0, 1/4]. For two classes this is :math:`p(1 - p)`, the factor of Theorem 2. For more
    classes the eigenvalue takes its place in the Gauss-Newton part of the Hessian; it is halved so
    that the third class may vanish without a jump. It is *large* near the boundary, where two
    classes tie, and near zero for a confident error.

    Source:
        [T] Theorem 2, which calls it closeness and, in its appendix, distance to the decision
        boundary.
    """
    p = batch.logits().softmax(1)
    covariance = p.diag_embed() - p[:, :, None] * p[:, None, :]
    return torch.linalg.eigvalsh(covariance)[:, -1].clamp(min=0) / 2


def linearized(batch: InputBatch) -> Tensor:
    r"""Measure the distance to the boundary of the linearized logits, in the input's unit.

    With c the predicted class and the Euclidean norm, :math:`\min_{j \neq c} \frac{z_c -
    z_j}{\|\nabla_x (z_c - z_j)\|_2}`: exact for a linear classifier and otherwise the first step of
    :func:`deepfool`. It is infinite where the logits differ and no difference of them varies with
    the input.

    Source:
        Moosavi-Dezfooli, Fawzi and Frossard, DeepFool (2016); Elsayed et al., Large margin deep
        networks (2018).
    """
    return _nearest(batch.classifier, batch.inputs, batch.logits().argmax(1))[0]


def deepfool(batch: InputBatch, *, steps: int = 50, overshoot: float = 0.02) -> Tensor:
    r"""Measure the perturbation that repeated linearization finds, in the input's unit.

    The search starts at :math:`x_0 = x` and steps by :math:`r_t` to the nearest boundary of the
    classifier linearized at :math:`x_t`, until :math:`x_0 + (1 + \text{overshoot}) \sum_t r_t` has
    another class; the value is the Euclidean norm :math:`\|\sum_t r_t\|_2`. It is an upper bound of
    the distance, up to the overshoot.

    Args:
        batch: Samples of one pass and their classifier.
        steps: Largest number of linearizations; a sample that has not crossed by then is infinitely
            far.
        overshoot: Share by which the perturbation is lengthened to test whether it has crossed.

    Source:
        Moosavi-Dezfooli, Fawzi and Frossard, DeepFool: a simple and accurate method to fool deep
        neural networks (2016), Algorithm 2.
    """
    check_number("steps", steps, 1, whole=True)
    check_number("overshoot", overshoot, 0, low_open=True)
    classifier, inputs, predicted = batch.classifier, batch.inputs, batch.logits().argmax(1)
    # The perturbation is summed in float64: a sum of float32 steps would lose the last, short ones,
    # and the search would never cross the boundary that it converges to.
    moved = torch.zeros_like(inputs, dtype=torch.float64)
    found = torch.full((len(moved),), torch.inf, dtype=torch.float64, device=moved.device)
    walking = torch.arange(len(moved), device=moved.device)
    for _ in range(steps):
        here = (inputs[walking] + moved[walking]).to(inputs)
        ratio, direction = _nearest(classifier, here, predicted[walking])
        tied = walking[ratio == 0]
        found[tied] = moved[tied].flatten(1).norm(dim=1)
        # A tie is on the boundary; an infinite ratio has none in sight and stays infinitely far.
        going = ratio.isfinite() & (ratio != 0)
        walking, ratio, direction = walking[going], ratio[going], direction[going]
        moved[walking] -= ratio.view(-1, *[1] * (direction.ndim - 1)) * direction
        beyond = (inputs[walking] + (1 + overshoot) * moved[walking]).to(inputs)
        crossed = classifier(beyond).argmax(1) != predicted[walking]
        arrived = walking[crossed]
        found[arrived] = moved[arrived].flatten(1).norm(dim=1)
        walking = walking[~crossed]
        if not len(walking):
            break
    return found


CONFIDENCE = 0.999
"""Probability with which the certified radius of a sample holds: 1 - alpha of Cohen et al."""


def certified_radius(
    batch: InputBatch,
    *,
    sigma: float = 0.25,
    draws: int = 1000,
    selection: int = 100,
    seed: int = 0,
) -> Tensor:
    r"""Certify a radius within which the *smoothed* classifier keeps its class.

    The smoothed classifier returns the class that the model returns most often for :math:`x +
    \varepsilon`, :math:`\varepsilon \sim N(0, \sigma^2 I)`. If it returns class A with probability
    :math:`p_A` and the runner-up with :math:`p_B`, no perturbation shorter than
    :math:`\frac{\sigma}{2} (\Phi^{-1}(p_A) - \Phi^{-1}(p_B))` in Euclidean norm changes it. As in
    the paper's algorithm the value is :math:`\sigma \Phi^{-1}(\underline{p_A})`, in the input's
    unit, with :math:`\underline{p_A}` the lower Clopper-Pearson bound and :math:`1 -
    \underline{p_A}` in the place of :math:`p_B`; 0 where the bound is at most 1/2 (the paper
    abstains). It cannot exceed :math:`\sigma \Phi^{-1}(\alpha^{1/n})` for n draws and
    :math:`\alpha = 0.001`, 2.46 sigma by default, and is about another classifier than the model.

    Args:
        batch: Samples of one pass and their classifier.
        sigma: Standard deviation of the noise, in the input's unit. [T] cites the measure and
            prints no sigma; 0.25 is one of the values of Cohen et al.
        draws: Number of noisy copies that estimate :math:`p_A`; Cohen et al. take 100,000.
        selection: Number of further noisy copies, which choose A.
        seed: Seed of the noise.

    Source:
        Cohen, Rosenfeld and Kolter, Certified adversarial robustness via randomized smoothing
        (2019), Theorem 1 and the algorithm CERTIFY; cited by [T] for the distance to the decision
        boundary.
    """
    from scipy.stats import beta, norm

    check_number("sigma", sigma, 0, low_open=True)
    check_number("draws", draws, 1, whole=True)
    check_number("selection", selection, 1, whole=True)
    check_number("seed", seed, 0, whole=True)
    radii = []
    for i, inputs in zip(batch.index.tolist(), batch.inputs, strict=True):
        # A generator for every sample, by its position: its radius does not depend on the samples
        # before it, nor on how many go into a pass.
        (state,) = np.random.SeedSequence([seed, i]).generate_state(1)
        generator = torch.Generator().manual_seed(int(state))
        # Copies that choose the class must not count for it: the bound would be too high.
        chosen = int(_votes(batch.classifier, inputs, sigma, selection, generator).argmax())
        agreeing = int(_votes(batch.classifier, inputs, sigma, draws, generator)[chosen])
        low = beta.ppf(1 - CONFIDENCE, agreeing, draws - agreeing + 1) if agreeing else 0.0
        radii.append(max(0.0, sigma * float(norm.ppf(low))))
    return torch.tensor(radii, dtype=torch.float64)


MEASURES: dict[str, Callable[..., Tensor]] = {
    "probability-margin": probability_margin,
    "closeness": closeness,
    "linearized": linearized,
    "certified-radius": certified_radius,
    "deepfool": deepfool,
}


def _nearest(
    classifier: Callable[[Tensor], Tensor], inputs: Tensor, predicted: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Find the smallest :math:`(z_c - z_j) / \|\nabla_x (z_c - z_j)\|` over the classes j, not c.

    Args:
        classifier: Function from inputs to logits.
        inputs: Inputs ``(n, ...)``.
        predicted: The class c of each sample, ``(n,)``.

    Returns:
        The smallest ratio, ``(n,)``, infinite where all gradients vanish, and the gradient of its
        class divided by its norm, of the shape of the inputs; float64.
    """
    with differentiating():
        inputs = inputs.detach().requires_grad_()
        logits = classifier(inputs)
        check_differentiable(logits)
        columns = logits.sum(0)  # Samples do not interact: the gradient of a sum is that of each.
        slopes = torch.stack([differentiate(inputs, column, retain=True) for column in columns], 1)
    slopes = finite("the gradients of the model's outputs", slopes.double().flatten(2))
    values, reference = logits.detach().double(), predicted[:, None]
    chosen = reference[..., None].expand(-1, 1, slopes.shape[2])
    slopes = slopes.gather(1, chosen) - slopes  # (n, classes, inputs)
    gaps, lengths = values.gather(1, reference) - values, slopes.norm(dim=2)
    # Logits that differ by a constant are infinitely far from a tie, and tied ones are on the
    # boundary, although both divisions are by zero.
    flat = torch.where(gaps == 0, 0.0, gaps.sign() * torch.inf)
    ratios = torch.where(lengths > 0, gaps / lengths, flat)
    ratio, nearest = ratios.scatter(1, reference, torch.inf).min(1)
    each = torch.arange(len(ratio), device=ratio.device)
    length = lengths[each, nearest, None].clamp(min=torch.finfo(torch.float64).tiny)
    return ratio, (slopes[each, nearest] / length).view_as(inputs)


def _votes(
    classifier: Callable[[Tensor], Tensor],
    inputs: Tensor,
    sigma: float,
    draws: int,
    generator: torch.Generator,
) -> Tensor:
    """Count how often the model returns each class for one input under noise, ``(C,)``."""
    size = max(1, min(PASS_SAMPLES, PASS_NUMBERS // inputs.numel()))
    outputs = []
    for part in torch.arange(draws).split(size):
        shape = (len(part), *inputs.shape)
        noise = torch.randn(shape, generator=generator, dtype=inputs.dtype).to(inputs.device)
        outputs.append(classifier(inputs + sigma * noise))
    logits = torch.cat(outputs)
    return logits.argmax(1).bincount(minlength=logits.shape[1])
