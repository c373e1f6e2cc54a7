"""Opens a cache and gives its records: never stale, never damaged, without a copy where the pixels themselves are kept.

Shards are mapped read-only once their size has been compared with the manifest; index and manifest carry digests of their own.
A record's blocks are compared with their checksums when first used (`check="first"`), each time ("always") or not ("off").
One mapping serves all loaders of a process, and any forked child; a pickled source opens the cache anew.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fastload.cache import _format as on_disk
from fastload.cache._items import Item, fingerprint, load_items, seen, source_digest
from fastload.errors import CacheError, StaleCache
from fastload.ops import Size
from fastload.source import Record, Ref, sniff

__all__ = ["CHECKS", "Cache", "CacheSource", "Shard", "open_cache", "read_manifest"]

CHECKS = ("first", "always", "off")


class Shard:
    """One sealed file, mapped when first read."""

    def __init__(self, folder: Path, commit: dict[str, Any]) -> None:
        self.path, self.commit = folder / commit["file"], commit
        index = self.path.with_suffix(".idx")
        self._expect(index, commit["index_bytes"])
        self._expect(self.path, commit["bytes"])
        if on_disk.file_digest(index) != commit["index_digest"]:
            raise CacheError(f"{index} is damaged: its digest does not match; run `fastload cache repair`")
        self.rows, self.sums = on_disk.read_index(index, commit["bytes"])
        self.good = np.zeros(len(self.sums), bool)  # blocks whose checksum has been compared
        self._map: Any = None

    def _expect(self, path: Path, size: int) -> None:
        try:
            found = path.stat().st_size
        except OSError as err:
            raise CacheError(f"{path} of the cache is missing: {err.strerror}; run `fastload cache repair`") from err
        if found != size:
            raise CacheError(f"{path} has {found} bytes instead of {size}; run `fastload cache repair`")

    def data(self) -> memoryview:
        """The whole file."""
        if self._map is None:
            with self.path.open("rb") as file:
                self._expect(self.path, self.commit["bytes"])
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return memoryview(self._map)

    def payload(self, row: int, check: str, window: tuple[int, int] | None = None) -> memoryview:
        """A record's payload; `window`: the bytes of it that will be looked at. Raises CacheError where they are damaged."""
        item, start, length, *_, block, _ = self.rows[row].item()
        found = self.data()[start : start + length]
        if check != "off" and length:
            first, end = window or (0, length)
            wanted = range(first // on_disk.BLOCK, -(-min(end, length) // on_disk.BLOCK))
            if check == "always" or not self.good[block + wanted.start : block + wanted.stop].all():
                self._compare(found, block, wanted, item)
        return found

    def _compare(self, found: memoryview, block: int, wanted: range, item: int) -> None:
        for k in wanted:
            part = found[k * on_disk.BLOCK : (k + 1) * on_disk.BLOCK]
            if on_disk.block_sums(part)[0] != self.sums[block + k]:
                raise CacheError(_DAMAGED.format(self.path, item, k))
            self.good[block + k] = True


_DAMAGED = "{} is damaged: item {}, block {} has another checksum; run `fastload cache verify`, then `repair`"


class Cache:
    """An open cache: what it holds, by path below the data's root."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest = read_manifest(path)
        plan = self.manifest["plan"]
        self.kind, self.mode = plan["kind"], plan["mode"]
        items = path / "items.jsonl"
        lines = items.read_bytes() if items.exists() else b""
        if on_disk.digest_of(lines) != plan["items"]:
            raise CacheError(f"{items} is missing or damaged; run `fastload cache repair`")
        self.items = load_items(lines)
        self.shards = [Shard(path / "shards", commit) for commit in self.manifest["shards"]]
        self._where = {
            self.items[item].path: (shard, row) for shard in self.shards for row, item in enumerate(_numbers(shard, self.items))
        }
        self._fresh: set[Path] = set()
        self.bad = {name: reason for commit in self.manifest["shards"] for name, reason in commit["bad"]}

    def __len__(self) -> int:
        return len(self._where)

    def find(self, path: str) -> tuple[Shard, int] | None:
        """Shard and row of a path below the root."""
        return self._where.get(path)

    def source(self, path: str, mode: str, check: str = "first") -> CacheSource:
        """A source for a data set of which `path` is one file, wherever its root lies now, for images of Pillow's `mode`.

        Raises StaleCache where the cache holds something else; what has been compared once is not compared again.
        """
        if self.kind == "decoded" and mode != self.mode:
            raise StaleCache(f"{self.path} holds {self.mode} pixels and the loader wants {mode}; keep 'source' instead")
        root = self.root_of(path)
        if root not in self._fresh:
            if words := self.stale(root):
                more = f" and {len(words) - 3} more" if len(words) > 3 else ""
                raise StaleCache(f"{self.path} is stale: {'; '.join(words[:3])}{more}. Build it anew in another folder")
            self._fresh.add(root)
        return CacheSource(self, root, check)

    def root_of(self, path: str) -> Path:
        """The folder below which a file lies as it did when it was kept. Raises StaleCache where it is not in the cache."""
        parts = Path(os.path.abspath(path)).parts
        for k in range(1, len(parts)):
            below = "/".join(parts[k:])
            if below in self._where or below in self.bad:
                return Path(*parts[:k])
        raise StaleCache(f"{path} is not in the cache {self.path}; run `fastload precompute` on this data set")

    def stale(self, root: Path) -> list[str]:
        """What no longer is as it was kept, in words: the decoder, or files below `root`. Gone files are not stale.

        A file whose size, times or inode differ is hashed, and is stale if its bytes differ.
        """
        kept = self.manifest["plan"]["fingerprint"]
        now = fingerprint(self.kind)
        differing = sorted(k for k in kept.keys() | now.keys() if kept.get(k) != now.get(k))
        words = [f"{k} was {kept.get(k)!r} and is {now.get(k)!r}" for k in differing]
        for item in self.items:
            if (found := self._where.get(item.path)) is not None and _changed(item, root, *found):
                words.append(f"{root / item.path} has other bytes than when it was kept")
        return words


def _changed(item: Item, root: Path, shard: Shard, row: int) -> bool:
    path = root / item.path
    try:
        if seen(item.path, path) == item:
            return False
        return bool(source_digest(path.read_bytes()) != shard.rows[row]["source"].tobytes())
    except FileNotFoundError:
        return False


def _numbers(shard: Shard, items: Sequence[Item]) -> list[int]:
    numbers: list[int] = shard.rows["item"].tolist()
    if numbers and max(numbers) >= len(items):
        raise CacheError(f"{shard.path} names items that the cache does not have; run `fastload cache repair`")
    return numbers


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest, its form and its digest checked. Raises CacheError."""
    file = path / "manifest.json"
    if not file.exists():
        raise CacheError(f"{path} holds no finished cache (there is no manifest.json); run `fastload precompute` to its end")
    found = on_disk.read_json(file)
    if not isinstance(found, dict) or found.get("format") != on_disk.FORMAT:
        raise CacheError(f"{file} is no manifest of {on_disk.FORMAT}")
    body = {k: v for k, v in found.items() if k != "digest"}
    if on_disk.digest_of(on_disk.canonical(body)) != found.get("digest"):
        raise CacheError(f"{file} is damaged: its digest does not match; run `fastload cache repair`")
    for commit in found["shards"]:
        if os.path.basename(commit["file"]) != commit["file"]:
            raise CacheError(f"{file} names a shard outside of the cache: {commit['file']!r}")
    return found


def open_cache(path: str | os.PathLike[str]) -> Cache:
    """The cache in a folder, opened once per process and content. Raises CacheError."""
    folder = Path(path).resolve()
    return _opened(folder, str(read_manifest(folder)["digest"]))


@cache
def _opened(folder: Path, digest: str) -> Cache:
    return Cache(folder)


class CacheSource:
    """Images of a data set below `root`, from a cache. Safe to call from several threads."""

    def __init__(self, kept: Cache, root: Path, check: str = "first") -> None:
        if check not in CHECKS:
            raise CacheError(f"check={check!r} is none of {', '.join(CHECKS)}")
        self.cache, self.root, self.check = kept, root, check
        self._prefix = str(root).rstrip("/") + "/"

    def __reduce__(self) -> Any:
        return _reopened, (str(self.cache.path), str(self.root), self.check)

    def __len__(self) -> int:
        return len(self.cache)

    def read(self, ref: Ref, window: tuple[int, int, int, int] | None = None) -> Record:
        """The record of `ref`. Raises StaleCache where the cache has none, CacheError where it is damaged."""
        shard, row = self._row(ref)
        _, _, _, width, height, codec, channels, *_ = shard.rows[row].item()
        if on_disk.CODECS[codec] == "file":
            data = bytes(shard.payload(row, self.check))
            return Record(sniff(data[:16]), data, str(ref.path))
        line = width * channels
        rows = None if window is None else (window[1] * line, window[3] * line)
        pixels = np.frombuffer(shard.payload(row, self.check, rows), np.uint8).reshape(height, width, channels)
        return Record("raw", None, str(ref.path), pixels)

    def size(self, ref: Ref) -> Size | None:
        """(width, height), or None where only decoding tells."""
        shard, row = self._row(ref)
        _, _, _, width, height, *_ = shard.rows[row].item()
        return (width, height) if width and height else None

    def fingerprint(self) -> str:
        """The manifest's digest."""
        return str(self.cache.manifest["digest"])

    def _row(self, ref: Ref) -> tuple[Shard, int]:
        path = str(ref.path)
        found = self.cache.find(path[len(self._prefix) :]) if path.startswith(self._prefix) else None
        return found or self._sought(path)

    def _sought(self, path: str) -> tuple[Shard, int]:
        """The same for paths that are relative or hold dots, and the error."""
        below = Path(os.path.relpath(os.path.abspath(path), self.root)).as_posix()
        found = self.cache.find(below)
        if found is None:
            why = self.cache.bad.get(below)
            rest = f": {why}" if why else "; run `fastload precompute`"
            raise StaleCache(f"{path} is not in the cache {self.cache.path}{rest}")
        return found


def _reopened(path: str, root: str, check: str) -> CacheSource:
    return CacheSource(open_cache(path), Path(root), check)
