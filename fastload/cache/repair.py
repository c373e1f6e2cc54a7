"""Builds the damaged shards of a cache anew from the data; what is whole stays as it is."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastload.cache import _format as on_disk
from fastload.cache._items import Blueprint, fingerprint, load_items
from fastload.cache._make import kept_ops
from fastload.cache._part import Shard, blueprint_of, read_manifest
from fastload.cache.build import How, build_part
from fastload.cache.generations import restored
from fastload.errors import CacheError

__all__ = ["repair"]


def repair(path: Path, root: Path, how: How | None = None, said: Callable[[str], None] = lambda line: None) -> list[str]:
    """Names of the shards ("part/number") that were built anew from the files below `root`; then the cache is whole again.

    A shard's new bytes are those that it had: the files must be the ones that were kept. `said` hears what is damaged. Raises
    CacheError where a plan or a list of items is damaged beyond repair, the decoder is another, or a file has changed.
    """
    rebuilt = []
    for name, digest in restored(path).parts:
        folder = path / "parts" / name
        rebuilt += [f"{name}/{number}" for number in _repair_part(folder, root, how or How(), said)]
        if read_manifest(folder)["digest"] != digest:
            raise CacheError(
                f"{folder} came out otherwise than {path / 'manifest.json'} says; build the cache anew in another folder"
            )
    return rebuilt


def _repair_part(path: Path, root: Path, how: How, said: Callable[[str], None]) -> list[int]:
    blueprint = _blueprint(path)
    ops = kept_ops(blueprint)
    names = tuple((k.removeprefix("function "), v) for k, v in blueprint.fingerprint.items() if k.startswith("function "))
    now = fingerprint(blueprint.kind, ops, names, int(blueprint.fingerprint.get("short side", 0)))
    broken = []
    for number in range(len(blueprint.shards)):
        if (why := _fault(path, number, blueprint.digest())) is not None:
            said(why)
            broken.append(number)
    if broken and now != blueprint.fingerprint:
        raise CacheError(f"{path} was made with {blueprint.fingerprint}, and here is {now}; build it anew in another folder")
    if broken and names:
        raise CacheError(
            f"the pixels of {path} are made by functions of a script: run `fastload precompute` on that in a new folder"
        )
    before = {c["shard"]: _digests(c) for c in _known(path).get("shards", ())}
    with ExitStack() as undo:
        for number in broken:
            _set_aside(path / "commits" / f"{number:05d}.json", undo)
        build_part(blueprint, root, path, replace(how, max_bad=1.0, moved=True))
        _compared(path, before, broken)
        undo.pop_all()
    for aside in (path / "commits").glob("*.aside"):
        aside.unlink()
    return broken


def _set_aside(commit: Path, undo: ExitStack) -> None:
    """Let a shard be built although it was committed; where that fails its record comes back, and what it still has is read."""
    aside = commit.with_suffix(".aside")

    def back() -> None:
        if aside.exists():
            os.replace(aside, commit)
        else:
            commit.unlink(missing_ok=True)

    if commit.exists():
        os.replace(commit, aside)
    undo.callback(back)


def _known(path: Path) -> dict[str, Any]:
    """The part's manifest; empty where it is damaged."""
    try:
        return read_manifest(path)
    except (CacheError, OSError):
        return {}


def _digests(commit: dict[str, Any]) -> tuple[str, str]:
    return commit["digest"], commit["index_digest"]


def _compared(path: Path, before: dict[int, tuple[str, str]], broken: list[int]) -> None:
    """Raise CacheError unless the shards that were built are, byte for byte, those that the part's manifest named before."""
    for number in broken:
        found = _digests(on_disk.read_json(path / "commits" / f"{number:05d}.json"))
        if before.get(number, found) != found:
            raise CacheError(f"shard {number} of {path} came out otherwise: files below the root are not those that were kept")


def _blueprint(path: Path) -> Blueprint:
    """What the part was to be, from its plan and its list of items. Raises CacheError."""
    plan, items = path / "plan.json", path / "items.jsonl"
    if (known := _known(path)) and (not plan.exists() or plan.read_bytes() != on_disk.canonical(known["plan"])):
        on_disk.write_json(plan, known["plan"])
    try:
        given, lines = on_disk.read_json(plan), items.read_bytes()
        found = blueprint_of({"plan": given}, load_items(lines))
    except (OSError, KeyError, TypeError, ValueError) as err:
        raise CacheError(
            f"{plan} or {items.name} is missing or damaged ({err}); build the cache anew in another folder"
        ) from err
    if found.document() != given or path.name != found.name:
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
        return f"shard {number} of {path.name} is missing"
    except (CacheError, OSError, KeyError, TypeError) as err:
        return f"shard {number} of {path.name}: {err}"
    return None
