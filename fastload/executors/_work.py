"""One sample through its stages: read, decode, transform, written to its row; shared by the executors that use Pillow."""

from __future__ import annotations

import errno
import random
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from fastload import pixels
from fastload.draws import Drawer, Sample
from fastload.errors import CacheError, DataError, with_path
from fastload.executors import Batch, Finished, Hook, Options
from fastload.ops import Size
from fastload.plan import Element, Plan
from fastload.slots import Slot
from fastload.source import IN_MEMORY, PIXELS, Record, Ref, Source, open_lazily

__all__ = ["Job", "Stages"]

Box = tuple[int, int, int, int]


class Stages:
    """Counts images and nanoseconds per stage, per thread without a lock, and tells the hook."""

    def __init__(self, hook: Hook | None = None) -> None:
        self.hook = hook
        self.failed: BaseException | None = None
        self._local = threading.local()
        self._all: list[dict[str, list[int]]] = []

    def note(self, stage: str, item: int, start_ns: int, images: int = 1) -> int:
        """Book the time since `start_ns` on `stage` of so many images; returns now, the start of the next stage."""
        end = time.perf_counter_ns()
        mine = getattr(self._local, "counts", None)
        if mine is None:
            mine = self._local.counts = {}
            self._all.append(mine)
        entry = mine.setdefault(stage, [0, 0])
        entry[0] += images
        entry[1] += end - start_ns
        if self.hook is not None:
            self._tell(self.hook, (stage, item, threading.current_thread().name, start_ns, end))
        return end

    def _tell(self, hook: Hook, event: tuple[str, int, str, int, int]) -> None:
        try:
            hook(*event)
        except BaseException as err:  # raised by the consumer: a hook's own mistake is no image's fault
            self.failed = err

    def counts(self) -> dict[str, tuple[int, int]]:
        """Per stage: (images, nanoseconds), summed over the threads."""
        total: dict[str, tuple[int, int]] = {}
        for mine in list(self._all):
            for stage, (n, ns) in list(mine.items()):
                have = total.get(stage, (0, 0))
                total[stage] = (have[0] + n, have[1] + ns)
        return total


class _Reading:
    """Adds `pos` to `failed` where the block under it raises: three times an image, so no generator."""

    __slots__ = ("failed", "pos")

    def __init__(self, failed: set[int], pos: int) -> None:
        self.failed, self.pos = failed, pos

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is not None:
            self.failed.add(self.pos)


