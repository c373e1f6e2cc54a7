"""Builds a part of a cache: each shard in a temporary file, sealed, then committed by one new name. Killed, it goes on.

Who owns what: a thread per CPU reads and decodes, results come back in the items' order, and the caller's thread alone writes.
Shards are made from nothing, so that an attempt that was cut short leaves only files in tmp/, which the next one removes.
A commit record is created by a hard link: of two builders on one shard the first wins, and the other drops its copy. Sealed
files are equal byte for byte whoever makes them.
"""

from __future__ import annotations

import mmap
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fastload.cache import _format as on_disk
from fastload.cache._items import SHARD_BYTES, Blueprint
from fastload.cache._make import Function, Kept, kept
from fastload.errors import CacheError, MissingPackage
from fastload.machine import usable_cpus

__all__ = ["How", "Progress", "build_part"]

_BATCH_RECORDS, _BATCH_BYTES = 64, 64 << 20  # of one transaction
Progress = Callable[[int, int, int], None]  # items done, bytes written, bad items


@dataclass
class _Under:
    """A shard under way."""

    rows: list[tuple[Any, ...]] = field(default_factory=list)
    sums: list[Any] = field(default_factory=list)
    bad: list[list[str]] = field(default_factory=list)
    blocks: int = 0
    payload_bytes: int = 0


@dataclass(frozen=True)
class How:
    """How to build: shards `share` (i of n) alone, on so many threads, with a share of bad items allowed.

    `function`: makes the pixels of an item, one call at a time, where the plan names functions of the training script.
    `files`: of the whole data set, if there are more than are built. `moved`: other times and inodes than listed are no fault.
    """

    share: tuple[int, int] = (0, 1)
    threads: int | None = None
    max_bad: float = 0.01
    progress: Progress = lambda done, size, bad: None
    function: Function | None = None
    files: int = 0
    moved: bool = False

    def __post_init__(self) -> None:
        share: Any = self.share
        whole = isinstance(share, tuple) and [type(n) for n in share] == [int, int]
        if not whole or not 0 <= share[0] < share[1]:
            raise CacheError(f"share={share!r} is none: shares are (i, n) with i from 0 to n - 1")
        threads: Any = self.threads
        if threads is not None and (type(threads) is not int or threads < 1):
            raise CacheError(f"threads={threads!r} must be a whole number of at least 1")
        max_bad: Any = self.max_bad
        if not isinstance(max_bad, int | float) or not 0 <= max_bad <= 1:
            raise CacheError(f"max_bad={max_bad!r} must be a share from 0 to 1")


def build_part(blueprint: Blueprint, root: Path, out: Path, how: How) -> bool:
    """Build those shards of a part in the folder `out` that are not committed yet; True once the part is whole.

    `root`: folder of the data. Raises CacheError where too many items are bad, or the disk is full; what was committed stays,
    and the same call goes on.
    """
    _prepare(blueprint, out)
    done = written = bad = 0
    for number, (first, end) in enumerate(blueprint.shards):
        commit = out / "commits" / f"{number:05d}.json"
        if number % how.share[1] == how.share[0]:
            if not commit.exists():
                _build_shard(blueprint, root, out, number, replace(how, progress=_further(how.progress, done, written, bad)))
            record = on_disk.read_json(commit)
            done, written, bad = done + end - first, written + record["bytes"], bad + len(record["bad"])
            how.progress(done, written, bad)
            if bad > how.max_bad * max(how.files, len(blueprint.items)):
                raise CacheError(_TOO_MANY.format(bad, how.max_bad, record["bad"][-1] if record["bad"] else ""))
    return _finish(blueprint, out)


def _further(progress: Progress, done: int, written: int, bad: int) -> Progress:
    """The same report, counted on from what was there before."""
    return lambda more, size, wrong: progress(done + more, written + size, bad + wrong)


_TOO_MANY = (
    "{} items can't be kept, more than the share of {:g} that was allowed; the last: {}. `fastload check` names all; mend "
    "or remove them, or raise max_bad"
)


