"""Opens a cache and gives its records: never stale, never damaged, without a copy where the pixels themselves are kept.

One opening serves all loaders of a process, and any forked child; a pickled source opens the cache anew.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fastload.cache import _format as on_disk
from fastload.cache._items import below, fingerprint, plain
from fastload.cache._make import kept_ops
from fastload.cache._master import Loss, short_side
from fastload.cache._part import CHECKS, Part, Shard, blueprint_of
from fastload.cache.comparing import Comparisons
from fastload.cache.generations import Generation, opened_parts, read_generation
from fastload.errors import CacheError, SettingsError, StaleCache
from fastload.machine import major_faults
from fastload.ops import Size, Stored
from fastload.plan import Element, Plan
from fastload.source import Files, Record, Ref, sniff

__all__ = ["Cache", "CacheSource", "Cached", "Held", "cached", "open_cache"]

STALE = ("error", "rebuild", "use")
RAW = on_disk.CODECS.index("raw")
FAULTS_EVERY = 16  # batches; asking the kernel takes as long as five images of a decoded cache (benchmarks/bench_cache.py)
Place = tuple[Size | None, Shard, int, tuple[int, ...]]


@dataclass(frozen=True)
class Cached:
    """A cache's folder and how to use it; see `cached`."""

    path: str
    stale: str = "error"
    check: str = "first"
    stage: str | None = None

    def __post_init__(self) -> None:
        for name, allowed in (("stale", STALE), ("check", CHECKS)):
            if (value := getattr(self, name)) not in allowed:
                raise SettingsError(f"{name}={value!r} is not one of {', '.join(allowed)}")

    def __fspath__(self) -> str:
        return self.path


def cached(
    path: str | os.PathLike[str],
    *,
    stale: str = "error",
    check: str = "first",
    stage: str | os.PathLike[str] | None = None,
) -> Cached:
    """How to use a cache, for `cache=`; a path alone means the defaults.

    `stale`: what to do where it does not hold what the data are now: 'error'; 'rebuild' what differs, before the epoch; 'use'
    it as it is, which is logged. `check`: compare checksums when a record is 'first' used in a process, 'always' or 'off'.
    `stage`: a folder on a local disk to copy the cache to first, digests compared; it is used again while it is the same.
    Raises SettingsError.
    """
    given: Any = (path, path if stage is None else stage)
    for value in given:
        if not isinstance(value, str | os.PathLike) or not os.fspath(value):
            raise SettingsError(f"cached({path!r}, stage={stage!r}): {value!r} is no path; give a folder")
    return Cached(os.path.abspath(path), stale, check, None if stage is None else os.path.abspath(stage))


