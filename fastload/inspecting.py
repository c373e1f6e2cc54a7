"""One image file as stock fastai would open it: whether it decodes, and what in it stock treats as few people expect.

A file is read once; the digest is of the bytes that are decoded. Nothing is kept of the pixels. Threads may call `inspect`
at the same time: it shares no state.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from PIL import Image, ImageChops, UnidentifiedImageError

from fastload import pixels
from fastload.errors import DataError
from fastload.ops import Size
from fastload.source import HEAD, IN_MEMORY, Record, open_lazily, sniff

__all__ = ["SEVERITIES", "Finding", "Seen", "Use", "inspect"]

SEVERITIES = ("broken", "suspicious", "info")
_GRAY = "1LIF"  # first letters of Pillow's modes without colour
_ORIENTATION = 0x0112  # EXIF 2.3, section 4.6.4
_TURNS = {
    2: "mirrored",
    3: "turned by 180 degrees",
    4: "mirrored top to bottom",
    5: "mirrored and turned by 270 degrees",
    6: "turned by 90 degrees",
    7: "mirrored and turned by 90 degrees",
    8: "turned by 270 degrees",
}
# Formats that are one to whoever names a file: an MPO is a JPEG with more pictures behind it.
_SAME = ({"JPEG", "MPO"}, {"BMP", "DIB"})

Fault = tuple[str, str, str, str]  # kind, severity, what, what stock does


@dataclass(frozen=True)
class Finding:
    """One thing found: its `kind`, `severity` (broken, suspicious or info), `what` it is, and what stock fastai does with it.

    `path` is None where it concerns no single file; `split` and `label` are None where there are none.
    """

    kind: str
    severity: str
    path: str | None
    what: str
    stock_does: str
    split: str | None = None
    label: str | None = None

    def __post_init__(self) -> None:
        if self.severity not in SEVERITIES:
            raise DataError(f"a Finding's severity is one of {SEVERITIES}, found {self.severity!r}")


@dataclass(frozen=True)
class Use:
    """One way in which a loader opens a file: Pillow `mode`, mask or not, and the `target` (width, height) in the batch."""

    split: str
    label: str | None = None
    mode: str = "RGB"
    mask: bool = False
    target: Size | None = None

    @property
    def colour(self) -> bool:
        """Whether colour matters to it."""
        return self.mode == "RGB" and not self.mask


@dataclass(frozen=True)
class Seen:
    """What came of one file: findings, the digest of its bytes (None where it is broken), and whether it is stored as gray."""

    findings: tuple[Finding, ...]
    digest: bytes | None = None
    gray: bool = False


def inspect(path: str, uses: Sequence[Use]) -> Seen:
    """Read and wholly decode `path` for each of its uses. Never raises for the file: what goes wrong is a Finding."""
    data = b""
    try:
        data = _read(path)
        return _look(path, data, uses)
    except Exception as err:  # noqa: BLE001  # decoders raise anything; it is this file's finding, the others go on
        return Seen((found(_broken(path, data, err), path, uses),))


def found(fault: Fault, path: str | None, uses: Sequence[Use]) -> Finding:
    """A fault as the Finding of a path and its uses."""
    kind, severity, what, stock_does = fault
    splits = dict.fromkeys(use.split for use in uses)
    labels = dict.fromkeys(use.label for use in uses if use.label is not None)
    return Finding(kind, severity, path, what, stock_does, ", ".join(splits) or None, " | ".join(labels) or None)


def _read(path: str) -> bytes:
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise _Irregular("a pipe, socket or device")
    with open(path, "rb") as file:
        return file.read()


class _Irregular(OSError):
    """Not a regular file; reading it might never end. Never reaches the user."""


def _look(path: str, data: bytes, uses: Sequence[Use]) -> Seen:
    codec = sniff(data)
    record = Record(codec, data if codec in IN_MEMORY else None, path)
    with closing(open_lazily(record)) as image:
        for mode in dict.fromkeys(use.mode for use in uses):
            pixels.load(record, mode)
        faults = tuple(found(fault, path, uses) for fault in _faults(path, image, uses))
        return Seen(faults, hashlib.blake2b(data, digest_size=16).digest(), image.mode[0] in _GRAY)


# Broken: stock raises.


def _broken(path: str, data: bytes, err: Exception) -> Fault:
    name = type(err).__name__
    if isinstance(err, _Irregular):
        return "not a file", "broken", str(err), "waits for it, maybe for ever"
    unknown = isinstance(err, UnidentifiedImageError)
    text = "cannot identify image file" if unknown else getattr(err, "strerror", None) or str(err)
    what = ": ".join(filter(None, (name, " ".join(text.split()), _hint(path, data) if unknown or not data else "")))
    return _broken_kind(path, err), "broken", what, f"raises {name} when the item is reached; the epoch ends there"


def _broken_kind(path: str, err: Exception) -> str:
    if isinstance(err, FileNotFoundError):
        return "broken link" if os.path.islink(path) else "missing"
    if isinstance(err, UnidentifiedImageError):
        return "not an image"
    if isinstance(err, Image.DecompressionBombError):
        return "decompression bomb"
    return "truncated" if "truncated" in str(err).lower() else "unreadable"


def _hint(path: str, data: bytes) -> str:
    """What a look at the first bytes, or at the link, tells."""
    if data:
        return f"it starts with {data[:HEAD]!r}"
    if os.path.islink(path):
        return f"a link to {os.readlink(path)!r}"
    return "it is empty" if os.path.isfile(path) and os.path.getsize(path) == 0 else ""


# Suspicious: stock goes on, and gives something few people expect.


def _faults(path: str, image: Any, uses: Sequence[Use]) -> list[Fault]:
    """Everything to say about a decoded image. What can't be looked at is no fault of a file that decodes: it is told, too."""
    faults: list[Fault] = []
    try:
        faults += _size(image, uses)
        for look in (_depth, _colours, _alpha, *((_mask,) if any(use.mask for use in uses) else ()), _orientation, _frames):
            faults += look(image)
        faults += _extension(path, image)
    except Exception as err:  # noqa: BLE001  # Pillow decoded it but stumbles over something that stock doesn't look at
        faults.append(("not examined", "info", f"{type(err).__name__}: {err}", "decodes it"))
    return faults