def _prepare(blueprint: Blueprint, out: Path) -> None:
    for name in ("commits", "shards", "tmp"):
        (out / name).mkdir(parents=True, exist_ok=True)
    plan = out / "plan.json"
    if plan.exists():
        found, wanted = on_disk.read_json(plan), blueprint.document()
        if found != wanted:
            names = sorted(k for k in found.keys() | wanted.keys() if found.get(k) != wanted.get(k))
            raise CacheError(f"{out} was begun with other {', '.join(names)}; remove that folder and run this again")
    else:
        on_disk.write_json(plan, blueprint.document())
    if not (out / "items.jsonl").exists():
        beside = out / f"items.jsonl.{os.getpid()}.tmp"
        on_disk.write_bytes(beside, blueprint.lines())
        os.replace(beside, out / "items.jsonl")
    for left in (out / "tmp").iterdir():
        if _abandoned(left.name):
            left.unlink(missing_ok=True)


def _attempt(number: int) -> str:
    return f"{number:05d}-{socket.gethostname()}-{os.getpid()}"


def _abandoned(name: str) -> bool:
    """Whether the process that made a temporary file was on this host and is gone."""
    parts = name.rpartition(".")[0].rsplit("-", 1)  # a host's name may have dots
    if len(parts) != 2 or not parts[1].isdigit() or parts[0][6:] != socket.gethostname():
        return False
    if int(parts[1]) == os.getpid():
        return True
    try:
        os.kill(int(parts[1]), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _build_shard(blueprint: Blueprint, root: Path, out: Path, number: int, how: How) -> None:
    first, end = blueprint.shards[number]
    base = out / "tmp" / _attempt(number)
    names = {end: base.with_name(f"{base.name}.{end}") for end in ("lmdb", "sealed", "idx", "json")}
    under = _Under()
    try:
        # a function of the script is called by one thread at a time: fastai's transforms keep what they have drawn
        threads = 1 if how.function is not None else how.threads or usable_cpus().count
        made = _in_order(lambda item: kept(blueprint, root, item, how.function, how.moved), range(first, end), threads)
        _write(names["lmdb"], names["sealed"], _counted(made, blueprint, under, how.progress))
        rows = _located(names["sealed"], under)
        on_disk.write_index(names["idx"], rows, np.concatenate(under.sums) if under.sums else np.zeros(0, np.uint64))
        _commit(blueprint, out, number, names, under)
    except OSError as err:
        raise CacheError(f"shard {number} could not be written to {out}: {err}; free the disk and run this again") from err
    finally:
        for name in (*names.values(), names["lmdb"].with_name(names["lmdb"].name + "-lock")):
            name.unlink(missing_ok=True)


def _in_order(work: Callable[[int], list[Kept]], items: Iterable[int], threads: int) -> Iterator[list[Kept]]:
    """Results in the items' order, a bounded number under way."""
    waiting: deque[Future[list[Kept]]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="fastload-cache") as pool:
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) > 4 * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _counted(
    made: Iterator[list[Kept]], blueprint: Blueprint, under: _Under, progress: Progress
) -> Iterator[tuple[bytes, bytes]]:
    """Keys and records for LMDB, noted as they pass."""
    for done, records in enumerate(made, 1):
        for one in records:
            if one.bad is not None:
                under.bad.append([blueprint.items[one.item].path, one.bad])
                continue
            payload = memoryview(one.payload).cast("B")
            sums = on_disk.block_sums(payload)
            codec = on_disk.CODECS.index(one.codec)
            place = (one.item, 0, len(payload), *one.size, codec, one.channels, one.variant, under.blocks)
            under.rows.append((*place, one.source))
            under.sums.append(sums)
            under.blocks += len(sums)
            under.payload_bytes += len(payload)
            head = on_disk.header(one.codec, one.channels, one.item, one.variant, len(payload))
            yield on_disk.key(one.item, one.variant), head + payload
        progress(done, under.payload_bytes, len(under.bad))


def _write(loose: Path, sealed: Path, records: Iterator[tuple[bytes, bytes]]) -> None:
    """Records into a new LMDB file, then its compact copy, which is the same whatever happened on the way."""
    try:
        import lmdb
    except ImportError as err:
        raise MissingPackage(f"a cache needs lmdb and xxhash: {on_disk.GET_IT}") from err
    try:
        # sync: an attempt that is cut short is made anew, so only the sealed copy has to be on the disk
        env = lmdb.open(
            str(loose), map_size=_MAP, subdir=False, meminit=True, writemap=False, sync=False, max_readers=1, lib_version=0
        )
        with env:
            for batch in _batches(records):
                _put(env, batch)
            with sealed.open("wb") as file:
                env.copyfd(file.fileno(), compact=True)
                os.fsync(file.fileno())
    except lmdb.Error as err:
        raise OSError(f"LMDB: {err}") from err


