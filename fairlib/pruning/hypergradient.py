r"""Gradient of a bi-level problem's upper objective with respect to the mask.

The weights follow the mask, and the gradient takes account of that.

With :math:`w = m \odot \theta`, let :math:`\theta^*(m)` minimize :math:`U_1(m \odot \theta) +
\frac{\gamma}{2} \|\theta\|^2` and let :math:`\Phi(m) = U_2(m \odot \theta^*(m))`. With :math:`g_1 =
\nabla U_1(w)`, :math:`g_2 = \nabla U_2(w)`, :math:`H_1 = \nabla^2 U_1(w)` and :math:`D` the
diagonal matrix of :math:`m`, the implicit function theorem gives, at :math:`\theta^*`,

.. math::
    \nabla \Phi(m) = \theta \odot g_2 - g_1 \odot v - \theta \odot H_1 (m \odot v) , \qquad
    (D H_1 D + \gamma I) \, v = m \odot g_2 .

If :math:`H_1` is set to zero, :math:`v = m \odot g_2 / \gamma`, and the gradient is that of BiP,
:math:`(\theta - \frac{1}{\gamma} m \odot g_1) \odot g_2`, which is used here. Conjugate gradients
would find :math:`v` (Pedregosa, Hyperparameter optimization with approximate gradient, ICML 2016),
by many products with a Hessian for each step of the mask, and a network's need not be positive
definite.

The weights are those that have a mask. The other parameters of a network, biases and normalization,
are treated as constants, although they follow the mask, too.

Source:
    [B] Eq. 5, which leaves :math:`d\theta^*/dm` open; Zhang et al., Advancing model pruning via
    bi-level optimization (NeurIPS 2022), for the form without a Hessian.
"""

from torch import Tensor

from fairlib.diagnostics.vectors import Parts


def hessian_free(theta: Parts, masked_lower: Parts, upper: Parts, gamma: float) -> list[Tensor]:
    r"""Compute the gradient without a Hessian.

    .. math:: (\theta - \frac{1}{\gamma} m \odot g_1) \odot g_2

    Args:
        theta: Weights :math:`\theta`, a sequence of tensors.
        masked_lower: Product :math:`m \odot g_1`: the gradient of :math:`U_1(m \odot \theta)` with
            respect to :math:`\theta`, which the step of the weights computes anyway.
        upper: Gradient :math:`g_2` of the upper level.
        gamma: Weight decay :math:`\gamma` of the lower level, positive.

    Returns:
        Tensors in the shapes of ``theta``.
    """
    return [(t - low / gamma) * g for t, low, g in zip(theta, masked_lower, upper, strict=True)]
