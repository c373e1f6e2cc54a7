"""Item number -> encoded bytes and image size.

A `Source` gives one kind of image of a data set. `Files` reads image files; caches and object stores offer the same two
methods. Reading happens on executor threads, so a Source must be safe to call from several at once; `Files` keeps no state.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from PIL import Image, UnidentifiedImageError

from fastload.ops import Size

__all__ = ["IN_MEMORY", "PIXELS", "Files", "Record", "Ref", "Source", "encoded_record", "sniff"]

# Formats that Pillow decodes equally from memory and whose header gives the final size. All others are opened by path, as
# stock does: raw ones (BMP, TIFF, PPM) may be memory-mapped there, and some change size while loading.
IN_MEMORY = ("jpeg", "png", "webp", "gif")
PIXELS = ("raw", "planes")  # decoded already
_MAGIC = ((b"\xff\xd8\xff", "jpeg"), (b"\x89PNG\r\n\x1a\n", "png"), (b"GIF8", "gif"))
HEAD = 16  # bytes needed to recognise a format


@dataclass(frozen=True)
class Ref:
    """One image asked for: its item number, the path where the loader has worked it out already, which drawn version of it."""

    index: int
    path: str | None = None
    variant: int = 0


@dataclass
class Record:
    """One image as read: `codec`, encoded `data` (None where it has to be opened by path), and Pillow's lazily opened image.

    Of codec "raw" and "planes", `image` is an array of pixels that lies in a cache: uint8 [H, W, channels], [channels, H, W].
    `kept`: all of it comes from a cache, and the file itself is not to be opened.
    """

    codec: str
    data: bytes | None
    name: str
    image: Any = field(default=None, repr=False)
    plain: Any = field(default=None, repr=False)  # what executors._early found in the header of an ordinary file
    kept: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes held in memory for this record: encoded, or decoded (Pillow takes 4 for a pixel) if it was opened by path."""
        if self.data is not None:
            return len(self.data)
        if self.codec in PIXELS:
            return 0
        return 0 if self.image is None else 4 * self.image.width * self.image.height


class Source(Protocol):
    """What executors need to know of a data set; `read` may be called from several threads.

    `windows`: whether reading only a part of an image costs less, and its size is known without reading it.
    """

    windows: bool

    def __len__(self) -> int: ...

    def read(self, ref: Ref, window: tuple[int, int, int, int] | None = None) -> Record:
        """Encoded bytes of one image; `window` (left, top, right, bottom) is a hint a cache may use to read less."""
        ...

    def size(self, ref: Ref) -> Size | None:
        """(width, height) where the source knows it without reading the image, else None."""
        ...

    def gather(self, refs: Sequence[Ref], rows: Sequence[Any]) -> bool:
        """Copy images that are finished, each into its row, uint8 [channels, H, W]; False where they are not."""
        ...

    def files(self, refs: Sequence[Ref]) -> list[str] | None:
        """The paths of files each of which holds one of these images and nothing else, or None."""
        ...

    def places(self, refs: Sequence[Ref]) -> list[Any] | None:
        """Where images lie in a cache, each looked up once for `ahead` and `pixels`; None where it can't tell, and for files.

        A place is a tuple: the size (width, height) or None where only decoding tells, then what the source needs itself.
        """
        ...

    def ahead(self, places: Iterable[Any]) -> None:
        """Hear what will be read soon; called from the consumer's thread."""
        ...

    def pixels(self, place: Any, window: tuple[int, int, int, int] | None) -> tuple[Any, int, Size, int] | None:
        """Decoded pixels in memory: uint8 [bytes], where they begin, (width, height), channels; None where it holds others."""
        ...

    def fingerprint(self) -> str:
        """Hex digest that changes when the items or their bytes may have changed."""
        ...


class Files:
    """Images in files. `paths` gives the file of an item number; refs that carry a path need none."""

    windows = False

    def __init__(self, paths: Sequence[Any] = ()) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, ref: Ref, window: tuple[int, int, int, int] | None = None) -> Record:
        """Read the whole file of `ref`. Raises what opening the file raises (FileNotFoundError, PermissionError ...)."""
        path = self._path(ref)
        file = os.open(path, _READ_ONLY)
        try:
            return _record(file, path)
        finally:
            os.close(file)

    def size(self, ref: Ref) -> Size | None:
        """None: a file's size is in its header, which is read together with its bytes."""
        return None

    def gather(self, refs: Sequence[Ref], rows: Sequence[Any]) -> bool:
        """False: files hold no finished images."""
        return False

    def files(self, refs: Sequence[Ref]) -> list[str]:
        """Their paths."""
        return [self._path(ref) for ref in refs]

    def _path(self, ref: Ref) -> str:
        return ref.path if ref.path is not None else os.fspath(self.paths[ref.index])

    def places(self, refs: Sequence[Ref]) -> None:
        """None: a file is found by its name, which takes as long as reading it."""

    def ahead(self, places: Iterable[Any]) -> None:
        """Nothing: see `places`."""

    def pixels(self, place: Any, window: tuple[int, int, int, int] | None) -> None:
        """None: files hold no decoded pixels."""

    def fingerprint(self) -> str:
        """SHA-256 over path, length and modification time of every file, in order."""
        digest = hashlib.sha256()
        for path in self.paths:
            now = os.stat(path)
            digest.update(f"{os.fspath(path)}\0{now.st_size}\0{now.st_mtime_ns}\n".encode(errors="surrogateescape"))
        return digest.hexdigest()


# Every call below gives the GIL away and has to get it back, so an ordinary file takes four: open, fstat, read, close.
_READ_ONLY = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
_AT_ONCE = 1 << 20  # bytes; a larger file's format is looked at before all of it is read


def _record(file: int, path: str) -> Record:
    """The open file as a record; never waits for a pipe, which the flags open without a writer."""
    found = os.fstat(file)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(found.st_mode):
        raise UnidentifiedImageError(f"{path} is not a regular file: an image is never read from a pipe or device")
    if found.st_size > _AT_ONCE and (codec := sniff(os.pread(file, HEAD, 0))) not in IN_MEMORY:
        return Record(codec, None, path)
    return encoded_record(_whole(file, found.st_size), path)


def encoded_record(data: bytes, path: str) -> Record:
    """The record of a file that holds `data`; without them where it has to be opened by path."""
    codec = sniff(data[:HEAD])
    return Record(codec, data if codec in IN_MEMORY else None, path)


def _whole(file: int, size: int) -> bytes:
    """All bytes of a file: one read, unless it gives another length than `size` or the file is being written."""
    data = os.read(file, size + 1)  # the byte too many shows the end
    if len(data) == size:
        return data
    parts = [data]
    while more := os.read(file, 1 << 20):
        parts.append(more)
    return b"".join(parts)


def sniff(data: bytes) -> str:
    """Name the format by its first bytes; 'other' for anything that is opened by path.

    >>> sniff(b"\\xff\\xd8\\xff\\xe0..."), sniff(b"RIFF....WEBPVP8 "), sniff(b"BM....")
    ('jpeg', 'webp', 'other')
    """
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    return next((name for magic, name in _MAGIC if data.startswith(magic)), "other")


def open_lazily(record: Record) -> Any:
    """Pillow's image of `record`, header parsed, pixels not decoded; kept on the record."""
    if record.image is None:
        record.image = Image.open(io.BytesIO(record.data) if record.data is not None else record.name)
    return record.image