class Held:
    """What a cache holds for one split: its parts for that, newest last, by path below the data's root."""

    def __init__(self, path: Path, split: str, parts: Sequence[Part], gone: Iterable[str]) -> None:
        self.path, self.split, self.parts, self._hashed = path, split, tuple(parts), 0
        newest = parts[-1]
        self.kind, self.mode, self.variants, self.fingerprint = newest.kind, newest.mode, newest.variants, newest.fingerprint
        if odd := next((p for p in parts if p.meaning() != newest.meaning()), None):
            raise CacheError(
                f"{odd.path} and {newest.path} were made by different plans; build the cache anew in another folder"
            )
        self.where: dict[str, tuple[Shard, int]] = {}
        self.bad: dict[str, str] = {}
        for part in parts:
            self.where = {k: v for k, v in self.where.items() if k not in part.bad} | part.where
            self.bad = {k: v for k, v in self.bad.items() if k not in part.where} | part.bad
        for name in gone:
            self.where.pop(name, None)
            self.bad.pop(name, None)

    def __len__(self) -> int:
        return len(self.where)

    def find(self, path: str) -> tuple[Shard, int] | None:
        """Shard and first row of a path below the root."""
        return self.where.get(path)

    def holds(self, path: str) -> bool:
        """Whether a file is in the cache, or was found to be bad, wherever its root lies now, and is what it was, or gone."""
        found = self.place_of(path)
        return found is not None and not self.changed(found[1], found[0])

    def root_of(self, path: str) -> Path:
        """The folder below which a file lies as it did when it was kept. Raises StaleCache where it is not in the cache."""
        if (found := self.place_of(path)) is not None:
            return found[0]
        raise StaleCache(f"{path} is not in the cache {self.path}; run `fastload precompute` on this data set")

    def place_of(self, path: str) -> tuple[Path, str] | None:
        """Root and path below it under which a file was kept."""
        parts = Path(plain(path)).parts
        for k in range(1, len(parts)):
            name = "/".join(parts[k:])
            if name in self.where or name in self.bad:
                return Path(*parts[:k]), name
        return None

    def differing(self, plan: Plan, functions: Sequence[tuple[str, str]] = ()) -> list[str]:
        """What decides its bytes and is other now, in words: decoder, steps, functions (name and digest), mode."""
        kept = plan.kept(self.variants > 0)[0] if self.kind == "final" else ()
        side = int(self.fingerprint["short side"]) if self.kind == "master" else 0
        now, then = fingerprint(self.kind, kept, functions, side), self.fingerprint
        words = [
            f"{k} was {then.get(k)!r} and is {now.get(k)!r}"
            for k in sorted(now.keys() | then.keys())
            if now.get(k) != then.get(k)
        ]
        if side and plan.ops and (needed := short_side(plan)) > side:
            words.append(f"its masters have a short side of {side} pixels and the loader's crops need {needed}")
        if self.kind != "source":
            words += [
                f"it holds {self.mode} pixels and the loader wants {e.mode}" for e in plan.elements if e.mode != self.mode
            ]
        return words

    def changed(self, name: str, root: Path) -> bool:
        """Whether a kept file has other bytes now. One that is gone has not changed."""
        return name in self.where and self._part_of[name].changed(name, root)

    def newly_hashed(self) -> int:
        """How many files were hashed since this was last asked, because their size, times or inode differ."""
        before, self._hashed = self._hashed, sum(part.hashed for part in self.parts)
        return self._hashed - before

    @cached_property
    def _part_of(self) -> dict[str, Part]:
        return {name: part for part in self.parts for name in part.where}

    def applied(self, plan: Plan) -> Plan:
        """The steps that are left to do with what it gives. Raises StaleCache where it can't serve such items."""
        if self.kind != "final":
            return plan
        if len(plan.elements) != 1 or plan.spatial != (plan.elements[0].position,):
            raise StaleCache(f"{self.path} holds finished images, and these items have masks, points or boxes to go with them")
        return replace(plan, ops=(Stored(self.size, max(1, self.variants)), *plan.kept(self.variants > 0)[1]))

    @property
    def loss(self) -> Loss | None:
        """What masters cost, as it was measured when they were made; None for everything else."""
        found = self.parts[-1].manifest["plan"]["loss"]
        return Loss.of(found) if found else None

    @cached_property
    def size(self) -> Size:
        """(width, height) of finished images."""
        part = self.parts[-1]
        ops = kept_ops(blueprint_of(part.manifest, part.items))
        shard, row = next(iter(self.where.values()))
        _, _, _, width, height, *_ = shard.fields(row)
        functions = any(name.startswith("function ") for name in self.fingerprint)  # which may change the size
        found = (width, height) if functions or not ops else Plan((Element(0),), ops).size
        if found is None:
            raise CacheError(f"{part.path} holds finished images of different sizes; build it anew in another folder")
        return found


class Cache:
    """An open cache of one generation."""

    def __init__(self, path: Path, generation: Generation) -> None:
        self.path, self.generation = path, generation
        self.parts = opened_parts(path, generation)
        self.comparisons = Comparisons()
        self._held: dict[str, Held] = {}

    @property
    def splits(self) -> list[str]:
        """The splits that it has images of."""
        return sorted({split for part in self.parts for split in part.manifest["plan"]["splits"]})

    def held(self, split: str) -> Held:
        """What it holds for 'train' or 'valid'. Raises StaleCache where that is nothing."""
        if split not in self._held:
            parts = [p for p in self.parts if split in p.manifest["plan"]["splits"]]
            if not parts:
                raise StaleCache(
                    f"{self.path} holds {', '.join(self.splits)} images, and none for {split}; run `fastload precompute`"
                )
            self._held[split] = Held(self.path, split, parts, self.generation.gone.get(split, ()))
        return self._held[split]


def open_cache(path: str | os.PathLike[str]) -> Cache:
    """The cache in a folder, opened once per process and content. Raises CacheError."""
    folder = Path(path).resolve()
    return _opened(folder, read_generation(folder).digest)


@cache
def _opened(folder: Path, digest: str) -> Cache:
    generation = read_generation(folder)
    if generation.digest != digest:
        raise CacheError(f"{folder} was given a new generation at this moment; open it again")
    return Cache(folder, generation)


