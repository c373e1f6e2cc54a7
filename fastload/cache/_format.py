"""`fastload-cache/1` on disk: file names, the header before each record, the index beside each shard.

    cache/
      manifest.json               which parts hold the train and valid images, the newest last; written last of all
      manifest.00003.json         a copy of the third generation's manifest; earlier ones stay until `gc`
      parts/train-<digest>/       one build; the digest is of its plan
        plan.json                 what was asked for: kind, mode, fingerprint, which items go into which shard
        items.jsonl               one line per item: path below the data's root, size, times and inode as first seen
        commits/00017.json        one per finished shard: its files, sizes, digests, and what could not be kept
        shards/00017-<digest>.lmdb  records, sealed: never changed again; the digest is of the file's bytes
        shards/00017-<digest>.idx   where each record lies in it, image sizes, source digests, checksums of 64 KiB blocks
        manifest.json             a pure function of plan and commits, written last: without it the part is not finished
        tmp/                      what is under way

A record is a header and a payload. Everything is little-endian. No file holds code or pickles; numbers read from files are
checked before they are used.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fastload.errors import CacheError, MissingPackage

__all__ = [
    "BLOCK",
    "CODECS",
    "FIELDS",
    "FORMAT",
    "GET_IT",
    "INDEX",
    "RECORD",
    "alone",
    "block_sums",
    "canonical",
    "checked_json",
    "digest_of",
    "file_digest",
    "header",
    "key",
    "read_index",
    "read_json",
    "sync_folder",
    "write_bytes",
    "write_index",
    "write_json",
]

FORMAT = "fastload-cache/1"
GET_IT = "pip install 'fastai-fastload[cache]'"
BLOCK = 1 << 16  # bytes; a checksum each, so that a crop's rows can be verified alone
CODECS = ("file", "raw", "planes")  # a file's own bytes; uint8 pixels [H, W, channels]; the same as [channels, H, W]
RECORD = struct.Struct("<4sBBHQQ")  # magic, codec, channels, variant, item, payload bytes
_MAGIC, _INDEX_MAGIC = b"FLR1", b"FLI1"
_HEAD = struct.Struct("<4sIQQ")  # magic, 1, records, blocks
_DIGEST = 16
INDEX = np.dtype(
    [
        ("item", "<u8"),
        ("offset", "<u8"),  # of the payload, in the shard's file
        ("length", "<u8"),
        ("width", "<u4"),  # pixels; 0: not known without decoding
        ("height", "<u4"),
        ("codec", "u1"),
        ("channels", "u1"),
        ("variant", "<u2"),
        ("block", "<u4"),  # number of the record's first checksum
        ("source", "u1", (_DIGEST,)),  # BLAKE2b of the file that it was made from
    ]
)

FIELDS = struct.Struct("<QQQIIBBHI")  # a row of it as far as `source`


def key(item: int, variant: int = 0) -> bytes:
    """LMDB key of an item's record: keys sort as items do, then their variants."""
    return b"d" + item.to_bytes(8, "big") + variant.to_bytes(4, "big")


def header(codec: str, channels: int, item: int, variant: int, length: int) -> bytes:
    """What stands before a record's payload."""
    return RECORD.pack(_MAGIC, CODECS.index(codec), channels, variant, item, length)


def block_sums(payload: Any) -> Any:
    """XXH3 (64 bits) of each 64 KiB of a payload: uint64 [ceil(length / BLOCK)]."""
    try:
        import xxhash
    except ImportError as err:
        raise MissingPackage(f"a cache needs xxhash and lmdb: {GET_IT}") from err
    view = memoryview(payload)
    return np.array([xxhash.xxh3_64_intdigest(view[at : at + BLOCK]) for at in range(0, len(view), BLOCK)], np.uint64)


def digest_of(data: Any) -> str:
    """Hex BLAKE2b, 128 bits, of bytes."""
    return hashlib.blake2b(data, digest_size=_DIGEST).hexdigest()


