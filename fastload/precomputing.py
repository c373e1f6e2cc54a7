"""`precompute`: the images of a data set into a cache, as its own loaders would open them."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastload.cache._items import KINDS, Blueprint, common_root, expected_bytes, fingerprint, listed, sharded
from fastload.cache.build import Progress, build
from fastload.cache.read import open_cache
from fastload.errors import CacheError, DataError
from fastload.inspecting import Use
from fastload.listing import list_files

__all__ = ["Forecast", "Outcome", "forecast", "precompute"]

_SPARE = 1.15  # of the predicted bytes that have to be free: LMDB's pages, and one shard twice while it is sealed


@dataclass(frozen=True)
class Forecast:
    """What a build would do: its plan, the root of the data, and the bytes of its records."""

    blueprint: Blueprint
    root: Path
    payload_bytes: int

    def __str__(self) -> str:
        kind, count, shards = self.blueprint.kind, len(self.blueprint.items), len(self.blueprint.shards)
        return (
            f"{count} files below {self.root}: {self.payload_bytes / 1e6:,.0f} MB of {kind} records in {shards} shard"
            f"{'s' if shards > 1 else ''}; {_EXACT[kind]}"
        )


_EXACT = {
    "source": "the files' own bytes, so training stays equal to stock's bit for bit, whatever the pipeline",
    "decoded": "Pillow's own pixels, so training stays equal to stock's bit for bit, whatever the pipeline",
}


@dataclass(frozen=True)
class Outcome:
    """What a build came to. `whole`: every shard is there; `bad`: path -> why it can't be kept."""

    path: Path
    kind: str
    whole: bool
    records: int
    shard_bytes: int
    bad: dict[str, str]

    def __str__(self) -> str:
        if not self.whole:
            return f"{self.path}: this part is done; other shards are not yet, so there is no manifest"
        bad = "".join(f"\n  not kept: {name}: {why}" for name, why in self.bad.items())
        return f"{self.path}: {self.records} {self.kind} records, {self.shard_bytes / 1e6:,.0f} MB{bad}"


def forecast(target: Any, *, keep: str = "source", root: str | os.PathLike[str] | None = None) -> Forecast:
    """What `precompute` would build of a DataLoaders or Learner; nothing is written. Raises DataError, CacheError."""
    if keep not in KINDS:
        raise CacheError(f"keep={keep!r} is not one of {', '.join(KINDS)}")
    uses: dict[str, set[Use]] = {}
    for dl in getattr(getattr(target, "dls", target), "loaders", [target]):
        for path, use in list_files(dl, "train").files:
            uses.setdefault(path, set()).add(use)
    if not uses:
        raise DataError("these loaders name no image files, so there is nothing to keep")
    modes = {use.mode for found in uses.values() for use in found}
    if keep == "decoded" and len(modes) > 1:
        raise CacheError(f"images are opened as {' and '.join(sorted(modes))}, and one cache holds one of them; keep 'source'")
    folder = common_root(list(uses)) if root is None else Path(root).resolve()
    items, mode = listed(list(uses), folder), "RGB" if keep == "source" else next(iter(modes))
    plan = Blueprint(keep, mode, fingerprint(keep), sharded(items, keep, mode, folder), items)
    return Forecast(plan, folder, sum(expected_bytes(item, keep, mode, folder) for item in items))


def precompute(
    target: Any,
    out: str | os.PathLike[str],
    *,
    keep: str = "source",
    root: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    part: tuple[int, int] = (0, 1),
    max_bad: float = 0.01,
    progress: Progress = lambda done, size, bad: None,
) -> Outcome:
    """Build a cache of the images of a DataLoaders or Learner in the folder `out`; use it as `cache=out`.

    `keep`: 'source' packs the files' own bytes, 'decoded' Pillow's pixels, uint8; with both, batches stay equal to stock's bit
    for bit. `root`: a folder above all files, below which a copy of the data is recognised. `part` (i, n): every n-th shard
    alone, from the i-th on. `max_bad`: share of the files that may be unreadable. `progress` hears files, bytes, bad files.
    Interrupted or killed, the same call goes on where it was. Raises DataError, CacheError.
    """
    planned, folder = forecast(target, keep=keep, root=root), Path(out).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    held = sum(p.stat().st_size for p in (folder / "shards").glob("*") if p.is_file())
    free, needed = shutil.disk_usage(folder).free, int(_SPARE * planned.payload_bytes) - held
    if needed > free:
        raise CacheError(f"{folder} needs {needed / 1e6:,.0f} MB more and has {free / 1e6:,.0f} MB free; free the disk first")
    whole = build(planned.blueprint, planned.root, folder, part=part, threads=threads, max_bad=max_bad, progress=progress)
    if not whole:
        return Outcome(folder, keep, False, 0, 0, {})
    kept = open_cache(folder)
    return Outcome(folder, keep, True, len(kept), sum(s.commit["bytes"] for s in kept.shards), kept.bad)
