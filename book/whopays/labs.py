"""Exercises of the labs: a function that a student wrote is called, and told right or not yet.

An exercise is a function with the right answer, by fairlib or by autograd, under :func:`exercise`.
Its parameters name the inputs that are `SHAPES` or `MADE`, or have them as defaults. Each
exercise is called with two sets of inputs, so that a constant fails.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import torch
from scipy.stats import spearmanr
from torch import Tensor, nn
from torch.nn import functional

import fairlib
from fairlib import linearization, statistics
from fairlib._validation import lookup
from fairlib.network import gates
from fairlib.pruning.fairgrape import in_turn
from fairlib.pruning.hypergradient import hessian_free

Function = Callable[..., Any]


class Exercise(NamedTuple):
    """The right answer of an exercise, and what is said of others.

    Attributes:
        answer: Function with the right answer.
        hint: Sentence that is printed with every wrong value.
        usual: Usual wrong answers, by the words that say what is wrong.
        slope: Number of the argument for which the gradient of the answer is compared, too.
        tolerance: Largest difference, as a share of the largest right value.
    """

    answer: Function
    hint: str
    usual: Mapping[str, Function] = {}
    slope: int | None = None
    tolerance: float = 1e-4


EXERCISES: dict[str, Exercise] = {}
"""Exercises by name."""


class NotYet(Exception):
    """Raised with the reason why an answer is not right."""


def exercise(*about: Any, **more: Any) -> Function:
    """Enter a right answer under its name; the arguments are what `Exercise` has beside it."""
    return lambda answer: EXERCISES.setdefault(answer.__name__, Exercise(answer, *about, **more))


def check(name: str, yours: Function) -> None:
    """Print whether a function solves an exercise: ``right``, or ``not yet``, why, and a hint.

    Args:
        name: Name of the exercise.
        yours: Function to be judged; it is called with copies of its arguments.

    Raises:
        ValueError: If there is no such exercise.

    Example:
        >>> from whopays import labs
        >>> labs.check("margin", lambda logits: None)
        not yet: nothing is returned; write your code in place of the three dots
        >>> labs.check("margin", lambda logits: logits.diff(dim=1))
        not yet: the shape of what is returned is (225, 9), and should be (225,)
    """
    asked = lookup("exercise", name, EXERCISES)
    try:
        _judge(asked, yours)
        print("right")
    except NotYet as reason:
        print(f"not yet: {reason}")


def _judge(asked: Exercise, yours: Function) -> None:
    """Compare what a function returns with the right answers; raise `NotYet` with the reason."""
    (got, mine), (wanted, right) = _answers(asked, yours), _answers(asked, asked.answer)
    for shape, other in zip(got, wanted, strict=True):
        if shape != other:
            raise NotYet(f"the shape of what is returned is {shape}, and should be {other}")

    def apart(known: list[Tensor]) -> bool:
        pairs = zip(mine, known, strict=True)
        # Integers are equal or not: of numbers near 2^60 a share would forgive a thousand.
        return any(
            (m - k).abs().max() > asked.tolerance * k.abs().max() * k.is_floating_point()
            for m, k in pairs
        )

    if not apart(right):
        return
    m, r = torch.cat(mine), torch.cat(right)
    worst = (m - r).abs().argmax()
    reason = f"a number is {m[worst]:.4g} and should be {r[worst]:.4g}"
    for words, wrong in asked.usual.items():
        if not apart(_answers(asked, wrong)[1]):
            reason = words
    raise NotYet(f"{reason}. Hint: {asked.hint}")


def _answers(asked: Exercise, function: Function) -> tuple[list[str], list[Tensor]]:
    """Call a function with both inputs; return the shapes of its answers, and them as vectors."""
    names = inspect.signature(asked.answer).parameters.values()
    inputs = [[_input(each.name, case, each.default) for each in names] for case in (0, 1)]
    answers = [_called(function, each, asked.slope) for each in inputs]
    shapes = [" and ".join(f"{tuple(part.shape)}" for part in parts) for parts in answers]
    return shapes, [torch.cat([part.flatten() for part in parts]) for parts in answers]


def _called(function: Function, inputs: list, slope: int | None) -> list[Tensor]:
    """Call a function with copies of the inputs; return tensors, a slope behind the answer."""
    copies = copy.deepcopy(inputs)
    if slope is not None:
        copies[slope].requires_grad_()
    try:
        returned = function(*copies)
    except Exception as error:
        raise NotYet(f"{type(error).__name__}: {error}") from None
    parts = _tensors(returned)
    if not parts:
        raise NotYet("nothing is returned; write your code in place of the three dots")
    for before, after in zip(inputs, copies, strict=True):
        if not all(map(torch.equal, _state(before), _state(after))):
            raise NotYet(f"the {type(before).__name__} that you get is changed; work on a copy")
    if slope is not None:
        if not parts[0].requires_grad:
            raise NotYet("no gradient leads from the answer to its input; what cuts it off?")
        weights = torch.arange(1.0, 1 + parts[0].numel()).view_as(parts[0])
        parts += torch.autograd.grad((parts[0] * weights).sum(), copies[slope])
    if not all(part.isfinite().all() for part in parts):
        raise NotYet("some values are NaN or infinite")
    return [part.detach().double() if part.is_floating_point() else part for part in parts]


def _state(value: Any) -> list[Tensor]:
    """List what a call may not change: weights, buffers and mode of a network; a tensor."""
    if isinstance(value, nn.Module):
        return [*value.state_dict().values(), torch.tensor(value.training)]
    return [value] if isinstance(value, Tensor) else []


def _tensors(returned: Any) -> list[Tensor]:
    """Read what a function returned as tensors; several of one shape become one stack."""
    if isinstance(returned, nn.Module):
        return list(returned.parameters())
    if isinstance(returned, list | tuple):
        parts = [part for each in returned for part in _tensors(each)]
        return [torch.stack(parts)] if len({part.shape for part in parts}) == 1 else parts
    try:
        return [] if returned is None else [torch.as_tensor(returned)]
    except (TypeError, RuntimeError):
        raise NotYet(f"a {type(returned).__name__} is returned, and should be a tensor") from None


# Inputs, two of each

SHAPES = {
    "matrix": (30, 30),
    "weights of three": (3, 40),
    "weight": (16, 8, 3, 3),
    "inputs": (5, 30),
    "multipliers": (10,),
    "teacher": (225, 10),
    "shuffles": (99, 225),
    "direction": (6570,),
    **dict.fromkeys(("xs", "ys", "a", "b"), (2, 30)),
}
"""Shapes of inputs that are drawn; all others without a function or a default are (30,)."""

WHOLE = {"secret", "mask", "xs", "ys", "a", "b"}
"""Inputs that are integers of 64 bits, whose products overflow."""


@cache
def _input(name: str, case: int, default: Any = None) -> Any:
    if name in MADE:
        return MADE[name](case)
    if isinstance(default, tuple):
        return default[case]
    generator = torch.Generator().manual_seed(1000 * case + sum(map(ord, name)))
    drawn = torch.randn(SHAPES.get(name, (30,)), generator=generator)
    return (drawn * 2**60).long() if name in WHOLE else drawn


@cache
def _splits() -> fairlib.Splits:
    return fairlib.load("digits", seed=0)


@cache
def _network(case: int, epochs: int) -> nn.Module:
    start = fairlib.build(("mlp", "cnn")[case], like=_splits(), seed=case)
    return fairlib.fit(start, _splits().train, epochs=epochs, device="cpu")


def _relaxed(net: nn.Module) -> nn.Module:
    gated = gates.gate(net)
    gates.relax(gated)
    return gated


MADE: dict[str, Function] = {
    "x": lambda case: _splits().train.batch(range(case, 450, 2)),
    "y": lambda case: _splits().train.targets[case::2],
    "groups": lambda case: _splits().train.groups[case::2],
    "logits": lambda case: _input("model", case)(_input("x", case)).detach(),
    "before": lambda case: _input("teacher", case)[:, 0] < 1,
    "after": lambda case: _input("teacher", case)[:, 1] < 1,
    "losses": lambda case: _input("teacher", case)[:, 2].exp(),
    "orders": lambda case: _input("shuffles", case).argsort(1),
    "product": lambda case: (_input("matrix", case) + _input("matrix", case).T).mv,
    "products": lambda case: torch.tensor([[3.0], [1.0], [0.3]]) * _input("weights of three", case),
    "kept": lambda case: (_input("scores", case) > 0).float(),
    "c": lambda case: (
        torch.tensor([[-7], [8]]) * _input("a", case).sum(0) * _input("b", case).sum(0)
    ),
    "model": lambda case: _network(case, 8),
    "untrained": lambda case: _network(0, 1 + case),
    "relaxed": lambda case: _relaxed(_network(0, 8)),
}
"""Functions that make the other inputs, from 0 or 1."""


def _fitted(net: nn.Module, fair: bool = False) -> nn.Module:
    """Train for a moment, under equal losses or not; multipliers are zero in the first epoch."""
    constraint = fairlib.EqualLoss(step=0.5) if fair else None
    return fairlib.fit(net, _splits().train, epochs=2, constraint=constraint, device="cpu")


def _pruned(net: nn.Module, sparsity: float = 0.9, scope: str = "global") -> nn.Module:
    return fairlib.prune(net, "magnitude", sparsity=sparsity, scope=scope)


def _accuracies(net: nn.Module) -> Tensor:
    right = fairlib.diagnostics.group_performance(net, _splits().test)["accuracy"]
    return torch.tensor(right.to_numpy())


def _slope(value: Tensor, net: nn.Module) -> Tensor:
    """Gradient of a value by all parameters, as one vector."""
    gradients = torch.autograd.grad(value, list(net.parameters()), create_graph=True)
    return torch.cat([part.flatten() for part in gradients])


def _gradient(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return _slope(functional.cross_entropy(net(x), y), net)


# Exercises, with the right answers


@exercise(
    "the weights of all layers are ranked together, and biases stay",
    {"you ranked each layer by itself": lambda model, share: _pruned(model, share, "layer")},
)
def magnitude(model, sparsity=(0.9, 0.5)):
    return _pruned(model, sparsity)


@exercise(
    "the control is finetuned as the pruned network is",
    {
        "you compare with the network before its finetuning": lambda net, prune, tune, accuracy: (
            accuracy(net) - accuracy(tune(prune(net)))
        )
    },
)
def drop(model, prune=(_pruned,) * 2, finetune=(_fitted,) * 2, accuracy=(_accuracies,) * 2):
    return accuracy(finetune(model)) - accuracy(finetune(prune(model)))


@exercise("in each group count the lost and the gained; then one more of each, and two more people")
def drop_interval(before, after, groups):
    seen = statistics.drop(before, after, groups, 10)
    (lost, gained), people = 1 + seen.sums.T, 2 + seen.sizes
    drop = (lost - gained) / people
    half = 1.96 * (((lost + gained) / people - drop**2) / people) ** 0.5
    return drop - half, drop + half


@exercise("count the shuffles whose gap is as large or larger; the observed one counts as one more")
def p_value(before, after, groups, orders):
    lost = before.double() - after.double()
    drops = [statistics.group_means(lost, each, 10) for each in (groups, *groups[orders])]
    observed, *shuffled = [drop.max() - drop.min() for drop in drops]
    return (1 + sum(gap >= observed - 1e-9 for gap in shuffled)) / 100


@exercise("a weight times the gradient of the mean loss by it; biases have no score")
def snip(model, x, y):
    weights = [part for part in model.parameters() if part.ndim > 1]
    gradients = torch.autograd.grad(functional.cross_entropy(model(x), y), weights)
    return [(part * slope).abs() for part, slope in zip(weights, gradients, strict=True)]


@exercise("flatten each filter to a row; one distance for each pair of rows; the sum of each row")
def fpgm(weight):
    return torch.cdist(weight.flatten(1), weight.flatten(1)).sum(1)


@exercise(
    "next chooses the group furthest behind its share of what is kept so far; return them sorted"
)
def fairgrape(products, count=(12, 25)):
    scores = products.square().double().numpy()
    return sorted(in_turn(scores, (-scores).argsort(1), count))


def _norm_of_batches(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    batches = zip(x.split(8), y.split(8), strict=True)
    return torch.stack([_gradient(model, *batch).norm() for batch in batches]).mean()


@exercise(
    "take one gradient of the mean loss of all samples, then its norm",
    {"this is the mean of the norms of batches": _norm_of_batches},
)
def gradient_norm(model, x, y):
    return _gradient(model, x, y).norm()


@exercise("differentiate twice: the gradient with create_graph=True, times v, is differentiated")
def hessian_product(untrained, x, y, direction):
    return _slope(_gradient(untrained, x, y) @ direction, untrained)


def _eigenvalues(product: Function) -> Tensor:
    return torch.linalg.eigvalsh(torch.stack(list(map(product, torch.eye(30)))))


@exercise("divide by the norm before each product; in the end return v @ Av for v of length one")
def power_iteration(product, start, steps=(500, 1000)):
    return max(_eigenvalues(product), key=abs)


@exercise("make each new direction orthogonal to all before; twice, against rounding")
def lanczos(product, start, steps=(20, 25)):
    return max(_eigenvalues(product))


@exercise("take the softmax first; then the two largest, by topk")
def margin(logits):
    return -logits.softmax(1).topk(2).values.diff().flatten()


@exercise("correlate the ranks: argsort of argsort")
def rank_correlation(first, second):
    return spearmanr(first, second).statistic


@exercise("the loss of a group less the mean over all samples, not over the groups")
def gaps(losses, groups):
    return statistics.group_means(losses, groups, 10) - losses.double().mean().item()


@exercise(
    "plain steps without momentum; after each the multipliers rise, by losses at the new weights"
)
def equal_losses(untrained, x, y, groups, epochs=(5, 8), lr=(0.1, 0.05), step=(0.1, 0.5)):
    constraint = fairlib.EqualLoss(step=step)
    usual = {
        "device": "cpu",
        "momentum": 0.0,
        "weight_decay": 0.0,
        "schedule": "constant",
        "batch_size": 225,
    }
    data = fairlib.GroupedDataset(x, y, groups)
    net = fairlib.fit(untrained, data, epochs=epochs, lr=lr, constraint=constraint, **usual)
    return fairlib.history(net).filter(like="multiplier").iloc[-1].tolist()


@exercise("take the norm of a gradient that has create_graph=True, and differentiate it")
def norm_gradient(untrained, x, y):
    return _slope(_gradient(untrained, x, y).norm(), untrained)


def _after_and_before(untrained: nn.Module, train: Function, prune: Function) -> list[nn.Module]:
    plain, fair = train(untrained, False), train(untrained, True)
    return [train(prune(plain), True), train(prune(fair), False)]


@exercise(
    "before: fair, prune, plain; after: plain, prune, fair",
    {"you return the two the other way round": _after_and_before},
)
def before_and_after(untrained, train=(_fitted,) * 2, prune=(_pruned,) * 2):
    return _after_and_before(untrained, train, prune)[::-1]


@exercise("the mask and the secret less the mask")
def share(secret, mask):
    return mask, secret - mask


@exercise("open d = x - a and e = y - b; only the first party adds d * e")
def multiply(xs, ys, a, b, c):
    d, e = (xs - a).sum(0), (ys - b).sum(0)
    return c + d * b + e * a + torch.tensor([[1], [0]]) * d * e


@exercise("one where alpha is 1 is a ReLU, one where alpha is 0 lets everything pass")
def gate(inputs, alpha):
    return inputs.lerp(inputs.relu(), alpha)


@exercise("count after each epoch; no new minimum, and 5 epochs have passed: the penalty grows")
def snl(relaxed, x, y, budget=(60, 30), penalty=(1e-3, 2e-3)):
    train = {"epochs": 999, "lr": 0.02, "batch_size": 225, "device": "cpu"}
    net = linearization.snl(
        relaxed,
        relus=budget,
        data=fairlib.GroupedDataset(x, y, y),
        objective=lambda x, z, y: functional.cross_entropy(z, y, reduction="none"),
        train=train,
        penalty=penalty,
    )
    return fairlib.history(net)[["relus", "penalty"]].iloc[-1].tolist()


@exercise("the divergence is summed over classes, averaged over samples, and times T squared")
def distillation(logits, teacher, y, temperature=(4.0, 2.0)):
    student, wanted = ((z / temperature).log_softmax(1) for z in (logits, teacher))
    soft = functional.kl_div(student, wanted, log_target=True, reduction="batchmean")
    return functional.cross_entropy(logits, y) + temperature**2 * soft


def _penalty(losses, groups, multipliers):
    means = torch.stack([losses[groups == group].mean() for group in range(10)])
    return multipliers @ (losses.mean() - means).abs()


@exercise("the mean loss and, for each group, its multiplier times |L - L_a|", slope=0)
def lagrangian(losses, groups, multipliers):
    return losses.mean() + _penalty(losses, groups, multipliers)


@exercise(
    "detach() the penalty: its number stays, its gradient goes",
    {"the penalty still has a gradient": lagrangian.answer},
    slope=0,
)
def as_published(losses, groups, multipliers):
    return losses.mean() + _penalty(losses, groups, multipliers).detach()


@exercise("forward: one for the k largest scores; backward: the gradient as it comes", slope=0)
def top_k(scores, k=(5, 12)):
    return (scores >= scores.topk(k).values[-1]).float() + scores - scores.detach()


@exercise(
    "the product rule: theta itself, and the answer of theta to the mask",
    {"you hold theta still": lambda kept, theta, lower, upper, gamma: theta * upper},
)
def mask_gradient(kept, theta, lower, upper, gamma=(1.0, 0.3)):
    return hessian_free([theta], [kept * lower], [upper], gamma)[0]
