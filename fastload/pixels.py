"""Each operation with Pillow: slow, obvious, the truth that others are compared with.

`steps` turns a Plan's operations and one sample's draws into crops, pads, resizes and turns with all numbers filled in;
`apply` carries them out with the very Pillow calls that fastai makes, so pixels are equal by construction. `tidy` is the same
list with work left out that cannot change a pixel. Formulas: fastai 2.8 vision/augment.py, `_do_crop_pad` and `encodes`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageOps

from fastload.draws import Sample, ratio_size, turns
from fastload.ops import CropPad, Dihedral, Flip, Op, RandomCrop, RandomResizedCrop, RatioResize, Resize, Size, Stored
from fastload.plan import Element, Plan
from fastload.source import PIXELS, Record, open_lazily

__all__ = ["Step", "Turn", "Window", "apply", "decode", "load", "sizes_along", "squish_size", "steps", "tidy"]

Box = tuple[int, int, int, int]
_NUMPY_PAD: dict[str, Any] = {"border": "edge", "reflection": "reflect"}


class Window(NamedTuple):
    """Crop `box` (left, top, right, bottom), then pad (left, top, right, bottom), then resize to `out` (width, height)."""

    box: Box | None
    pad: Box | None = None
    pad_mode: str = "zeros"
    out: Size | None = None
    resample: int = 2


class Turn(NamedTuple):
    """One of Pillow's transpositions: 0 mirrors left to right, the rest as in `PIL.Image.Transpose`."""

    method: int


Step = Window | Turn


def steps(plan: Plan, element: Element, sample: Sample, size: Size, first: Size) -> list[Step]:
    """The operations for one image of `size` (width, height); `first` is the size of the item's first image."""
    if len(plan.ops) == 1 and plan.ops[0].applies:  # the usual case, without the walk
        return _steps(plan.ops[0], sample[0], element, size, first, plan.spatial.index(element.position))[0]
    return [step for new, _ in _walk(plan, element, sample, size, first) for step in new]


def sizes_along(plan: Plan, element: Element, sample: Sample, size: Size, first: Size) -> list[Size]:
    """Size of the image before each operation, and after the last: one more than there are operations."""
    return [size, *(after for _, after in _walk(plan, element, sample, size, first))]


def _walk(plan: Plan, element: Element, sample: Sample, size: Size, first: Size) -> Iterator[tuple[list[Step], Size]]:
    rank = plan.spatial.index(element.position)
    for op, drawn in zip(plan.ops, sample, strict=True):
        new: list[Step] = []
        if op.applies:
            new, size = _steps(op, drawn, element, size, first, rank)
            first = _first_after(op, drawn, first)
        yield new, size


def _first_after(op: Op, drawn: Any, first: Size) -> Size:
    if isinstance(op, Flip):
        return first
    if isinstance(op, Dihedral):
        return (first[1], first[0]) if drawn[0] and turns(drawn[1]) else first
    return ratio_size(op, first) if isinstance(op, RatioResize) else op.size


