"""Trained models kept on disk, so that no training runs twice."""

import copy
import functools
import hashlib
import json
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from fairlib import environment
from fairlib.data import GroupedDataset
from fairlib.network.memory import add_gradients, inherit, memory_of
from fairlib.training.distillation import Distillation
from fairlib.training.loop import DivergenceError, in_channels_last
from fairlib.training.together import AT_ONCE, Training, fit_all, why_not

# No training runs this code. What a compressor did to the model before shows in the weights and
# masks in the key.
_LEFT_OUT = (
    "cli",
    "studies",
    "auditing",
    "pruning",
    "linearization",
    "quantization",
    "factorization",
    "distillation",
)


def default_folder() -> Path:
    """Return the cache folder: ``$FAIRLIB_CACHE`` if set, else ``fairlib`` in the user's cache
    folder.

    It may be deleted at any time.
    """
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("FAIRLIB_CACHE") or Path(base) / "fairlib")


def cached_fits(
    trainings: Sequence[Training],
    *,
    folder: Path | None,
    places: Sequence[int | None] | None = None,
) -> list[nn.Module | DivergenceError]:
    """Carry out trainings, or load what was trained for the same arguments before.

    The key of an entry covers everything that shapes the result: the model's structure, weights,
    masks and which parameters are frozen, the contents of the data, the settings, the code of
    ``fairlib`` that training runs (docstrings, comments and formatting do not count), the version
    of torch and its precision settings, the CPU or GPU, and the number of threads. An entry is one
    safetensors file with the weights, those kept by ``keep`` and the history, written as a whole or
    not at all. An entry that cannot be read, fails its checksum or was written for another key is
    computed anew. A training is never cached if its model, constraint or objective has code from
    outside ``fairlib``, or if it has a ``sparsify`` or a ``stop``.

    Args: trainings: Trainings of any kind. folder: Folder of the entries; None switches the cache
        off. places: Their places in stacks (``fairlib.training.together.fit_all``), which are part
        of the key; None for
            one that is carried out alone.

    Returns:
        The trained copies, or the errors of those that diverged.

    Warns:
        UserWarning: If an entry cannot be written; the trained model is returned all the same.
    """
    places = places or [None] * len(trainings)
    paths = [
        _path(folder, training, place) for training, place in zip(trainings, places, strict=True)
    ]
    found: list[Any] = [
        path and _load(path, training) for path, training in zip(paths, trainings, strict=True)
    ]
    missing = [i for i, trained in enumerate(found) if trained is None]
    fresh = fit_all([trainings[i] for i in missing], [places[i] for i in missing])
    for i, trained in zip(missing, fresh, strict=True):
        found[i], path = trained, paths[i]
        if path and isinstance(trained, nn.Module):
            try:
                _write(path, trained)
            except (OSError, SafetensorError) as error:
                warnings.warn(
                    f"the trained model was not kept in the cache {folder}: {error}", stacklevel=3
                )
    return found


def _path(folder: Path | None, training: Training, place: int | None) -> Path | None:
    """The file of an entry; None if there is none, for want of a folder or because of code that is
    not fairlib's."""
    if folder is None or not _known_code(training.model, training.settings):
        return None
    stack = {} if place is None or why_not(training) else {"place": [place, AT_ONCE]}
    return (
        folder
        / f"{_key(training.model, training.data, {**training.settings, **stack})}.safetensors"
    )


def _load(path: Path, training: Training) -> nn.Module | None:
    if (found := _read(path)) is None:
        return None
    state, history, kept = found
    model, settings = training.model, training.settings
    trained = copy.deepcopy(model)
    trained.load_state_dict(state)
    if settings.get("channels_last") is True and in_channels_last(True, model, training.data):
        trained = trained.to(memory_format=torch.channels_last)
    inherit(trained, model, history=history, kept=kept)
    add_gradients(trained, sum(row["gradients"] for row in history))
    return trained.to(environment.resolve_device(settings.get("device", "auto"))).eval()


