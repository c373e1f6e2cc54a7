"""Packages alone on several threads of one process: images of a batch in parallel, batches in order, a bounded number ahead.

Pillow does all the work; `_early` saves some of it where an ordinary JPEG is cropped.

Who owns what: the consumer's thread takes batches from the iterator (so user code in it runs there), opens jobs and waits;
pool threads probe, draw and render. They meet at the run's lock, the pool's queue and a job's event, nowhere else. A fault
inside a thread is kept with its sample and raised by the consumer. Leaving the iterator early (break, exception, interrupt)
closes the run: queued work is dropped, threads of a pool that belongs to the run end. After a fork the child has no threads;
an iterator carried over says so.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fastload import pixels, slots
from fastload.draws import Drawer, draw_sample
from fastload.errors import FastloadError, ForkedIterator, LoaderTimeout, SettingsError
from fastload.executors import Batch, Finished, Options, _early, refuses_needing
from fastload.executors._pool import Pool
from fastload.executors._work import Job, Stages
from fastload.ops import Size
from fastload.plan import Element, Plan
from fastload.slots import Slot
from fastload.source import Record, Source

__all__ = ["NAME", "Threads", "Tidy", "open_executor", "refuses"]

NAME = "threads"
HEAD_START_S = 0.02  # for the first batch's images to be read and drawn before the consumer's Python works on the next batch


def refuses(plan: Plan, options: Options) -> str | None:
    """Nothing is refused: Pillow does every operation of a Plan."""
    return None


def open_executor(plan: Plan, sources: Sequence[Source], options: Options) -> Threads:
    """An executor with `options.threads` threads of its own, or those of `options.pool`."""
    return Threads(plan, sources, options)


class Tidy(Job):
    """A job whose steps leave out work that cannot change a pixel."""

    def __init__(self, plan: Plan, sources: Sequence[Source], batch: Batch, options: Options, stages: Stages) -> None:
        super().__init__(plan, sources, batch, options, stages)
        self.probed = [not plan.needs_size] * len(batch.refs)
        self.places: list[Any] = []  # of the first images, where their source knows them
        self.left = 0  # images queued and not yet rendered
        self.done = threading.Event()
        self.drawn_once = threading.Event()  # all drawn, or given up: nothing is gained by waiting for it
        self._next = 0  # the first sample that is not drawn yet
        self._rng: Any = None

    @property
    def all_drawn(self) -> bool:
        """Whether every sample has its draws, a fault, or waits for hand-over."""
        return self._next >= len(self.probed)

    def look_up(self) -> None:
        """Find where images lie, and tell the sources of it; sizes that are known there need no image to be read.

        What a source objects to is found when the image is read.
        """
        if self.plan.varied:  # which version of an image is wanted is not known yet, and all have one size
            return
        for element, source in enumerate(self.sources):
            places = source.places([refs[element] for refs in self.batch.refs])
            if places is not None:
                source.ahead(places)
            if element == 0 and self.plan.needs_size:
                self._take_sizes(places)
            if element == 0 and places is not None:
                self.places = places

    def _take_sizes(self, places: Sequence[Any] | None) -> None:
        self._ask_sizes(range(len(self.sizes)) if places is None else [p for p, place in enumerate(places) if place is None])
        for pos, place in enumerate(places or ()):
            if place is not None and place[0] is not None:
                self.sizes[pos][0], self.probed[pos] = place[0], True

    def _ask_sizes(self, positions: Sequence[int]) -> None:
        for pos in positions:
            try:
                size = self.sources[0].size(self.batch.refs[pos][0])
            except FastloadError:
                continue
            if size is not None:
                self.sizes[pos][0], self.probed[pos] = size, True

    def draw_on(self, drawer: Drawer) -> list[int]:
        """Draw the samples whose sizes are known, in order up to the first that is not; returns their positions."""
        if self._rng is None and (rng := drawer.begin(self.batch.number, self.batch.worker)) is not None:
            self._rng = rng
            self.open_rows()
        if self._rng is None:  # the numbers will be known at hand-over
            if all(self.probed):
                self._next = len(self.probed)
                self.positions = [p for p in range(len(self.probed)) if p not in self.faults]
            return []
        new = []
        while not self.all_drawn and self.probed[self._next]:
            pos, self._next = self._next, self._next + 1
            if pos not in self.faults:
                self.drawn[pos] = draw_sample(self.plan, self._rng, self.sizes[pos][0])
                new.append(pos)
        if self.all_drawn:
            drawer.end(self.batch.number, self._rng)
        self.positions += new
        return new

    def step(self, count: int, threads: int) -> int:
        """How many of a batch's `count` images a task gets: more than one where they take little time.

        Handing out each image by itself would take as long as copying it from a cache does (benchmarks/bench_cache.py). One
        where a hook is to hear of each.
        """
        if self.options.hook is not None or not (self.plan.finished or all(source.windows for source in self.sources)):
            return 1
        return -(-count // ((1 if self.plan.finished else 2) * threads))

    def probe_several(self, positions: Sequence[int]) -> None:
        """Read the first image of several samples as far as its size; faults are kept, not raised."""
        for pos in positions:
            self.probe(pos)

    def render_several(self, positions: Sequence[int]) -> None:
        """Render samples; finished images that lie in a cache by one call for all of them."""
        start, slot = time.perf_counter_ns(), self.slots[0] if len(self.slots) == 1 else None
        if self.plan.finished and isinstance(slot, Slot) and not self.plan.elements[0].mask:
            refs = [self.batch.refs[p][0] for p in positions]
            if self.sources[0].gather(refs, [slot.rows[p] for p in positions]):
                for p in positions:
                    self.sizes[p][0] = self.plan.size
                self.stages.note("gather", refs[0].index, start, len(refs))
                return
        for pos in positions:
            self.render(pos)

    def order(self, todo: list[pixels.Step], size: Size) -> list[pixels.Step]:
        """The same pixels with less work."""
        return pixels.tidy(todo, size)

    def measure(self, record: Record, part: Element) -> Size:
        """(width, height): of an ordinary JPEG by its frame header alone."""
        return _early.measure(record) or super().measure(record, part)

    def direct(self, pos: int, element: int, record: Record) -> bool:
        """An ordinary JPEG decoded as far as its crop needs it; False where the file is for the usual way."""
        if record.codec != "jpeg":
            return False
        item, start = self.batch.refs[pos][element].index, time.perf_counter_ns()
        with self.reading(pos):
            size = self._size(pos, element)
        part = self.plan.elements[element]
        found = _early.decode(record, part.mode, size, self.order(self.todo(pos, element, size), size))
        if found is None:
            return False
        start = self.stages.note("decode", item, start)
        self.transform(pos, element, *found)
        self.stages.note("transform", item, start)
        return True


class Threads:
    """Several images at once; `close` ends the threads unless they belong to a pool that was handed in."""

    job: type[Tidy] = Tidy

    def __init__(self, plan: Plan, sources: Sequence[Source], options: Options) -> None:
        if reason := refuses_needing(plan, len(sources)):
            raise SettingsError(reason)
        self.plan, self.sources, self.options = plan, sources, options
        self._stages = Stages(options.hook)
        self._pool: Pool | None = options.pool
        self._own = options.pool is None

    def run(self, batches: Iterator[Batch], drawer: Drawer) -> Iterator[Finished]:
        """Yield every batch in order; see `Executor.run`."""
        run = _Run(self, drawer, self._started())
        try:
            while (job := run.next_job(batches)) is not None:
                yield run.hand_over(job)
        finally:
            run.closed = True
            if self._own:
                self.close()

    def _started(self) -> Pool:
        if self._pool is None or not self._pool.alive:
            self._pool = Pool(self.options.threads, self.options.init)
        return self._pool

    def counts(self) -> dict[str, tuple[int, int]]:
        """Per stage: (images, nanoseconds summed over threads)."""
        return self._stages.counts()

    def close(self) -> None:
        """End the threads of this executor's own pool."""
        if self._pool is not None and self._own:
            self._pool.close()


