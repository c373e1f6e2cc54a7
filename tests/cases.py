"""What the tests of awkward files, folder trees and reported faults have in common.

Their data lies in a folder `shared` beside the checkout and is never copied into it; without it they are skipped.
"""

from __future__ import annotations

import importlib.util
import json
import random
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

SHARED = Path(__file__).resolve().parents[2] / "shared"
CASES = SHARED / "cases"
EXECUTORS = ("serial", "threads")

needs_shared = pytest.mark.skipif(not CASES.is_dir(), reason=f"the shared cases are not at {CASES}")


def table() -> list[dict[str, Any]]:
    """The rows of files.json; none where the shared folder is absent."""
    return json.loads((CASES / "files.json").read_text())["cases"] if CASES.is_dir() else []


def trees() -> ModuleType:
    """The module make_trees.py."""
    spec = importlib.util.spec_from_file_location("make_trees", CASES / "make_trees.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tree(dest: Path, name: str) -> Path:
    """A newly made tree below `dest`."""
    trees().make(str(dest), [name])
    return dest / name


def seeded(loader: Any, number: int = 3) -> Iterator[Any]:
    """One epoch of `loader`, the global generators and its own freshly seeded."""
    random.seed(number)
    np.random.seed(number)
    torch.default_generator.manual_seed(number)  # torch.manual_seed formats the stack, which takes longer than a small loader
    loader.rng.seed(number)
    yield from loader


def outcome(loader: Any, number: int = 3) -> tuple[list[Any], Exception | None]:
    """The batches of one seeded epoch, and what ended it early."""
    batches = []
    try:
        for batch in seeded(loader, number):
            batches.append(batch)
    except Exception as err:  # noqa: BLE001  # handed to the test, which compares it
        return batches, err
    return batches, None


def ran_by_fastload(loader: Any) -> bool:
    """Whether fastload has run this loader so far, and never went over to stock."""
    return set() == loader._fl.told and loader._fl.progress.counts is not None
