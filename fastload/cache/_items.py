"""What goes into a cache: files below one root in a fixed order, what they looked like, and which shard takes which."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

from fastload.cache._format import FORMAT, canonical, digest_of
from fastload.errors import CacheError
from fastload.source import Files, Ref, open_lazily

__all__ = ["KINDS", "Blueprint", "Item", "common_root", "listed", "seen", "sharded"]

KINDS = ("source", "decoded")
SHARD_BYTES = 1 << 30  # between the 0.5 and 2 GiB that copy and resume well
_OVERHEAD = 64  # bytes a record, for empty files


@dataclass(frozen=True)
class Item:
    """One file: its path below the root with forward slashes, and what `os.stat` said of it."""

    path: str
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int


@dataclass(frozen=True)
class Blueprint:
    """Everything that decides a cache's bytes. `shards`: item numbers [first, end) of each."""

    kind: str
    mode: str  # Pillow mode of decoded pixels
    fingerprint: dict[str, str]
    shards: tuple[tuple[int, int], ...]
    items: tuple[Item, ...]

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise CacheError(f"there is no kind of cache {self.kind!r}; there are {', '.join(KINDS)}")
        if [a for a, _ in self.shards] != [0, *(b for _, b in self.shards[:-1])] or self.shards[-1][1] != len(self.items):
            raise CacheError(f"the shards {self.shards} do not take {len(self.items)} items one after the other")

    def document(self) -> dict[str, Any]:
        """What plan.json holds."""
        own = asdict(self) | {"format": FORMAT, "shards": [list(s) for s in self.shards], "count": len(self.items)}
        return {**own, "items": digest_of(self.lines())}

    def lines(self) -> bytes:
        """What items.jsonl holds."""
        return b"".join(canonical(asdict(item)) + b"\n" for item in self.items)

    def digest(self) -> str:
        """Of everything in it."""
        return digest_of(canonical(self.document()))


def seen(path: str, full: os.PathLike[str] | str) -> Item:
    """An item as it is now. Raises what `os.stat` raises."""
    found = os.stat(full)
    return Item(path, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)


def common_root(paths: Sequence[str]) -> Path:
    """The folder that holds all of them. Raises CacheError where there is none."""
    if not paths:
        raise CacheError("there are no files to keep: the data set is empty")
    try:
        found = os.path.commonpath([os.path.dirname(os.path.abspath(p)) for p in paths])
    except ValueError as err:
        raise CacheError(f"the files lie on different drives: {paths[0]} and others") from err
    return Path(found)


def listed(paths: Sequence[str], root: Path) -> tuple[Item, ...]:
    """The files, each once, sorted by their path below `root`, whatever order they come in."""
    full = {Path(os.path.relpath(os.path.abspath(p), root)).as_posix(): p for p in paths}
    outside = next((p for p in full if p.startswith("../")), None)
    if outside is not None:
        raise CacheError(f"{full[outside]} lies outside of the data's folder {root}; name a folder above both")
    return tuple(seen(path, full[path]) for path in sorted(full))


def sharded(items: Sequence[Item], kind: str, mode: str, root: Path, most: int = SHARD_BYTES) -> tuple[tuple[int, int], ...]:
    """Item numbers [first, end) of each shard: as many as come to `most` bytes, at least one."""
    shards, first, held = [], 0, 0
    for number, item in enumerate(items):
        size = expected_bytes(item, kind, mode, root)
        if held + size > most and number > first:
            shards.append((first, number))
            first, held = number, 0
        held += size
    return (*shards, (first, len(items)))


def expected_bytes(item: Item, kind: str, mode: str, root: Path) -> int:
    """Payload bytes of an item: of pixels by the image's header, 0 where that can't be read."""
    if kind == "source":
        return item.size + _OVERHEAD
    try:
        image = open_lazily(Files().read(Ref(0, str(root / item.path))))
    except Exception:  # noqa: BLE001  Pillow raises anything; the build says what is wrong with it
        return _OVERHEAD
    return int(image.width * image.height * len(mode) + _OVERHEAD)


def fingerprint(kind: str) -> dict[str, str]:
    """What besides the files decides the bytes of a kind: for pixels, whatever decodes them."""
    if kind == "source":
        return {}
    import PIL
    from PIL import features

    codecs = {f"decoder {name}": str(features.version(name)) for name in ("jpg", "zlib", "webp", "libtiff", "avif", "jpg_2000")}
    return {"pillow": PIL.__version__, **codecs}


def load_items(data: bytes) -> tuple[Item, ...]:
    """The items of an items.jsonl, every field checked. Raises CacheError."""
    return tuple(_item(line) for line in data.splitlines())


def _item(line: bytes) -> Item:
    try:
        given = json.loads(line.decode("utf-8", "surrogateescape"))
        item = Item(**given)
    except (ValueError, TypeError) as err:
        raise CacheError(f"items.jsonl holds a line that is no item: {line[:80]!r}") from err
    path, *numbers = astuple(item)
    if not isinstance(path, str) or not all(isinstance(n, int) for n in numbers) or ".." in path.split("/") or path[:1] == "/":
        raise CacheError(f"items.jsonl holds a line that is no item: {line[:80]!r}")
    return item


def source_digest(data: bytes) -> bytes:
    """BLAKE2b of a file's bytes, as the index keeps it."""
    return hashlib.blake2b(data, digest_size=16).digest()
