r"""Gradients of a group's gradient norm and of its Hessian's largest eigenvalue.

With the gradient g and the Hessian H of a group's loss, :math:`u = g / \|g\|` and the top
eigenvector v,

.. math:: \nabla \|g\| = H u, \qquad \nabla \lambda_{\max}(H) = D^2 g[v, v].

The second is a third derivative of the loss, along v twice. Both come from differences of
gradients, with the kinks of the network held fixed (:mod:`fairlib.diagnostics.frozen`);
differentiating the gradient again would take twice as long.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from fairlib.diagnostics.frozen import Pattern
from fairlib.diagnostics.vectors import Parts, moved, parts_unit

Gradient = Callable[[Parts], tuple[Parts, Tensor]]
"""Function from weights to the gradient and the value of a loss there."""


class FrozenDifferences:
    """A group's derivatives by differences of gradients, on the network's pieces at the weights.

    Args:
        gradient: Gradient of the mean loss of the group's samples.
        weights: Weights at which to differentiate.
        samples: Number of samples of the group.
    """

    def __init__(self, gradient: Gradient, weights: Parts, samples: int) -> None:
        self._gradient, self.weights, self.samples = gradient, weights, samples
        self.pattern = Pattern()
        with self.pattern:
            self.gradient, self.loss = gradient(weights)
        # The rounding errors of gradients are divided by the step in a first difference, by its
        # square in a second one. Smaller steps drown in them; larger ones feel the next derivative.
        double = weights[0].dtype == torch.float64
        self.first_step, self.second_step = (1e-6, 1e-4) if double else (1e-3, 3e-3)

    def combine(self, slope: float, bend: float, v: Parts | None) -> tuple[Parts, Parts | None]:
        r"""Compute the weighted sum of both gradients, and :math:`H v`.

        Args:
            slope: Factor of the norm's gradient.
            bend: Factor of the eigenvalue's gradient.
            v: Top eigenvector; None leaves the eigenvalue out.

        Returns:
            The sum ``slope`` :math:`\nabla \|g\|` + ``bend`` :math:`\nabla \lambda_{\max}`, and
            the image :math:`H v`; None without v.
        """
        u, step = parts_unit(self.gradient), self.second_step
        if v is None:
            return self._norm_gradient(slope, u), None
        # Three gradients give everything. With the step e along v, both outer points moved by s
        # along u, and the group's own gradient g in the middle,
        #     g(e v + s u) + g(-e v + s u) - 2 g = e^2 D^2 g[v, v] + 2 s H u + higher orders.
        # Times bend / e^2, the first term is the eigenvalue's part. The second becomes slope H u,
        # the norm's part, if s = e^2 slope / (2 bend). The difference of the two is 2 e H v.
        shift = step**2 * slope / (2 * bend) if bend else math.inf
        # A long shift would leave the neighbourhood in which these terms dominate: then, and where
        # bend is 0, the norm's part takes a gradient of its own.
        joint = abs(shift) <= 10 * step**2
        ahead, behind = (self._at(sign * step, v, shift if joint else 0.0, u) for sign in (1, -1))
        image = [(a - b) / (2 * step) for a, b in zip(ahead, behind, strict=True)]
        scale = bend / step**2
        outer = zip(ahead, behind, self.gradient, strict=True)
        total = [scale * (a + b - 2 * g) for a, b, g in outer]
        return total if joint else moved(total, 1, self._norm_gradient(slope, u)), image

    def _norm_gradient(self, slope: float, u: Parts) -> Parts:
        """Compute ``slope`` times H u by a first difference along u."""
        if not slope:
            return [torch.zeros_like(part) for part in u]
        ahead, step = self._at(self.first_step, u), self.first_step
        return [slope / step * (a - g) for a, g in zip(ahead, self.gradient, strict=True)]

    def _at(self, length: float, v: Parts, shift: float = 0.0, u: Parts = ()) -> Parts:
        """Compute the gradient at the weights moved by ``length`` along v and ``shift`` along u."""
        point = self.weights
        for distance, direction in ((length, v), (shift, u)):
            if distance:
                pairs = zip(point, direction, strict=True)
                point = [torch.add(a, b, alpha=distance) for a, b in pairs]
        with self.pattern:
            return self._gradient(point)[0]
