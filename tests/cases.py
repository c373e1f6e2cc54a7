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
from fastai.vision.all import Datasets, FlipItem, Learner, PILImage, RandomResizedCrop, TfmdDL, ToTensor
from sidebyside import seed_all

import fastload

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
    stayed = any("stays with stock" in line for line in loader._fl.told)
    return not stayed and loader._fl.progress.counts is not None


def folder_loaders(fastai: ModuleType, path: Path, **keywords: Any) -> Any:
    """T as the reports load it, by stock or by the swap, from one seed."""
    seed_all(1)
    keywords = {"item_tfms": fastai.Resize(16), "bs": 4, "num_workers": 0, "device": "cpu", **keywords}
    return fastai.ImageDataLoaders.from_folder(path, valid="valid", **keywords)


def number_of(path: Path) -> int:
    """The label of a numbered picture."""
    return int(path.stem)


def numbered(items: list[Path], executor: str | None = None, x: Any = None, y: Any = number_of, **keywords: Any) -> Any:
    """A loader of (image, number), made from one seed; stock's own where no executor is named."""
    seed_all(1)
    where, settings = list(range(len(items))), {k: keywords.pop(k) for k in ("bad_images", "rank_seeds") if k in keywords}
    sets = Datasets(items, [[x, PILImage.create] if x else [PILImage.create], [y]], splits=[where, where])
    split, item_tfms = keywords.pop("split", 0), keywords.pop("item_tfms", (RandomResizedCrop(16), FlipItem()))
    keywords = {"bs": 4, "num_workers": 0, "after_item": [*item_tfms, ToTensor()], **keywords}
    made = TfmdDL(sets.subset(split), **keywords)
    return made if executor is None else fastload.accelerate(made, executor=executor, threads=2, **settings)


def labels(batches: Any) -> list[list[int]]:
    """The second part of each batch."""
    return [y.tolist() for _, y in batches]


class MeanColour(torch.nn.Module):
    """Gives each picture's mean colour; has a parameter, as fit and predict expect."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(x).mean((2, 3)) * self.scale


def learner(dls: Any, model: torch.nn.Module | None = None) -> Any:
    return Learner(dls, model or MeanColour(), loss_func=torch.nn.CrossEntropyLoss(), cbs=[])
