"""Loaders whose images come from a cache, for tests."""

from __future__ import annotations

from typing import Any

from pictures import Pictures
from pipelines import ITEM_TFMS
from sidebyside import seed_all


def loaders(made: Pictures, name: Any = "random_resized_crop", **how: Any) -> Any:
    """Loaders with a pipeline by its name, or with these item transforms."""
    from fastload.vision import ImageDataLoaders

    seed_all(4)
    item = ITEM_TFMS[name]() if isinstance(name, str) and name else name or None
    return ImageDataLoaders.from_folder(made.images, valid_pct=0.3, seed=1, item_tfms=item, bs=4, **{"num_workers": 1, **how})


KEEPS = ("source", "decoded", "train=decoded,valid=final")