def _steps(op: Op, drawn: Any, element: Element, size: Size, first: Size, rank: int) -> tuple[list[Step], Size]:
    if isinstance(op, Flip):
        return ([Turn(0)] if drawn else []), size
    if isinstance(op, Dihedral):
        do, k = drawn
        return ([Turn(k - 1)] if do and k else []), ((size[1], size[0]) if do and turns(k) else size)
    if isinstance(op, Stored):
        return [], op.size
    if isinstance(op, CropPad):
        corner = ((size[0] - op.size[0]) // 2, (size[1] - op.size[1]) // 2)
        return [_crop_pad(op.size, corner, size, op.pad_mode)], op.size
    if isinstance(op, RandomCrop):
        corner = drawn or ((first[0] - op.size[0]) // 2, (first[1] - op.size[1]) // 2)
        window = _crop_pad(op.size, corner, first, "zeros")
        return [window], _extent(window, size)
    if isinstance(op, RandomResizedCrop):
        return _resized_crop(op, drawn, element, first), op.size
    if isinstance(op, RatioResize):
        op, drawn = Resize(ratio_size(op, size), resamples=op.resamples), drawn[rank]
    return [_resize(op, drawn, element, size)], op.size


def _extent(window: Window, size: Size) -> Size:
    """What is left of an image of `size`: what was asked for, unless the window was worked out for another image."""
    left, top, right, bottom = window.box or (0, 0, *size)
    pad = window.pad or (0, 0, 0, 0)
    return right - left + pad[0] + pad[2], bottom - top + pad[1] + pad[3]


def _resize(op: Resize, pcts: Any, element: Element, size: Size) -> Window:
    resample = element.resample(op.resamples)
    if op.method == "squish":
        return _crop_pad(size, (0, 0), size, op.pad_mode, resample, op.size)
    (w, h), (tw, th) = size, op.size
    wide = w / tw > h / th if op.method == "pad" else w / tw < h / th
    m = w / tw if wide else h / th
    cw, ch = int(m * tw), int(m * th)
    corner = (int(pcts[0] * (w - cw)), int(pcts[1] * (h - ch)))
    return _crop_pad((cw, ch), corner, size, op.pad_mode, resample, op.size)


def _resized_crop(op: RandomResizedCrop, drawn: Any, element: Element, first: Size) -> list[Step]:
    resample, final = element.resample(op.resamples), squish_size(op)
    if op.random:
        return [_crop_pad(drawn[1], drawn[0], first, "zeros", resample, op.size)]
    squish = _crop_pad(first, (0, 0), first, "zeros", resample, final)
    if final == op.size:
        return [squish]
    corner = ((final[0] - op.size[0]) // 2, (final[1] - op.size[1]) // 2)
    return [squish, _crop_pad(op.size, corner, final, "zeros")]


def squish_size(op: RandomResizedCrop) -> Size:
    """What RandomResizedCrop resizes to: its size, on validation sets with `val_xtra` added in steps of 8 pixels.

    >>> squish_size(RandomResizedCrop((224, 224))), squish_size(RandomResizedCrop((224, 224), random=True))
    ((256, 256), (224, 224))
    """
    xtra = 0 if op.random else math.ceil(max(op.size) * op.val_xtra / 8) * 8
    return op.size[0] + xtra, op.size[1] + xtra


def _crop_pad(size: Size, corner: Size, orig: Size, pad_mode: str, resample: int = 2, out: Size | None = None) -> Window:
    """fastai's `_do_crop_pad`: crop what lies inside `orig`, pad what lies outside, then resize to `out`."""
    (w, h), (x, y), (ow, oh) = size, corner, orig
    right, bottom = x + w, y + h
    crops = x >= 0 or y >= 0 or right <= ow or bottom <= oh
    pads = x < 0 or y < 0 or right >= ow or bottom >= oh
    box = (max(x, 0), max(y, 0), min(right, ow), min(bottom, oh)) if crops else None
    pad = (max(-x, 0), max(-y, 0), max(right - ow, 0), max(bottom - oh, 0)) if pads else None
    return Window(box, pad, pad_mode, out, resample)


def tidy(todo: Iterable[Step], size: Size) -> list[Step]:
    """The same pixels with less work: no empty pads, no crop of the whole image, mirrors after the first crop, not before.

    Mirroring a crop of the mirrored box equals cropping the mirrored image, pixel for pixel: neither touches a value.

    >>> tidy([Turn(0), Window((0, 0, 30, 20), (0, 0, 0, 0), "zeros", (8, 8))], (100, 20))  # doctest: +NORMALIZE_WHITESPACE
    [Window(box=(70, 0, 100, 20), pad=None, pad_mode='zeros', out=None, resample=2),
     Turn(method=0),
     Window(box=None, pad=None, pad_mode='zeros', out=(8, 8), resample=2)]
    """
    todo = [_without_pad(s) for s in todo]
    if len(todo) >= 2 and todo[0] == Turn(0) and isinstance(todo[1], Window) and todo[1].box is not None:
        left, top, right, bottom = todo[1].box
        if 0 <= left <= right <= size[0]:
            crop = Window((size[0] - right, top, size[0] - left, bottom))
            todo[:2] = [crop, todo[0], todo[1]._replace(box=None)]
    first = todo[0] if todo else None
    if isinstance(first, Window) and first.box == (0, 0, *size):
        todo[0] = first._replace(box=None)
    return [s for s in todo if isinstance(s, Turn) or s.box or s.pad or s.out]


def _without_pad(step: Step) -> Step:
    return step._replace(pad=None) if isinstance(step, Window) and step.pad and not any(step.pad) else step


def load(record: Record, mode: str) -> Any:
    """Decode `record` to `mode`, as fastai's load_image does: Pillow's default decoder, no EXIF turn, then `convert`.

    Pixels that a cache holds are of that mode already: the loader has seen to that.
    """
    if record.codec in PIXELS:
        array = record.image if record.codec == "raw" else np.ascontiguousarray(record.image.transpose(1, 2, 0))
        return Image.fromarray(array if mode == "RGB" else array[..., 0])
    image = open_lazily(record)
    image.load()
    image = image._new(image.im)
    return image if image.mode == mode else image.convert(mode)


def apply(image: Any, todo: Iterable[Step]) -> Any:
    """Carry out `todo` on a Pillow image and return the new one."""
    for step in todo:
        image = image.transpose(step.method) if isinstance(step, Turn) else _window(image, step)
    return image


def _window(image: Any, step: Window) -> Any:
    if step.box is not None:
        image = image.crop(step.box)
    if step.pad is not None:
        image = _pad(image, step.pad, step.pad_mode)
    return image if step.out is None else image.resize(step.out, step.resample)


def _pad(image: Any, pad: Box, mode: str) -> Any:
    """Pad as torchvision's `pad` does for Pillow images: zeros by pasting, border and reflection by numpy."""
    if mode == "zeros":
        return ImageOps.expand(image, border=pad, fill=0)
    left, top, right, bottom = pad
    array = np.asarray(image)
    widths = ((top, bottom), (left, right), (0, 0))[: array.ndim]
    return Image.fromarray(np.pad(array, widths, mode=_NUMPY_PAD[mode]))


def decode(image: Any, element: Element) -> Any:
    """The image as uint8 array of the element's shape: [3, H, W], [1, H, W], masks [H, W]."""
    if image.mode == "RGB" and not element.mask:
        width, height = image.im.size
        lines = image.tobytes("raw", "RGB;L")  # of every row its reds, greens and blues: no byte is moved alone afterwards
        return np.frombuffer(lines, np.uint8).reshape(height, 3, width).transpose(1, 0, 2)
    array = np.asarray(image)
    return array if element.mask else array[None]
