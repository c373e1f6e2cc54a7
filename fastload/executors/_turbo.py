"""Ordinary JPEG files decoded by torchvision, whose libjpeg-turbo gives Pillow's own pixels a little sooner.

Ordinary: one sequential 8-bit frame of YCbCr or gray in one of the usual chroma layouts. Where there is no segment but JFIF's,
a colour profile, comments and tables, Pillow's header reader could say nothing else about it, and is not asked; with other
segments (Exif, Photoshop) it has read the header first. Whatever else there is, and every file that torchvision objects to,
stays with Pillow. `agrees` compares the two once a process.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
from PIL import Image

from fastload.ops import Size
from fastload.pixels import Box, Step, Window
from fastload.source import Record, open_lazily

__all__ = ["Decoded", "agrees", "decode", "measure"]

_COLOURS = 3  # torchvision's ImageReadMode.RGB
# sampling factors of the components: 4:4:4, 4:2:2, 4:2:0, and gray
_LAYOUTS = (((1, 1), (1, 1), (1, 1)), ((2, 1), (1, 1), (1, 1)), ((2, 2), (1, 1), (1, 1)), ((1, 1),))
_ONCE = threading.Lock()


class Decoded:
    """A decoded image that Pillow has not seen yet: `pixels` uint8 [H, W, 3]."""

    def __init__(self, pixels: Any) -> None:
        self.pixels = pixels
        self.height, self.width = pixels.shape[:2]

    def cropped(self, todo: list[Step]) -> tuple[Any, list[Step]]:
        """Pillow's image and the steps left to do: of a crop that comes first, only its pixels are copied."""
        first = todo[0] if todo else None
        if not isinstance(first, Window) or first.box is None:
            return self._image((0, 0, self.width, self.height)), todo
        left, top, right, bottom = first.box
        if not (0 <= left < right <= self.width and 0 <= top < bottom <= self.height):
            return self._image((0, 0, self.width, self.height)), todo
        return self._image(first.box), [Window(None, first.pad, first.pad_mode, first.out, first.resample), *todo[1:]]

    def _image(self, box: Box) -> Any:
        left, top, right, bottom = box
        row = 3 * self.width
        rows = self.pixels.reshape(-1)[top * row + 3 * left :]
        image = Image.new("RGB", (right - left, bottom - top), None)  # None: not filled first
        image.frombytes(rows, "raw", "RGB", row, 1)
        return image


def decode(record: Record, mode: str) -> Decoded | None:
    """A JPEG in memory with Pillow's pixels in mode RGB; None where it is Pillow's to decode.

    Damage that makes Pillow raise makes torchvision raise as well: None, too.
    """
    if mode != "RGB" or record.data is None or not agrees() or (measure(record) is None and not _vouched(record)):
        return None
    try:
        return Decoded(_decoded(record.data))
    except Exception:
        return None  # what is wrong with it, Pillow says next


def measure(record: Record) -> Size | None:
    """(width, height) of an ordinary JPEG in memory within Pillow's limit of pixels; None where Pillow has to read the header.

    Markers: ITU-T T.81, annex B.
    """
    if record.plain_size is None and record.codec == "jpeg" and record.data is not None:
        size, limit = _size(record.data, _plain), Image.MAX_IMAGE_PIXELS
        if size is not None and (limit is None or size[0] * size[1] <= limit):
            record.plain_size = size
    return record.plain_size


def _vouched(record: Record) -> bool:
    """Whether Pillow has read the header, found one picture in it, and only segments that mean nothing to a decoder are new."""
    if record.codec != "jpeg" or record.data is None or (size := _size(record.data, _mute)) is None:
        return False
    try:
        image = open_lazily(record)
    except Exception:
        return False  # what is wrong with it, Pillow says next
    return image.format == "JPEG" and image.mode in ("RGB", "L") and image.size == size


def _size(data: bytes, passes: Callable[[bytes, int, int, int], bool]) -> Size | None:
    """(width, height) where one ordinary frame comes before the scan, and every other segment `passes`."""
    at, size = 2, None
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker, length = data[at + 1], data[at + 2] << 8 | data[at + 3]
        if marker == 0xDA:
            return size
        if marker == 0xC0 and size is None:
            size = _frame(data[at + 4 : at + 2 + length])
            if size is None:
                return None
        elif not passes(data, marker, at + 4, length):
            return None
        at += 2 + length
    return None


def _plain(data: bytes, marker: int, at: int, length: int) -> bool:
    """Huffman tables, restart interval, comment; whole tables of quantisation; JFIF; a colour profile."""
    return (
        marker in (0xC4, 0xDD, 0xFE)
        or (marker == 0xDB and length in _TABLES)
        or (marker == 0xE0 and length >= 16 and data.startswith(b"JFIF\0", at))
        or (marker == 0xE2 and length >= 16 and data.startswith(b"ICC_PROFILE\0", at))
    )


def _mute(data: bytes, marker: int, at: int, length: int) -> bool:
    """Any segment of an application but Adobe's, which can change the colours."""
    return _plain(data, marker, at, length) or (marker & 0xF0 == 0xE0 and marker != 0xEE)


_TABLES = tuple(2 + 65 * n for n in range(1, 5))  # lengths of a segment with whole quantisation tables of 8 bits


def _frame(body: bytes) -> Size | None:
    """Size by a frame header, where it is ordinary."""
    count = body[5] if len(body) > 5 else 0
    layout = tuple((body[k] >> 4, body[k] & 15) for k in range(7, 7 + 3 * count, 3) if k < len(body))
    if body[:1] != b"\x08" or len(body) != 6 + 3 * count or layout not in _LAYOUTS:
        return None
    width, height = body[3] << 8 | body[4], body[1] << 8 | body[2]
    return (width, height) if width and height else None


def _decoded(data: bytes) -> Any:
    import torch

    operator = _operator()
    writable = torch.frombuffer(bytearray(data), dtype=torch.uint8)  # torch warns of memory that it may not write to
    array = operator(writable, _COLOURS, False)
    return array.permute(1, 2, 0).numpy()


@cache
def _operator() -> Any:
    """The operator itself: the function around it also counts its calls for torchvision."""
    import torch
    import torchvision.io  # noqa: F401  # registers the operator

    return torch.ops.image.decode_jpeg.default


@cache
def agrees() -> bool:
    """Whether torchvision decodes as Pillow does: a picture in each chroma layout, odd sides, fine detail."""
    with _ONCE:
        return all(_same(picture) for picture in _pictures())


def _pictures() -> Iterator[bytes]:
    rng = np.random.default_rng(2)
    for sampling in (0, 1, 2, None):
        pixels = rng.integers(0, 256, (67, 83) if sampling is None else (67, 83, 3)).astype(np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG", quality=90, **({} if sampling is None else {"subsampling": sampling}))
        yield file.getvalue()


def _same(picture: bytes) -> bool:
    try:
        found = _decoded(picture)
    except (AttributeError, ImportError, RuntimeError):
        return False  # a torchvision without its image functions
    return np.array_equal(found, np.asarray(Image.open(io.BytesIO(picture)).convert("RGB")))
