"""Reads a whole cache and names what is damaged: shard, and where it can be told, image."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastload.cache import _format as on_disk
from fastload.cache._items import Item, load_items
from fastload.cache._part import Shard, read_manifest
from fastload.cache.generations import numbered, read_generation
from fastload.errors import CacheError

__all__ = ["verify"]


def verify(path: Path, progress: Callable[[int, int], None] = lambda done, total: None) -> list[str]:
    """One line for each damaged shard or record, none where every byte is as it was sealed. `progress`: shards done, of all.

    Raises CacheError where the cache's manifest can't be read: nothing can be compared without it.
    """
    generation = read_generation(path)
    found: list[str] = []
    work: list[tuple[Path, dict[str, Any], tuple[Item, ...]]] = []
    for name, digest in generation.parts:
        folder = path / "parts" / name
        try:
            manifest = read_manifest(folder)
            if manifest["digest"] != digest:
                raise CacheError(f"{folder} is not the part that {path / 'manifest.json'} names; run `fastload cache repair`")
            items = _items(folder, manifest)
        except (CacheError, OSError) as err:
            found.append(str(err))
            continue
        found += _builders_files(folder, manifest)
        work += [(folder / "shards", commit, items) for commit in manifest["shards"]]
    copy = path / numbered(generation.number)
    if not copy.exists() or copy.read_bytes() != (path / "manifest.json").read_bytes():
        found.append(f"{copy} is not the copy of manifest.json that it was; run `fastload cache repair`")
    for done, (folder, commit, items) in enumerate(work, 1):
        found += _shard(folder, commit, items)
        progress(done, len(work))
    return found


def _builders_files(folder: Path, manifest: dict[str, Any]) -> list[str]:
    """What is wrong with the plan and the commit records, which readers do without."""
    expected = {folder / "plan.json": manifest["plan"]}
    expected |= {folder / "commits" / f"{c['shard']:05d}.json": c for c in manifest["shards"]}
    return [
        f"{file} is missing or damaged; run `fastload cache repair`" for file, value in expected.items() if not _is(file, value)
    ]


def _is(file: Path, value: dict[str, Any]) -> bool:
    return file.exists() and file.read_bytes() == on_disk.canonical(value)


def _items(folder: Path, manifest: dict[str, Any]) -> tuple[Item, ...]:
    file = folder / "items.jsonl"
    lines = file.read_bytes() if file.exists() else b""
    if on_disk.digest_of(lines) != manifest["plan"]["items"]:
        raise CacheError(f"{file} is missing or damaged; run `fastload cache repair`")
    return load_items(lines)


def _shard(folder: Path, commit: dict[str, Any], items: tuple[Item, ...]) -> list[str]:
    try:
        shard = Shard(folder, commit)
    except CacheError as err:
        return [str(err)]
    damaged: list[str] = []
    for row, number in enumerate(shard.rows["item"].tolist()):
        try:
            shard.contents(row, "always")
        except CacheError:
            name = items[number].path if number < len(items) else f"item {number}"
            if not damaged or not damaged[-1].endswith(f": {name} is damaged"):
                damaged.append(f"{shard.path}: {name} is damaged")
    if not damaged and on_disk.file_digest(shard.path) != commit["digest"]:
        damaged.append(f"{shard.path}: bytes between its records have changed; the records are whole")
    return damaged
