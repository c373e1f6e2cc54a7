"""`precompute`: the images of a data set into a cache, as its own loaders would open them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastload.cache._part import read_manifest
from fastload.cache.build import How, Progress, build_part
from fastload.cache.generations import publish, read_generation
from fastload.cache.read import open_cache
from fastload.errors import CacheError
from fastload.forecasting import Forecast, forecast

__all__ = ["Outcome", "precompute"]

_SPARE = 1.15  # of the predicted bytes that have to be free: LMDB's pages, and one shard twice while it is sealed


@dataclass(frozen=True)
class Outcome:
    """What a build came to. `whole`: every shard is there; `bad`: path -> why it can't be kept; `built`: files read now."""

    path: Path
    kind: str
    whole: bool
    records: int
    shard_bytes: int
    bad: dict[str, str]
    generation: int = 0
    built: int = 0

    def __str__(self) -> str:
        if not self.whole:
            return f"{self.path}: this share is done; other shards are not yet, so there is no manifest"
        bad = "".join(f"\n  not kept: {name}: {why}" for name, why in self.bad.items())
        return (
            f"{self.path}: {self.records} {self.kind} records, {self.shard_bytes / 1e6:,.0f} MB, generation {self.generation}, "
            f"{self.built} files read now{bad}"
        )


def precompute(  # the keywords are the command's options
    target: Any,
    out: str | os.PathLike[str],
    *,
    keep: str = "source",
    root: str | os.PathLike[str] | None = None,
    variants: int = 0,
    seed: int = 0,
    freeze_augmentation: bool = False,
    deterministic: Sequence[Any] = (),
    threads: int | None = None,
    share: tuple[int, int] = (0, 1),
    max_bad: float = 0.01,
    progress: Progress = lambda done, size, bad: None,
    planned: Forecast | None = None,
) -> Outcome:
    """Build a cache of the images of a DataLoaders or Learner in the folder `out`; use it as `cache=out`.

    `keep`: 'source' packs the files' own bytes, 'decoded' Pillow's pixels, 'final' what the item transforms make of them, all
    uint8; 'master' pixels shrunk to what the crops need, an approximation whose error is measured and printed; or another kind
    for each split: 'train=decoded,valid=final'. But for masters batches stay equal to stock's bit for bit, unless `variants`
    says how many drawn versions of each training image to keep (from `seed`; mirrors stay drawn in training).
    `deterministic`: functions and transforms of your own that always make the same of the same image.
    `root`: a folder above all files, below which a copy of the data is recognised. `share` (i, n): every n-th shard alone, from
    the i-th on. `max_bad`: share of the files that may be unreadable. `progress` hears files, bytes, bad files.
    Interrupted or killed, the same call goes on where it was. On a finished cache it adds what is new or changed as a new
    generation. Raises DataError, CacheError.
    """
    how = How(share, threads, max_bad)
    options: dict[str, Any] = {"variants": variants, "seed": seed, "freeze_augmentation": freeze_augmentation}
    plan = planned or forecast(target, keep=keep, root=root, out=out, deterministic=deterministic, **options)
    folder = Path(out).resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise CacheError(f"out={os.fspath(out)!r} can't be a cache's folder: {err}; choose another") from err
    _make_room(plan, folder)
    done, whole = 0, True
    for part in plan.parts:
        how = How(share, threads, max_bad, _further(progress, done), part.function, part.already + len(part.blueprint.items))
        whole &= build_part(part.blueprint, plan.root, folder / "parts" / part.blueprint.name, how)
        done += len(part.blueprint.items)
    if not whole:
        return Outcome(folder, keep, False, 0, 0, {}, built=done)
    names = [p.blueprint.name for p in plan.parts]
    made = [(name, str(read_manifest(folder / "parts" / name)["digest"])) for name in names]
    if made or dict(read_generation(folder).gone) != {split: paths for split, paths in plan.gone.items() if paths}:
        publish(folder, made, plan.gone, since=plan.generation)
    return _outcome(folder, keep, done)


def _further(progress: Progress, before: int) -> Callable[[int, int, int], None]:
    return lambda done, size, bad: progress(before + done, size, bad)


def _make_room(plan: Forecast, folder: Path) -> None:
    held = sum(
        p.stat().st_size for part in plan.parts for p in (folder / "parts" / part.blueprint.name).rglob("*") if p.is_file()
    )
    free, needed = shutil.disk_usage(folder).free, int(_SPARE * plan.payload_bytes) - held
    if needed > free:
        raise CacheError(f"{folder} needs {needed / 1e6:,.0f} MB more and has {free / 1e6:,.0f} MB free; free the disk first")


def _outcome(folder: Path, keep: str, built: int) -> Outcome:
    kept = open_cache(folder)
    held = {id(part): part for split in kept.splits for part in kept.held(split).parts}
    bad = {name: why for split in kept.splits for name, why in kept.held(split).bad.items()}
    size = sum(s.commit["bytes"] for part in held.values() for s in part.shards)
    records = sum(len(s.rows) for part in held.values() for s in part.shards)
    return Outcome(folder, keep, True, records, size, bad, kept.generation.number, built)
