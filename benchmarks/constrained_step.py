"""One training step under a constraint, against the plain step and the step with equal losses; and
whole trainings.

``python benchmarks/constrained_step.py [small_cnn|resnet18|epochs ...]``: five groups, batch 160,
grey synthetic faces of 32 pixels, networks trained for an epoch, multipliers that are not zero.
Forward and backward pass, with what a constraint adds between them; the optimizer's own step is
left out, it is the same for all. Goals: equal losses 1.1 of a plain step; equal gradients and
curvature four plain steps on the small network (two convolutions, three linear layers), three with
eigenvalues every fifth step, which is the mean of five steps here; as low as it goes on ResNet-18
with torchvision's stem. Images and weights in torch's ``channels_last`` format make a plain step of
the small network much cheaper, so that the full constraint in that format is compared with that
step, too. The last column is the cosine between the gradient of the whole objective and that by
automatic differentiation. ``epochs`` compares trainings of the small network for three epochs, with
what a constraint does between the epochs; goal: equal losses 1.5 of a plain training."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from functools import partial

import interleaved
import torch
from curvature import NETWORKS, SMALL
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fairlib
from fairlib.diagnostics.vectors import Parts, dot, parts_unit
from fairlib.network.evaluation import evaluate
from fairlib.training import Batch, Constraint, ConstraintRun

ARCHITECTURES = {"small_cnn": ("cnn", SMALL, 7), "resnet18": (*NETWORKS["resnet18"][:2], 2)}
GOALS = {
    "equal losses": 1.1,
    "full constraint": 4.0,
    "full constraint, eigenvalues every 5th step": 3.0,
}
STEPS = 5
LAST = "plain, channels_last"


def losses(inputs: Tensor, logits: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(logits, targets, reduction="none")


def forward(
    model: nn.Module, data: fairlib.GroupedDataset, index: Tensor, layout: torch.memory_format
) -> Batch:
    inputs, targets = (
        data.batch(index, dtype=torch.float32).contiguous(memory_format=layout),
        data.targets[index],
    )
    logits = model(inputs)
    return Batch(inputs, targets, data.groups[index], logits, losses(inputs, logits, targets))


def steps(
    model: nn.Module,
    data: fairlib.GroupedDataset,
    run: ConstraintRun | None,
    layout: torch.memory_format = torch.contiguous_format,
) -> Callable[[], Tensor]:
    """Five steps on the same five batches, without moving the weights; gives back the last
    gradient."""
    batches = torch.arange(160 * STEPS).split(160)

    def take() -> Tensor:
        model.train()
        for index in batches:
            model.zero_grad()
            batch = forward(model, data, index, layout)
            (run.loss(batch) if run else batch.losses.mean()).backward()
        return torch.cat([weight.grad.flatten() for weight in model.parameters()])

    return take


def started(
    model: nn.Module, data: fairlib.GroupedDataset, constraint: Constraint
) -> ConstraintRun:
    run = constraint.start(model, data, losses)
    run.end_epoch()
    return run


class AutomaticDifferentiation:
    """What ``fairlib.mitigation.eigenvalue_gradient.FrozenDifferences`` computes, by
    differentiating the gradient again."""

    def __init__(self, run: ConstraintRun, inputs: Tensor, targets: Tensor) -> None:
        weights = [run.model.get_parameter(name) for name in run.names]
        self.leaves = [weight.detach().requires_grad_() for weight in weights]
        state = dict(zip(run.names, self.leaves, strict=True))
        loss = cross_entropy(evaluate(run.model, state, inputs, run.aliases), targets)
        self.graph = torch.autograd.grad(loss, self.leaves, create_graph=True)
        self.gradient = [part.detach() for part in self.graph]
        self.loss, self.samples = loss.detach(), len(targets)

    def combine(self, slope: float, bend: float, v: Parts | None) -> tuple[Parts, Parts | None]:
        total, image = slope * dot(self.graph, parts_unit(self.gradient)), None
        if v is not None:
            product = self.differentiate(dot(self.graph, v), graph=True)
            total = total + bend * dot(product, v)
            image = [part.detach() for part in product]
        return self.differentiate(total), image

    def differentiate(self, value: Tensor, *, graph: bool = False) -> Parts:
        return torch.autograd.grad(
            value, self.leaves, create_graph=graph, retain_graph=True, materialize_grads=True
        )


def derivatives(
    run: ConstraintRun, batch: Batch, weights: Parts
) -> dict[int, AutomaticDifferentiation]:
    """The groups of a batch as the constraint takes them, differentiated automatically."""
    members = {code: batch.groups == code for code in run.codes}
    return {
        code: AutomaticDifferentiation(run, batch.inputs[chosen], batch.targets[chosen])
        for code, chosen in members.items()
        if chosen.any()
    }


def one_network(name: str) -> None:
    architecture, settings, rounds = ARCHITECTURES[name]
    faces = fairlib.load("synthetic-faces", size=1600, image_size=32, seed=0).train.subset(
        range(160 * STEPS)
    )
    start = fairlib.build(
        architecture,
        num_classes=faces.num_classes,
        in_channels=1,
        image_size=32,
        seed=0,
        **settings,
    )
    model = fairlib.fit(start, faces, epochs=1, lr=0.02, seed=0)
    constraints = {
        "equal losses": fairlib.EqualLoss(step=0.1),
        "full constraint": fairlib.EqualCurvature(step=0.1, eigenvalue_step=0.01),
        "full constraint, eigenvalues every 5th step": fairlib.EqualCurvature(
            step=0.1, eigenvalue_step=0.01, every=5
        ),
    }
    runs = {
        version: started(model, faces, constraint) for version, constraint in constraints.items()
    }
    exact = started(model, faces, constraints["full constraint"])
    exact._derivatives = partial(derivatives, exact)
    versions = {"plain": steps(model, faces, None)}
    versions |= {version: steps(model, faces, run) for version, run in runs.items()}
    versions["full constraint, automatic differentiation"] = steps(model, faces, exact)
    last = copy.deepcopy(model).to(memory_format=torch.channels_last)
    versions[LAST] = steps(last, faces, None, torch.channels_last)
    for version, constraint in constraints.items():
        run = started(last, faces, constraint)
        versions[f"{version}, channels_last"] = steps(last, faces, run, torch.channels_last)
    table = interleaved.compare(versions, GOALS, rounds=rounds)
    exact.vectors = {code: list(vector) for code, vector in runs["full constraint"].vectors.items()}
    gradients = [
        versions[version]()
        for version in ("full constraint", "full constraint, automatic differentiation")
    ]
    table.loc["full constraint", "cosine"] = torch.cosine_similarity(
        *(g.double() for g in gradients), dim=0
    ).item()
    interleaved.report(f"constrained_step_{name}", table)
    relaxed = table["seconds"] / table.loc["equal losses", "seconds"]
    print(relaxed.map("{:.2f} of the step with equal losses".format).to_string())
    print(
        (table["seconds"] / table.loc[LAST, "seconds"])
        .map("{:.2f} of the plain step, channels_last".format)
        .to_string()
    )
    print(f"cosine with the exact gradient {table.loc['full constraint', 'cosine']:.6f}")


def whole_trainings() -> None:
    architecture, settings, _ = ARCHITECTURES["small_cnn"]
    faces = fairlib.load("synthetic-faces", size=1600, image_size=32, seed=0).train
    start = fairlib.build(
        architecture,
        num_classes=faces.num_classes,
        in_channels=1,
        image_size=32,
        seed=0,
        **settings,
    )
    constraints = {
        "plain": None,
        "equal losses": fairlib.EqualLoss(step=0.1),
        "full constraint, eigenvalues every 5th step": fairlib.EqualCurvature(
            step=0.01, eigenvalue_step=0.0001, every=5
        ),
    }

    def training(constraint: Constraint | None) -> Callable[[], nn.Module]:
        return lambda: fairlib.fit(
            start, faces, epochs=3, lr=0.02, batch_size=160, seed=0, constraint=constraint
        )

    versions = {version: training(constraint) for version, constraint in constraints.items()}
    table = interleaved.compare(versions, {"equal losses": 1.5}, rounds=5)
    interleaved.report("constrained_epochs", table)


if __name__ == "__main__":
    for name in sys.argv[1:] or (*ARCHITECTURES, "epochs"):
        whole_trainings() if name == "epochs" else one_network(name)