class _Run:
    """One pass over the batches: a window of jobs under way, drawn strictly in order."""

    def __init__(self, owner: Threads, drawer: Drawer, pool: Pool) -> None:
        self.owner, self.drawer, self.pool = owner, drawer, pool
        self.plan, self.options = owner.plan, owner.options
        self.window: deque[Tidy] = deque()
        self.undrawn: deque[Tidy] = deque()
        self.lock = threading.Lock()
        self.closed = False
        self.fault: BaseException | None = None
        self.broken: BaseException | None = None
        self.typical_bytes = 0
        self.ended = False

    # consumer's thread -------------------------------------------------------------------------------------------------

    def next_job(self, batches: Iterator[Batch]) -> Tidy | None:
        """Open jobs up to the bounds, then give the oldest; a fault of the batch iterator is raised in its place."""
        if self.pool.pid != os.getpid():  # before any lock: a thread may have held it as the process was forked
            raise ForkedIterator(_FORKED.format(self.pool.pid, os.getpid()))
        while not self.ended and self._room():
            try:
                batch = next(batches)
            except StopIteration:
                self.ended = True
            except Exception as err:
                self.fault, self.ended = err, True
            else:
                self._open(batch)
        if self.window:
            return self.window.popleft()
        if self.fault is not None:
            raise self.fault
        return None

    def _room(self) -> bool:
        if not self.window:
            return True
        if len(self.window) > self.options.ahead:
            return False
        self.window[0].drawn_once.wait(HEAD_START_S)  # at once, but for the first batch of an epoch
        return sum(self._bytes(job) for job in self.window) < self.options.ram_bytes

    def _bytes(self, job: Tidy) -> int:
        """What a job has read so far, or what the largest one so far came to, whichever is more; and its output."""
        size = self.plan.size or (0, 0)
        output = sum(slots.nbytes(len(job.batch.refs), e.shape(size)) for e in self.plan.elements)
        return output + max(job.used_bytes, self.typical_bytes)

    def _open(self, batch: Batch) -> None:
        job = self.owner.job(self.plan, self.owner.sources, batch, self.options, self.owner._stages)
        job.look_up()
        self.window.append(job)
        unknown = [p for p, known in enumerate(job.probed) if not known]
        with self.lock:
            self.undrawn.append(job)
            self._draw_ready()
        if unknown:
            self._put(2 * batch.number, self._probe, job, unknown)

    def hand_over(self, job: Tidy) -> Finished:
        """Wait for `job`, settle its draws, render anew what changed, and return the batch."""
        self._wait(job)
        self.typical_bytes = max(self.typical_bytes, job.used_bytes)
        if (bad := job.fatal()) is not None:
            raise job.give_up(self.drawer, bad)
        with self.lock:
            changed = job.settle(self.drawer)
            if changed:
                self._render_all(job)
        if changed:
            self._wait(job)
            if (bad := job.fatal()) is not None:
                raise job.give_up(self.drawer, bad)
        return job.finish()

    def _wait(self, job: Tidy) -> None:
        end = time.monotonic() + self.options.timeout_s if self.options.timeout_s else None
        while self.broken is None and not job.done.wait(0.5 if end is None else max(0.0, min(0.5, end - time.monotonic()))):
            if not self.pool.alive:
                raise ForkedIterator(_FORKED.format(self.pool.pid, os.getpid()))
            if end is not None and time.monotonic() >= end:
                self.pool.close(wait=False)  # a read that hangs would hang the consumer too
                raise LoaderTimeout(_LATE.format(job.batch.number, self.options.timeout_s))
        for fault in (self.broken, self.owner._stages.failed):
            if fault is not None:
                raise fault
        if self.pool.failed is not None:
            self.pool.close()  # the error holds the consumer's frames: threads that hold the error would keep the loader alive
            raise self.pool.failed

    # pool threads ------------------------------------------------------------------------------------------------------

    def _task(self, work: Callable[[Tidy, Any], None], job: Tidy, positions: Any) -> Callable[[], None]:
        return lambda: self._guarded(work, job, positions)

    def _guarded(self, work: Callable[[Tidy, Any], None], job: Tidy, positions: Any) -> None:
        try:
            if not self.closed:
                work(job, positions)
        except BaseException as err:  # no image's fault (those are kept with their sample): the whole run ends with it
            self.broken = err
            for waiting in [job, *self.undrawn, *self.window]:
                waiting.done.set()

    def _probe(self, job: Tidy, positions: Sequence[int]) -> None:
        job.probe_several(positions)
        with self.lock:
            for pos in positions:
                job.probed[pos] = True
            mine = self._draw_ready((job, positions))
        if mine:
            self._render(job, mine)

    def _draw_ready(self, probed: tuple[Tidy, Sequence[int]] | None = None) -> list[int]:
        """Draw the samples whose turn it is, oldest job first, and queue their images; holds the lock.

        An image is rendered as soon as those before it are drawn, so reading the batch's other headers costs no wait. Those
        that were `probed` just now are not queued: the ones returned are to be rendered by the caller, without the lock.
        """
        mine: list[int] = []
        while self.undrawn:
            job = self.undrawn[0]
            new = job.draw_on(self.drawer)
            if new and job.fatal() is None:
                if probed is not None and job is probed[0]:
                    mine = [p for p in new if p in probed[1]]
                    new = [p for p in new if p not in probed[1]]
                    job.left += len(mine)
                if new:
                    self._queue(job, new)
            if not job.all_drawn:
                break
            self.undrawn.popleft()
            job.drawn_once.set()
            self._finished(job)
        return mine

    def _render(self, job: Tidy, positions: Sequence[int]) -> None:
        job.render_several(positions)
        with self.lock:
            job.left -= len(positions)
            self._finished(job)

    def _finished(self, job: Tidy) -> None:
        if job.all_drawn and not job.left:
            job.done.set()

    def _queue(self, job: Tidy, positions: Sequence[int]) -> None:
        job.left += len(positions)
        self._put(2 * job.batch.number - 1, self._render, job, positions)

    def _put(self, urgency: int, work: Callable[[Tidy, Any], None], job: Tidy, positions: Sequence[int]) -> None:
        step = job.step(len(positions), self.pool.threads)
        chunks = [positions[k : k + step] for k in range(0, len(positions), step)]
        self.pool.put(urgency, [self._task(work, job, chunk) for chunk in chunks])

    def _render_all(self, job: Tidy) -> None:
        job.done.clear()
        job.open_rows()
        self._queue(job, job.positions)
        self._finished(job)


_FORKED = (
    "this iterator was started in process {} and is used in process {}: a forked child has none of its threads. "
    "Start a new iterator in the child."
)
_LATE = "batch {} was not ready within timeout={} s; raise timeout, or set it to 0 to wait for ever"
