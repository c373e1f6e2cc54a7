"""The keywords that fastload adds to a loader, checked when they are given.

They travel with fastai's own keyword arguments: `ImageDataLoaders.from_folder(path, threads=4)`, `accelerate(dls, threads=4)`.
A keyword that neither knows earns a warning that names the nearest known one; stock fastai swallows it in silence.
"""

from __future__ import annotations

import difflib
import inspect
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from types import FrameType
from typing import Any

from fastload.errors import SettingsError

__all__ = ["Settings", "split_keywords", "warn_unknown"]

# torch's own DataLoader keywords that stock fastai accepts and ignores
IGNORED = ("batch_sampler", "collate_fn", "generator", "multiprocessing_context", "sampler", "in_order")
# names that fastai's own methods hand to new() although nothing reads them
FASTAI_ODDITIES = ("process", "shuffled", "do_setup", "wgts", "partial_n")


@dataclass(frozen=True)
class Settings:
    """How fastload runs a loader.

    threads: decoding threads, None for every CPU this process may use. executor: 'auto' (native if built),
    'native', 'threads', 'serial' or 'stock'.
    prefetch_factor: finished batches that may wait. worker_init_fn: called once on each thread with its number.
    bad_images: 'raise', or 'skip' to leave unreadable images out of training batches. rank_seeds: other random numbers on each
    rank of a distributed run (stock gives all ranks the same). ram_bytes: bound on what is held for batches under way.
    batch: 'stock', or 'fused' to run fastai's usual batch transforms on the CPU in one native call, within rounding of stock.
    decode: 'exact', or 'scaled' to decode large JPEG photos at a half, quarter or eighth of their size, never below `slack`
    times what the crop is resized to: sooner, and not exact.
    channels_last: image batches lie in memory as [B, H, W, C]; equal values, but a convolution sums them in another order.
    cache: folder of a cache that `fastload precompute` made of these images; batches stay equal.
    Reserved for later, only their default is accepted now: exact, settings.
    """

    threads: int | None = None
    executor: str = "auto"
    prefetch_factor: int | None = 2
    worker_init_fn: Callable[[int], None] | None = None
    bad_images: str = "raise"
    rank_seeds: bool = False
    ram_bytes: int = 1 << 30
    hook: Callable[[str, int, str, int, int], None] | None = None
    exact: bool = True
    cache: Any = None
    settings: Any = None
    batch: str = "stock"
    decode: str = "exact"
    slack: float = 1.5
    channels_last: bool = False

    def __post_init__(self) -> None:
        _choice("executor", self.executor, ("auto", "native", "serial", "threads", "stock"))
        _choice("bad_images", self.bad_images, ("raise", "skip"))
        _choice("batch", self.batch, ("stock", "fused"))
        _choice("decode", self.decode, ("exact", "scaled"))
        _number("slack", self.slack, 1, 8)
        _whole("threads", self.threads, 1, none=True)
        _whole("prefetch_factor", self.prefetch_factor, 1, none=True)
        _whole("ram_bytes", self.ram_bytes, 1)
        for name in ("worker_init_fn", "hook"):
            if (value := getattr(self, name)) is not None and not callable(value):
                raise SettingsError(f"{name}={value!r} is not callable; give a function, or None")
        for name in ("rank_seeds", "channels_last"):
            if not isinstance(value := getattr(self, name), bool):
                raise SettingsError(f"{name}={value!r} must be True or False")
        if self.cache is not None and (not isinstance(self.cache, str | os.PathLike) or not os.fspath(self.cache)):
            raise SettingsError(f"cache={self.cache!r} is no path; give the folder that `fastload precompute --out` made")
        if isinstance(self.cache, str) and not os.path.isabs(self.cache):
            object.__setattr__(self, "cache", os.path.abspath(self.cache))  # whatever folder an epoch is started in
        for name in RESERVED:
            default = getattr(type(self), name)
            if getattr(self, name) != default:
                value = getattr(self, name)
                raise SettingsError(f"{name}={value!r} is not available in this version; leave {name} out ({default!r})")

    def updated(self, changes: Mapping[str, Any]) -> Settings:
        """A copy with `changes`; unknown names raise SettingsError with the nearest known one."""
        for name in changes:
            if name not in NAMES:
                known = [*(n for n in NAMES if n not in RESERVED), *ON_LOADERS]
                raise SettingsError(f"there is no setting {name!r}{_nearest(name, known)}; known are {', '.join(known)}")
        return replace(self, **changes)


RESERVED = ("exact", "settings")
NAMES = tuple(f.name for f in fields(Settings))
ON_LOADERS = ("num_workers", "pin_memory", "timeout", "persistent_workers")  # fastai's own, which `accelerate` sets


def split_keywords(keywords: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keywords that are fastload's, and the rest.

    >>> split_keywords({"bs": 64, "threads": 2})
    ({'threads': 2}, {'bs': 64})
    """
    ours = {k: v for k, v in keywords.items() if k in NAMES}
    return ours, {k: v for k, v in keywords.items() if k not in NAMES}


def warn_unknown(keywords: Iterable[str], loader: type, told: set[str]) -> None:
    """Warn of keywords that neither fastload nor `loader` and its base classes know; stock drops them without a word.

    `told`: what the loaders of one DataLoaders have said; each warning is added to it and given once.
    """
    known = _known(loader)
    for name in keywords:
        bare = name.removeprefix("val_")
        text = ""
        if name in IGNORED:
            text = f"{name}= is ignored by fastai's loaders and by fastload"
        elif bare not in known and bare not in FASTAI_ODDITIES:
            text = f"{name}= is not a keyword of {loader.__name__} or of fastload{_nearest(bare, known)}; it does nothing"
        if text and text not in told:
            told.add(text)
            _warn(text)


def _warn(text: str) -> None:
    """Warn at the line of the user's that led here, not at one of fastai's."""
    frame: FrameType | None = sys._getframe(1)
    level = 2
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _NOT_THE_USERS:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, UserWarning, stacklevel=level)


_NOT_THE_USERS = ("fastai", "fastcore", "fastload")


def _known(loader: type) -> tuple[str, ...]:
    names = set(NAMES) | set(getattr(loader, "_methods", ())) | {"dl_type", "val_bs", "path"}
    for cls in loader.__mro__:
        if "__init__" in cls.__dict__ and cls is not object:
            names |= set(inspect.signature(cls.__dict__["__init__"]).parameters)
    return tuple(sorted(names - {"self", "kwargs", "args"}))


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {near[0]}=?)" if near else ""


def _choice(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise SettingsError(f"{name}={value!r} is not one of {', '.join(allowed)}")


def _number(name: str, value: Any, least: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise SettingsError(f"{name}={value!r} must be a number from {least} to {most}")


def _whole(name: str, value: Any, least: int, none: bool = False) -> None:
    if value is None and none:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise SettingsError(f"{name}={value!r} must be a whole number of at least {least}{', or None' if none else ''}")
