"""Data sets that several test files share; plots need no screen, and small tensors no second thread."""

from __future__ import annotations

import os

import pytest
from pictures import Pictures, make_pictures

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
