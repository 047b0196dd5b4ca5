r"""The gradient of a bi-level problem: how the upper level's objective changes with the mask when the weights follow.

With :math:`w = m \odot \theta`, let :math:`\theta^*(m)` minimize
:math:`U_1(m \odot \theta) + \frac{\gamma}{2} \|\theta\|^2` and let :math:`\Phi(m) = U_2(m \odot \theta^*(m))`. With
:math:`g_1 = \nabla U_1(w)`, :math:`g_2 = \nabla U_2(w)`, :math:`H_1 = \nabla^2 U_1(w)` and :math:`D` the diagonal
matrix of :math:`m`, the implicit function theorem gives, at :math:`\theta^*`,

.. math::
    \nabla \Phi(m) = \theta \odot g_2 - g_1 \odot v - \theta \odot H_1 (m \odot v) , \qquad
    (D H_1 D + \gamma I) \, v = m \odot g_2 .

If :math:`H_1` is set to zero, :math:`v = m \odot g_2 / \gamma`, and the gradient is that of BiP,
:math:`(\theta - \frac{1}{\gamma} m \odot g_1) \odot g_2`.

The weights are those that have a mask. The other parameters of a network, biases and normalization, are treated as
constants, although they follow the mask, too.

Source:
    [B] Eq. 5, which leaves :math:`d\theta^*/dm` open; Zhang et al., Advancing model pruning via bi-level optimization
    (NeurIPS 2022), for the form without a Hessian; conjugate gradients as in Pedregosa, Hyperparameter optimization
    with approximate gradient (ICML 2016).
"""

from collections.abc import Callable

import torch
from torch import Tensor

from fairlib.diagnostics.vectors import Parts, dot, moved


def direct(theta: Parts, upper: Parts) -> list[Tensor]:
    r"""Compute the part that ignores how the weights follow the mask, :math:`\theta \odot g_2`.

    Args:
        theta: Weights :math:`\theta`, a sequence of tensors, like every vector in this module.
        upper: Gradient :math:`g_2` of the upper level, in the shapes of ``theta``.

    Returns:
        Tensors in the shapes of ``theta``.
    """
    return [t * g for t, g in zip(theta, upper, strict=True)]


def hessian_free(theta: Parts, masked_lower: Parts, upper: Parts, gamma: float) -> list[Tensor]:
    r"""Compute the gradient with :math:`H_1 = 0`, :math:`(\theta - \frac{1}{\gamma} m \odot g_1) \odot g_2`.

    Args:
        theta: Weights :math:`\theta`, a sequence of tensors.
        masked_lower: Product :math:`m \odot g_1`: the gradient of :math:`U_1(m \odot \theta)` with respect to
            :math:`\theta`, which the step of the weights computes anyway.
        upper: Gradient :math:`g_2` of the upper level.
        gamma: Weight decay :math:`\gamma` of the lower level, positive.

    Returns:
        Tensors in the shapes of ``theta``.
    """
    return [(t - low / gamma) * g for t, low, g in zip(theta, masked_lower, upper, strict=True)]


def implicit(
    theta: Parts,
    mask: Parts,
    lower: Parts,
    upper: Parts,
    gamma: float,
    *,
    product: Callable[[Parts], Parts],
    iterations: int = 10,
    tol: float = 1e-3,
) -> tuple[list[Tensor], int]:
    r"""Compute the whole gradient; :math:`v` is found by conjugate gradients.

    The Hessian of a network need not be positive definite, nor :math:`D H_1 D + \gamma I`. At a direction of
    non-positive curvature the iteration stops with its current solution, as truncated Newton methods do; in the first
    step that is :math:`v = m \odot g_2 / \gamma`.

    Args:
        theta: Weights :math:`\theta`, a sequence of tensors.
        mask: Mask :math:`m`.
        lower: Gradient :math:`g_1` of the lower level; where the mask is zero its value does not matter.
        upper: Gradient :math:`g_2` of the upper level.
        gamma: Weight decay :math:`\gamma` of the lower level, positive.
        product: Function from :math:`x` to :math:`H_1 x`.
        iterations: Largest number of steps of the conjugate gradients.
        tol: Norm of the residual, relative to that of the right-hand side, at which they stop.

    Returns:
        The gradient :math:`\nabla \Phi`, and the number of products with the Hessian.
    """
    count = 0

    def hessian(x: Parts) -> Parts:
        nonlocal count
        count += 1
        return product(x)

    def apply(x: Parts) -> list[Tensor]:
        images = hessian([m * part for m, part in zip(mask, x, strict=True)])
        return [m * image + gamma * part for m, image, part in zip(mask, images, x, strict=True)]

    right = [m * g for m, g in zip(mask, upper, strict=True)]
    v = conjugate_gradients(apply, right, start_scale=1 / gamma, iterations=iterations, tol=tol)
    image = hessian([m * part for m, part in zip(mask, v, strict=True)])
    terms = zip(theta, upper, lower, v, image, strict=True)
    return [t * g - low * part - t * h for t, g, low, part, h in terms], count


def conjugate_gradients(
    apply: Callable[[Parts], Parts], right: Parts, *, start_scale: float, iterations: int, tol: float
) -> list[Tensor]:
    """Solve ``apply(x) = right`` by conjugate gradients, from zero.

    Args:
        apply: The product with a symmetric matrix.
        right: The right-hand side, a sequence of tensors.
        start_scale: If the curvature along the first direction is not positive, the result is ``start_scale * right``;
            along a later direction, the solution so far.
        iterations: Largest number of steps.
        tol: Norm of the residual, relative to that of ``right``, at which they stop.

    Returns:
        The solution, tensors in the shapes of ``right``.
    """
    x = [torch.zeros_like(part) for part in right]
    residual = direction = [part.clone() for part in right]
    square = first = float(dot(residual, residual))
    for step in range(iterations):
        if square <= tol**2 * first:
            break
        image = apply(direction)
        curvature = float(dot(direction, image))
        if curvature <= 0:
            return x if step else [start_scale * part for part in right]
        length = square / curvature
        x, residual = moved(x, length, direction), moved(residual, -length, image)
        square, before = float(dot(residual, residual)), square
        direction = moved(residual, square / before, direction)
    return x