class Job:
    """One batch under way: records, sizes, draws, rows and faults of its samples.

    Each sample is touched by one thread at a time; lists are indexed by position and never resized, so no lock is needed here.
    """

    def __init__(self, plan: Plan, sources: Sequence[Source], batch: Batch, options: Options, stages: Stages) -> None:
        self.plan, self.sources, self.batch, self.options, self.stages = plan, sources, batch, options, stages
        count, width = len(batch.refs), len(plan.elements)
        self.records: list[list[Record | None]] = [[None] * width for _ in range(count)]
        self.sizes: list[list[Size | None]] = [[None] * width for _ in range(count)]
        self.faults: dict[int, BaseException] = {}
        self.drawn: list[Sample | None] = [None] * count
        self.positions: list[int] = []  # samples that have been drawn, in order
        self.slots: list[Any] = []
        self.unreadable: set[int] = set()  # samples whose fault came from reading or decoding
        self.used_bytes = 0  # of everything read for it so far; several threads add, so it may be a little low
        self._unsettled: Any = None  # the global generator before its numbers were confirmed

    def open_rows(self) -> None:
        """Allocate the batch buffers; lists of arrays where the output size depends on the file."""
        count, size = len(self.batch.refs), self.plan.size
        if size is None:
            self.slots = [[None] * count for _ in self.plan.elements]
        else:
            self.slots = [Slot(count, e.shape(size), self.options.pin, self.options.channels_last) for e in self.plan.elements]

    def probe(self, pos: int) -> None:
        """Read the first image of sample `pos` as far as its size; a fault is kept, not raised."""
        try:
            with self.reading(pos):
                self._size(pos, 0)
        except BaseException as err:  # carried to the consumer, who raises it
            self.faults[pos] = with_path(err, self._name(pos, 0))

    def render(self, pos: int) -> None:
        """Decode and transform every image of sample `pos` into its rows; a fault is kept, not raised."""
        element = 0
        try:
            for element in range(len(self.plan.elements)):
                self._render(pos, element)
        except BaseException as err:  # carried to the consumer, who raises it
            self.faults[pos] = with_path(err, self._name(pos, element))

    def draw(self, drawer: Drawer) -> bool:
        """Draw every sample without a fault; False where that has to wait for hand-over."""
        self.positions = [p for p in range(len(self.drawn)) if p not in self.faults]
        return self._take(drawer.draw(self.batch.number, self._drawn_sizes(), self.batch.worker))

    def settle(self, drawer: Drawer) -> bool:
        """Confirm the draws as the batch is handed over; True where they changed and the samples must be rendered anew."""
        if drawer.workers == 0:
            self._unsettled = random.getstate()
        sizes = self._drawn_sizes() if drawer.workers == 0 else ()
        return self._take(drawer.settle(self.batch.number, sizes, self.batch.worker))

    def fatal(self) -> int | None:
        """Position of the first sample whose fault must be raised."""
        if not self.faults:
            return None
        skip, faults = self.options.skip_bad, self.faults.copy()  # other images may be under way, and fail
        return min((p for p, e in faults.items() if not (skip and p in self.unreadable and _harmless(e))), default=None)

    def give_up(self, drawer: Drawer, position: int) -> BaseException:
        """The fault of `position`, with the random numbers left where stock would leave them."""
        if self._unsettled is not None:
            random.setstate(self._unsettled)
        drawer.abandon([self.sizes[p][0] for p in range(position) if p not in self.faults])
        return self.take_fault(position)

    def take_fault(self, position: int) -> BaseException:
        """The fault of `position`, no longer held here: its traceback holds this job, and both would linger."""
        fault = self.faults[position]
        self.faults.clear()
        return fault

    def finish(self) -> Finished:
        """The batch as the consumer gets it; samples with a fault are left out and listed."""
        kept = [p for p in range(len(self.batch.refs)) if p not in self.faults] if self.faults else list(range(len(self.drawn)))
        images = [s.keep(kept) if isinstance(s, Slot) else [s[p] for p in kept] for s in self.slots]
        skipped = [(self._name(p, 0), self.faults[p]) for p in sorted(self.faults)]
        drawn = [d for p in kept if (d := self.drawn[p]) is not None]
        sizes: Any = self.sizes  # that of an image which was never opened is None
        if self.faults or any(None in of for of in sizes):
            sizes = [[s for s in self.sizes[p] if s is not None] for p in kept]
        return Finished(self.batch, kept, images, drawn, sizes, skipped)

    def _take(self, drawn: list[Sample] | None) -> bool:
        if drawn is None:
            return False
        for pos, sample in zip(self.positions, drawn, strict=True):
            self.drawn[pos] = sample
        return True

    def _drawn_sizes(self) -> list[Size | None]:
        return [self.sizes[p][0] for p in self.positions]

    def _name(self, pos: int, element: int) -> str:
        ref = self.batch.refs[pos][element]
        record = self.records[pos][element]
        return record.name if record is not None else ref.path if ref.path is not None else f"item {ref.index}"

    def _read(self, pos: int, element: int, window: Box | None = None) -> Record:
        record = self.records[pos][element]
        if record is None:
            start, ref = time.perf_counter_ns(), self.batch.refs[pos][element]
            if self.plan.varied and (sample := self.drawn[pos]) is not None:
                ref = Ref(ref.index, ref.path, sample[0])
            record = self.records[pos][element] = self.sources[element].read(ref, window)
            self.used_bytes += record.nbytes
            self.stages.note("read", ref.index, start)
        return record

    def _size(self, pos: int, element: int) -> Size:
        size = self.sizes[pos][element]
        if size is None:
            size = self.sources[element].size(self.batch.refs[pos][element])
        if size is None:
            record = self._read(pos, element)
            size = self.measure(record, self.plan.elements[element])
            self.used_bytes += record.nbytes if record.data is None else 0
        self.sizes[pos][element] = size
        return size

    def measure(self, record: Record, part: Element) -> Size:
        """(width, height) of an image: from the header where that is final, else by decoding it."""
        image = _opened(record, part.mode)
        return image.width, image.height

    def reading(self, pos: int) -> _Reading:
        """What fails in here is the image's fault; anything else that fails is not, and is never skipped."""
        return _Reading(self.unreadable, pos)

    def _render(self, pos: int, element: int) -> None:
        with self.reading(pos):
            window = self.window(pos, element) if self.sources[element].windows else None
            record = self._read(pos, element, window)
        if not self.direct(pos, element, record):
            self._by_pillow(pos, element, record, self.plan.elements[element])
        self.records[pos][element] = None

    def window(self, pos: int, element: int) -> Box | None:
        """The part of the image (left, top, right, bottom) that its steps will look at; all of it here."""
        return None

    def direct(self, pos: int, element: int, record: Record) -> bool:
        """Whether the image was put into its row without Pillow; never here."""
        return False

    def _by_pillow(self, pos: int, element: int, record: Record, part: Element) -> None:
        ref, probed, start = self.batch.refs[pos][element], self.sizes[pos][element], time.perf_counter_ns()
        with self.reading(pos):
            image = self.load(record, part)
        size = (image.width, image.height)
        if probed is not None and probed != size:
            raise DataError(f"{record.name} was {probed} pixels by its header and {size} decoded: is it being rewritten?")
        self.sizes[pos][element] = size
        start = self.stages.note("decode", ref.index, start)
        self.transform(pos, element, image, self.order(self.todo(pos, element, size), size))
        self.stages.note("transform", ref.index, start)

    def load(self, record: Record, part: Element) -> Any:
        """The decoded image; Pillow's here."""
        return _loaded(record, part.mode)

    def todo(self, pos: int, element: int, size: Size) -> list[pixels.Step]:
        """The steps of one image, with all numbers filled in."""
        sample, first = self.drawn[pos], self.sizes[pos][0]
        if sample is None or first is None:
            raise DataError(f"sample {pos} of batch {self.batch.number} has no draws")
        return pixels.steps(self.plan, self.plan.elements[element], sample, size, first)

    def transform(self, pos: int, element: int, image: Any, todo: list[pixels.Step]) -> None:
        """Carry out the steps on a decoded image and write its row."""
        self._write(pos, element, pixels.decode(pixels.apply(image, todo), self.plan.elements[element]))

    def order(self, todo: list[pixels.Step], size: Size) -> list[pixels.Step]:
        """The steps to carry out; stock's own list here."""
        return todo

    def _write(self, pos: int, element: int, array: Any) -> None:
        slot = self.slots[element]
        if isinstance(slot, Slot):
            np.copyto(slot.rows[pos], array)
        else:
            slot[pos] = np.require(array, requirements=("C", "W"))  # torch warns of arrays it may not write to
            self.used_bytes += slot[pos].nbytes


