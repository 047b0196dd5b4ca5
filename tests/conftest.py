"""Small inputs that many tests share."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import fairlib
from fairlib import environment

# Threads that wait for each other make tiny models slow on a busy machine, also in the kernels and
# commands that tests start.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    """No test reads or fills the user's cache."""
    monkeypatch.setenv("FAIRLIB_CACHE", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def _no_open_figure():
    """A figure that a test draws is open in no other test."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


@pytest.fixture
def library(tmp_path, monkeypatch) -> Path:
    """A copy of the code of fairlib, for tests to edit: the digests of code are of this copy."""
    copy = shutil.copytree(
        environment.LIBRARY, tmp_path / "fairlib", ignore=shutil.ignore_patterns("__pycache__")
    )
    monkeypatch.setattr(environment, "LIBRARY", copy)
    return copy


@pytest.fixture
def images() -> fairlib.GroupedDataset:
    """120 random 8x8 grey images whose brightness tells the class (of 3); groups of 80, 30 and 10,
    unrelated."""
    generator = np.random.default_rng(0)
    targets = np.arange(120) % 3
    base = np.array([40, 120, 200])[targets]
    inputs = (base[:, None, None, None] + generator.integers(-30, 31, (120, 1, 8, 8))).astype(
        np.uint8
    )
    groups = np.repeat([0, 1, 2], [80, 30, 10])
    return fairlib.GroupedDataset(inputs, targets, groups, group_names=["many", "some", "few"])


@pytest.fixture
def cnn() -> torch.nn.Module:
    return fairlib.build("cnn", num_classes=3, in_channels=1, image_size=8, seed=0)
