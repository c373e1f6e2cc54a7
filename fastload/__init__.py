"""The front door: everything here is imported when it is first used, so `import fastload` loads no torch and no fastai."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fastload.errors import FastloadError

if TYPE_CHECKING:
    from fastload.cache.read import cached
    from fastload.front import accelerate, counters, enable, explain
    from fastload.malloc import keep_memory
    from fastload.precomputing import precompute

__all__ = [
    "FastloadError",
    "__version__",
    "accelerate",
    "cached",
    "counters",
    "enable",
    "explain",
    "keep_memory",
    "precompute",
]

__version__ = "0.1.0"

_HOME = {
    **dict.fromkeys(("accelerate", "counters", "enable", "explain"), "fastload.front"),
    "keep_memory": "fastload.malloc",
    "precompute": "fastload.precomputing",
    "cached": "fastload.cache.read",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'fastload' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