def _harmless(err: BaseException) -> bool:
    """Whether a fault is the image's own: no memory, no free file, a lost disk or network, a damaged cache are not."""
    if isinstance(err, OSError) and err.errno is not None:
        return err.errno in (
            errno.ENOENT,
            errno.EACCES,
            errno.EPERM,
            errno.EISDIR,
            errno.ENOTDIR,
            errno.ELOOP,
            errno.ENAMETOOLONG,
        )
    return isinstance(err, Exception) and not isinstance(err, MemoryError | CacheError)


def _opened(record: Record, mode: str) -> Any:
    """The image as far as its size is certain: header only for formats that are read from memory, else fully loaded."""
    if record.codec in PIXELS:
        return pixels.load(record, mode)
    if record.codec in IN_MEMORY:
        try:
            return open_lazily(record)
        except Exception:
            if record.kept:
                raise
            record.data = None  # stock opens by path: let its own error, or success, be the outcome
            record.codec = "other"
    return _as_stock(record, mode)


def _loaded(record: Record, mode: str) -> Any:
    if record.codec in PIXELS:
        return pixels.load(record, mode)
    if record.codec not in IN_MEMORY:
        return _as_stock(record, mode)
    try:
        return pixels.load(record, mode)
    except Exception:
        if record.kept:
            raise
        record.data, record.image, record.codec = None, None, "other"
        return _as_stock(record, mode)


def _as_stock(record: Record, mode: str) -> Any:
    """Open by path, as stock does, and keep the decoded image: for rare formats, and to give stock's own error.

    What a cache keeps is opened from memory: it holds only what Pillow opens equally from there.
    """
    if record.image is None:
        # on a record of its own: an image that fails half-way is not kept
        record.image = pixels.load(Record(record.codec, record.data if record.kept else None, record.name), mode)
    return record.image
