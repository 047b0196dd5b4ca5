"""Every kind of model that can be asked: against torch and scikit-learn, and what it must not
change."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import fairlib
from fairlib.auditing.adapters.models import read_model
from fairlib.auditing.adapters.truth import truth_of_dataset

QUICK = {"resamples": 20, "diagnostics": ()}
pytestmark = pytest.mark.filterwarnings(
    "ignore:the model before compression cannot be told from chance"
)


@pytest.fixture
def pair(cnn, images):
    dense = fairlib.fit(cnn, images, epochs=10, batch_size=12)
    return dense, fairlib.prune(dense, "magnitude", sparsity=0.8)


@pytest.mark.parametrize(("first", "second"), [(False, True), (True, False), (True, True)])
def test_a_module_that_gives_probabilities_is_not_taken_for_one_of_logits(
    pair, images, first, second
):
    """Losses are the same as from logits, whichever of the two gives probabilities, and a note says
    so."""
    soft = [
        nn.Sequential(model, nn.Softmax(1)) if yes else model
        for model, yes in zip(pair, (first, second), strict=True)
    ]
    plain, found = fairlib.audit(*pair, images, **QUICK), fairlib.audit(*soft, images, **QUICK)
    assert found.table["excessive_loss"].to_numpy() == pytest.approx(
        plain.table["excessive_loss"].to_numpy(), abs=1e-4
    )
    for when, yes in (("before", first), ("after", second)):
        assert any("probabilities" in note and when in note for note in found.notes) == yes
    assert found.provenance["scores"]["before"] == ("probabilities" if first else "logits")


def test_diagnostics_are_of_logits(pair, images):
    soft = nn.Sequential(pair[0], nn.Softmax(1))
    report = fairlib.audit(soft, pair[1], images, resamples=20)
    assert report.table["gradient_norm"].isna().all()
    assert (
        "gradient: could not be computed for the model before compression (its scores are "
        "probabilities)" in report.notes
    )


def test_scores_of_one_model_are_the_same_in_every_form(pair, images):
    """Module, function, logits, tensor, frame in another order of classes, probabilities: one
    table."""
    with torch.no_grad():
        logits = [model(images.inputs.float() / 255) for model in pair]
    frame = pd.DataFrame(logits[1].numpy(), columns=images.target_names)[
        [*images.target_names][::-1]
    ]
    forms = [
        (lambda x: pair[0](x).detach(), lambda x: pair[1](x).detach().numpy()),
        tuple(logits),
        (logits[0].numpy(), frame),
        tuple(torch.softmax(scores, 1) for scores in logits),
        (logits[0].tolist(), logits[1].bfloat16().float()),
    ]
    expected = fairlib.audit(*pair, images, **QUICK).table
    for before, after in forms:
        found = fairlib.audit(before, after, images, **QUICK).table
        tolerance = 0.02 if isinstance(before, list) else 1e-5
        assert found.to_numpy(float) == pytest.approx(
            expected.to_numpy(float), abs=tolerance, nan_ok=True
        )


def test_estimators_of_scikit_learn_are_audited():
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import log_loss
    from sklearn.svm import LinearSVC

    generator = np.random.default_rng(0)
    groups, names = generator.integers(0, 2, 400), np.array(["cat", "dog", "eel"])
    targets = generator.integers(0, 3, 400)
    inputs = generator.normal(size=(400, 4)) + np.eye(3, 4)[targets] * 2
    data = fairlib.GroupedDataset(
        inputs.astype(np.float32), targets, groups, target_names=names.tolist()
    )
    by_name, by_code = (
        LogisticRegression().fit(inputs, names[targets]),
        LogisticRegression().fit(inputs, targets),
    )
    hard = LinearSVC().fit(inputs, targets)
    report = fairlib.audit(by_name, by_code, data)
    assert report.table.loc["all", "loss_before"] == pytest.approx(
        log_loss(targets, by_code.predict_proba(inputs)), 1e-4
    )
    assert report.table["drop"].abs().max() == 0
    assert report.provenance["before"]["model"] == "LogisticRegression"
    labels = fairlib.audit(by_code, hard, data)
    assert labels.table.loc["all", "accuracy_after"] == hard.score(
        inputs.astype(np.float32), targets
    )
    assert any("only labels are known after compression" in note for note in labels.notes)


class Counting(nn.Module):
    """Counts its calls in a buffer, and may draw."""

    def __init__(self, draws=False):
        super().__init__()
        self.linear, self.draws = nn.Linear(64, 3), draws
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        x = x.flatten(1)
        return self.linear(nn.functional.dropout(x, 0.5) if self.draws else x)


class ByBatch(Counting):
    """Subtracts the mean of its batch."""

    def forward(self, x):
        return self.linear(x.flatten(1) - x.flatten(1).mean(0))


@pytest.mark.filterwarnings("ignore::fairlib.diagnostics.SlowWarning")
def test_a_model_that_draws_looks_at_its_batch_or_changes_itself_gets_a_note(images):
    torch.manual_seed(0)  # One linear layer in 130 gives scores of [0, 1], and a note on them.
    model = Counting(draws=True)
    generator = torch.get_rng_state()
    reports = [fairlib.audit(model, model, images, resamples=20) for _ in range(2)]
    assert model.calls == 0 and torch.equal(torch.get_rng_state(), generator)
    pd.testing.assert_frame_equal(reports[0].table, reports[1].table)
    assert any("draws at random" in note for note in reports[0].notes)
    assert any(
        "changed its buffers (calls): they were put back" in note for note in reports[0].notes
    )
    notes = fairlib.audit(ByBatch(), ByBatch(), images, **QUICK).notes
    assert any("looks at its batch" in note for note in notes) and not any(
        "draws" in note for note in notes
    )
    plain = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    notes = fairlib.audit(plain, plain, images, **QUICK).notes
    assert not any(
        word in note for note in notes for word in ("draws", "batch", "buffers", "probabilities")
    )


def test_what_compression_made_of_the_model_is_told(pair, images):
    other = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    about = fairlib.audit(pair[0], other, images, **QUICK).provenance
    assert about["before"]["model"] == "CNN" and about["after"] == {
        "model": "Sequential", "parameters": 195,
    }  # fmt: skip
    assert about["sparsity"]["after"] == 0
    three = fairlib.GroupedDataset(images.inputs[:, :, :1, :3], images.targets, images.groups)
    bare = fairlib.audit(nn.Flatten(), nn.Flatten(), three, **QUICK).provenance
    assert (
        bare["sparsity"]["before"]
        == "unknown: Flatten has no prunable weight: no convolution and no linear layer"
    )


def test_a_module_whose_scores_look_like_independent_probabilities_gets_a_note(images):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3), nn.Sigmoid())
    notes = fairlib.audit(model, model, images, **QUICK).notes
    assert any("as probabilities do: taken for logits" in note for note in notes)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (None, "before must be a torch module, .* got NoneType"),
        ({"weight": torch.zeros(1)}, "got dict: put a state_dict into a module first"),
        (nn.Linear, "give an instance, not the class"),
        (3, "got int"),
    ],
)
def test_what_is_no_model_is_refused_with_what_is_one(model, message, images):
    with pytest.raises(TypeError, match=message):
        read_model(model, "before", truth_of_dataset(images), images)


class Uncopyable(torch.nn.Linear):
    """A classifier that cannot be copied, as some wrappers of modules cannot."""

    def __deepcopy__(self, memo):
        raise AttributeError("no copy")


def test_the_cost_of_a_model_that_cannot_be_copied_is_a_note_and_its_groups_are_audited():
    data = fairlib.GroupedDataset(torch.randn(40, 3), [0, 1] * 20, [0] * 20 + [1] * 20)
    model = Uncopyable(3, 2)
    report = fairlib.audit(model, model, data, resamples=20, diagnostics=())
    assert report.cost.empty and any("no copy" in note for note in report.notes)
