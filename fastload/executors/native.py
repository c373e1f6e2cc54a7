"""JPEG bytes to batch row in one native pass on several threads; what that can't do exactly, Pillow does, image by image."""

from __future__ import annotations

import io
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from fastload import native, pixels
from fastload.errors import DataError, MissingPackage, with_path
from fastload.executors import Options
from fastload.executors._work import Job
from fastload.executors.threads import Threads, Tidy
from fastload.ops import Size
from fastload.plan import Element, Plan
from fastload.slots import Slot
from fastload.source import PIXELS, Record, Source

__all__ = ["NAME", "Native", "Pass", "measured_error", "one_pass", "open_executor", "refuses"]

NAME = "native"
Box = tuple[int, int, int, int]
NEAREST, BILINEAR = 0, 2  # Pillow's codes


def refuses(plan: Plan, options: Options) -> str | None:
    """One sentence where the extension is missing or does not decode as this Pillow does."""
    status = native.status()
    return None if status.decodes else status.reason


def open_executor(plan: Plan, sources: Sequence[Source], options: Options) -> Native:
    """An executor with its own threads, or those of `options.pool`. Raises MissingPackage if it refuses."""
    if reason := refuses(plan, options):
        raise MissingPackage(reason)
    return Native(plan, sources, options)


class Pass:
    """What one native call does: turn the source, crop `box`, pad, mirror, resize to `size`, keep `window` of that.

    `turn`: bits 1 swap x and y, 2 flip the source's x, 4 flip its y. `box` is in the coordinates of the turned image.
    `nearest`: the resize is a mask's, for decoded pixels of one channel alone.
    """

    __slots__ = ("box", "frame", "mirrored", "mode", "nearest", "pad", "size", "turn", "window")

    def __init__(self, size: Size) -> None:
        self.frame: Size = size  # of the image as the steps so far have left it
        self.box: Box = (0, 0, *size)
        self.turn, self.mirrored, self.mode, self.nearest = 0, False, 0, False
        self.pad: Box | None = None
        self.size: Size | None = None
        self.window: Box | None = None

    def arguments(self) -> tuple[Any, ...]:
        """box, size, window, mirrored: the arguments between the image and the rest."""
        return self.box, self.size or self.frame, self.window or (0, 0, *(self.size or self.frame)), self.mirrored

    def scale(self, slack: float) -> int:
        """The largest of 8, 4 and 2 by which the crop may shrink and still be `slack` times what it is resized to, else 1.

        >>> [(p := Pass((1600, 1200))), setattr(p, "size", (224, 224)), p.scale(1.5), p.scale(1.0)][2:]
        [2, 4]
        """
        if self.size is None or self.turn or self.pad is not None:
            return 1
        least = min((self.box[2] - self.box[0]) / self.size[0], (self.box[3] - self.box[1]) / self.size[1])
        return next((f for f in (8, 4, 2) if least >= f * slack), 1)

    def rest(self) -> tuple[Any, ...]:
        """turn, pad, pad_mode: the arguments after the output."""
        return self.turn, self.pad or (0, 0, 0, 0), self.mode


def one_pass(todo: Sequence[pixels.Step], size: Size) -> Pass | None:
    """The steps for an image of `size` as one native call, or None where they are not of that form.

    >>> p = one_pass([pixels.Turn(0), pixels.Window((10, 0, 40, 20), None, "zeros", (8, 8))], (100, 20))
    >>> p.arguments(), p.rest()
    (((60, 0, 90, 20), (8, 8), (0, 0, 8, 8), True), (0, (0, 0, 0, 0), 0))
    """
    one = Pass(size)
    for step in todo:
        if not (_turn(one, step.method) if isinstance(step, pixels.Turn) else _window(one, step)):
            return None
    return one


