"""Ordinary JPEG files by Pillow's own decoder, without its Python header reader, and no further than the crop's last row.

Ordinary: one sequential 8-bit frame of YCbCr or gray in one of the usual chroma layouts, all of it in one scan that ends.
Where there is no segment but JFIF's, a colour profile, comments and tables, Pillow's header reader could say nothing else
about it, and is not asked; with other segments (Exif, Photoshop) it has read the header first. Everything else stays with
`Image.open`.

The decoder stops early because it is told of a lower picture: the height in its copy of the frame header is that of the last
row needed. It still goes through the rest from marker to marker, so wrong segments there are objected to as ever. A file that
is cut short has no end marker, is not ordinary, and its fault is found in the usual way; with that marker no decoder of a
scan ever waits for more, and what is damaged before it changes colours alone.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from PIL import Image

from fastload.ops import Size
from fastload.pixels import Box, Step, Window
from fastload.source import Record, open_lazily

__all__ = ["decode", "measure"]

# sampling factors of the components, horizontal and vertical in a byte: 4:4:4, 4:2:2, 4:2:0, and gray
_LAYOUTS = (b"\x11\x11\x11", b"\x21\x11\x11", b"\x22\x11\x11", b"\x11")
_MOST_SIDE = 65500  # pixels; libjpeg refuses longer ones
_BELOW = 4  # rows below a pixel that its colour may come from: two where 4:2:0 is interpolated, and as many to spare


class _Frame(NamedTuple):
    """What the decoder has to know of an ordinary file: `at` is where its frame header's height stands."""

    at: int
    size: Size
    components: int


def measure(record: Record) -> Size | None:
    """(width, height) of an ordinary JPEG in memory within Pillow's limit of pixels; None where Pillow has to read the header.

    Markers: ITU-T T.81, annex B.
    """
    if record.plain is None and record.codec == "jpeg" and record.data is not None:
        frame, limit = _frame_of(record.data, _plain), Image.MAX_IMAGE_PIXELS
        if frame is not None and (limit is None or frame.size[0] * frame.size[1] <= limit):
            record.plain = frame
    return None if record.plain is None else record.plain.size


def decode(record: Record, mode: str, size: Size, todo: list[Step]) -> tuple[Any, list[Step]] | None:
    """Pillow's image in `mode` and the steps left to do: as far as its first crop needs it, and cropped.

    `size`: (width, height) that the steps are meant for. None where the file is for the usual way, or has something wrong with
    it, which that will say.
    """
    if record.data is None or (measure(record) is None and not _vouched(record)) or record.plain.size != size:
        return None
    at, (width, height), components = record.plain
    first = todo[0] if todo else None
    box: Box | None = None
    data: bytes | bytearray = record.data
    if isinstance(first, Window) and first.box is not None:
        left, top, right, bottom = first.box
        if 0 <= left < right <= width and 0 <= top < bottom <= height:
            box, todo = first.box, [first._replace(box=None), *todo[1:]]
            if bottom + _BELOW < height:
                height = bottom + _BELOW
                lower = bytearray(data)
                lower[at : at + 2] = height.to_bytes(2, "big")
                data = lower
    own = "RGB" if components == 3 else "L"
    image = Image.new(own, (width, height), None)  # None: not filled first
    try:
        image.frombytes(data, "jpeg", own, "")
    except (ValueError, OSError):
        return None  # what is wrong with it, the usual way says next
    if box is not None:
        image = image.crop(box)
    return image if own == mode else image.convert(mode), todo


def _vouched(record: Record) -> bool:
    """Whether Pillow has read the header, found one picture in it, and only segments that mean nothing to a decoder are new."""
    if record.codec != "jpeg" or record.data is None or (frame := _frame_of(record.data, _mute)) is None:
        return False
    try:
        image = open_lazily(record)
    except Exception:
        return False  # what is wrong with it, Pillow says next
    if image.format != "JPEG" or image.mode != ("RGB" if frame.components == 3 else "L") or image.size != frame.size:
        return False
    record.plain = frame
    return True


def _frame_of(data: bytes, passes: Callable[[bytes, int, int, int], bool]) -> _Frame | None:
    """The frame of a file where one ordinary frame comes before a scan of all of it, and every other segment `passes`."""
    at, frame, end = 2, None, len(data) - 4
    while at <= end:
        marker, length = _SEGMENT(data, at)
        if marker == 0xFFDA:
            one = frame is not None and data[at + 4 : at + 5] == bytes((frame.components,))
            return frame if one and data.rfind(_END, at + 2 + length) > 0 else None
        if marker == 0xFFC0 and frame is None:
            frame = _ordinary(data[at + 4 : at + 2 + length], at + 4)
            if frame is None:
                return None
        elif marker < 0xFF00 or not passes(data, marker & 0xFF, at + 4, length):
            return None
        at += 2 + length
    return None


_END = b"\xff\xd9"
_SEGMENT = struct.Struct(">HH").unpack_from


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


def _ordinary(body: bytes, at: int) -> _Frame | None:
    """The frame header `body`, which stands at `at`, where it is ordinary."""
    count = len(body) // 3 - 2
    if len(body) not in (9, 15) or body[0] != 8 or body[5] != count or body[7::3] not in _LAYOUTS:
        return None
    width, height = body[3] << 8 | body[4], body[1] << 8 | body[2]
    return _Frame(at + 1, (width, height), count) if 0 < width <= _MOST_SIDE and 0 < height <= _MOST_SIDE else None
