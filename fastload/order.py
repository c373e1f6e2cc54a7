"""The order of stock's batches: which indices each worker process would take, and whose turn it is."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

__all__ = ["Whole", "virtual_batches"]


def virtual_batches(
    indices: Iterable[Any], workers: int, bs: int, drop_last: bool, fetch: Callable[[Any], Any]
) -> Iterator[tuple[int, int, list[Any], int, bool]]:
    """(number, worker, items, indices used so far, whether it is dropped) of each batch, in the order of stock's workers.

    Worker w takes every workers-th run of `bs` indices, leaves out items for which `fetch` gives None, and cuts what remains
    into batches of its own; the batches of the workers are taken in turn (torch's iterator, one worker after the other), a
    worker without items no longer has one.
    With `drop_last` stock still makes the items of a short last batch, draws their random numbers, and raises their errors.

    >>> skip23 = lambda i: None if i in (2, 3) else i
    >>> [(worker, items) for _, worker, items, _, _ in virtual_batches(range(10), 3, 4, False, skip23)]
    [(0, [0, 1]), (1, [4, 5, 6, 7]), (2, [8, 9])]
    """
    runs = _Runs(iter(indices), max(1, workers), bs)
    streams = {w: _stream(runs, w, bs, fetch) for w in range(max(1, workers))}
    number = 0
    while streams:
        for w in list(streams):
            items = next(streams[w], None)
            if items is None:
                del streams[w]
            else:
                yield number, w, items, runs.taken, drop_last and len(items) < bs
                number += 1


class _Runs:
    """Deals runs of `bs` indices to workers in turn; keeps those dealt to a worker that has not asked yet."""

    def __init__(self, indices: Iterator[Any], workers: int, bs: int) -> None:
        self.indices, self.workers, self.bs = indices, workers, bs
        self.waiting: list[deque[Any]] = [deque() for _ in range(workers)]
        self.dealt = self.taken = 0

    def take(self, worker: int) -> Any:
        """The next index of `worker`; StopIteration at the end."""
        while not self.waiting[worker]:
            run = [next(self.indices)] if self.workers == 1 else list(itertools.islice(self.indices, self.bs))
            if not run:
                raise StopIteration
            self.waiting[self.dealt % self.workers].extend(run)
            self.dealt += 1
        self.taken += 1
        return self.waiting[worker].popleft()


def _stream(runs: _Runs, worker: int, bs: int, fetch: Callable[[Any], Any]) -> Iterator[list[Any]]:
    items: list[Any] = []
    while True:
        try:
            index = runs.take(worker)
        except StopIteration:
            break
        if (item := fetch(index)) is not None:
            items.append(item)
        if len(items) == bs:
            yield items
            items = []
    if items:
        yield items


class Whole:
    """Stock's own batches of a loader, which never end early without a word.

    In stock a StopIteration that an item transform raises looks like the end of the epoch. Iterated in this process or, as a
    data set with stock's name `d` for its loader, in a worker. `skip` indices are left out; `taken` is called for each used.
    """

    def __init__(self, d: Any, skip: int = 0, taken: Callable[[], None] | None = None) -> None:
        self.d, self.skip, self.taken = d, skip, taken
        self.ended = False

    def __iter__(self) -> Iterator[Any]:
        self.ended = False
        yield from self.d.create_batches(self._indices())
        if not self.ended:
            raise RuntimeError("an item raised StopIteration, which would have ended the epoch early")

    def _indices(self) -> Iterator[Any]:
        for index in itertools.islice(self.d.sample(), self.skip, None):
            if self.taken is not None:
                self.taken()
            yield index
        self.ended = True