def _known_code(model: nn.Module, settings: Mapping[str, Any]) -> bool:
    """Whether all code among model and settings is that of fairlib, whose source is in the key."""
    constraint, objective = settings.get("constraint"), settings.get("objective")
    ours = constraint is None or type(constraint).__module__.startswith("fairlib.mitigation")
    ours &= not callable(getattr(constraint, "surrogate", None))
    ours &= objective is None or type(objective) is Distillation  # A subclass has code of its own.
    ours &= settings.get("sparsify") is None and settings.get("stop") is None
    return ours and _ours(model) and (objective is None or _ours(objective.teacher))


def _ours(model: nn.Module) -> bool:
    """Whether a model is one of fairlib's, made of modules of fairlib and torch alone."""
    parts = {type(part).__module__ for part in model.modules()}
    known = ("torch.nn.", "fairlib.models.", "fairlib.network.")
    return type(model).__module__.startswith("fairlib.models.") and all(
        part.startswith(known) for part in parts
    )


def _key(model: nn.Module, data: GroupedDataset, settings: Mapping[str, Any]) -> str:
    device = environment.resolve_device(settings.get("device", "auto"))
    last = in_channels_last(settings.get("channels_last", "auto"), model, data)
    machine = environment.describe(device)
    parts = {
        "model": [
            repr(model),
            _checksum(model.state_dict()),
            [p.requires_grad for p in model.parameters()],
        ],
        "data": data.fingerprint(),
        "settings": plain({**settings, "device": device, "channels_last": last}),
        "code": [_source_digest(), torch.__version__],
        "precision": [torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32],
        "machine": [machine[name] for name in ("device", "cpu", "threads")],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def plain(value: object) -> str:
    """Write a setting, or settings by name, as a text that is the same for equal ones only."""
    if isinstance(value, Mapping):
        return repr({name: plain(value[name]) for name in sorted(value)})
    if isinstance(value, GroupedDataset):
        return value.fingerprint()
    if isinstance(value, Distillation):
        return f"{value!r} {_checksum(value.teacher.state_dict())}"
    return repr(value)


@functools.cache
def _source_digest() -> str:
    return environment.source_digest(without=_LEFT_OUT)


def _checksum(tensors: Mapping[str, Tensor], text: str = "") -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _write(path: Path, trained: nn.Module) -> None:
    memory = memory_of(trained)
    tensors = {f"state/{name}": tensor for name, tensor in trained.state_dict().items()}
    for step, kept in memory.kept.items():
        tensors |= {f"kept/{step}/{name}": tensor for name, tensor in kept.items()}
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    history = json.dumps(memory.history)
    metadata = {"history": history, "checksum": _checksum(tensors, path.stem + history)}
    path.parent.mkdir(parents=True, exist_ok=True)
    with environment.written(path) as new:
        save_file(tensors, new, metadata=metadata)


def _read(
    path: Path,
) -> tuple[dict[str, Tensor], list[dict[str, float]], dict[int, dict[str, Tensor]]] | None:
    """Weights, history and kept weights of an entry; None if it is missing, unreadable or fails its
    checksum.

    The checksum is also of the key, so an entry under another entry's name fails it.
    """
    try:
        with safe_open(path, framework="pt") as entry:
            tensors = {name: entry.get_tensor(name) for name in entry.keys()}  # noqa: SIM118 - it is no mapping
            metadata = entry.metadata()
        if metadata["checksum"] != _checksum(tensors, path.stem + metadata["history"]):
            return None
        history = json.loads(metadata["history"])
    except (OSError, SafetensorError, KeyError, TypeError, ValueError):
        return None
    steps = {int(name.split("/")[1]) for name in tensors if name.startswith("kept/")}
    kept = {step: _below(f"kept/{step}/", tensors) for step in steps}
    return _below("state/", tensors), history, kept


def _below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
