"""One sealed part of a cache: its shards, mapped or read when first used, and where each file's records lie in them.

Sizes are compared with the manifest before anything is mapped; index and manifest carry digests of their own. A record's blocks
are compared with their checksums when first used (`check="first"`), each time ("always") or not ("off").
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fastload.cache import _format as on_disk
from fastload.cache._items import Blueprint, Item, load_items, source_digest
from fastload.cache._mounts import remote
from fastload.errors import CacheError

__all__ = ["CHECKS", "Part", "Shard", "blueprint_of", "read_manifest"]

CHECKS = ("first", "always", "off")
Look = tuple[int, int, int, int]  # size, mtime and ctime in ns, inode


class Shard:
    """One sealed file, opened when first read. Safe to read from several threads, and in a forked child."""

    def __init__(self, folder: Path, commit: dict[str, Any]) -> None:
        self.path, self.commit = folder / commit["file"], commit
        index = self.path.with_suffix(".idx")
        self._expect(index, commit["index_bytes"])
        self._expect(self.path, commit["bytes"])
        if on_disk.file_digest(index) != commit["index_digest"]:
            raise CacheError(f"{index} is damaged: its digest does not match; run `fastload cache repair`")
        self.rows, self.sums = on_disk.read_index(index, commit["bytes"])
        self.good = bytearray(len(self.sums))  # 1: blocks whose checksum has been compared
        self.whole = np.zeros(len(self.rows), bool)  # records of which all blocks have been compared
        self.remote = remote(self.path)
        self.asked = bytearray(len(self.rows))  # 1: records that the disk has been told of
        self._fields = memoryview(self.rows).cast("B")
        self._opening = threading.Lock()
        self._file: Any = None
        self._map: Any = None

    def _expect(self, path: Path, size: int) -> None:
        try:
            found = path.stat().st_size
        except OSError as err:
            raise CacheError(f"{path} of the cache is missing: {err.strerror}; run `fastload cache repair`") from err
        if found != size:
            raise CacheError(f"{path} has {found} bytes instead of {size}; run `fastload cache repair`")

    def file(self) -> int:
        """Descriptor of the file; closed when the shard is no longer used. Raises CacheError."""
        with self._opening:
            if self._file is None:
                try:
                    file = self.path.open("rb", buffering=0)
                except OSError as err:
                    raise CacheError(f"{self.path} of the cache can't be opened: {err}; run `fastload cache repair`") from err
                self._expect(self.path, self.commit["bytes"])
                if hasattr(os, "posix_fadvise"):
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # no more than is asked for
                self._file = file
            return int(self._file.fileno())

    def mapped(self) -> memoryview:
        """The whole file, mapped."""
        file = self.file()
        with self._opening:
            if self._map is None:
                found = mmap.mmap(file, 0, access=mmap.ACCESS_READ)
                if hasattr(mmap, "MADV_RANDOM"):
                    found.madvise(mmap.MADV_RANDOM)
                self._map = found
            return memoryview(self._map)

    def fields(self, row: int) -> tuple[int, ...]:
        """item, offset, length, width, height, codec, channels, variant and first block of a record."""
        return on_disk.FIELDS.unpack_from(self._fields, row * on_disk.INDEX.itemsize)

    def ahead(self, row: int, again: bool) -> None:
        """Tell the disk that a record will be needed soon, unless it has been told before and is not to be told `again`."""
        if (again or not self.asked[row]) and hasattr(os, "posix_fadvise"):
            self.asked[row] = 1
            _, start, length, *_ = self.fields(row)
            os.posix_fadvise(self.file(), start, length, os.POSIX_FADV_WILLNEED)

    def contents(self, row: int, check: str) -> bytes:
        """A record's payload, read. Raises CacheError where it is damaged."""
        item, start, length, *_, block = self.fields(row)
        found = self._read(start, length)
        if check != "off" and length:
            self._verified(memoryview(found), block, range(-(-length // on_disk.BLOCK)), item, check)
        return found

    def payload(self, row: int, check: str, window: tuple[int, int] | None = None) -> memoryview:
        """A record's payload; `window`: the bytes of it that will be looked at, others may be missing. Raises CacheError.

        Mapped, without a copy; on a network file system those blocks alone are read.
        """
        return self.payload_of(self.fields(row), check, window)

    def payload_of(self, fields: tuple[int, ...], check: str, window: tuple[int, int] | None) -> memoryview:
        """The same by a record's `fields`."""
        item, start, length, *_, block = fields
        first, end = window or (0, length)
        wanted = range(first // on_disk.BLOCK, -(-min(end, length) // on_disk.BLOCK))
        if self.remote:
            found = memoryview(bytearray(length))
            at, stop = wanted.start * on_disk.BLOCK, min(wanted.stop * on_disk.BLOCK, length)
            found[at:stop] = self._read(start + at, stop - at)
            found = found.toreadonly()
        else:
            found = self.mapped()[start : start + length]
        if check != "off" and length:
            self._verified(found, block, wanted, item, check)
        return found

    def pixels(self, fields: tuple[int, ...], check: str, window: tuple[int, int] | None) -> tuple[Any, int]:
        """What `payload` gives, as the array it lies in, uint8 [bytes], and where it begins; by a record's `fields`."""
        item, start, length, _, _, _, _, _, block = fields
        if self.remote:
            return np.frombuffer(self.payload_of(fields, check, window), np.uint8), 0
        if check != "off":
            first, end = window or (0, length)
            low, high = block + first // on_disk.BLOCK, block - (-min(end, length) // on_disk.BLOCK)
            if check == "always" or self.good.find(0, low, high) >= 0:
                found = self.mapped()[start : start + length]
                self._verified(found, block, range(low - block, high - block), item, check)
        return self._pixels, start

    def copy(self, row: int, check: str, out: Any) -> None:
        """A record's payload into a contiguous uint8 array of as many bytes. Raises CacheError where it is damaged."""
        start, length = self._places[row]
        if self.remote or check == "always" or not (check == "off" or self.whole[row]):
            found = np.frombuffer(self.payload(row, check), np.uint8)
            self.whole[row] = True
        else:
            found = self._pixels[start : start + length]
        if len(found) != out.size:
            raise CacheError(f"{self.path} holds an image of {len(found)} bytes where {out.size} are wanted; build it anew")
        np.copyto(out, found.reshape(out.shape))

    @cached_property
    def _places(self) -> list[tuple[int, int]]:
        """Offset and length of each record, as Python's own numbers."""
        return list(zip(self.rows["offset"].tolist(), self.rows["length"].tolist(), strict=True))

    @cached_property
    def _pixels(self) -> Any:
        return np.frombuffer(self.mapped(), np.uint8)

    def _read(self, start: int, length: int) -> bytes:
        try:
            return self._whole(start, length)
        except OSError as err:
            raise CacheError(f"{self.path} of the cache can't be read: {err}") from err

    def _whole(self, start: int, length: int) -> bytes:
        found = os.pread(self.file(), length, start)
        while len(found) < length:
            more = os.pread(self.file(), length - len(found), start + len(found))
            if not more:
                raise CacheError(f"{self.path} ends before its record does; run `fastload cache verify`, then `repair`")
            found += more
        return found

    def _verified(self, found: memoryview, block: int, wanted: range, item: int, check: str) -> None:
        if check != "always" and self.good.find(0, block + wanted.start, block + wanted.stop) < 0:
            return
        for k in wanted:
            part = found[k * on_disk.BLOCK : (k + 1) * on_disk.BLOCK]
            if on_disk.block_sums(part)[0] != self.sums[block + k]:
                raise CacheError(_DAMAGED.format(self.path, item, k))
            self.good[block + k] = 1


_DAMAGED = "{} is damaged: item {}, block {} has another checksum; run `fastload cache verify`, then `repair`"


class Part:
    """An open part: what it holds, by path below the data's root."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest = read_manifest(path)
        try:
            self._open()
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as err:
            if isinstance(err, CacheError):
                raise
            raise CacheError(f"{path / 'manifest.json'} is not of the form of {on_disk.FORMAT}: {err!r}") from err

    def _open(self) -> None:
        path = self.path
        plan = self.manifest["plan"]
        self.kind, self.mode, self.variants = str(plan["kind"]), str(plan["mode"]), int(plan["variants"])
        self.splits = tuple(map(str, plan["splits"]))
        self.fingerprint: dict[str, str] = plan["fingerprint"]
        items = path / "items.jsonl"
        lines = items.read_bytes() if items.exists() else b""
        if on_disk.digest_of(lines) != plan["items"]:
            raise CacheError(f"{items} is missing or damaged; run `fastload cache repair`")
        self.items = load_items(lines)
        self.shards = [Shard(path / "shards", commit) for commit in self.manifest["shards"]]
        self.where: dict[str, tuple[Shard, int]] = {}
        for shard in self.shards:
            for row, number in _first_rows(shard, self.items):
                self.where[self.items[number].path] = (shard, row)
        self.hashed = 0  # files, to compare their bytes
        self._same: dict[str, Look] = {}  # files that were hashed and found the same, as they looked then
        self.bad: dict[str, str] = {name: reason for commit in self.manifest["shards"] for name, reason in commit["bad"]}

    def meaning(self) -> dict[str, Any]:
        """What it has in common with other parts of one data set: see Blueprint.meaning."""
        plan = self.manifest["plan"]
        return {k: plan[k] for k in ("kind", "mode", "fingerprint", "splits", "variants", "seed")}

    def changed(self, name: str, root: Path) -> bool:
        """Whether a kept file below `root` has other bytes now: one whose size, times or inode differ is hashed.

        A file that is gone has not changed. What was hashed once is known by its times from then on.
        """
        path = f"{root}/{name}"
        try:
            found = os.stat(path)
            now = (found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)
            if now == self._looks[name] or self._same.get(path) == now:
                return False
            self.hashed += 1
            shard, row = self.where[name]
            if source_digest(Path(path).read_bytes()) != shard.rows[row]["source"].tobytes():
                return True
        except FileNotFoundError:
            return False
        self._same[path] = now
        return False

    @cached_property
    def _looks(self) -> dict[str, Look]:
        return {item.path: (item.size, item.mtime_ns, item.ctime_ns, item.inode) for item in self.items}


def _first_rows(shard: Shard, items: Sequence[Item]) -> list[tuple[int, int]]:
    """(row, item number) of each item's first record."""
    numbers: list[int] = shard.rows["item"].tolist()
    if numbers and max(numbers) >= len(items):
        raise CacheError(f"{shard.path} names items that the cache does not have; run `fastload cache repair`")
    return [(row, number) for row, number in enumerate(numbers) if row == 0 or numbers[row - 1] != number]


def read_manifest(path: Path) -> dict[str, Any]:
    """A part's manifest, its form and its digest checked. Raises CacheError."""
    file = path / "manifest.json"
    if not file.exists():
        raise CacheError(f"{path} is not finished (there is no manifest.json); run `fastload precompute` to its end")
    found = on_disk.checked_json(file)
    for commit in found["shards"]:
        if os.path.basename(commit["file"]) != commit["file"]:
            raise CacheError(f"{file} names a shard outside of the cache: {commit['file']!r}")
    return found


def blueprint_of(manifest: dict[str, Any], items: tuple[Item, ...]) -> Blueprint:
    """The plan that a part was built by."""
    plan = manifest["plan"]
    shards = tuple((int(a), int(b)) for a, b in plan["shards"])
    return Blueprint(
        plan["kind"],
        plan["mode"],
        plan["fingerprint"],
        shards,
        items,
        tuple(plan["splits"]),
        plan["variants"],
        plan["seed"],
        plan["loss"],
    )
