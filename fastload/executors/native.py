"""JPEG bytes to batch row in one native pass on several threads; what that can't do exactly, Pillow does, image by image."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from fastload import native, pixels
from fastload.errors import DataError, MissingPackage, with_path
from fastload.executors import Options
from fastload.executors._one_pass import Box, Pass, one_pass
from fastload.executors._work import Job
from fastload.executors.threads import Threads, Tidy
from fastload.ops import Size
from fastload.plan import Element, Plan
from fastload.slots import Slot
from fastload.source import PIXELS, Record, Source, encoded_record

__all__ = ["NAME", "Native", "measured_error", "open_executor", "refuses"]

NAME = "native"
FILES_A_TASK = 4  # more gain nothing, and hold the first batch up


def refuses(plan: Plan, options: Options) -> str | None:
    """One sentence where the extension is missing or does not decode as this Pillow does."""
    status = native.status()
    return None if status.decodes else status.reason


def open_executor(plan: Plan, sources: Sequence[Source], options: Options) -> Native:
    """An executor with its own threads, or those of `options.pool`. Raises MissingPackage if it refuses."""
    if reason := refuses(plan, options):
        raise MissingPackage(reason)
    return Native(plan, sources, options)


class _NativeJob(Tidy):
    """A job that asks the extension first, then Pillow."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._passes: dict[tuple[int, int], tuple[Any, Pass | None]] = {}

    def load(self, record: Record, part: Element) -> Any:
        """Pillow's image; under Pillow-SIMD, which resizes otherwise, an ordinary JPEG that waits for its crop."""
        size = None if native.status().resizes or part.mask else self._plain(record)
        return _Waiting(record, size, part) if size is not None else Job.load(self, record, part)

    def _plain(self, record: Record) -> Size | None:
        """Size of a JPEG that the native decoder may try, else None."""
        if record.image is None:
            return _probe(record)
        return (record.image.width, record.image.height) if record.data is not None and _ordinary(record) else None

    def measure(self, record: Record, part: Element) -> Size:
        """From the JPEG header, read natively where Pillow could not object to it."""
        head = _probe(record)
        return Job.measure(self, record, part) if head is None else head

    def direct(self, pos: int, element: int, record: Record) -> bool:
        """Bytes to row by one native call; False where the file or the steps are Pillow's."""
        part, slot = self.plan.elements[element], self.slots[element]
        if record.codec in PIXELS:
            return (self._from_planes if record.codec == "planes" else self._from_pixels)(pos, element, record)
        if part.mask or record.codec != "jpeg" or not isinstance(slot, Slot) or not native.status().resizes:
            return False
        start = time.perf_counter_ns()
        with self.reading(pos):
            size = self._size(pos, element)
        if record.data is None or (record.image is not None and not _ordinary(record)):
            return False
        one = one_pass(self.todo(pos, element, size), size)
        if one is None or one.nearest:
            return False
        row, last = _target(slot, pos)
        scale = one.scale(self.options.slack) if self.options.slack else 1
        arguments = (*one.arguments(), native.pillow13(), row, *one.rest())
        refused = native.extension().render(record.data, *arguments, channels_last=last, scale=scale)
        if refused is None:
            self.stages.note("native", self.batch.refs[pos][element].index, start)
        return refused is None

    def _from_pixels(self, pos: int, element: int, record: Record) -> bool:
        """Pixels in a cache to row by one native call; False where the steps are Pillow's."""
        part, slot, start = self.plan.elements[element], self.slots[element], time.perf_counter_ns()
        if not isinstance(slot, Slot) or not native.status().resizes:
            return False
        one = self._pass(pos, element)
        if one is None or (one.size is not None and one.nearest != part.mask):
            return False
        row, last = (slot.rows[pos][None], False) if part.mask else _target(slot, pos)
        arguments = (record.image, *one.arguments(), native.pillow13(), row, *one.rest())
        refused = native.extension().resize(*arguments, channels_last=last, nearest=part.mask)
        if refused is None:
            self.stages.note("native", self.batch.refs[pos][element].index, start)
        return refused is None

    def step(self, count: int, threads: int) -> int:
        """How many images a task gets: several files, since every native call has to get the GIL back."""
        if not self._together() or self.options.hook is not None or self.sources[0].windows:
            return super().step(count, threads)
        return min(FILES_A_TASK, -(-count // (2 * threads)))

    def _together(self) -> bool:
        return len(self.plan.elements) == 1 and native.status().resizes

    def probe_several(self, positions: Sequence[int]) -> None:
        """Sizes of samples whose images are read by one native call; those that are no ordinary JPEG files by themselves."""
        self._take_files(positions)
        super().probe_several([pos for pos in positions if self.sizes[pos][0] is None])

    def _take_files(self, positions: Sequence[int]) -> None:
        """Records, and sizes where Pillow could not object to the header, of what lies in ordinary files."""
        start, refs = time.perf_counter_ns(), [self.batch.refs[pos][0] for pos in positions]
        paths = self.sources[0].files(refs) if self._together() and not self.plan.elements[0].mask else None
        if paths is None or len(positions) < 2:
            return
        limit, taken = Image.MAX_IMAGE_PIXELS, 0
        encoded = [os.fsencode(path) for path in paths]
        for pos, path, found in zip(positions, paths, native.extension().read_several(encoded), strict=True):
            if found is None:
                continue
            data, width, height = found
            self.records[pos][0] = record = Record("jpeg", data, path) if width else encoded_record(data, path)
            self.used_bytes += record.nbytes
            taken += 1
            if width and (limit is None or width * height <= limit):
                self.sizes[pos][0] = (width, height)
        self.stages.note("read", refs[0].index, start, taken)

    def render_several(self, positions: Sequence[int]) -> None:
        """Render samples; JPEG files, and images that lie decoded in a cache, by one native call for all of them."""
        if not self._together() or self.plan.finished or len(positions) < 2:
            super().render_several(positions)
            return
        if not self.sources[0].windows:
            self._take_files([pos for pos in positions if self.records[pos][0] is None])
        if self.sources[0].windows:
            self._resize_several(positions)
            return
        start, ready, calls = time.perf_counter_ns(), [], []
        for pos in positions:
            try:
                arguments = self._encoded(pos)
            except BaseException as err:  # carried to the consumer, who raises it
                self.faults[pos] = with_path(err, self._name(pos, 0))
                continue
            if arguments is None:
                self.render(pos)
            else:
                ready.append(pos)
                calls.append(arguments)
        for pos, refused in zip(ready, native.extension().render_several(calls), strict=True):
            if refused is not None:
                self.render(pos)
            self.records[pos][0] = None
        if ready:
            self.stages.note("native", self.batch.refs[ready[0]][0].index, start, len(ready))

    def _encoded(self, pos: int) -> tuple[Any, ...] | None:
        """Arguments of the native decoder for a sample's image; None where it is not done that way."""
        record, size, slot = self.records[pos][0], self.sizes[pos][0], self.slots[0]
        if record is None or record.codec != "jpeg" or record.data is None or size is None:
            return None
        if record.image is not None and not _ordinary(record):
            return None
        one = one_pass(self.todo(pos, 0, size), size)
        if one is None or one.nearest or not isinstance(slot, Slot):
            return None
        row, last = _target(slot, pos)
        scale = one.scale(self.options.slack) if self.options.slack else 1
        return (record.data, *one.arguments(), native.pillow13(), row, *one.rest(), last, scale)

    def _resize_several(self, positions: Sequence[int]) -> None:
        """The same for images that lie decoded in a cache: where each begins in memory, and what is made of it."""
        start, slot, ready = time.perf_counter_ns(), self.slots[0], []
        memories: list[Any] = []
        calls: list[tuple[Any, ...]] = []
        for pos in positions:
            try:
                found = self._stored(pos)
            except BaseException as err:  # carried to the consumer, who raises it
                self.faults[pos] = with_path(err, self._name(pos, 0))
                continue
            if found is None:
                self.render(pos)
                continue
            memory, *rest = found
            if not memories or memories[-1] is not memory:
                memories.append(memory)
            ready.append(pos)
            calls.append((pos, len(memories) - 1, *rest))
        if ready:
            mask, last = self.plan.elements[0].mask, slot.channels_last
            out = slot.rows.transpose(0, 2, 3, 1) if last else slot.rows[:, None] if mask else slot.rows
            answers = native.extension().resize_several(memories, out, calls, native.pillow13(), last)
            for pos, refused in zip(ready, answers, strict=True):
                if refused is not None:
                    self.render(pos)
            self.stages.note("native", self.batch.refs[ready[0]][0].index, start, len(ready))

    def _stored(self, pos: int) -> tuple[Any, ...] | None:
        """Memory, offset, size and channels of a sample's image, and the steps; None where it is not done that way."""
        place, size = self.places[pos] if self.places else None, self.sizes[pos][0]
        if place is None or place[0] is None or not isinstance(self.slots[0], Slot):
            return None
        if size is None:
            size = self.sizes[pos][0] = place[0]
        one, mask = one_pass(self.todo(pos, 0, size), size), self.plan.elements[0].mask
        if one is None or (one.size is not None and one.nearest != mask):
            return None
        with self.reading(pos):
            found = self.sources[0].pixels(place, one.box if one.turn == 0 else None)
        if found is None:
            return None
        memory, offset, size, channels = found
        if channels == 1 and not mask and self.plan.elements[0].mode == "RGB":
            return None
        return (memory, offset, *size, channels, *one.arguments(), *one.rest(), mask)

    def _from_planes(self, pos: int, element: int, record: Record) -> bool:
        """A finished image in a cache to its row, mirrored or not; False where other steps follow."""
        part, slot, start = self.plan.elements[element], self.slots[element], time.perf_counter_ns()
        todo = self.todo(pos, element, self._size(pos, element))
        if not isinstance(slot, Slot) or any(step != pixels.Turn(0) for step in todo):
            return False
        planes = record.image[0] if part.mask else record.image
        np.copyto(slot.rows[pos], planes[..., ::-1] if len(todo) % 2 else planes)
        self.stages.note("native", self.batch.refs[pos][element].index, start)
        return True

    def window(self, pos: int, element: int) -> Box | None:
        """The crop, where it is one native call."""
        with self.reading(pos):
            self._size(pos, element)
        one = self._pass(pos, element) if native.status().resizes else None
        return one.box if one is not None and one.turn == 0 else None

    def _pass(self, pos: int, element: int) -> Pass | None:
        """The steps of an image whose size is known as one call; worked out once for its draws."""
        sample, one = self._passes.get((pos, element), (None, None))
        if sample is None or sample is not self.drawn[pos]:
            size = self._size(pos, element)
            one = one_pass(self.todo(pos, element, size), size)
            self._passes[pos, element] = (self.drawn[pos], one)
        return one

    def transform(self, pos: int, element: int, image: Any, todo: list[pixels.Step]) -> None:
        """Resize what Pillow decoded natively, where that is one pass; or decode natively what Pillow is to resize."""
        part, slot = self.plan.elements[element], self.slots[element]
        if isinstance(image, _Waiting):
            with self.reading(pos):
                image, todo = image.opened(todo) or (Job.load(self, image.record, part), todo)
        if not native.status().resizes:
            super().transform(pos, element, image, todo)
            return
        one = None if part.mask or image.mode != part.mode else one_pass(todo, (image.width, image.height))
        if one is None or one.size is None or one.nearest or not isinstance(slot, Slot) or not _by_array(one, image, slot, pos):
            super().transform(pos, element, image, todo)


class _Waiting:
    """A JPEG in memory, decoded natively once its first crop is known."""

    def __init__(self, record: Record, size: Size, part: Element) -> None:
        self.record, self.part = record, part
        self.width, self.height = size

    def opened(self, todo: list[pixels.Step]) -> tuple[Any, list[pixels.Step]] | None:
        """Pillow's image of the first crop and the steps left to do; None where the file is Pillow's to decode."""
        box, first = (0, 0, self.width, self.height), todo[0] if todo else None
        if isinstance(first, pixels.Window) and first.box is not None and _inside(first.box, self.width, self.height):
            box, todo = first.box, [pixels.Window(None, first.pad, first.pad_mode, first.out, first.resample), *todo[1:]]
        size = (box[2] - box[0], box[3] - box[1])
        array = np.empty((size[1], size[0], 3 if self.part.mode == "RGB" else 1), np.uint8)
        arguments = (self.record.data, box, size, (0, 0, *size), False, native.pillow13(), array)
        if native.extension().render(*arguments, channels_last=True) is not None:
            return None
        return Image.fromarray(array if self.part.mode == "RGB" else array[..., 0]), todo


def _inside(box: Box, width: int, height: int) -> bool:
    return 0 <= box[0] < box[2] <= width and 0 <= box[1] < box[3] <= height


def _target(slot: Slot, pos: int) -> tuple[Any, bool]:
    """The row to write and whether its channels come last, as they lie in memory."""
    row = slot.rows[pos]
    return (row.transpose(1, 2, 0), True) if slot.channels_last else (row, False)


def _by_array(one: Pass, image: Any, slot: Slot, pos: int) -> bool:
    """Resize decoded pixels natively; only the crop is copied out of Pillow where nothing is turned."""
    box, *rest = one.arguments()
    if one.turn == 0:
        image, box = image.crop(box), (0, 0, box[2] - box[0], box[3] - box[1])
    array = np.asarray(image)
    array = array if array.ndim == 3 else array[..., None]
    row, last = _target(slot, pos)
    arguments = (array, box, *rest, native.pillow13(), row, *one.rest())
    return native.extension().resize(*arguments, channels_last=last) is None


class Native(Threads):
    """Several images at once, each by one native call; owns what `Threads` owns."""

    job = _NativeJob


def measured_error(slack: float) -> tuple[float, float]:
    """Mean and largest difference of 255 that decoding scaled makes on one made photo of 1200 x 900 pixels, at 224."""
    rng, rows = np.random.default_rng(1), []
    coarse = Image.fromarray(rng.integers(0, 256, (30, 40, 3)).astype(np.uint8)).resize((1200, 900), Image.Resampling.BICUBIC)
    grain = np.asarray(coarse).astype(np.int16) + rng.integers(-12, 13, (900, 1200, 3))
    file = io.BytesIO()
    Image.fromarray(grain.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
    one = Pass((1200, 900))
    one.size = (224, 224)
    for scale in (1, one.scale(slack)):
        rows.append(np.empty((3, 224, 224), np.uint8))
        refused = native.extension().render(file.getvalue(), *one.arguments(), native.pillow13(), rows[-1], scale=scale)
        if refused is not None:
            raise DataError(f"the native path refuses the photo made to measure decode='scaled' on: {refused}")
    apart = np.abs(rows[0].astype(int) - rows[1])
    return float(apart.mean()), float(apart.max())


def _probe(record: Record) -> Size | None:
    """(width, height) of a JPEG whose header the native path and Pillow read alike, else None; the scan may yet be damaged."""
    if record.codec != "jpeg" or record.data is None or record.image is not None:
        return None
    head = native.extension().probe(record.data)
    if isinstance(head, str):
        return None
    width, height, _, ask_pillow = head
    limit = Image.MAX_IMAGE_PIXELS
    if ask_pillow or (limit is not None and width * height > limit):
        return None
    return width, height


def _ordinary(record: Record) -> bool:
    """Whether Pillow, which has read the header, sees a plain JPEG within its size limit."""
    image, limit = record.image, Image.MAX_IMAGE_PIXELS
    return image.format == "JPEG" and (limit is None or image.width * image.height <= limit)
