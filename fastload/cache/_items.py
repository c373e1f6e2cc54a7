"""What goes into a part of a cache: files below one root in a fixed order, what they looked like, which shard takes which."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple, dataclass, field
from pathlib import Path
from typing import Any

from fastload.cache._format import FORMAT, canonical, digest_of
from fastload.errors import CacheError
from fastload.ops import Op, to_json

__all__ = ["KINDS", "Blueprint", "Item", "common_root", "expected_bytes", "fingerprint", "listed", "seen", "sharded"]

KINDS = ("source", "decoded", "final", "master")
SHARD_BYTES = 1 << 30  # between the 0.5 and 2 GiB that copy and resume well
_OVERHEAD = 64  # bytes a record, for empty files
_ARITHMETIC = "1"  # raised whenever fastload/pixels.py or the draws would give other pixels for the same steps
MOST_VARIANTS = 1 << 16


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
    """Everything that decides the bytes of a part. `shards`: item numbers [first, end) of each.

    `splits`: whose images these are. `variants`: drawn versions of each image from `seed`; 0 where nothing is drawn.
    `loss`: what masters cost, as it was measured; see _master.Loss.
    """

    kind: str
    mode: str  # Pillow mode of decoded pixels
    fingerprint: dict[str, str]
    shards: tuple[tuple[int, int], ...]
    items: tuple[Item, ...] = field(repr=False)
    splits: tuple[str, ...] = ("train", "valid")
    variants: int = 0
    seed: int = 0
    loss: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise CacheError(f"there is no kind of cache {self.kind!r}; there are {', '.join(KINDS)}")
        if [a for a, _ in self.shards] != [0, *(b for _, b in self.shards[:-1])] or self.shards[-1][1] != len(self.items):
            raise CacheError(f"the shards {self.shards} do not take {len(self.items)} items one after the other")
        if not 0 <= self.variants <= MOST_VARIANTS or (self.variants and self.kind != "final"):
            raise CacheError(f"a {self.kind} cache can't have {self.variants} variants of an image")

    @property
    def name(self) -> str:
        """Folder of the part."""
        return f"{'all' if len(self.splits) > 1 else self.splits[0]}-{self.digest()[:16]}"

    def meaning(self) -> dict[str, Any]:
        """What two parts must have in common to hold images of one data set."""
        own = {"kind": self.kind, "mode": self.mode, "fingerprint": self.fingerprint, "splits": list(self.splits)}
        return {**own, "variants": self.variants, "seed": self.seed}

    def document(self) -> dict[str, Any]:
        """What plan.json holds."""
        own = self.meaning() | {"format": FORMAT, "shards": [list(s) for s in self.shards], "count": len(self.items)}
        own |= {"loss": self.loss}
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
        found = os.path.commonpath([os.path.dirname(plain(p)) for p in paths])
    except ValueError as err:
        raise CacheError(f"the files lie on different drives: {paths[0]} and others") from err
    return Path(found)


def plain(path: str | os.PathLike[str]) -> str:
    """An absolute path without dots; a folder part that steps back is resolved as the system would, through its links."""
    text = os.fspath(path)
    if ".." not in Path(text).parts:
        return os.path.abspath(text)
    return os.path.join(os.path.realpath(os.path.dirname(text)), os.path.basename(text))


def below(path: str | os.PathLike[str], root: Path) -> str:
    """The path below `root`, with forward slashes."""
    return Path(os.path.relpath(plain(path), root)).as_posix()


def listed(paths: Iterable[str], root: Path) -> tuple[Item, ...]:
    """The files, each once, sorted by their path below `root`, whatever order they come in."""
    full = {below(p, root): p for p in paths}
    outside = next((p for p in full if p.startswith("../")), None)
    if outside is not None:
        raise CacheError(f"{full[outside]} lies outside of the data's folder {root}; name a folder above both")
    return tuple(_seen_or_gone(path, full[path]) for path in sorted(full))


def _seen_or_gone(path: str, full: str) -> Item:
    """An item as it is now; one that can't be looked at (a broken link) is found to be bad when it is read."""
    try:
        return seen(path, full)
    except OSError:
        return Item(path, 0, 0, 0, 0)


def sharded(sizes: Sequence[int], most: int = SHARD_BYTES) -> tuple[tuple[int, int], ...]:
    """Item numbers [first, end) of each shard: as many as come to `most` bytes by the items' `sizes`, at least one.

    >>> sharded([5, 5, 5, 20, 1], 10)
    ((0, 2), (2, 3), (3, 4), (4, 5))
    """
    shards, first, held = [], 0, 0
    for number, size in enumerate(sizes):
        if held + size > most and number > first:
            shards.append((first, number))
            first, held = number, 0
        held += size
    return (*shards, (first, len(sizes)))


def expected_bytes(item: Item, kind: str, mode: str, root: Path, final: int = 0, side: int = 0) -> int:
    """Payload bytes of an item: of pixels by the image's header, 0 where that can't be read; `final` where it is given.

    `side`: the largest short side that is kept, in pixels; 0 keeps all.
    """
    if kind == "source":
        return item.size + _OVERHEAD
    if final:
        return final + _OVERHEAD
    from PIL import Image

    try:
        with Image.open(root / item.path) as image:  # its header alone
            scale = min(1.0, side / min(image.size)) if side else 1.0
            return int(image.width * image.height * scale**2 * len(mode) + _OVERHEAD)
    except Exception:  # noqa: BLE001  Pillow raises anything; the build says what is wrong with it
        return _OVERHEAD


def fingerprint(kind: str, ops: Sequence[Op] = (), functions: Sequence[tuple[str, str]] = (), side: int = 0) -> dict[str, str]:
    """What besides the files decides the bytes of a kind: what decodes them, the steps in full, custom functions' digests.

    `side`: of masters, in pixels.
    """
    if kind == "source":
        return {}
    import PIL
    from PIL import ImageFile, features

    codecs = {f"decoder {name}": str(features.version(name)) for name in ("jpg", "zlib", "webp", "libtiff", "avif", "jpg_2000")}
    cut = "loaded as far as they go" if ImageFile.LOAD_TRUNCATED_IMAGES else "an error"
    found = {"pillow": PIL.__version__, "truncated images": cut, **codecs}
    if kind != "decoded":
        found |= {"arithmetic": _ARITHMETIC}
        found |= {f"step {k}": canonical(to_json(op)).decode() for k, op in enumerate(ops)}
        found |= {f"function {name}": digest for name, digest in functions}
    if kind == "master":
        found |= {"short side": str(side)}
    return found


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
