"""Builds the damaged shards of a cache anew from the data; what is whole stays as it is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastload.cache import _format as on_disk
from fastload.cache._items import Blueprint, fingerprint, load_items
from fastload.cache.build import Progress, build
from fastload.cache.read import Shard
from fastload.errors import CacheError

__all__ = ["repair"]


def repair(
    path: Path,
    root: Path,
    threads: int | None = None,
    progress: Progress = lambda done, size, bad: None,
    said: Callable[[str], None] = lambda line: None,
) -> list[int]:
    """Numbers of the shards of the cache at `path` that were built anew from the files below `root`; then it is whole again.

    A shard's new bytes are those that it had: the files must be the ones that were kept. `said` hears what is damaged. Raises
    CacheError where the plan or the list of items is damaged, the decoder is another, or a file has changed.
    """
    blueprint = _blueprint(path)
    now = fingerprint(blueprint.kind)
    if now != blueprint.fingerprint:
        raise CacheError(f"{path} was made with {blueprint.fingerprint}, and here is {now}; build it anew in another folder")
    broken = []
    for number in range(len(blueprint.shards)):
        if (why := _fault(path, number, blueprint.digest())) is not None:
            said(why)
            broken.append(number)
    for number in broken:
        (path / "commits" / f"{number:05d}.json").unlink(missing_ok=True)
        for left in (path / "shards").glob(f"{number:05d}-*"):
            left.unlink()
    build(blueprint, root, path, threads=threads, max_bad=1.0, progress=progress)
    return broken


def _blueprint(path: Path) -> Blueprint:
    """What the cache was to be, from its plan and its list of items. Raises CacheError."""
    plan, items = path / "plan.json", path / "items.jsonl"
    try:
        given, lines = on_disk.read_json(plan), items.read_bytes()
        shards = tuple((int(a), int(b)) for a, b in given["shards"])
        found = Blueprint(given["kind"], given["mode"], given["fingerprint"], shards, load_items(lines))
    except (OSError, KeyError, TypeError, ValueError) as err:
        raise CacheError(
            f"{plan} or {items.name} is missing or damaged ({err}); build the cache anew in another folder"
        ) from err
    if found.document() != given:
        raise CacheError(f"{plan} and {items.name} do not belong together; build the cache anew in another folder")
    return found


def _fault(path: Path, number: int, plan: str) -> str | None:
    """What is wrong with a shard, or None."""
    file = path / "commits" / f"{number:05d}.json"
    try:
        commit: dict[str, Any] = on_disk.read_json(file)
        if commit.pop("record_digest") != on_disk.digest_of(on_disk.canonical(commit)):
            return f"{file} is damaged: its digest does not match"
        if commit["plan"] != plan or commit["shard"] != number or os.path.basename(commit["file"]) != commit["file"]:
            return f"{file} is not of this cache"
        shard = Shard(path / "shards", commit)
        if on_disk.file_digest(shard.path) != commit["digest"]:
            return f"{shard.path} is damaged"
    except FileNotFoundError:
        return f"shard {number} is missing"
    except (CacheError, OSError, KeyError, TypeError) as err:
        return f"shard {number}: {err}"
    return None
