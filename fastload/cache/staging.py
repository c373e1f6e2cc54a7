"""A cache copied to a local disk: whole or not at all, every digest compared, once per host however many processes ask."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from fastload.cache import _format as on_disk
from fastload.cache._part import read_manifest
from fastload.cache.generations import Generation, numbered, read_generation
from fastload.errors import CacheError

__all__ = ["staged"]

_CHUNK = 8 << 20


def staged(path: Path, stage: Path) -> Path:
    """The folder of a copy of the cache at `path` below `stage`; copied unless this generation is there already.

    Raises CacheError where there is no room, or what arrives is not what the manifests say.
    """
    generation = read_generation(path)
    target = stage.resolve() / generation.digest[:16]
    if (target / "manifest.json").exists():
        return target
    try:
        stage.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise CacheError(f"stage={str(stage)!r} can't be a folder of copies: {err}; choose another") from err
    with on_disk.alone(stage / f"{target.name}.lock"):
        if not (target / "manifest.json").exists():
            _copy(path, generation, target)
    return target


def _copy(path: Path, generation: Generation, target: Path) -> None:
    files = _files(path, generation)
    needed, free = sum(size for _, size, _ in files), shutil.disk_usage(target.parent).free
    if needed > free:
        raise CacheError(f"staging {path} in {target.parent} needs {needed / 1e6:,.0f} MB and {free / 1e6:,.0f} MB are free")
    beside = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        for name, size, digest in files:
            (beside / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path / name, beside / name)
            if (beside / name).stat().st_size != size or (digest and on_disk.file_digest(beside / name) != digest):
                raise CacheError(
                    f"{path / name} is damaged, or changed while it was copied; run `fastload cache verify {path}`"
                )
        os.rename(beside, target)
    except OSError as err:
        raise CacheError(f"staging {path} in {target.parent} failed: {err}") from err
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _files(path: Path, generation: Generation) -> list[tuple[str, int, str]]:
    """Name, size and digest of every file that a reader needs, manifest.json last; manifests carry digests of their own."""
    found = []
    for name, _ in generation.parts:
        folder = Path("parts") / name
        manifest = read_manifest(path / folder)
        for commit in manifest["shards"]:
            shard = folder / "shards" / commit["file"]
            found.append((str(shard), commit["bytes"], commit["digest"]))
            found.append((str(shard.with_suffix(".idx")), commit["index_bytes"], commit["index_digest"]))
            record = folder / "commits" / f"{commit['shard']:05d}.json"
            found.append((str(record), (path / record).stat().st_size, ""))
        items = folder / "items.jsonl"
        found.append((str(items), (path / items).stat().st_size, manifest["plan"]["items"]))
        found += [(str(folder / n), (path / folder / n).stat().st_size, "") for n in ("plan.json", "manifest.json")]
    return [*found, *((n, (path / n).stat().st_size, "") for n in (numbered(generation.number), "manifest.json"))]
