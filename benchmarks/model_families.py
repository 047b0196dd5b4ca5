"""What the library does with networks that people bring: some seventy of plain torch, torchvision,
timm and transformers by nine functions, each compared with plain torch.

``python benchmarks/model_families.py``; goal: no cell is wrong, obscure or without an end, and at
least 96 % are right or clearly refused. A cell is a process of its own with a limit of seconds. It
is *right* if what the function gives agrees with plain torch, *refused* if an error of the library
says why not, *obscure* if the error is somebody else's, *wrong* if the numbers differ, *stopped*
past the limit. ``results/benchmarks/model-families.csv`` has a row for each, and is written after
each: what it holds is not run again. Networks of packages that are not installed (timm and
transformers; versions in ``requirements.txt``) are left out. All are small and untrained, with
normalizations that have seen a batch; inputs have 32 x 32 pixels or twelve steps."""

from __future__ import annotations

import argparse
import copy
import importlib
import multiprocessing
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from networks import NETWORKS, Network
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fairlib
from fairlib import environment
from fairlib.diagnostics import group_gradients
from fairlib.network.masks import prunable, read_masks

TABLE = Path(__file__).parents[1] / "results" / "benchmarks" / "model-families.csv"
LIMIT = 45.0  # Seconds of a cell.
SAMPLES = 48
LIBRARY = str(Path(fairlib.__file__).parent)


class WrongError(AssertionError):
    """The function's result is not that of plain torch."""


class Case(NamedTuple):
    """A network, the data it is asked about, and how exact its numbers are."""

    model: nn.Module
    data: fairlib.GroupedDataset
    tolerance: float

    @property
    def inputs(self) -> Tensor:
        parameter = next(self.model.parameters(), torch.zeros(0))
        dtype = parameter.dtype if parameter.is_floating_point() else torch.float32
        return self.data.inputs.to(dtype, copy=True)  # A network may write into it.

    def close(self, what: str, found: Any, wanted: Any, tolerance: float | None = None) -> None:
        """Refuse numbers that are apart by more than the tolerance of their largest size."""
        found, wanted = (np.asarray(each, dtype=np.float64) for each in (found, wanted))
        scale = max(float(np.abs(wanted).max(initial=0)), 1e-12)
        apart = float(np.abs(found - wanted).max(initial=0)) / scale
        if not apart <= (tolerance or self.tolerance):
            raise WrongError(f"{what} differ by {apart:.2g} of their size")

    def logits(self, model: nn.Module | None = None) -> Tensor:
        with torch.no_grad():
            return answer((model or self.model)(self.inputs))


def answer(found: Any) -> Tensor:
    """Return the logits ``(N, C)`` of what a network gives: one of several, or at each position."""
    if not isinstance(found, Tensor):
        found = found["logits"] if isinstance(found, Mapping) else found[0]
    return found.flatten(2).mean(2).float() if found.ndim > 2 else found.float()


