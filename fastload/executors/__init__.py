"""Executors: Plan, Source and batches of references in; finished batches out, in order. Add a file to add one.

Each module of this folder offers NAME, `refuses(plan, options) -> str | None` (one sentence, or None) and
`open_executor(plan, sources, options) -> Executor`. The contract tests run over every module found here.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Protocol

from fastload.draws import Drawer, Sample
from fastload.ops import Size
from fastload.plan import Plan
from fastload.source import Ref

__all__ = ["Batch", "Executor", "Finished", "Hook", "Options", "automatic", "exact_only", "executors"]

# (stage, item, thread, start_ns, end_ns), called from the thread that did the work; stages: read, decode, transform
Hook = Callable[[str, int, str, int, int], None]


@dataclass(frozen=True)
class Batch:
    """Number of a batch in its epoch, and for each sample one Ref per image element; `carry` comes back with the result.

    `worker`: the virtual worker that draws its random numbers; None where the workers take turns (number % workers).
    """

    number: int
    refs: tuple[tuple[Ref, ...], ...]
    carry: Any = field(default=None, compare=False, repr=False)
    worker: int | None = None


@dataclass
class Finished:
    """A finished batch. `images`: per element a uint8 tensor [B, ...], or a list of arrays where sizes differ by file.

    `kept`: positions of the samples that are in it (all of them unless unreadable images were skipped); `drawn` and `sizes`
    (per sample, per element: width, height as read) belong to these samples; `skipped`: (path, error) of those left out.
    """

    batch: Batch
    kept: list[int]
    images: list[Any]
    drawn: list[Sample]
    sizes: list[list[Size]]
    skipped: list[tuple[str, BaseException]] = field(default_factory=list)


@dataclass(frozen=True)
class Options:
    """How an executor may run. `ahead`: finished batches that may wait; `ram_bytes`: bound on what is held for them.

    `slack`: how many times larger than the output a scaled decode has to leave the crop; 0 decodes exactly.
    `channels_last`: image batches lie in memory as [B, H, W, C].
    `init(thread_number)` runs once on each thread before its first image. `timeout_s` 0 waits for ever.
    """

    threads: int = 1
    ahead: int = 2
    ram_bytes: int = 1 << 30
    timeout_s: float = 0
    pin: bool = False
    skip_bad: bool = False
    hook: Hook | None = None
    init: Callable[[int], None] | None = None
    pool: Any = None
    slack: float = 0
    channels_last: bool = False


class Executor(Protocol):
    """Turns batches into pixels. `run` may be left at any point; `close` ends what it started and may be called twice."""

    def run(self, batches: Iterator[Batch], drawer: Drawer) -> Iterator[Finished]:
        """Yield every batch, in order, settled with `drawer`; raises at the batch that failed, with the path in the message."""
        ...

    def counts(self) -> dict[str, tuple[int, int]]:
        """Per stage: (images, nanoseconds summed over threads)."""
        ...

    def close(self) -> None:
        """End threads and drop buffers."""
        ...


def executors() -> dict[str, ModuleType]:
    """Every executor module of this folder by its NAME."""
    names = [info.name for info in pkgutil.iter_modules(__path__) if not info.name.startswith("_")]
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
    return {module.NAME: module for module in modules}


def refuses_needing(plan: Plan, sources: int) -> str | None:
    """One sentence if the number of sources does not fit the plan."""
    if len(plan.elements) != sources:
        return f"the plan has {len(plan.elements)} images per item, but {sources} sources were given"
    return None


def exact_only(name: str) -> str | None:
    """Why decode='scaled' can't be had of an executor: one sentence, or None."""
    from fastload import native

    if name != "native":
        return f"the {name} executor decodes exactly, only the native one scales"
    return None if native.status().resizes else f"Pillow has to resize, and needs every pixel: {native.status().reason}"


def automatic(plan: Plan, options: Options) -> tuple[str, str]:
    """The executor that `executor="auto"` means for a plan, and one sentence where it is not the fastest."""
    reason = executors()["native"].refuses(plan, options)
    return ("native", "") if reason is None else ("threads", f"images are decoded by Pillow alone, at half the speed: {reason}")
