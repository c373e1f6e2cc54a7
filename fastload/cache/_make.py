"""One file to the records that a part of a cache keeps of it: its bytes, its pixels, or what the item transforms give."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fastload import pixels
from fastload.cache._items import Blueprint, Item, seen, source_digest
from fastload.cache._master import shrunk
from fastload.draws import draw_sample
from fastload.errors import CacheError, SettingsError
from fastload.ops import Op, from_json
from fastload.plan import Element, Plan
from fastload.source import IN_MEMORY, Files, Record, Ref, open_lazily

__all__ = ["Function", "Kept", "kept", "kept_ops"]

Function = Callable[[str], Any]  # a file's path to uint8 [channels, H, W]


@dataclass(frozen=True)
class Kept:
    """One record to be written, or why its item can't be kept."""

    item: int
    codec: str = "file"
    payload: Any = b""  # bytes, or uint8 [H, W, channels], or [channels, H, W]
    size: tuple[int, int] = (0, 0)  # (width, height)
    channels: int = 0
    source: bytes = bytes(16)
    variant: int = 0
    bad: str | None = None


def kept(blueprint: Blueprint, root: Path, number: int, function: Function | None = None, moved: bool = False) -> list[Kept]:
    """Read one item and make its records. Raises CacheError unless the file is the one that was listed, or `moved`."""
    item = blueprint.items[number]
    path = root / item.path
    try:
        record = Files().read(Ref(number, str(path)))
        data = path.read_bytes() if record.data is None else record.data
        now = seen(item.path, path)
    except Exception as err:  # noqa: BLE001  also a pipe or device under an image's name
        return [_bad(number, path, err)]
    if now != item and not moved:
        changed = [n for n in ("size", "mtime_ns", "ctime_ns", "inode") if getattr(now, n) != getattr(item, n)]
        raise CacheError(f"{path} changed while the cache was built ({', '.join(changed)}); run this again")
    if blueprint.kind == "source":
        return [_own_bytes(number, record, data)]
    digest = source_digest(data)
    try:
        arrays = _pixels(blueprint, item, record, function)
    except Exception as err:  # noqa: BLE001  Pillow raises anything; the reason is kept and printed
        return [_bad(number, path, err)]
    codec = "planes" if blueprint.kind == "final" else "raw"
    return [_record(number, codec, array, digest, k) for k, array in enumerate(arrays)]


def _bad(number: int, path: Path, err: Exception) -> Kept:
    """Why a file can't be kept; raises CacheError where that is not the file's fault: no memory, no free file, a lost disk."""
    if isinstance(err, CacheError):
        raise err
    if isinstance(err, MemoryError) or (isinstance(err, OSError) and err.errno is not None and err.errno not in _ITS_OWN):
        raise CacheError(f"{path} could not be read: {type(err).__name__}: {err}; run this again") from err
    return Kept(number, bad=f"{type(err).__name__}: {err}")


_ITS_OWN = (*(errno.ENOENT, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG),)


def _record(number: int, codec: str, array: Any, digest: bytes, variant: int) -> Kept:
    array = np.ascontiguousarray(array)
    height, width, channels = array.shape if codec == "raw" else (*array.shape[1:], array.shape[0])
    return Kept(number, codec, array, (width, height), channels, digest, variant)


def _own_bytes(number: int, record: Record, data: bytes) -> Kept:
    """The file as it is; refused where Pillow makes something else of it from memory than from its path, as stock opens it."""
    if record.codec in IN_MEMORY:
        return Kept(number, "file", data, _header_size(record), 0, source_digest(data))
    by_path, in_memory = _outcome(record.name), _outcome(io.BytesIO(data))
    if by_path != in_memory:
        return Kept(number, bad="Pillow opens it differently from memory than from its path, so only the file itself is exact")
    return Kept(number, "file", data, (0, 0), 0, source_digest(data))


def _outcome(file: Any) -> Any:
    """Mode, size and pixels of an image, or that it can't be opened."""
    try:
        with Image.open(file) as image:
            image.load()
            return image.mode, image.size, image.tobytes(), image.getpalette()
    except Exception as err:  # noqa: BLE001  Pillow raises anything
        return type(err)


def _header_size(record: Record) -> tuple[int, int]:
    """(width, height) by the header, or (0, 0): the image is measured when it is used."""
    try:
        image = open_lazily(record)
    except Exception:  # noqa: BLE001  Pillow raises anything
        return 0, 0  # what is wrong with it shows when it is used, as in stock
    return image.width, image.height


def kept_ops(blueprint: Blueprint) -> tuple[Op, ...]:
    """The steps of a `final` part, from its fingerprint. Raises CacheError where they are none."""
    texts = [
        blueprint.fingerprint[f"step {k}"] for k in range(len(blueprint.fingerprint)) if f"step {k}" in blueprint.fingerprint
    ]
    try:
        return tuple(from_json(json.loads(text)) for text in texts)
    except (ValueError, TypeError, SettingsError) as err:
        raise CacheError(f"the plan's steps are not of this version: {err}; build the cache anew in another folder") from err


def _pixels(blueprint: Blueprint, item: Item, record: Record, function: Function | None) -> list[Any]:
    if function is not None:
        return [function(record.name)]
    if any(name.startswith("function ") for name in blueprint.fingerprint):
        raise CacheError("its pixels are made by a function of the training script: run `fastload precompute` on that")
    image = pixels.load(record, blueprint.mode)
    if blueprint.kind in ("decoded", "master"):
        side = int(blueprint.fingerprint.get("short side", 0))
        array = np.asarray(shrunk(image, side) if side else image)
        return [array if array.ndim == 3 else array[..., None]]
    return [_done(blueprint, item, image, k) for k in range(max(1, blueprint.variants))]


def _done(blueprint: Blueprint, item: Item, image: Any, variant: int) -> Any:
    """The image after the kept steps, uint8 [channels, H, W], with the draws of one variant."""
    element = Element(0, blueprint.mode)
    plan, size = Plan((element,), kept_ops(blueprint)), (image.width, image.height)
    text = f"{blueprint.seed}\0{variant}\0{item.path}".encode(errors="surrogateescape")
    rng = random.Random(int.from_bytes(hashlib.blake2b(text, digest_size=16).digest(), "big"))
    todo = pixels.steps(plan, element, draw_sample(plan, rng, size), size, size)
    return pixels.decode(pixels.apply(image, pixels.tidy(todo, size)), element)
