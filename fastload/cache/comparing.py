"""When a loader's files have to be compared with its cache again, and how to look at many files soon."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

__all__ = ["Comparisons", "each"]

_SHARE = 0.01  # of the time may go into comparing files over and over
_FREE_S = 0.01  # what takes less is done as every epoch begins
_KEPT = 8  # lists of files that are remembered: those of a few loaders
_PROBE, _SLOW_S, _THREADS = 256, 50e-6, 16  # a local disk answers in microseconds, and its answers need no threads


def each(look: Callable[[str], str | None], paths: Sequence[str]) -> list[str | None]:
    """`look` at each path, several at a time where the first ones show that each has to be waited for."""
    start = time.perf_counter()
    found = [look(path) for path in paths[:_PROBE]]
    if len(paths) <= _PROBE or time.perf_counter() - start < _PROBE * _SLOW_S:
        return found + [look(path) for path in paths[_PROBE:]]
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="fastload-compare") as threads:
        return found + list(threads.map(look, paths[_PROBE:], chunksize=64))


@dataclass(frozen=True)
class _Compared:
    lists: tuple[Any, ...]
    lengths: tuple[int, ...]
    first: str
    when: float
    cost_s: float


class Comparisons:
    """Which lists of files were found to be those of a cache, and when.

    They are compared again as an epoch begins, unless that took a while and its next turn would take over 1 % of the time
    since. Lists are known by being the same objects of the same lengths.

    >>> seen, files = Comparisons(), ["a.jpg"]
    >>> seen.note([files], "a.jpg", cost_s=2.0); seen.recent([files]), seen.recent([["a.jpg"]])
    ('a.jpg', None)
    >>> seen.note([files], "a.jpg", cost_s=0.001); seen.recent([files]) is None
    True
    """

    def __init__(self) -> None:
        self._known: list[_Compared] = []

    def recent(self, lists: Sequence[Any]) -> str | None:
        """The first path of lists that need not be compared now, else None."""
        lengths, now = tuple(map(len, lists)), time.monotonic()
        for known in self._known:
            same = known.lengths == lengths and all(a is b for a, b in zip(known.lists, lists, strict=True))
            if same and known.cost_s > _FREE_S and (now - known.when) * _SHARE < known.cost_s:
                return known.first
        return None

    def note(self, lists: Sequence[Any], first: str, cost_s: float) -> None:
        """Remember that these lists were compared just now, and how long it took."""
        others = [k for k in self._known if any(a is not b for a, b in zip(k.lists, lists, strict=False))]
        new = _Compared(tuple(lists), tuple(map(len, lists)), first, time.monotonic(), cost_s)
        self._known = [*others[-_KEPT + 1 :], new]
