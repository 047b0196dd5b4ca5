"""Grouped data: inputs, each with a target and a group. Checked when built, never changed."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from numbers import Integral
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from fairlib._tables import (
    coded,
    cross_attributes,
    dense,
    factorized,
    in_order,
    read_attributes,
    refuse_other_index,
)
from fairlib._validation import check_number, lookup
from fairlib.data.splitting import PARTS, seed_sequence, stratified_parts

Index = int | slice | Sequence[int] | np.ndarray | Tensor
"""Index of samples: integers, a slice, or a boolean mask of length N."""

Label = str | int
"""Name or code of a group or a target."""

Sizes = Mapping[Label | tuple[Label, Label], int | float]
"""Counts or shares by group or by ``(group, target)``."""

NORMALIZATIONS = {"imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))}
"""Mean and standard deviation of RGB in [0, 1], by name."""

SMALL = 1000
"""Integers below it are codes, also where some of them do not occur."""


class GroupedDataset:
    """Samples ``(x_i, y_i, a_i)``: an input, a target class and a group, for i = 1..N.

    Args:
        inputs: Array or tensor: uint8 ``(N, C, H, W)`` with values 0 to 255, or float32 or float64
            ``(N, C, H, W)`` or ``(N, D)``.
        targets: Integers ``(N,)``, codes into ``target_names``; or text ``(N,)`` (a list, an array,
            a pandas Series or Categorical), the names themselves.
        groups: Integers or text ``(N,)``, codes into ``group_names`` or the names themselves; or
            several attributes, a data frame or a mapping from names to texts, which are crossed.
        target_names: Names of the classes. By default those of text are its values, sorted (of a
            Categorical its categories), and those of codes "0", "1", ... up to the largest. If that
            is above 1000 and fewer than half of the numbers up to it occur, they are labels (zip
            codes, say), and the names are those that occur.
        group_names: Names of the groups; by default made in the same way.
        normalize: ``(mean, std)``, one number for each channel (or feature), for a model that
            expects ``(x - mean) / std``; ``"imagenet"`` for torchvision's; None for a model that
            normalizes its inputs itself.

    Names that are left out are those of this data set alone: give them where a class of the model
    may have no sample.

    Attributes:
        inputs, targets, groups: The tensors; targets and groups int64. On the CPU until ``to``
            moves them.
        target_names, group_names: Tuples of distinct strings.
        normalize: None or a pair of tuples of floats.
        attributes: Values of each attribute, by its name, where the groups cross several.

    The data are copied, and no method changes its object. An index gives ``(input, target,
    group)``, so that a ``torch.utils.data.DataLoader`` accepts the data set; ``batch`` gives inputs
    in the form that a model takes.

    >>> inputs = [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
    >>> data = GroupedDataset(inputs, [0, 1, 0], groups=[0, 0, 1], group_names=["many", "few"])
    >>> data
    GroupedDataset(3 samples, float64 (2,), 2 classes, groups many: 2, few: 1)
    >>> data.group("few").inputs
    tensor([[4., 5.]], dtype=torch.float64)

    Raises:
        TypeError: If inputs, targets or groups have another dtype.
        ValueError: If shapes or pandas indexes disagree, there is no sample, an input is NaN or
            infinite or masked, a target or group is missing (as a text such as "nan" is) or has no
            name, or a name is given twice.
    """

    def __init__(
        self,
        inputs: ArrayLike | Tensor,
        targets: ArrayLike | Tensor,
        groups: ArrayLike | Tensor | Mapping[str, ArrayLike],
        target_names: Sequence[str] | None = None,
        group_names: Sequence[str] | None = None,
        normalize: tuple[Sequence[float], Sequence[float]] | str | None = None,
    ) -> None:
        refuse_other_index(inputs=inputs, targets=targets, groups=groups)
        self.attributes: Mapping[str, tuple[str, ...]] = {}
        if isinstance(groups, pd.DataFrame | Mapping):
            crossed = read_attributes("groups", groups)
            codes, names = cross_attributes(crossed.values())
            # Take texts, which group_names puts in another order: codes would change their names.
            groups = np.take(np.array(names), codes)
            group_names = group_names or names
            if len(crossed) > 1:
                self.attributes = {name: values for name, (_, values) in crossed.items()}
        self.inputs = _checked_inputs(inputs)
        count, channels = self.inputs.shape[:2]
        self.targets, self.target_names = _checked_labels("target", targets, target_names, count)
        self.groups, self.group_names = _checked_labels("group", groups, group_names, count)
        self.normalize = None if normalize is None else _checked_normalize(normalize, channels)

    @property
    def num_classes(self) -> int:
        """Number of classes, including those without a sample."""
        return len(self.target_names)

    @property
    def num_groups(self) -> int:
        """Number of groups, including those without a sample."""
        return len(self.group_names)

    @property
    def group_sizes(self) -> pd.Series:
        """Number of samples of each group, int64, indexed by group name, in the order of codes."""
        sizes = torch.bincount(self.groups, minlength=self.num_groups).cpu().numpy()
        return pd.Series(sizes, index=pd.Index(self.group_names, name="group"), name="size")

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        return self.inputs[index], self.targets[index], self.groups[index]

    def __repr__(self) -> str:
        kind = f"{str(self.inputs.dtype).removeprefix('torch.')} {tuple(self.inputs.shape[1:])}"
        groups = ", ".join(f"{name}: {size}" for name, size in self.group_sizes.items())
        classes = f"{self.num_classes} classes"
        return f"GroupedDataset({len(self)} samples, {kind}, {classes}, groups {groups})"

    def subset(self, index: Index) -> GroupedDataset:
        """Select the samples at ``index``, in that order; the names of all groups stay.

        Raises:
            IndexError: If an index is out of range, the length of a mask is not N, or ``index``
                holds neither integers nor booleans.
            ValueError: If ``index`` selects no sample.
        """
        rows = self._rows(index)
        return self._replace(self.inputs[rows], self.targets[rows], self.groups[rows])

    def group(self, group: Label) -> GroupedDataset:
        """Select the samples of one group, given by its name or its code.

        Raises:
            ValueError: If the group is unknown (the message lists the known ones) or has no sample.
        """
        members = self._members(group)
        if not len(members):
            raise ValueError(f"group {group!r} has no sample in this data set")
        return self.subset(members)

    def upsample(self, group: Label, times: int) -> GroupedDataset:
        """Repeat the samples of ``group``, so that each is there ``times`` times: [T] Figs 14, 15.

        Args:
            group: Name or code of the group.
            times: Number of copies of each of its samples.

        Raises:
            TypeError: If ``times`` is not an integer.
            ValueError: If ``times`` is below 1, or the group is unknown.
        """
        check_number("times", times, 1, whole=True)
        extra = self._members(group).repeat(int(times) - 1)
        return self.subset(torch.cat([torch.arange(len(self), device=extra.device), extra]))

    def imbalance(self, sizes: Sizes, seed: int = 0) -> GroupedDataset:
        """Keep ``sizes[group]`` random samples of each group in ``sizes``, and all of other groups.

        A key ``(group, target)`` means the samples of the group that have the target. Each key has
        its own random stream, and a smaller size keeps a subset of the samples of a larger one.
        The samples stay in their order.

        Args:
            sizes: For a group, or a group and a target, by name or code: a count (int, at least 1),
                or a share of its samples (float in (0, 1], rounded to a count of at least 1).
            seed: Seed of the draw.

        Raises:
            TypeError: If a size or the seed is not a number.
            ValueError: If a group or target is unknown, two keys share a sample, or a size is out
                of range.
        """
        check_number("seed", seed, 0, whole=True)
        keep = torch.ones(len(self), dtype=torch.bool)
        thinned = torch.zeros(len(self), dtype=torch.bool)
        for key, size in sizes.items():
            codes, members = self._crossing(key)
            if thinned[members].any():
                raise ValueError(
                    f"sizes names a sample twice: keys must not overlap, got {list(sizes)}"
                )
            thinned[members] = True
            count = _checked_size(key, size, len(members))
            # A stream for each key: the samples of one group must not depend on the other keys.
            order = np.random.default_rng([int(seed), *codes]).permutation(len(members))
            keep[members[order[count:]]] = False
        return self.subset(keep)

    def random_groups(self, seed: int) -> GroupedDataset:
        """Assign the samples to random groups of the same sizes, which differ only in size."""
        order = np.random.default_rng(seed).permutation(len(self))
        return self._replace(self.inputs, self.targets, self.groups[order])

    def hold_out(self, share: float, seed: int = 0) -> tuple[GroupedDataset, GroupedDataset]:
        """Split off a held-out part at random: ``share`` of every crossing of target and group.

        Returns:
            The data without the held-out part, and the held-out part.

        Raises:
            ValueError: If ``share`` is not in (0, 1), or leaves one of the two without samples.
        """
        check_number("share", share, 0, 1, low_open=True)
        cells = (self.targets * self.num_groups + self.groups).cpu().numpy()
        rng = np.random.default_rng(seed_sequence(seed))
        parts = stratified_parts(cells, (1 - share, share), rng)
        if len(np.unique(parts)) < 2:
            raise ValueError(
                f"a share of {share} of {len(self)} samples leaves a part without samples"
            )
        return self.subset(parts == 0), self.subset(parts == 1)

    def batch(
        self, index: Index, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> Tensor:
        """Return inputs as a model takes them: uint8 as x / 255, floats unchanged; then normalized.

        The normalization is ``(x - mean) / std`` if the data set has ``normalize``; otherwise there
        is none.

        Args:
            index: Integers, a slice, or a boolean mask of length N; a single integer makes a batch
                of one.
            dtype: Floating dtype of the model's parameters.
            device: Device of the model.

        Returns:
            Tensor ``(B, C, H, W)`` or ``(B, D)`` of ``dtype`` on ``device``.
        """
        # An index tensor is taken as it is: to look at its values would wait for a GPU at every
        # step of a training.
        if not (isinstance(index, Tensor) and index.dtype == torch.int64 and index.ndim == 1):
            index = self._rows(index)
        inputs = self.inputs[index.to(self.inputs.device)].to(device)
        # The bytes are moved before they become floats: a quarter of the way to the GPU.
        inputs = inputs.to(dtype).div_(255) if inputs.dtype == torch.uint8 else inputs.to(dtype)
        if self.normalize is None:
            return inputs
        statistics = _statistics(self.normalize, dtype, inputs.device)
        mean, std = statistics.view(2, -1, *[1] * (inputs.ndim - 2))
        return (inputs - mean) / std

    def labels(self, index: Tensor, device: torch.device | str = "cpu") -> Tensor:
        """Return the targets of the samples at ``index``, int64 ``(B,)``, on ``device``."""
        return self.targets[index.to(self.targets.device)].to(device)

    def to(self, device: torch.device | str) -> GroupedDataset:
        """Return the data set with its tensors on ``device``."""
        return self._replace(
            self.inputs.to(device), self.targets.to(device), self.groups.to(device)
        )

    def fingerprint(self) -> str:
        """Compute the SHA-256 (hexadecimal) of all samples and names, equal on all devices."""
        header = [
            str(self.inputs.dtype),
            list(self.inputs.shape),
            self.target_names,
            self.group_names,
            self.normalize,
        ]
        digest = sha256(json.dumps(header).encode())
        for tensor in (self.inputs, self.targets, self.groups):
            digest.update(tensor.cpu().contiguous().numpy().ravel().data)
        return digest.hexdigest()

    def _replace(self, inputs: Tensor, targets: Tensor, groups: Tensor) -> GroupedDataset:
        """Return a data set of the same names with other tensors, which are not checked."""
        other = copy.copy(self)
        other.inputs, other.targets, other.groups = inputs, targets, groups
        return other

    def _members(self, group: Label) -> Tensor:
        return torch.nonzero(self.groups == _code("group", self.group_names, group)).flatten()

    def _crossing(self, key: Label | tuple[Label, Label]) -> tuple[list[int], Tensor]:
        """Return the codes of a group, or of ``(group, target)``, and its samples, on the CPU."""
        group, *target = key if isinstance(key, tuple) else (key,)
        codes, members = [_code("group", self.group_names, group)], self._members(group)
        if target:
            codes.append(_code("target", self.target_names, target[0]))
            members = members[self.targets[members] == codes[1]]
        return codes, members.cpu()

    def _rows(self, index: Index) -> Tensor:
        """Turn any index into integers, int64, where the inputs are."""
        # NumPy says itself what it refuses: masks of another length, numbers that are no integers.
        if not isinstance(index, slice):
            # An array alone: a tuple would be one index for each axis, and None a new axis.
            index = np.asarray(index.cpu() if isinstance(index, Tensor) else index)
            index = index if index.size else index.astype(np.int64)
        rows = np.arange(len(self))[index]
        if not rows.size:
            raise ValueError(f"index selects none of the {len(self)} samples")
        return torch.from_numpy(rows.reshape(-1)).to(self.inputs.device)


@dataclass(frozen=True, eq=False)
class Splits:
    """The three parts of a data set; unpacks as ``train, val, test``.

    Attributes:
        train, val, test: Disjoint parts with the same names of targets and groups; None where a
            part was not asked for.
        name: Name of the data set.
        report: Counts of samples found, skipped, dropped and used (and names of skipped files).

    Example:
        >>> import fairlib
        >>> digits = fairlib.load("digits")
        >>> train, val, test = digits
        >>> len(train), len(val), len(test)
        (450, 64, 550)
        >>> rare = digits.imbalance({"8": 5}, parts=["train"])  # Five eights to learn from.
        >>> int(rare.train.group_sizes["8"]), len(rare.test)
        (5, 550)
    """

    # Typed Any: a part is None only if it was not requested, and callers need not rule that out.
    train: GroupedDataset | Any
    val: GroupedDataset | Any
    test: GroupedDataset | Any
    name: str
    report: dict[str, Any] = field(default_factory=dict)

    def __iter__(self) -> Iterator[GroupedDataset | Any]:
        return iter((self.train, self.val, self.test))

    def imbalance(self, sizes: Sizes, seed: int = 0, *, parts: Sequence[str] = PARTS) -> Splits:
        """Apply :meth:`GroupedDataset.imbalance` to all parts that there are, or to some of them.

        Args:
            sizes: Counts or shares to keep in each part, by group or ``(group, target)``; other
                groups stay whole.
            seed: Seed of the draw.
            parts: Names of the parts in which samples are dropped.

        Raises:
            TypeError: If a size or the seed is not a number.
            ValueError: If a part, a group or a target is unknown, two keys share a sample, or a
                size is out of range.
        """
        after = dict(zip(PARTS, self, strict=True))
        report = self.report | {"imbalanced": 0}
        for name in dict.fromkeys(parts):
            part = lookup("part", name, after)
            if part is not None:
                after[name] = part.imbalance(sizes, seed)
                report[name] = len(after[name])
                report["imbalanced"] += len(part) - len(after[name])
        return Splits(**after, name=self.name, report=report)


def concatenated(datas: Sequence[GroupedDataset]) -> GroupedDataset:
    """Join data sets of one shape, kind and normalization, under the names of the first."""
    names = ("inputs", "targets", "groups")
    return datas[0]._replace(
        *(torch.cat([getattr(data, name) for data in datas]) for name in names)
    )


# Sent to a device once: to send two numbers would make every batch wait for a GPU.
@functools.cache
def _statistics(
    normalize: tuple[tuple[float, ...], tuple[float, ...]], dtype: torch.dtype, device: torch.device
) -> Tensor:
    # A tensor of inference mode could take part in no training later.
    with torch.inference_mode(False):
        return torch.tensor(normalize, dtype=dtype, device=device)


def _code(kind: str, names: Sequence[str], name: Label) -> int:
    """Look up the code of a group or a target that is given by name or code."""
    if name in names:
        return names.index(name)
    if isinstance(name, int | np.integer) and not isinstance(name, bool) and 0 <= name < len(names):
        return int(name)
    raise ValueError(f"unknown {kind} {name!r}; known: {', '.join(names)}")


def _as_tensor(argument: str, values: ArrayLike | Tensor) -> Tensor:
    """Copy numbers to a tensor on the CPU."""
    if isinstance(values, Tensor) and values.layout == torch.strided:
        return values.detach().to("cpu", copy=True)
    array = dense(argument, values)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{argument} must be numbers, got an array of dtype {array.dtype}")
    return torch.tensor(np.ascontiguousarray(array))


def _checked_inputs(values: ArrayLike | Tensor) -> Tensor:
    inputs = _as_tensor("inputs", values)
    if inputs.dtype not in (torch.uint8, torch.float32, torch.float64):
        raise TypeError(f"inputs must be uint8, float32 or float64, got {inputs.dtype}")
    shape: tuple[int, ...] = tuple(inputs.shape)
    vectors = inputs.ndim == 2 and inputs.is_floating_point()
    if inputs.ndim != 4 and not vectors:
        wanted = "(N, C, H, W)" + (" or (N, D)" if inputs.is_floating_point() else "")
        raise ValueError(f"{inputs.dtype} inputs must have shape {wanted}, got {shape}")
    # Pictures with channels last would be taken for many channels of a few columns, and a model
    # would learn something from them: square sides and 1, 3 or 4 at the end give them away.
    if inputs.ndim == 4 and shape[1] == shape[2] > 4 and shape[3] in (1, 3, 4):
        raise ValueError(
            f"inputs {shape} look like (N, H, W, C); give inputs.transpose(0, 3, 1, 2)"
        )
    if not inputs.numel():
        raise ValueError(f"inputs are empty: shape {shape}")
    if inputs.is_floating_point() and not inputs.isfinite().all():
        broken = torch.nonzero(~inputs.isfinite())
        raise ValueError(
            f"inputs hold {len(broken)} NaN or infinite values, the first at index "
            f"{tuple(broken[0].tolist())}"
        )
    return inputs


def _checked_labels(
    kind: str, labels: ArrayLike | Tensor, names: Sequence[str] | None, count: int
) -> tuple[Tensor, tuple[str, ...]]:
    """Return the codes of the targets or the groups, int64 ``(N,)``, and the name of every code."""
    argument = f"{kind}s"
    if names is not None:
        if isinstance(names, str) or not all(isinstance(name, str) for name in names):
            raise TypeError(f"{kind}_names must be a sequence of strings, got {names!r}")
        repeated = pd.Index(names).duplicated()
        if repeated.any():
            raise ValueError(
                f"{kind}_names must be distinct, but {names[repeated.argmax()]!r} occurs more "
                "than once"
            )
    plain = labels if isinstance(labels, Tensor) else dense(argument, labels)
    if not isinstance(plain, Tensor) and plain.ndim == 1:
        # NumPy would make texts of a list of mixed kinds, which pandas leaves as they are.
        series = pd.Series(plain if isinstance(labels, np.ndarray) else labels)
        labels = series.to_numpy()
        if isinstance(series.dtype, pd.CategoricalDtype) or pd.api.types.is_string_dtype(series):
            labels, values = coded(argument, series)
            places, names = in_order(values, names, f"{kind}_names")
            labels = places[labels]
        else:
            factorized(argument, series)  # It refuses missing values.
    codes = _as_tensor(argument, labels)
    if codes.is_floating_point() or codes.is_complex() or codes.dtype == torch.bool:
        raise TypeError(
            f"{argument} must be integers (codes 0, 1, ...) or text, got {codes.dtype}: "
            "give .astype(int)"
        )
    if codes.shape != (count,):
        raise ValueError(
            f"{argument} must have shape ({count},), one for each input, got {tuple(codes.shape)}"
        )
    codes = codes.long()
    low, high = int(codes.min()), int(codes.max())
    if names is None and low >= 0:
        # Zip codes are no codes: without this, 20000 would make a group of every number below it.
        values, positions = torch.unique(codes, return_inverse=True)
        if high >= SMALL and 2 * len(values) <= high:
            return positions, tuple(map(str, values.tolist()))
        names = tuple(map(str, range(high + 1)))
    if low < 0 or high >= len(names or ()):
        wrong = low if low < 0 else high
        row = int(torch.nonzero(codes == wrong)[0])
        allowed = f"0 to {len(names) - 1} (one for each of {kind}_names)" if names else "0 or more"
        raise ValueError(f"{argument}[{row}] is {wrong}; allowed are {allowed}")
    return codes, tuple(names or ())


def _checked_normalize(
    normalize: tuple[Sequence[float], Sequence[float]] | str, channels: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of every channel, looked up where it is a name."""
    if isinstance(normalize, str):
        normalize = lookup("normalization", normalize, NORMALIZATIONS)
    try:
        values = np.asarray(normalize, dtype=float)
    except (TypeError, ValueError):
        raise TypeError(
            f"normalize must be (mean, std), a sequence of numbers each, got {normalize!r}"
        ) from None
    if values.shape != (2, channels) or not np.isfinite(values).all() or values[1].min() <= 0:
        raise ValueError(
            f"normalize must hold {channels} means and stds, one for each channel: finite means "
            f"and positive stds; got {normalize!r}"
        )
    mean, std = map(tuple, values.tolist())
    return mean, std


def _checked_size(key: object, size: int | float, available: int) -> int:
    """Return the number of samples to keep for one key of ``sizes``."""
    if isinstance(size, Integral):
        check_number(f"sizes[{key!r}], a count,", size, 1, available, whole=True, high_closed=True)
        return int(size)
    argument = f"sizes[{key!r}], a share (a count is an int),"
    check_number(argument, size, 0, 1, low_open=True, high_closed=True)
    return max(1, round(size * available))
