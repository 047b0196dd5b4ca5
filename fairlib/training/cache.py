"""Trained models kept on disk, so that no training runs twice.

The key of an entry covers everything that shapes the result: the model's structure, weights, masks
and which parameters are frozen, the contents of the data, the settings, the place in a stack, the
code of ``fairlib`` that training runs (docstrings, comments and formatting do not count), the
versions of torch and torchvision, torch's precision settings, the CPU or GPU, and the number of
threads. An entry is one file, a digest and then what ``torch.save`` makes of the weights, the
snapshots of ``keep`` and the history, written as a whole or not at all. An entry that cannot be
read, fails its digest or was written for another key is computed anew.
"""

import functools
import hashlib
import io
import json
import os
import warnings
from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import torch
from torch import Tensor, nn

from fairlib import environment
from fairlib.data import GroupedDataset
from fairlib.network.copying import copied
from fairlib.network.memory import add_gradients, inherit, memory_of
from fairlib.training.distillation import Distillation
from fairlib.training.loop import AT_ONCE, Training, trains_channels_last

# No training runs this code. The effects of a compressor on the model show in the weights and masks
# in the key.
_LEFT_OUT = (
    "cli",
    "studies",
    "auditing",
    "pruning",
    "linearization",
    "compression",
)


_DIGEST = hashlib.sha256().digest_size
# Name entries so that no other file ends like one: a user's folder may hold some, which stay.
_SUFFIX = ".trained"

CAPACITY = 20 * 2**30
"""Most bytes of the entries of a folder."""


def default_folder() -> Path:
    """Return the cache folder: ``$FAIRLIB_CACHE`` if set, else ``fairlib`` in the user's cache.

    It may be deleted at any time. Once its entries take more than 20 GiB, those that were not used
    for longest are removed (:data:`CAPACITY`); other files stay.
    """
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("FAIRLIB_CACHE") or Path(base) / "fairlib")


def entry_path(folder: Path | None, training: Training) -> Path | None:
    """Return the file of a training's entry.

    Returns:
        None if there is no folder, or the training is never cached: its model, constraint or
        objective has code from outside ``fairlib``, or its masks change or it may stop early.
    """
    if folder is None or not _is_known_code(training):
        return None
    device = environment.resolve_device(training.arguments.device)
    machine = environment.describe(device)
    model = training.model
    parts = {
        "model": [
            repr(model),
            _checksum(model.state_dict()),
            [p.requires_grad for p in model.parameters()],
        ],
        "data": training.data.fingerprint(),
        "settings": [setting_text({**training.settings, "device": device}), repr(training.loop)],
        # FAIRLIB_AUTO chooses the memory format, and a stack adds up in another order than one
        # network does: either ends in other bits, which must not pass for the same training.
        "rounding": [
            trains_channels_last(model, training.data),
            None if training.place is None else [training.place, AT_ONCE],
        ],
        "code": [_source_digest(), torch.__version__, metadata.version("torchvision")],
        "precision": [torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32],
        "machine": [machine[name] for name in ("device", "cpu", "threads")],
    }
    key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    return folder / f"{key}{_SUFFIX}"


def read_entry(path: Path, training: Training) -> nn.Module | None:
    """Return the trained copy of an entry; None if it is missing, unreadable or not of this key."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    with suppress(OSError):  # A shared folder may be one that nobody may write to.
        path.touch()  # Entries that are read are not removed first.
    # The digest is also of the key, so an entry under another entry's name fails it.
    if content[:_DIGEST] != _digest(path, content[_DIGEST:]):
        return None
    file = io.BytesIO(content[_DIGEST:])
    state, snapshots, history = torch.load(file, map_location="cpu", weights_only=True)
    trained = copied(training.model)
    trained.load_state_dict(state)
    # After the weights, whose loading makes a module forget how it was trained.
    inherit(trained, training.model, history=history, snapshots=snapshots, timing={})
    add_gradients(trained, sum(row["gradients"] for row in history))
    return trained.to(environment.resolve_device(training.arguments.device)).eval()


def write_entry(path: Path, trained: nn.Module) -> None:
    """Write an entry as a whole.

    Warns:
        UserWarning: If it cannot be written; the trained model can be used all the same.
    """
    memory, file = memory_of(trained), io.BytesIO()
    torch.save((trained.state_dict(), memory.snapshots, memory.history), file)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with environment.written(path) as new:
            new.write_bytes(_digest(path, file.getvalue()) + file.getvalue())
        _evict(path.parent)
    except OSError as error:
        warnings.warn(
            f"the trained model was not kept in the cache {path.parent}: {error}", stacklevel=3
        )


def _evict(folder: Path) -> None:
    """Remove the entries that were not used for longest, until the others fit the limit."""
    found = []
    for path in folder.glob(f"*{_SUFFIX}"):
        with suppress(FileNotFoundError):  # Another process may remove entries, too.
            found.append((path.stat().st_mtime_ns, path.stat().st_size, path))
    total = 0
    for _, size, path in sorted(found, reverse=True):
        total += size
        if total > CAPACITY:
            path.unlink(missing_ok=True)


def _digest(path: Path, content: bytes) -> bytes:
    return hashlib.sha256(path.name.encode() + content).digest()


def setting_text(value: object) -> str:
    """Write a setting, or settings by name, as a text that is the same for equal ones only.

    The ``repr`` of data shows their size and the one of a teacher its layers, not what they hold.
    """
    if isinstance(value, Mapping):
        return repr({name: setting_text(value[name]) for name in sorted(value)})
    if isinstance(value, GroupedDataset):
        return value.fingerprint()
    if isinstance(value, Distillation):
        return f"{value!r} {_checksum(value.teacher.state_dict())}"
    return repr(value)


def _is_known_code(training: Training) -> bool:
    """Tell whether a training runs code of fairlib and torch alone, whose source is in the key."""
    constraint, objective = (training.settings.get(name) for name in ("constraint", "objective"))
    models = [training.model]
    if objective is not None:
        # Not isinstance: a subclass may compute something else.
        if type(objective) is not Distillation:
            return False
        models.append(objective.teacher)
    ours = type(constraint).__module__.startswith("fairlib.mitigation")
    if constraint is not None and not ours:
        return False
    known = ("torch.nn.", "torchvision.", "fairlib.models.", "fairlib.network.")
    return (
        training.loop.sparsify is None
        and training.loop.stop is None
        and all(type(model).__module__.startswith("fairlib.models.") for model in models)
        and all(type(part).__module__.startswith(known) for m in models for part in m.modules())
    )


@functools.cache
def _source_digest() -> str:
    return environment.source_digest(without=_LEFT_OUT)


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
