"""Data sets that several test files share; plots need no screen, and small tensors no second thread."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pictures import Pictures, make_pictures
from PIL import Image

import fastload
from fastload.errors import CacheError

os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Pictures:
    """Seventeen images of eleven sizes in three classes."""
    return make_pictures(tmp_path_factory.mktemp("pictures") / "set")


@pytest.fixture(scope="session")
def even_pictures(tmp_path_factory: pytest.TempPathFactory) -> Pictures:
    """The same with all images 40 by 30 pixels, for pipelines that do not resize."""
    return make_pictures(tmp_path_factory.mktemp("pictures") / "even", same_size=True)


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree T of the fault reports: 26 training and 10 validation pictures, whose colour tells their number."""
    from cases import CASES, tree  # imports fastai, which most tests of other rooms do without

    if not CASES.is_dir():
        pytest.skip(f"the shared cases are not at {CASES}")
    return tree(tmp_path_factory.mktemp("reports"), "small")


@pytest.fixture(scope="session")
def noise(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Sixty times the same 24 by 20 pixels of noise, so that equal draws give equal pixels."""
    folder = tmp_path_factory.mktemp("noise")
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 24, 3), dtype=np.uint8))
    items = [folder / f"{number:02d}.png" for number in range(60)]
    for item in items:
        picture.save(item)
    return items


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Pictures:
    """Pictures that caches are made of."""
    return make_pictures(tmp_path_factory.mktemp("cached") / "data")


@pytest.fixture(scope="module", params=("source", "decoded", "train=decoded,valid=final"))
def cache(made: Pictures, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of each kind."""
    from cached import loaders  # imports fastai, as above

    out = tmp_path_factory.mktemp("kept") / "cache"
    assert fastload.precompute(loaders(made), out, keep=request.param).whole
    return out


@pytest.fixture(scope="module")
def caches(made: Pictures, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A function from pipeline and what to keep to a cache, each built once."""
    from cached import loaders  # imports fastai, as above

    kept: dict[Any, Path] = {}

    def get(name: str, keep: str) -> Path:
        key = (name if "final" in keep else "", keep)
        if key not in kept:
            kept[key] = tmp_path_factory.mktemp("kept") / "cache"
            try:
                fastload.precompute(loaders(made, name), kept[key], keep=keep)
            except CacheError as err:
                assert "are drawn anew each time" in str(err) or "end in different sizes" in str(err)
                kept[key] = get(name, "decoded")
        return kept[key]

    return get