def audited(case: Case) -> None:
    other = copy.deepcopy(case.model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(0.9)
    table = fairlib.audit(case.model, other, case.data).table
    for side, model in (("before", case.model), ("after", other)):
        logits = case.logits(model)
        losses = cross_entropy(logits, case.data.targets, reduction="none")
        right = (logits.argmax(1) == case.data.targets).double()
        for name, group in (("a", 0), ("b", 1)):
            rows = case.data.groups == group
            case.close("accuracies", table.loc[name, f"accuracy_{side}"], right[rows].mean())
            case.close("losses", table.loc[name, f"loss_{side}"], losses[rows].mean())


def pruned(case: Case) -> None:
    small = fairlib.prune(case.model, "magnitude", sparsity=0.5)
    before, masks = case.model.state_dict(), read_masks(small)
    weights = prunable(small)
    zeros = sum(int((weight == 0).sum()) for weight in weights.values())
    case.close("zeros", zeros / sum(map(torch.numel, weights.values())), 0.5, 0.01)
    for name, tensor in small.state_dict().items():
        if name in before and name not in weights and not torch.equal(tensor, before[name]):
            raise WrongError(f"{name} has changed")
    for name, weight in weights.items():
        kept = weight != 0
        if not torch.equal(weight[kept], before[name][kept]):
            raise WrongError(f"{name} has changed")
    optimizer = torch.optim.SGD(small.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-3)
    small.train()
    for _ in range(2):
        optimizer.zero_grad()
        cross_entropy(answer(small(case.inputs)), case.data.targets).backward()
        optimizer.step()
    for name, weight in prunable(small).items():
        if not (weight[masks[name] == 0] == 0).all():
            raise WrongError(f"pruned weights of {name} have come back")


def compacted(case: Case) -> None:
    masked = fairlib.prune(case.model, "filter-norm", sparsity=0.4, data=case.data)
    small = fairlib.compact(masked, case.data)
    case.close("logits", case.logits(small), case.logits(masked), 30 * case.tolerance)
    sizes = [sum(map(torch.numel, each.parameters())) for each in (small, masked)]
    if sizes[0] >= sizes[1]:
        raise WrongError("nothing was removed")


def sensitive(case: Case) -> None:
    small = fairlib.prune(case.model, "snip", sparsity=0.5, data=case.data)
    model = copy.deepcopy(case.model).eval()
    weights = prunable(model)
    loss = cross_entropy(answer(model(case.inputs)), case.data.targets)
    slopes = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
    scores, kept = [], []
    for (name, weight), slope in zip(weights.items(), slopes, strict=True):
        slope = torch.zeros_like(weight) if slope is None else slope
        scores.append((weight * slope).abs().flatten().double())
        kept.append((prunable(small)[name] != 0).flatten())
    joint, chosen = torch.cat(scores), torch.cat(kept)
    # Ranks may change where rounding does, and the best of a layer stays: few can differ.
    threshold = joint.median()
    wrong = (joint > threshold * (1 + 1e-3)) & ~chosen
    case.close("weights kept", float(wrong.double().mean()) + 1, 1.0, 0.01)


def gated(case: Case) -> None:
    whole = fairlib.linearization.gate(case.model, case.data)
    case.close("logits", case.logits(whole), case.logits())
    units = fairlib.linearization.count(whole).attrs["total"]
    half = fairlib.linearize(case.model, "random", budget=0.5, data=case.data, finetune=0)
    kept = fairlib.linearization.count(half).attrs["total"]
    case.close("ReLUs kept", kept, round(units / 2), 1 / max(1, units // 2))
    if not torch.isfinite(case.logits(half)).all():
        raise WrongError("logits are not finite")


def rounded(case: Case) -> None:
    small = fairlib.quantize(case.model, "weights", bits=8)
    case.logits(small)
    for name, weight in prunable(small).items():
        before = prunable(case.model)[name].detach()
        rows = weight.detach().flatten(1)
        if max(len(row.unique()) for row in rows[:8]) > 255:
            raise WrongError(f"{name} has more than 255 values a row")
        apart = (weight.detach() - before).float().norm() / before.float().norm().clamp(min=1e-12)
        case.close("weights", float(apart) + 1, 1.0, 0.03)
    case.close("logits", case.logits(small), case.logits(), 0.3)


def factorized(case: Case) -> None:
    whole = fairlib.factorize(case.model, "svd", kept=1.0)
    case.close("logits", case.logits(whole), case.logits())
    small = fairlib.factorize(case.model, "svd", kept=0.7)
    if not torch.isfinite(case.logits(small)).all():
        raise WrongError("logits are not finite")
    sizes = [sum(map(torch.numel, each.parameters())) for each in (small, case.model)]
    if sizes[0] >= sizes[1]:
        raise WrongError("nothing was factorized")


def costed(case: Case) -> None:
    row = fairlib.cost(case.model, case.data, latency=False).iloc[0]
    tensors = list(dict.fromkeys(case.model.parameters()))
    case.close("parameters", row["parameters"], sum(map(torch.numel, tensors)), 1e-9)
    least = sum(each.numel() * each.element_size() for each in tensors)
    if row["bytes"] < least:
        raise WrongError(f"{row['bytes']} bytes, and the parameters alone take {least}")


def differentiated(case: Case) -> None:
    norms = group_gradients(case.model, case.data)["norm"]
    model = case.model.eval()
    parameters = [p for p in model.parameters() if p.requires_grad]
    for name, group in (("a", 0), ("b", 1)):
        rows = case.data.groups == group
        loss = cross_entropy(answer(model(case.inputs[rows])), case.data.targets[rows])
        slopes = torch.autograd.grad(loss, parameters, allow_unused=True)
        # A complex number has two real parts, of which both count.
        squares = [each.abs().double().square().sum() for each in slopes if each is not None]
        case.close("norms", norms[name], float(sum(squares)) ** 0.5, max(2e-3, case.tolerance))


FUNCTIONS: dict[str, Callable[[Case], None]] = {
    "audit": audited,
    "prune magnitude": pruned,
    "filter-norm, compact": compacted,
    "prune snip": sensitive,
    "linearize": gated,
    "quantize weights": rounded,
    "factorize": factorized,
    "cost": costed,
    "group_gradients": differentiated,
}


def case_of(network: Network) -> Case:
    """Build a network and its data: 48 samples of four classes in two groups."""
    torch.manual_seed(0)
    model = network.build()
    generator = torch.Generator().manual_seed(1)
    shape = (SAMPLES, *network.shape)
    inputs = torch.randn(shape, generator=generator)
    if network.vocabulary:
        # The library takes floating inputs: the networks of texts make integers of them.
        inputs = torch.randint(network.vocabulary, shape, generator=generator).float()
    targets = torch.randint(4, (SAMPLES,), generator=generator)
    groups = (torch.arange(SAMPLES) % 3 == 0).long()
    names = {"target_names": list("wxyz"), "group_names": ["a", "b"]}
    data = fairlib.GroupedDataset(inputs, targets=targets, groups=groups, **names)
    parameter = next(model.parameters(), torch.zeros(0))
    tolerance = {torch.bfloat16: 0.05, torch.float16: 0.02}.get(parameter.dtype, 1e-4)
    case = Case(model.train(), data, tolerance)
    with torch.no_grad():  # A batch for the statistics of normalizations.
        for _ in range(3 if network.warm else 0):
            model(case.inputs)
    return case._replace(model=model.eval())


def judge(network: Network, function: str) -> tuple[str, str]:
    """Carry out one cell; return its verdict and the reason."""
    case = case_of(network)
    try:
        FUNCTIONS[function](case)
    except WrongError as error:
        return "wrong", str(error)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        # A refusal is a statement of the library itself, not of what it calls.
        ours = last.filename.startswith(LIBRARY) and (last.line or "").startswith("raise")
        return "refused" if ours else "obscure", f"{type(error).__name__}: {error}"
    return "right", ""


def _send(pipe: Any, network: Network, function: str) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    pipe.send(judge(network, function))


def cell(network: Network, function: str, limit: float) -> tuple[str, str]:
    """Carry out one cell in a process of its own."""
    here, there = multiprocessing.Pipe(duplex=False)
    # A fork, since importing torch again would take longer than most cells.
    process = multiprocessing.get_context("fork").Process(
        target=_send, args=(there, network, function), daemon=True
    )
    process.start()
    there.close()
    try:
        if here.poll(limit):
            return here.recv()
        return "stopped", f"no end after {limit:g} seconds"
    except EOFError:
        process.join()
        return "stopped", f"the process ended with {process.exitcode}"
    finally:
        process.kill()
        process.join()


def installed(network: Network) -> bool:
    """Import the package of a network; tell whether it is there."""
    try:
        importlib.import_module(network.library)
    except ModuleNotFoundError:
        return False
    return True


@contextmanager
def progress(total: int) -> Iterator[Callable[[str], None]]:
    begun = time.monotonic()
    done = 0

    def tell(text: str) -> None:
        nonlocal done
        done += 1
        print(f"{done}/{total} {time.monotonic() - begun:.0f} s  {text}", flush=True)

    yield tell


def main(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    networks = {name: each for name, each in NETWORKS.items() if installed(each)}
    rows = []
    if arguments.table.exists() and not arguments.anew:
        rows = pd.read_csv(arguments.table, keep_default_na=False).to_dict("records")
    known = {(row["model"], row["function"]) for row in rows}
    left = [
        (name, function)
        for name in networks
        for function in FUNCTIONS
        if (name, function) not in known and arguments.only in name
    ]
    where = environment.describe("cpu")
    versions = environment.versions(dict.fromkeys(network.library for network in networks.values()))
    # Once here, not in each process: the first call of a function imports what it needs. Only those
    # without a backward pass, whose threads would not be there after a fork.
    for function in ("linearize", "quantize weights", "factorize", "cost"):
        judge(NETWORKS["plain CNN"], function)
    with progress(len(left)) as tell:
        for name, function in left:
            network = networks[name]
            verdict, reason = cell(network, function, arguments.limit)
            tell(f"{name}, {function}: {verdict} {reason[:100]}")
            rows.append(
                {
                    "family": network.family,
                    "model": name,
                    "library": f"{network.library} {versions[network.library]}",
                    "function": function,
                    "verdict": verdict,
                    "reason": " ".join(reason.split())[:300],
                    "hardware": f"{where['cpu']}, 1 thread",
                }
            )
            # In the order of the networks, whichever were run first.
            order = {key: i for i, key in enumerate((n, f) for n in NETWORKS for f in FUNCTIONS)}
            rows.sort(key=lambda row: order.get((row["model"], row["function"]), len(order)))
            with environment.written(arguments.table) as new:
                pd.DataFrame(rows).to_csv(new, index=False, lineterminator="\n")
    table = pd.DataFrame(rows)
    print(pd.crosstab(table["function"], table["verdict"]).to_string())
    fine = table["verdict"].isin(["right", "refused"]).mean()
    print(f"right or refused: {fine:.1%} of {len(table)} (goal 96 %)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", type=Path, default=TABLE)
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds of a cell")
    parser.add_argument("--only", default="", help="only networks whose name has this text")
    parser.add_argument("--anew", action="store_true", help="run again what the table holds")
    sys.exit(main(parser.parse_args()))
