"""What a loader reads from: the cache that it was given, after whatever is to be done where that is stale."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastload.cache._items import Blueprint, below, expected_bytes, fingerprint, listed, plain, sharded
from fastload.cache._make import Function
from fastload.cache._master import short_side
from fastload.cache._part import read_manifest
from fastload.cache.build import How, build_part
from fastload.cache.comparing import each
from fastload.cache.generations import new_items, publish, read_generation
from fastload.cache.read import Cached, CacheSource, Held, open_cache
from fastload.cache.staging import staged
from fastload.errors import CacheError, StaleCache
from fastload.plan import Plan

__all__ = ["Wanted", "as_cached", "attach"]

_SHOWN = 3  # differences named in an error


@dataclass(frozen=True)
class Wanted:
    """What a loader needs of a cache: images of a split, after `plan`; `paths`: all its files, called only if needed.

    `functions`: name and digest of each function of the user's among the steps; `function` makes pixels with them.
    `compared`: its files were compared with the cache a moment ago.
    """

    split: str
    plan: Plan
    first: str
    paths: Callable[[], Sequence[str]]
    functions: tuple[tuple[str, str], ...] = ()
    function: Function | None = None
    compared: bool = False


def as_cached(given: Any) -> Cached:
    """A path, or what `cached` gave."""
    return given if isinstance(given, Cached) else Cached(os.path.abspath(given))


def attach(options: Cached, wanted: Wanted, say: Callable[[str], None]) -> tuple[Plan, list[CacheSource]]:
    """The steps left to do, and a source for each image of an item. Raises StaleCache, CacheError.

    Where it is stale and that is to be healed, new parts are built first; `say` hears of that, and of a cache used as it is.
    """
    held = _open(options, wanted.split)
    root = held.root_of(wanted.first) if options.stale != "rebuild" else _root(held, wanted)
    if words := _stale(held, root, wanted, options.stale == "rebuild", say):
        text = _told(held, words)
        if options.stale == "error":
            raise StaleCache(f"{text}. Run `fastload precompute` again (changed files), or build it anew in another folder")
        if options.stale == "use":
            say(f"{text}; it is used as it is, as asked")
        else:
            say(f"{text}; what differs is built anew")
            rebuild(Path(options.path).resolve(), held, root, wanted)
            held = _open(options, wanted.split)
            if words := _stale(held, root, wanted, True, say):
                raise StaleCache(f"{_told(held, words)}, also after it was built anew; build it in another folder")
    if held.loss is not None:
        say(f"cache={options.path!r} holds masters, an approximation: {held.loss}")
    return held.applied(wanted.plan), [CacheSource(held, root, options.check) for _ in wanted.plan.elements]


def _told(held: Held, words: Sequence[str]) -> str:
    more = f" and {len(words) - _SHOWN} more" if len(words) > _SHOWN else ""
    return f"{held.path} is stale: {'; '.join(words[:_SHOWN])}{more}"


def _open(options: Cached, split: str) -> Held:
    path = Path(options.path)
    return open_cache(path if options.stage is None else staged(path, Path(options.stage))).held(split)


def _root(held: Held, wanted: Wanted) -> Path:
    """The data's root by the first file that is in the cache; a new file may come before it."""
    for path in (wanted.first, *wanted.paths()):
        try:
            return held.root_of(path)
        except StaleCache:
            continue
    return held.root_of(wanted.first)


def _stale(held: Held, root: Path, wanted: Wanted, new_too: bool, say: Callable[[str], None]) -> list[str]:
    """What no longer is as it was kept, in words: what decides its bytes, and each file of the loader."""
    words = held.differing(wanted.plan, wanted.functions)
    if wanted.compared:
        return words
    words += _differing_files(held, root, wanted.paths(), new_too)
    if (hashed := held.newly_hashed()) > _SHOWN:
        seem = f"{hashed} files below {root} look other than when {held.path} was made (copied or moved?)"
        say(f"{seem}: their bytes were compared")
    return words


def _differing_files(held: Held, root: Path, paths: Sequence[str], new_too: bool) -> list[str]:
    """Each file that has other bytes than when it was kept, and with `new_too` those that are not held, in words."""
    prefix = str(root).rstrip("/") + "/"

    def look(path: str) -> str | None:
        usual = path.startswith(prefix) and "/." not in path and "//" not in path
        name = path[len(prefix) :] if usual else below(path, root)
        if held.changed(name, root):
            return f"{path} has other bytes than when it was kept"
        return f"{path} is new" if new_too and name not in held.where and name not in held.bad else None

    return [word for word in each(look, list(dict.fromkeys(paths))) if word is not None]


def rebuild(path: Path, held: Held, root: Path, wanted: Wanted) -> None:
    """Build what differs as new parts of the cache at `path`, and make them its newest generation."""
    mode = held.mode if held.kind == "source" else wanted.plan.elements[0].mode
    ops = wanted.plan.kept(held.variants > 0)[0] if held.kind == "final" else ()
    if held.kind == "final" and not held.variants and any(Plan(wanted.plan.elements, (op,)).draws for op in ops):
        raise StaleCache(f"{path} can't be built anew: the steps are random now, and it keeps one outcome of each image")
    side = int(held.fingerprint.get("short side", 0))
    if side and (needed := short_side(wanted.plan)) > side:
        raise StaleCache(f"{path} holds masters of {side} pixels and the loader's crops need {needed}; build it anew")
    now = fingerprint(held.kind, ops, wanted.functions, side)
    every = {*map(plain, wanted.paths()), *(str(root / p) for p in held.where)}
    items = listed([p for p in every if os.path.exists(p)], root)
    same = now == held.fingerprint and mode == held.mode
    fresh = new_items(list(held.parts), items, root) if same else items
    generation = read_generation(path)
    here = {item.path for item in items}
    gone = {split: tuple(p for p in paths if p not in here) for split, paths in generation.gone.items()}
    if not fresh:
        publish(path, [], gone, since=generation.number)
        return
    final = Plan(wanted.plan.elements, ops).size if ops else None
    size = 0 if final is None else final[0] * final[1] * len(mode) * max(1, held.variants)
    sizes = [expected_bytes(item, held.kind, mode, root, size, side) for item in fresh]
    before = held.parts[-1].manifest["plan"]
    how = {"splits": tuple(before["splits"]), "variants": held.variants, "seed": before["seed"], "loss": before["loss"]}
    blueprint = Blueprint(held.kind, mode, now, sharded(sizes), fresh, **how)
    folder = path / "parts" / blueprint.name
    if not build_part(blueprint, root, folder, How(max_bad=1.0, function=wanted.function)):
        raise CacheError(f"{folder} is being built by others; run this again when they are done")
    replaced = () if same else tuple(p.path.name for p in held.parts)
    made = [(blueprint.name, str(read_manifest(folder)["digest"]))]
    publish(path, made, gone, replaced, since=generation.number)
