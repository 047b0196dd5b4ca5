"""A diagnostic is computed in eval mode, and leaves the model as it found it."""

from __future__ import annotations

import copy
from functools import partial

import numpy as np
import pytest
import torch

import fairlib
from fairlib.diagnostics import (
    group_eigenvalues,
    group_gradients,
    hessian_bound,
    sample_boundary_distance,
    sample_gradient_norms,
)
from fairlib.diagnostics.boundary import MEASURES

CALLS = {
    "gradients": group_gradients,
    "curvature": group_eigenvalues,
    "bound": hessian_bound,
    "sample gradients": sample_gradient_norms,
}
for measure in MEASURES:
    settings = {"draws": 20, "selection": 5} if measure == "certified-radius" else {}
    CALLS[measure] = partial(sample_boundary_distance, measure=measure, **settings)
TRAINED = {"fc.bias", "bn1.weight"}


def found(model):
    """Everything that a call might have changed, but the hooks of layers."""
    modes = [module.training for module in model.modules()]
    gradients = {name: weight.grad for name, weight in model.named_parameters()}
    trained = {name: weight.requires_grad for name, weight in model.named_parameters()}
    values = [modes, trained, model.state_dict(), gradients, torch.get_rng_state()]
    return copy.deepcopy(values)


@pytest.mark.parametrize("name", CALLS)
def test_a_model_in_training_is_measured_in_eval_mode_and_left_as_it_was(name, images):
    model = fairlib.build("tiny-resnet", num_classes=3, in_channels=1, image_size=8).train()
    model.bn1.eval()
    for weight, parameter in model.named_parameters():
        parameter.requires_grad_(weight in TRAINED)
    model.fc.bias.grad = torch.ones_like(model.fc.bias)
    data, before = images.subset(range(0, 120, 20)), found(model)
    in_eval_mode = CALLS[name](copy.deepcopy(model).eval(), data)
    np.testing.assert_array_equal(CALLS[name](model, data), in_eval_mode)
    torch.testing.assert_close(found(model), before, rtol=0, atol=0)
    assert not any(layer._forward_hooks for layer in model.modules())
