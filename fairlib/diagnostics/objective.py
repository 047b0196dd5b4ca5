"""The training objective as a function of the parameters, and its derivatives."""

import math
from collections.abc import Callable, Sequence

import pandas as pd
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import cross_entropy
from torch.nn.modules.batchnorm import _BatchNorm

from fairlib.data import GroupedDataset
from fairlib.diagnostics.computable import (
    NotComputable,
    NotFinite,
    check_differentiable,
    check_graph,
    differentiating,
)
from fairlib.diagnostics.vectors import total
from fairlib.network import evaluation, masks
from fairlib.network.evaluation import (
    aliases,
    check_logits,
    evaluate,
    evaluation_mode,
    full_precision,
    open_operators,
    placement,
)

BUDGET = 2**29
"""Bytes that one pass may save for its backward pass; a Hessian-vector product saves three times
that."""


class MeanLoss:
    r"""The mean cross-entropy of a classifier over some samples as a function of its parameters.

    Vectors are flat, ``(P,)`` in the order of ``names``; ``split`` takes one apart. Of a pruned
    model only the kept weights are variables: gradients and products are zero at the others.
    Everything is over the whole of the samples, in chunks that fit ``BUDGET``, in eval mode, and
    leaves the model's mode, buffers and ``.grad`` as they were.

    Args:
        model: Any differentiable classifier.
        data: Data set from which the samples are taken.
        index: Positions of the samples to use, int64 ``(n,)``; by default all.
        parameters: Names of the parameters that make up :math:`\theta`; by default all that require
            a gradient.
        dtype: Floating type of the computation; by default that of the parameters.

    Raises:
        NotComputable: If there is nothing to differentiate, torch cannot differentiate it, or a
            batch normalization has no running statistics.
        ValueError: If there is no sample.
    """

    def __init__(
        self,
        model: nn.Module,
        data: GroupedDataset,
        index: Tensor | None = None,
        *,
        parameters: Sequence[str] | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.model, self.data = model, data
        self.index = torch.arange(len(data)) if index is None else index
        if not len(self.index):
            raise ValueError("a mean loss needs at least one sample")
        for name, module in model.named_modules():
            if isinstance(module, _BatchNorm) and module.running_mean is None:
                raise NotComputable(
                    f"{name} normalizes by its batch also in eval mode: single samples have no loss"
                )
        self.device, parameter_dtype = placement(model)
        self.dtype = dtype or parameter_dtype
        self.names = check_parameters(model, parameters)
        weights = {name: weight.detach() for name, weight in model.named_parameters()}
        moving = [weights.pop(name) for name in self.names]
        self.shapes = [weight.shape for weight in moving]
        theta = torch.cat([weight.flatten() for weight in moving]).to(self.dtype)
        fixed = weights | {name: buffer.detach() for name, buffer in model.named_buffers()}
        self.fixed = {
            name: tensor.to(self.dtype) if tensor.is_floating_point() else tensor
            for name, tensor in fixed.items()
        }
        self.aliases = aliases(model)
        self.kept = self._kept(theta)
        self.theta = self.project(theta)
        self.chunk = self.samples_within(BUDGET)

    @property
    def chunks(self) -> tuple[Tensor, ...]:
        """The positions of the samples, split into passes."""
        return self.index.split(self.chunk)

    def split(self, vector: Tensor) -> dict[str, Tensor]:
        """Split a flat vector into views by parameter name, each of the parameter's shape."""
        parts = vector.split([shape.numel() for shape in self.shapes])
        views = [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]
        return dict(zip(self.names, views, strict=True))

    @full_precision()
    def logits(self, theta: Tensor, chunk: Tensor) -> Tensor:
        """Compute the logits ``(n, C)`` of some samples; differentiable in ``theta``."""
        inputs = self.data.batch(chunk, dtype=self.dtype, device=self.device)
        with evaluation_mode(self.model), open_operators(self.model):
            logits = evaluate(self.model, self.split(theta) | self.fixed, inputs, self.aliases)
        check_logits(logits, self.data)
        return logits.to(self.dtype)

    def total(self, theta: Tensor, chunk: Tensor) -> Tensor:
        """Sum the losses of some samples; differentiable in ``theta``.

        Raises:
            NotFinite: If it is NaN or infinite.
        """
        targets = self.data.labels(chunk, self.device)
        loss = cross_entropy(self.logits(theta, chunk), targets, reduction="sum")
        if not loss.isfinite():
            raise NotFinite(f"the loss of {len(chunk)} samples is {loss.item()}")
        return loss

    def value(self, theta: Tensor | None = None) -> float:
        """Compute :math:`J` at ``theta``, by default at the model's parameters."""
        point = self.theta if theta is None else theta
        with torch.no_grad():
            return sum(self.total(point, chunk).item() for chunk in self.chunks) / len(self.index)

    def gradient(self) -> Tensor:
        r"""Compute :math:`\nabla J` ``(P,)`` at the model's parameters."""
        summed = total(self.total_gradient(self.theta, chunk)[1] for chunk in self.chunks)
        return check_finite("gradient", self.project(summed / len(self.index)))

    @full_precision()
    @differentiating()
    def sampled_gradient(self, generator: torch.Generator) -> Tensor:
        r"""Compute the gradient over some samples for labels drawn from the model's predictions.

        It is a random vector with mean zero and a covariance proportional, in expectation, to the
        Gauss-Newton matrix."""
        point, summed = self.theta.detach().requires_grad_(), torch.zeros_like(self.theta)
        # A quarter of the samples: the vector only has to be large in curved directions, and the
        # whole group would cost as much as one more product.
        order = torch.randperm(len(self.index), generator=generator)
        some = self.index[order[: max(32, len(self.index) // 4)]]
        for chunk in some.split(self.chunk):
            logits = self.logits(point, chunk)
            chances = logits.detach().cpu().softmax(1)
            drawn = torch.multinomial(chances, 1, generator=generator).flatten().to(self.device)
            summed += differentiate(point, cross_entropy(logits, drawn, reduction="sum"))
        return self.project(summed / len(some))

    def product(self, vector: Tensor) -> Tensor:
        r"""Compute :math:`\nabla^2 J \, v` ``(P,)`` by differentiating twice."""
        vector = self.project(vector.to(self.theta))
        summed = total(differentiate(*self.gradient_graph(chunk), vector) for chunk in self.chunks)
        return self.project(summed / len(self.index))

    def gradient_graph(self, chunk: Tensor) -> tuple[Tensor, Tensor]:
        """Return the parameters as a leaf, and the gradient of some samples' loss with its graph.

        Raises:
            NotComputable: If the graph has a function that can be differentiated only once.
        """
        point, gradient = self.total_gradient(self.theta, chunk, create_graph=True)
        check_graph(gradient)
        return point, gradient

    @full_precision()
    @differentiating()
    def total_gradient(
        self, theta: Tensor, chunk: Tensor, *, create_graph: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return a leaf at ``theta``, and the gradient of the summed losses of some samples."""
        point = theta.detach().requires_grad_()
        return point, differentiate(point, self.total(point, chunk), create_graph=create_graph)

    def project(self, vector: Tensor) -> Tensor:
        """Set a vector to zero at the pruned weights."""
        return vector if self.kept is None else vector * self.kept

    def _kept(self, theta: Tensor) -> Tensor | None:
        """Return 1 where a weight is kept and 0 where it is pruned; None if nothing is pruned."""
        kept = masks.read_masks(self.model)
        if kept.keys().isdisjoint(self.names):
            return None
        ones = self.split(torch.ones_like(theta))
        flat = torch.cat([kept.get(name, one).to(theta).flatten() for name, one in ones.items()])
        if not flat.any():
            raise NotComputable(
                f"nothing to differentiate: every weight of {', '.join(self.names)} is pruned"
            )
        return flat

    @differentiating()
    def samples_within(self, budget: int) -> int:
        """Find the largest number of samples of one pass that saves at most ``budget`` bytes.

        Raises:
            NotComputable: If the model cannot be differentiated by any parameter.
        """
        state = self.split(self.theta.detach()) | self.fixed
        weights = dict(self.model.named_parameters())
        # All parameters count as differentiated, so that activations before the first one that is
        # are counted, too: a pass over frozen layers holds them for a while.
        state = {
            name: tensor.detach().requires_grad_(name in weights) for name, tensor in state.items()
        }
        constant = {tensor.untyped_storage().data_ptr() for tensor in state.values()}
        saved: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            # Storages are counted, not tensors: layers save views of the same activations, and the
            # parameters themselves, which take no more memory for more samples.
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in constant:
                saved[storage.data_ptr()] = storage.nbytes()
            # Detached: an output that its own node holds would be a circle, which is never freed.
            return tensor.detach()

        with saved_tensors_hooks(pack, lambda tensor: tensor):
            inputs = self.data.batch(self.index[:1], dtype=self.dtype, device=self.device)
            with evaluation_mode(self.model), open_operators(self.model):
                # The graph is held until here: freed tensors would lend their addresses to others.
                graph = evaluate(self.model, state, inputs, self.aliases)
        check_logits(graph, self.data)
        check_differentiable(graph)
        samples = budget // max(1, sum(saved.values()))
        return max(1, min(len(self.index), evaluation.SAMPLES_PER_PASS, samples))


def check_finite(what: str, vector: Tensor) -> Tensor:
    """Return the vector if it is finite.

    Raises:
        NotFinite: If an entry is NaN or infinite.
    """
    if not vector.isfinite().all():
        raise NotFinite(f"the {what} has entries that are NaN or infinite")
    return vector


def group_table(
    data: GroupedDataset, columns: Sequence[str], row: Callable[..., Sequence[float]]
) -> pd.DataFrame:
    """Build a table of float64 with a row for every group, in the order of the codes.

    Args:
        data: Samples with groups.
        columns: Names of the columns.
        row: Function from a group's name and the positions of its samples to the numbers of its
            row. It is not called for a group without samples, whose row is NaN.
    """
    rows = []
    for code, name in enumerate(data.group_names):
        index = members(data, code)
        rows.append(row(name, index) if len(index) else [math.nan] * len(columns))
    names = pd.Index(data.group_names, name="group")
    return pd.DataFrame(rows, names, list(columns), dtype=float)


def members(data: GroupedDataset, code: int) -> Tensor:
    """Find the positions of a group's samples, int64 ``(n,)`` on the CPU."""
    return (data.groups == code).nonzero().flatten().cpu()


@full_precision()
@differentiating()
def differentiate(
    point: Tensor,
    output: Tensor,
    vector: Tensor | None = None,
    *,
    retain: bool = False,
    create_graph: bool = False,
) -> Tensor:
    """Differentiate ``vector @ output``, or one number, in the point; zero where it is constant.

    Raises:
        NotComputable: If torch cannot differentiate it.
    """
    if not output.requires_grad:
        return torch.zeros_like(point)
    graphs = {"retain_graph": retain or create_graph, "create_graph": create_graph}
    (derivative,) = torch.autograd.grad(output, point, vector, materialize_grads=True, **graphs)
    return derivative


def check_parameters(model: nn.Module, names: Sequence[str] | None) -> list[str]:
    """Return the given names of parameters; by default those of all that require a gradient.

    Raises:
        NotComputable: If there is none, or one of them is complex.
    """
    weights = dict(model.named_parameters())
    if names is None:
        names = [name for name, weight in weights.items() if weight.requires_grad]
    if not names:
        raise NotComputable(f"{type(model).__name__} has no parameter that requires a gradient")
    for name in names:
        if weights[name].is_complex():
            raise NotComputable(f"{name} is complex; its derivatives are not those of real weights")
    return list(names)
