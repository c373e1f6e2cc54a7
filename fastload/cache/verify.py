"""Reads a whole cache and names what is damaged: shard, and where it can be told, image."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastload.cache import _format as on_disk
from fastload.cache._items import Item, load_items
from fastload.cache.read import Shard, read_manifest
from fastload.errors import CacheError

__all__ = ["verify"]


def verify(path: Path, progress: Callable[[int, int], None] = lambda done, total: None) -> list[str]:
    """One line for each damaged shard or record, none where every byte is as it was sealed. `progress`: shards done, of all.

    Raises CacheError where the manifest or the list of items can't be read: nothing can be compared without them.
    """
    manifest = read_manifest(path)
    lines = (path / "items.jsonl").read_bytes() if (path / "items.jsonl").exists() else b""
    if on_disk.digest_of(lines) != manifest["plan"]["items"]:
        raise CacheError(f"{path / 'items.jsonl'} is missing or damaged; build the cache anew in another folder")
    items, found = load_items(lines), []
    for done, commit in enumerate(manifest["shards"], 1):
        found += _shard(path / "shards", commit, items)
        progress(done, len(manifest["shards"]))
    return found


def _shard(folder: Path, commit: dict[str, Any], items: tuple[Item, ...]) -> list[str]:
    try:
        shard = Shard(folder, commit)
    except CacheError as err:
        return [str(err)]
    damaged = []
    for row, number in enumerate(shard.rows["item"].tolist()):
        try:
            shard.payload(row, "always")
        except CacheError:
            name = items[number].path if number < len(items) else f"item {number}"
            damaged.append(f"{shard.path}: {name} is damaged")
    if not damaged and on_disk.file_digest(shard.path) != commit["digest"]:
        damaged.append(f"{shard.path}: bytes between its records have changed; the records are whole")
    return damaged