def file_digest(path: Path) -> str:
    """Hex BLAKE2b, 128 bits, of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=_DIGEST)).hexdigest()


def write_index(path: Path, rows: Any, sums: Any) -> None:
    """Write an index: head, rows, checksums, and the digest of these."""
    body = _HEAD.pack(_INDEX_MAGIC, 1, len(rows), len(sums)) + rows.tobytes() + np.asarray(sums, "<u8").tobytes()
    write_bytes(path, body + bytes.fromhex(digest_of(body)))


def read_index(path: Path, shard_bytes: int) -> tuple[Any, Any]:
    """Rows and checksums of an index whose every number lies inside a shard of `shard_bytes`. Raises CacheError."""
    data = path.read_bytes()
    if len(data) < _HEAD.size + _DIGEST:
        raise CacheError(f"{path} is too short to be an index; run `fastload cache repair`")
    magic, version, count, blocks = _HEAD.unpack_from(data)
    size = _HEAD.size + count * INDEX.itemsize + 8 * blocks
    if magic != _INDEX_MAGIC or version != 1 or len(data) != size + _DIGEST:
        raise CacheError(f"{path} is no index of this version or has been cut short; run `fastload cache repair`")
    if digest_of(data[:size]) != data[size:].hex():
        raise CacheError(f"{path} is damaged: its digest does not match; run `fastload cache repair`")
    rows = np.frombuffer(data, INDEX, count, _HEAD.size)
    sums = np.frombuffer(data, "<u8", blocks, _HEAD.size + count * INDEX.itemsize)
    if not _plausible(rows, blocks, shard_bytes):
        raise CacheError(f"{path} points outside of its shard; run `fastload cache repair`")
    return rows, sums


def _plausible(rows: Any, blocks: int, shard_bytes: int) -> bool:
    ends = rows["offset"] + rows["length"]
    last = rows["block"].astype(np.uint64) + -(-rows["length"].astype(np.int64) // BLOCK).astype(np.uint64)
    raw = np.isin(rows["codec"], (CODECS.index("raw"), CODECS.index("planes")))
    pixels = rows["width"].astype(np.uint64) * rows["height"] * rows["channels"]
    return bool(
        np.all(rows["offset"] <= shard_bytes)
        and np.all(rows["length"] <= shard_bytes)
        and np.all(ends <= shard_bytes)
        and np.all(last <= blocks)
        and np.all(rows["codec"] < len(CODECS))
        and np.all(~raw | ((pixels == rows["length"]) & np.isin(rows["channels"], (1, 3))))
    )


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file through to the disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_json(path: Path, value: Any) -> None:
    """Write canonical JSON by way of a temporary file beside it: the old content or the new, never half of it."""
    beside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    write_bytes(beside, canonical(value))
    os.replace(beside, path)
    sync_folder(path.parent)


def canonical(value: Any) -> bytes:
    """JSON with sorted keys and no spaces: equal values, equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogateescape")


def sync_folder(path: Path) -> None:
    """Make renames and new names in a folder outlast a power cut."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_json(path: Path) -> Any:
    """A JSON file. Raises CacheError where it is none."""
    try:
        return json.loads(path.read_bytes().decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError) as err:
        raise CacheError(f"{path} is damaged: {err}; run `fastload cache repair`") from err


def checked_json(path: Path) -> dict[str, Any]:
    """A manifest of this format whose own digest is right. Raises CacheError."""
    found = read_json(path)
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise CacheError(f"{path} is no manifest of {FORMAT}")
    body = {k: v for k, v in found.items() if k != "digest"}
    if digest_of(canonical(body)) != found.get("digest"):
        raise CacheError(f"{path} is damaged: its digest does not match; run `fastload cache repair`")
    return found


@contextmanager
def alone(file: Path) -> Iterator[None]:
    """One process at a time on this host, where it is POSIX; the others wait. The lock ends with its process."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with file.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