def _size(image: Any, uses: Sequence[Use]) -> Iterator[Fault]:
    w, h, limit = image.width, image.height, Image.MAX_IMAGE_PIXELS
    if limit is not None and w * h > limit:
        yield "huge", "suspicious", f"{w}x{h} pixels, above Pillow's limit of {limit}", "warns, and opens it"
    if min(w, h) == 1:
        yield "one-pixel side", "suspicious", f"{w}x{h} pixels", "stretches one row or column over the whole image"
    for tw, th in sorted({use.target for use in uses if use.target is not None and not use.mask}):
        if w < tw and h < th:
            yield "tiny", "suspicious", f"{w}x{h} pixels, the batch has {tw}x{th}", "enlarges it, or pads it"
        elif w < tw or h < th:
            yield "small on one side", "info", f"{w}x{h} pixels, the batch has {tw}x{th}", "enlarges it, or pads it"


def _depth(image: Any) -> Iterator[Fault]:
    if image.mode[0] not in "IF":
        return
    array = np.asarray(image)
    low, high = float(np.nanmin(array)), float(np.nanmax(array))
    what = f"mode {image.mode}, values {low:g} to {high:g}"
    if image.mode == "F" and high <= 1:
        yield "high bit depth", "suspicious", what, "clips to whole numbers from 0 to 255: nearly black"
    elif low < 0 or high > 255:
        yield "high bit depth", "suspicious", what, "clips to 0..255: all that is brighter turns white, most of a 16-bit photo"
    else:
        yield "high bit depth", "info", what, "clips to 0..255, which these values fit"


def _colours(image: Any) -> Iterator[Fault]:
    if image.mode == "CMYK":
        yield "CMYK", "suspicious", "inks, not light", "converts without the colour profile: colours are off"


def _alpha(image: Any) -> Iterator[Fault]:
    last, clear = image.getbands()[-1], image.info.get("transparency")
    if last in "Aa":
        lowest = image.getchannel(last).getextrema()[0]
    elif clear is not None and image.mode in ("1", "L", "P", "RGB"):
        lowest = min(clear, default=255) if isinstance(clear, bytes) else 0
    else:
        return
    if lowest == 255:
        yield "alpha", "info", f"mode {image.mode}, opaque throughout", "drops the alpha channel; nothing is lost"
    else:
        yield "alpha", "suspicious", f"mode {image.mode}, in part transparent", "drops alpha: hidden colours come to light"


def _mask(image: Any) -> Iterator[Fault]:
    why = "takes the luminance of the colour, not the index"
    if image.mode == "1":
        yield "mask values", "suspicious", "a mask of one bit", "makes it 0 and 255, not 0 and 1"
    elif image.mode in ("P", "PA"):
        moved = _moved(image)
        if moved:
            index, value = moved[0]
            yield "mask values", "suspicious", f"a palette mask: index {index} becomes {value}", why
    elif len(image.getbands()) >= 3 and not _is_gray(image):
        yield "mask values", "suspicious", f"a mask in colour, mode {image.mode}", "takes the luminance of the colour"


def _moved(image: Any) -> list[tuple[int, int]]:
    """Palette indices in use whose luminance is another number, with that number; the formula is Pillow's, of ITU-R 601-2."""
    palette = image.getpalette("RGB") or []
    used = sorted(index for _, index in image.getchannel("P").getcolors(256) if 3 * index + 2 < len(palette))
    lumas = [(k, _luma(*palette[3 * k : 3 * k + 3])) for k in used]
    return [(index, luma) for index, luma in lumas if index != luma]


def _luma(red: int, green: int, blue: int) -> int:
    return (19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16


def _is_gray(image: Any) -> bool:
    first, *others = (image.getchannel(k) for k in range(3))
    return not any(ImageChops.difference(first, other).getbbox() for other in others)


def _extension(path: str, image: Any) -> Iterator[Fault]:
    suffix = os.path.splitext(path)[1].lower()
    named, is_ = _extensions().get(suffix), image.format
    if named is not None and is_ is not None and named != is_ and {named, is_} not in _SAME:
        yield "wrong extension", "suspicious", f"named {suffix}, its content is {is_}", "goes by the content and opens it"


@cache
def _extensions() -> dict[str, str]:
    return Image.registered_extensions()


def _orientation(image: Any) -> Iterator[Fault]:
    # Looked at after decoding: Pillow itself turns a TIFF and then drops the tag.
    try:
        tag = image.getexif().get(_ORIENTATION)
    except Exception:  # noqa: BLE001  # damaged metadata, which stock never looks at
        return
    if turn := _TURNS.get(tag):
        yield "orientation", "suspicious", f"EXIF orientation {tag}: meant to be {turn}", "ignores the tag: pixels as stored"


def _frames(image: Any) -> Iterator[Fault]:
    try:
        frames = getattr(image, "n_frames", 1)
    except Exception:  # noqa: BLE001  # a later frame is damaged, which stock never looks at
        frames = 2
    if frames > 1:
        # Telephones put a second picture (depth, brightness) behind a photo's first: no animation is lost.
        severity = "info" if image.format == "MPO" else "suspicious"
        yield "several frames", severity, f"{image.format} of {frames} frames", "takes the first frame only"