_MAP = SHARD_BYTES + (256 << 20)  # bytes of address space to begin with


def _put(env: Any, batch: list[tuple[bytes, bytes]]) -> None:
    """Write a batch in one transaction; a map that is too small for it is doubled, and the batch written again."""
    import lmdb

    while True:
        try:
            with env.begin(write=True) as txn:
                for name, value in batch:
                    if not txn.put(name, value, append=True):
                        raise CacheError(f"LMDB refused record {name!r} as out of order")
            return
        except lmdb.MapFullError:
            env.set_mapsize(2 * env.info()["map_size"])


def _batches(records: Iterator[tuple[bytes, bytes]]) -> Iterator[list[tuple[bytes, bytes]]]:
    batch: list[tuple[bytes, bytes]] = []
    held = 0
    for record in records:
        batch.append(record)
        held += len(record[1])
        if len(batch) >= _BATCH_RECORDS or held >= _BATCH_BYTES:
            yield batch
            batch, held = [], 0
    if batch:
        yield batch


def _located(sealed: Path, under: _Under) -> Any:
    """The index rows with each payload's place in the sealed file, found by its header and checked by its checksums."""
    rows = np.array([(*row[:-1], np.frombuffer(row[-1], np.uint8)) for row in under.rows], on_disk.INDEX)
    if not len(rows):
        return rows
    with sealed.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        at = 0
        for row, sums in zip(rows, under.sums, strict=True):
            length, codec = int(row["length"]), on_disk.CODECS[row["codec"]]
            head = on_disk.header(codec, int(row["channels"]), int(row["item"]), int(row["variant"]), length)
            row["offset"] = _find(data, head, length, sums, at)
            at = int(row["offset"]) + length  # LMDB's compact copy keeps the order of the keys, but need not
    return rows


def _find(data: mmap.mmap, head: bytes, length: int, sums: Any, first: int) -> int:
    """Where the payload behind `head` lies, sought from `first` on: payloads may hold such bytes, so the checksums decide."""
    at = data.find(head, first)
    while at >= 0:
        start = at + len(head)
        with memoryview(data) as view, view[start : start + length] as payload:
            if len(payload) == length and np.array_equal(on_disk.block_sums(payload), sums):
                return start
        at = data.find(head, at + 1)
    if first > 0:
        return _find(data, head, length, sums, 0)
    raise CacheError("a record is not in the sealed file as it was written: is the disk failing?")


def _commit(blueprint: Blueprint, out: Path, number: int, names: dict[str, Path], under: _Under) -> None:
    """Move the sealed files to the names of their content, and create the commit record unless there is one."""
    digest = on_disk.file_digest(names["sealed"])
    final = out / "shards" / f"{number:05d}-{digest}.lmdb"
    first, end = blueprint.shards[number]
    record: dict[str, Any] = {
        "shard": number,
        "plan": blueprint.digest(),
        "first": first,
        "end": end,
        "file": final.name,
        "bytes": names["sealed"].stat().st_size,
        "digest": digest,
        "index_bytes": names["idx"].stat().st_size,
        "index_digest": on_disk.file_digest(names["idx"]),
        "entries": len(under.rows),
        "payload_bytes": under.payload_bytes,
        "bad": under.bad,
    }
    record["record_digest"] = on_disk.digest_of(on_disk.canonical(record))
    on_disk.write_bytes(names["json"], on_disk.canonical(record))
    os.replace(names["idx"], final.with_suffix(".idx"))
    os.replace(names["sealed"], final)
    on_disk.sync_folder(final.parent)
    try:
        os.link(names["json"], out / "commits" / f"{number:05d}.json")
    except FileExistsError:
        return  # another builder was first; the files have the same names and bytes
    on_disk.sync_folder(out / "commits")


def _finish(blueprint: Blueprint, out: Path) -> bool:
    """Write the manifest once every shard is committed."""
    commits = [out / "commits" / f"{k:05d}.json" for k in range(len(blueprint.shards))]
    if not all(c.exists() for c in commits):
        return False
    records = [on_disk.read_json(c) for c in commits]
    if strange := [r["shard"] for r in records if r["plan"] != blueprint.digest()]:
        raise CacheError(f"shards {strange} of {out} were made for another plan; remove the folder and build again")
    body = {"format": on_disk.FORMAT, "plan": blueprint.document(), "shards": records}
    on_disk.write_json(out / "manifest.json", {**body, "digest": on_disk.digest_of(on_disk.canonical(body))})
    return True
