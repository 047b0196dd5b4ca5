r"""How the upper level's objective changes with the mask, when the weights follow: the gradient of a bi-level problem.

With :math:`w = m \odot \theta`, let :math:`\theta^*(m)` minimize
:math:`U_1(m \odot \theta) + \frac{\gamma}{2} \|\theta\|^2` and let :math:`\Phi(m) = U_2(m \odot \theta^*(m))`. With
:math:`g_1 = \nabla U_1(w)`, :math:`g_2 = \nabla U_2(w)`, :math:`H_1 = \nabla^2 U_1(w)` and :math:`D` the diagonal
matrix of :math:`m`, the implicit function theorem gives, at :math:`\theta^*`,

.. math::
    \nabla \Phi(m) = \theta \odot g_2 - g_1 \odot v - \theta \odot H_1 (m \odot v) , \qquad
    (D H_1 D + \gamma I) \, v = m \odot g_2 .

With :math:`H_1` taken for zero, :math:`v = m \odot g_2 / \gamma`, and what is left is that of BiP,
:math:`(\theta - \frac{1}{\gamma} m \odot g_1) \odot g_2`.

The weights are those that have a mask; what else a network has, biases and normalization, is held where it is, although
it follows the mask, too.

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
    r"""The part without the weights' answer, :math:`\theta \odot g_2`.

    Args:
        theta: :math:`\theta`, a sequence of tensors, as all vectors here.
        upper: :math:`g_2`, in the same shapes.

    Returns:
        In the same shapes.
    """
    return [t * g for t, g in zip(theta, upper, strict=True)]


def hessian_free(theta: Parts, masked_lower: Parts, upper: Parts, gamma: float) -> list[Tensor]:
    r"""The gradient with :math:`H_1` taken for zero, :math:`(\theta - \frac{1}{\gamma} m \odot g_1) \odot g_2`.

    Args:
        theta: :math:`\theta`, a sequence of tensors, as all vectors here.
        masked_lower: :math:`m \odot g_1`, the gradient of :math:`U_1(m \odot \theta)` in :math:`\theta`, which the
            step of the weights takes anyway; :func:`implicit` asks for :math:`g_1` instead.
        upper: :math:`g_2`.
        gamma: :math:`\gamma`, positive.

    Returns:
        In the same shapes.
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
    r"""The whole gradient, by conjugate gradients.

    The Hessian of a network need not be positive, nor :math:`D H_1 D + \gamma I`. Where the iteration meets a direction
    of non-positive curvature it stops with what it has, as truncated Newton methods do; in the first step that is
    :math:`v = m \odot g_2 / \gamma`.

    Args:
        theta: :math:`\theta`, a sequence of tensors, as all vectors here.
        mask: :math:`m`.
        lower: :math:`g_1`, where the mask is not zero; elsewhere it does not matter.
        upper: :math:`g_2`.
        gamma: :math:`\gamma`, positive.
        product: From :math:`x` to :math:`H_1 x`.
        iterations: Of conjugate gradients, at most.
        tol: They end where the residual is this small, relative to the right side.

    Returns:
        :math:`\nabla \Phi`, and how many products were taken.
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
    """The solution of ``apply(x) = right`` by conjugate gradients, from zero.

    Args:
        apply: The product with a symmetric matrix.
        right: A sequence of tensors.
        start_scale: Where the curvature along the first direction is not positive, the answer is so many times
            ``right``; along a later one, what has been found so far.
        iterations: At most.
        tol: They end where the residual is this small, relative to ``right``.

    Returns:
        In the shapes of ``right``.
    """
    x = [torch.zeros_like(part) for part in right]
    residual = [part.clone() for part in right]
    direction = residual
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
