"""The labs: starters are told not yet, solutions right, and other wrong answers what is wrong."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
from torch import nn

from whopays import labs

# One process trains the networks of all exercises once.
pytestmark = pytest.mark.xdist_group("labs")

LABS = sorted(Path(__file__).parents[2].glob("notebooks/labs/*.ipynb"))


def judged(capsys, name: str, yours: object) -> str:
    capsys.readouterr()
    labs.check(name, yours)
    return capsys.readouterr().out.strip()


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.stem)
def test_starters_are_told_not_yet_and_solutions_right(lab, capsys):
    namespace: dict = {}
    asked, solved = [], []
    for cell in json.loads(lab.read_text(encoding="utf-8"))["cells"]:
        tags = cell["metadata"].get("tags", [])
        if cell["cell_type"] == "code" and "remove-cell" not in tags:
            exec("".join(cell["source"]), namespace)
            (solved if "solution" in tags else asked).append(capsys.readouterr().out)
    assert {told for told in asked if told} == {
        "not yet: nothing is returned; write your code in place of the three dots\n"
    }
    assert set(solved) == {"right\n"} and len(solved) == sum(map(bool, asked)) >= 2


def test_every_exercise_is_in_one_lab():
    sources = [lab.read_text(encoding="utf-8") for lab in LABS]
    for name in labs.EXERCISES:
        assert sum(f'labs.check(\\"{name}\\"' in source for source in sources) == 1, name


def by_layer(model, sparsity):
    pruned = copy.deepcopy(model)
    for weight in (part for part in pruned.parameters() if part.ndim > 1):
        sizes = weight.detach().abs()
        weight.data *= sizes > sizes.flatten().kthvalue(round(sparsity * sizes.numel())).values
    return pruned


def in_place(model, sparsity):
    for weight in model.parameters():
        weight.data *= weight.data.abs() > 0.1
    return model


def in_another_mode(model, x, y):
    model.train()
    return torch.tensor(1.0)


def scores_in_place(scores, k):
    scores.data.zero_()
    return scores


def norm_of_batches(model, x, y):
    loss = nn.functional.cross_entropy
    parts = zip(x.split(8), y.split(8), strict=True)
    found = [torch.autograd.grad(loss(model(a), b), list(model.parameters())) for a, b in parts]
    return torch.stack([torch.cat([g.flatten() for g in each]).norm() for each in found]).mean()


def hard_mask(scores, k):
    return torch.zeros_like(scores).index_fill(0, scores.topk(k).indices, 1.0)


@pytest.mark.parametrize(
    ("name", "yours", "reason"),
    [
        ("magnitude", by_layer, "you ranked each layer by itself"),
        ("magnitude", in_place, "that you get is changed"),
        ("magnitude", lambda model, sparsity: None, "nothing is returned"),
        ("magnitude", lambda model: model, "TypeError: "),
        ("magnitude", lambda model, sparsity: 0.0, "the shape of what is returned is (), and should be (64, 64) and"),
        ("magnitude", lambda model, sparsity: "pruned", "a str is returned"),
        ("magnitude", lambda model, sparsity: 1 / 0, "ZeroDivisionError: division by zero"),
        ("magnitude", 0.9, "TypeError: 'float' object is not callable"),
        ("gradient_norm", in_another_mode, "that you get is changed"),
        ("gradient_norm", norm_of_batches, "the mean of the norms of batches"),
        ("gradient_norm", lambda model, x, y: torch.tensor(float("nan")), "NaN or infinite"),
        ("drop", lambda net, prune, tune, accuracy: accuracy(net) - accuracy(tune(prune(net))), "before its finetuning"),
        ("drop", lambda net, prune, tune, accuracy: accuracy(tune(prune(net))) - accuracy(tune(net)), "a number is"),
        ("margin", lambda logits: logits.softmax(1).amax(1), "a number is"),
        ("top_k", scores_in_place, "that you get is changed"),
        ("top_k", hard_mask, "no gradient leads from the answer to its input"),
        ("as_published", labs.EXERCISES["lagrangian"].answer, "the penalty still has a gradient"),
        ("before_and_after", lambda net, train, prune: [train(prune(train(net, False)), True), train(prune(train(net, True)), False)], "the other way round"),
        ("before_and_after", lambda net, train, prune: [train(prune(train(net, True)), True)] * 2, "a number is"),
        ("before_and_after", lambda net, train, prune: [train(prune(train(net, False)), False)] * 2, "a number is"),
        ("mask_gradient", lambda m, theta, low, up, gamma: theta * up, "you hold theta still"),
    ],
)  # fmt: skip
def test_a_wrong_answer_is_told_why(capsys, name, yours, reason):
    said = judged(capsys, name, yours)
    assert said.startswith("not yet: ") and reason in said, said


def test_an_answer_that_is_typed_in_is_not_right(capsys):
    inputs = [labs._input("logits", 0)]
    typed = labs.EXERCISES["margin"].answer(*inputs)
    assert judged(capsys, "margin", lambda logits: typed).startswith("not yet")


def test_arguments_are_copies_and_one_answer_may_be_given_in_several_forms(capsys):
    judged(capsys, "magnitude", in_place)
    answer = labs.EXERCISES["magnitude"].answer
    assert judged(capsys, "magnitude", answer) == "right"
    halves = labs.EXERCISES["share"].answer
    assert judged(capsys, "share", lambda *given: torch.stack(halves(*given))) == "right"


def test_an_unknown_exercise_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="unknown exercise 'magnitud'; known: magnitude, drop"):
        labs.check("magnitud", by_layer)