class CacheSource:
    """Images of a data set below `root`, from a cache. Safe to call from several threads."""

    def __init__(self, kept: Held, root: Path, check: str = "first") -> None:
        if check not in CHECKS:
            raise CacheError(f"check={check!r} is none of {', '.join(CHECKS)}")
        self.held, self.root, self.check = kept, root, check
        self.windows = kept.kind in ("decoded", "master")  # whether reading a part of an image costs less
        self._prefix = str(root).rstrip("/") + "/"
        self._faults, self._again, self._batches = -1, 0, 0

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (str(self.held.path), self.held.split, str(self.root), self.check)

    def __len__(self) -> int:
        return len(self.held)

    def read(self, ref: Ref, window: tuple[int, int, int, int] | None = None) -> Record:
        """The record of `ref`; a file that could not be kept is read itself, so that its fault is stock's.

        Raises StaleCache where the cache has none, CacheError where it is damaged.
        """
        if self._unkept(ref):
            return Files().read(ref)
        shard, row = self._row(ref)
        row += ref.variant
        _, _, _, width, height, codec, channels, *_ = shard.fields(row)
        kind = on_disk.CODECS[codec]
        if kind == "file":
            data = shard.contents(row, self.check)
            return Record(sniff(data[:16]), data, str(ref.path), kept=True)
        line = width * channels
        lines = None if window is None or kind == "planes" else (window[1] * line, window[3] * line)
        shape = (height, width, channels) if kind == "raw" else (channels, height, width)
        pixels = np.frombuffer(shard.payload(row, self.check, lines), np.uint8).reshape(shape)
        return Record(kind, None, str(ref.path), pixels, kept=True)

    def gather(self, refs: Sequence[Ref], rows: Sequence[Any]) -> bool:
        """Copy finished images, each into its row, uint8 [channels, H, W]; False where not all are of that form.

        Raises what `read` raises.
        """
        if self.held.kind != "final":
            return False
        for ref, row in zip(refs, rows, strict=True):
            shard, number = self._row(ref)
            shard.copy(number, self.check, row)
        return True

    def files(self, refs: Sequence[Ref]) -> None:
        """None: images lie in shards."""

    def places(self, refs: Sequence[Ref]) -> list[Place | None]:
        """Size, shard, row and index fields of each record; None where there is none, or the file itself is to be read."""
        found: list[Place | None] = []
        where, start, skip = self.held.where, self._prefix, len(self._prefix)
        for ref in refs:
            path = ref.path
            place = where.get(path[skip:]) if path is not None and path.startswith(start) else None
            if place is None:
                found.append(None)
            else:
                shard, row = place
                row += ref.variant
                fields = shard.fields(row)
                found.append(((fields[3], fields[4]) if fields[3] and fields[4] else None, shard, row, fields))
        return found

    def ahead(self, places: Iterable[Place | None]) -> None:
        """Tell the disk what will be read soon: each record once, then only while pages of it had to be waited for."""
        self._batches += 1
        if self._batches % FAULTS_EVERY == 1:
            faults = major_faults()
            if self._faults >= 0 and faults > self._faults:
                self._again = len(self)
            self._faults = faults
        for place in places:
            if place is not None and (self._again or place[1].remote or not place[1].asked[place[2]]):
                place[1].ahead(place[2], True)
                self._again = max(0, self._again - 1)

    def pixels(self, place: Place, window: tuple[int, int, int, int] | None) -> tuple[Any, int, Size, int] | None:
        """Pixels that are kept as they come from the decoder: see Source. Raises CacheError where they are damaged."""
        size, shard, _, fields = place
        _, _, _, width, height, codec, channels, _, _ = fields
        if codec != RAW or size is None:
            return None
        line = width * channels
        memory, start = shard.pixels(fields, self.check, None if window is None else (window[1] * line, window[3] * line))
        return memory, start, size, channels

    def size(self, ref: Ref) -> Size | None:
        """(width, height), or None where only decoding tells."""
        if self._unkept(ref):
            return None
        shard, row = self._row(ref)
        _, _, _, width, height, *_ = shard.fields(row)
        return (width, height) if width and height else None

    def fingerprint(self) -> str:
        """Digest of the parts' manifests."""
        return on_disk.digest_of(on_disk.canonical([p.manifest["digest"] for p in self.held.parts]))

    def _unkept(self, ref: Ref) -> bool:
        """Whether it is a bad file, of a cache whose images go through the usual steps."""
        return bool(self.held.bad) and self.held.kind != "final" and self._below(str(ref.path)) in self.held.bad

    def _below(self, path: str) -> str:
        """The path below the root, also of one that is relative or holds dots."""
        usual = path.startswith(self._prefix) and "/." not in path and "//" not in path
        return path[len(self._prefix) :] if usual else below(path, self.root)

    def _row(self, ref: Ref) -> tuple[Shard, int]:
        path = str(ref.path)
        return self._found(path) or self._sought(path)

    def _found(self, path: str) -> tuple[Shard, int] | None:
        # a path that steps back is not that of a kept file as it stands here, so it is not found
        return self.held.where.get(path[len(self._prefix) :]) if path.startswith(self._prefix) else None

    def _sought(self, path: str) -> tuple[Shard, int]:
        """The same for paths that are relative or hold dots, and the error."""
        below = self._below(path)
        found = self.held.find(below)
        if found is None:
            why = self.held.bad.get(below)
            rest = f": {why}" if why else "; run `fastload precompute`"
            raise StaleCache(f"{path} is not in the cache {self.held.path}{rest}")
        return found


def _reopened(path: str, split: str, root: str, check: str) -> CacheSource:
    return CacheSource(open_cache(path).held(split), Path(root), check)