def _turn(one: Pass, method: int) -> bool:
    if one.size is not None:
        return False
    if method == 0:
        one.mirrored = not one.mirrored
        return True
    if one.box != (0, 0, *one.frame) or one.pad is not None:
        return False  # a turn after a crop
    turn = _after_mirror(one.turn) if one.mirrored else one.turn
    for bit in _TURNS[method]:
        turn ^= 1 if bit == "swap" else _flipped(turn, bit)
    one.turn, one.mirrored = turn, False
    if "swap" in _TURNS[method]:
        one.frame = (one.frame[1], one.frame[0])
        one.box = (0, 0, *one.frame)
    return True


# Pillow's transpositions as flips of x or y, then perhaps a swap of the two (PIL.Image.Transpose)
_TURNS = {1: ("y",), 2: ("x", "swap"), 3: ("x", "y"), 4: ("y", "swap"), 5: ("swap",), 6: ("x", "y", "swap")}


def _flipped(turn: int, axis: str) -> int:
    """The bit that a flip of the turned image's `axis` changes: the source's other axis where they are swapped."""
    return 2 if (axis == "x") != bool(turn & 1) else 4


def _after_mirror(turn: int) -> int:
    return turn ^ _flipped(turn, "x")


def _window(one: Pass, step: pixels.Window) -> bool:
    if step.box is not None and not _crop(one, step.box):
        return False
    if any(step.pad or ()) and not _pad(one, step):
        return False
    if step.out is None:
        return True
    if one.size is not None or step.resample not in (NEAREST, BILINEAR):
        return False
    one.size, one.nearest = step.out, step.resample == NEAREST
    return True


def _crop(one: Pass, box: Box) -> bool:
    width, height = one.size or one.frame
    if one.pad is not None and one.size is None:
        return False  # a crop of what was padded
    if not (0 <= box[0] < box[2] <= width and 0 <= box[1] < box[3] <= height):
        return False
    if one.size is not None:
        one.window = box
        return True
    left, top, right, _ = one.box
    x, y = (right - box[2] if one.mirrored else left + box[0]), top + box[1]
    one.frame = (box[2] - box[0], box[3] - box[1])
    one.box = (x, y, x + one.frame[0], y + one.frame[1])
    return True


def _pad(one: Pass, step: pixels.Window) -> bool:
    if one.size is not None or one.pad is not None or step.pad is None:
        return False
    left, top, right, bottom = step.pad
    one.pad = (right, top, left, bottom) if one.mirrored else step.pad
    one.mode = _MODES[step.pad_mode]
    one.frame = (one.frame[0] + left + right, one.frame[1] + top + bottom)
    return True


_MODES = {"zeros": 0, "border": 1, "reflection": 2}


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

    def render_several(self, positions: Sequence[int]) -> None:
        """Render samples; those that lie decoded in a cache by one native call for all of them."""
        if len(self.plan.elements) > 1 or not self.sources[0].windows or not native.status().resizes:
            super().render_several(positions)
            return
        start, ready, calls = time.perf_counter_ns(), [], []
        for pos in positions:
            try:
                arguments = self._call(pos)
            except BaseException as err:  # carried to the consumer, who raises it
                self.faults[pos] = with_path(err, self._name(pos, 0))
                continue
            if arguments is None:
                self.render(pos)
            else:
                ready.append(pos)
                calls.append(arguments)
        for pos, refused in zip(ready, native.extension().resize_several(calls), strict=True):
            if refused is not None:
                self.render(pos)
            self.records[pos][0] = None
        if ready:
            self.stages.note("native", self.batch.refs[ready[0]][0].index, start, len(ready))

    def _call(self, pos: int) -> tuple[Any, ...] | None:
        """Arguments of the native resize of a sample's image; None where it is not done that way."""
        with self.reading(pos):
            self._size(pos, 0)
        one, slot = self._pass(pos, 0), self.slots[0]
        if one is None or not isinstance(slot, Slot):
            return None
        with self.reading(pos):
            record = self._read(pos, 0, one.box if one.turn == 0 else None)
        mask = self.plan.elements[0].mask
        if record.codec != "raw" or (one.size is not None and one.nearest != mask):
            return None
        row, last = (slot.rows[pos][None], False) if mask else _target(slot, pos)
        return (record.image, *one.arguments(), native.pillow13(), row, *one.rest(), last, mask)

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
