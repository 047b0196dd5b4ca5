from __future__ import annotations

import inspect

import pytest

from fairlib import compression, linearization, pruning
from fairlib.training.compressors import Method

OFFERED = {"data", "train", "seed", "val", "objective"}
REGISTRIES = {
    "prune": pruning.PRUNERS,
    "schedule": pruning.SPARSITY_SCHEDULES,
    "linearize": linearization.LINEARIZERS,
    "quantize": compression.QUANTIZERS,
}
METHODS = [
    (kind, name, method) for kind, methods in REGISTRIES.items() for name, method in methods.items()
]


@pytest.mark.parametrize(
    ("kind", "name", "method"), METHODS, ids=lambda part: part if isinstance(part, str) else ""
)
def test_an_entry_says_what_its_function_takes(kind, name, method):
    """Nothing that the function lacks, and all that it cannot do without."""
    parameters = inspect.signature(method.function).parameters
    assert set(method.takes) <= set(parameters) & OFFERED
    needed = {key for key, parameter in parameters.items() if parameter.default is parameter.empty}
    assert needed & OFFERED <= set(method.takes)
    assert method.trains == ("train" in parameters)


def test_a_method_is_handed_what_it_takes_and_its_own_settings():
    method = Method(lambda model, *, data, rate: None, takes=("data",))
    offered = {"data": "the data", "seed": 3}
    assert method.arguments("method 'own'", offered, {"rate": 0.5}) == {
        "data": "the data",
        "rate": 0.5,
    }
    with pytest.raises(ValueError, match="method 'own' needs data=, the training set"):
        method.arguments("method 'own'", offered | {"data": None}, {})
    with pytest.raises(TypeError, match="unknown setting 'data' for method 'own'; known: rate"):
        method.check("method 'own'", {"data": 1})


def test_the_entries_of_a_kind_say_what_a_study_asks():
    prune, linearize = pruning.PRUNING.methods, linearization.LINEARIZATION.methods
    quantize, factorize = compression.QUANTIZATION.methods, compression.FACTORIZATION.methods
    assert "val" in prune["bip"].takes and "val" not in prune["magnitude"].takes
    assert (prune["bip"].constrained, prune["lottery"].constrained) == (False, True)
    assert (linearize["snl"].trains, linearize["random"].trains) == (True, False)
    assert "val" in linearize["deepreduce"].takes and "val" not in linearize["snl"].takes
    assert (quantize["weights"].finetunes, quantize["int8-static"].finetunes) == (True, False)
    assert factorize["svd"].finetunes and not factorize["svd"].trains


def test_a_schedule_may_train_where_the_method_does_not():
    trains = pruning.PRUNING.training
    assert trains("magnitude", {"schedule": "gradual"}) and not trains("magnitude", {})
