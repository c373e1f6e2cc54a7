"""JPEG bytes to batch row in one native pass on several threads; what that can't do exactly, Pillow does, image by image."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from fastload import native, pixels
from fastload.errors import MissingPackage
from fastload.executors import Options
from fastload.executors.threads import Threads, Tidy
from fastload.ops import Size
from fastload.plan import Element, Plan
from fastload.slots import Slot
from fastload.source import Record, Source

__all__ = ["NAME", "Native", "Pass", "one_pass", "open_executor", "refuses"]

NAME = "native"
Box = tuple[int, int, int, int]
BILINEAR = 2


def refuses(plan: Plan, options: Options) -> str | None:
    """One sentence where the extension is missing or does not equal this Pillow."""
    status = native.status()
    return None if status.decodes and status.resizes else status.reason


def open_executor(plan: Plan, sources: Sequence[Source], options: Options) -> Native:
    """An executor with `options.threads` threads of its own, or those of `options.pool`. Raises MissingPackage if it refuses."""
    if reason := refuses(plan, options):
        raise MissingPackage(reason)
    return Native(plan, sources, options)


class Pass:
    """What one native call does: crop `box` of the source, mirror it, resize it to `size`, keep `window` of that."""

    __slots__ = ("box", "mirrored", "size", "window")

    def __init__(self, size: Size) -> None:
        self.box: Box = (0, 0, *size)
        self.mirrored = False
        self.size: Size | None = None
        self.window: Box | None = None


def one_pass(todo: Sequence[pixels.Step], size: Size) -> Pass | None:
    """The steps for an image of `size` as one native call, or None where they are not of that form.

    >>> p = one_pass([pixels.Turn(0), pixels.Window((10, 0, 40, 20), None, "zeros", (8, 8))], (100, 20))
    >>> p.box, p.mirrored, p.size, p.window
    ((60, 0, 90, 20), True, (8, 8), (0, 0, 8, 8))
    """
    one = Pass(size)
    for step in todo:
        if not (_turn(one, step) if isinstance(step, pixels.Turn) else _window(one, step)):
            return None
    left, top, right, bottom = one.box
    if right <= left or bottom <= top:
        return None
    one.size = one.size or (right - left, bottom - top)
    one.window = one.window or (0, 0, *one.size)
    return one


def _turn(one: Pass, step: pixels.Turn) -> bool:
    if step.method != 0 or one.size is not None:
        return False
    one.mirrored = not one.mirrored
    return True


def _window(one: Pass, step: pixels.Window) -> bool:
    if any(step.pad or ()):
        return False
    if step.box is not None and not _crop(one, step.box):
        return False
    if step.out is None:
        return True
    if one.size is not None or step.resample != BILINEAR:
        return False
    one.size = step.out
    return True


def _crop(one: Pass, box: Box) -> bool:
    left, top, right, bottom = one.box if one.size is None else (0, 0, *one.size)
    if not (0 <= box[0] < box[2] <= right - left and 0 <= box[1] < box[3] <= bottom - top):
        return False
    if one.size is not None:
        one.window = box
        return True
    x, y = (right - box[2] if one.mirrored else left + box[0]), top + box[1]
    one.box = (x, y, x + box[2] - box[0], y + box[3] - box[1])
    return True


class _NativeJob(Tidy):
    """A job that asks the extension first."""

    def measure(self, record: Record, part: Element) -> Size:
        """From the JPEG header, read natively where Pillow could not object to it."""
        head = _probe(record)
        return super().measure(record, part) if head is None else head

    def direct(self, pos: int, element: int, record: Record) -> bool:
        """Bytes to row by one native call; False where the file or the steps are Pillow's."""
        part, slot = self.plan.elements[element], self.slots[element]
        if part.mask or record.codec != "jpeg" or not isinstance(slot, Slot):
            return False
        start = time.perf_counter_ns()
        size = self._size(pos, element)
        if record.data is None or (record.image is not None and not _ordinary(record)):
            return False
        one = one_pass(self.todo(pos, element, size), size)
        if one is None:
            return False
        refused = native.extension().render(
            record.data, one.box, one.size, one.window, one.mirrored, native.pillow13(), _row(slot, pos)
        )
        if refused is None:
            self.stages.note("native", self.batch.refs[pos][element].index, start)
        return refused is None

    def transform(self, pos: int, element: int, image: Any, todo: list[pixels.Step]) -> None:
        """Resize what Pillow decoded natively, where that is one pass."""
        part, slot = self.plan.elements[element], self.slots[element]
        one = one_pass(todo, (image.width, image.height))
        if part.mask or one is None or one.size == one.box[2:] or not isinstance(slot, Slot) or image.mode != part.mode:
            return super().transform(pos, element, image, todo)
        crop = np.asarray(image.crop(one.box))
        crop = crop if crop.ndim == 3 else crop[..., None]
        box = (0, 0, crop.shape[1], crop.shape[0])
        native.extension().resize(crop, box, one.size, one.window, one.mirrored, native.pillow13(), _row(slot, pos))
        return None


class Native(Threads):
    """Several images at once, each by one native call; owns what `Threads` owns."""

    job = _NativeJob


def _row(slot: Slot, pos: int) -> Any:
    return slot.rows[pos]


def _probe(record: Record) -> Size | None:
    """(width, height) of a JPEG that the native path takes and Pillow would open without a word, else None."""
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
