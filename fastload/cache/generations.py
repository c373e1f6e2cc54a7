"""The manifest of a whole cache: which parts hold its images, newest last; earlier generations stay until they are collected.

A generation is made by building parts beside the others, then putting a new manifest in the old one's place. Nothing that a
reader of an earlier generation has open is changed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastload.cache import _format as on_disk
from fastload.cache._items import Item, source_digest
from fastload.cache._part import Part
from fastload.errors import CacheError

__all__ = ["Generation", "collect", "new_items", "opened_parts", "publish", "read_generation", "restored"]


@dataclass(frozen=True)
class Generation:
    """What manifest.json says. `parts`: folder names, digests of their manifests; `gone`: per split, paths no longer there."""

    number: int
    parts: tuple[tuple[str, str], ...]
    gone: dict[str, tuple[str, ...]]
    digest: str = ""

    def document(self) -> dict[str, Any]:
        """The manifest without its digest."""
        parts = [{"folder": name, "manifest": digest} for name, digest in self.parts]
        gone = {split: list(paths) for split, paths in sorted(self.gone.items()) if paths}
        return {"format": on_disk.FORMAT, "generation": self.number, "parts": parts, "gone": gone}


def read_generation(path: Path, name: str = "manifest.json") -> Generation:
    """The newest generation of the cache in a folder. Raises CacheError."""
    file = path / name
    if not file.exists():
        raise CacheError(f"{path} holds no finished cache (there is no manifest.json); run `fastload precompute` to its end")
    found = on_disk.checked_json(file)
    try:
        parts = tuple((str(p["folder"]), str(p["manifest"])) for p in found["parts"])
        gone = {str(split): tuple(map(str, paths)) for split, paths in found["gone"].items()}
        number = int(found["generation"])
    except (KeyError, TypeError, ValueError, AttributeError) as err:
        raise CacheError(f"{file} is no manifest of {on_disk.FORMAT}: {err!r}") from err
    if bad := next((name for name, _ in parts if os.path.basename(name) != name or name in ("", ".", "..")), None):
        raise CacheError(f"{file} names a part outside of the cache: {bad!r}")
    return Generation(number, parts, gone, str(found["digest"]))


def opened_parts(path: Path, generation: Generation) -> list[Part]:
    """Its parts, each as it was when the generation was made. Raises CacheError."""
    parts = []
    for name, digest in generation.parts:
        part = Part(path / "parts" / name)
        if part.manifest["digest"] != digest:
            raise CacheError(f"{part.path} is not the part that {path / 'manifest.json'} names; run `fastload cache repair`")
        parts.append(part)
    return parts


def new_items(parts: list[Part], items: tuple[Item, ...], root: Path) -> tuple[Item, ...]:
    """Those that no part holds as they are now: by size, times and inode, else by their bytes."""
    known = {item.path: (item, part) for part in parts for item in part.items}
    return tuple(item for item in items if _is_new(item, known.get(item.path), root))


def _is_new(item: Item, known: tuple[Item, Part] | None, root: Path) -> bool:
    if known is None:
        return True
    before, part = known
    if before == item:
        return False
    if item.path not in part.where:  # it could not be kept
        return True
    shard, row = part.where[item.path]
    return bool(source_digest((root / item.path).read_bytes()) != shard.rows[row]["source"].tobytes())


def publish(
    path: Path,
    added: Sequence[tuple[str, str]],
    gone: Mapping[str, tuple[str, ...]],
    replaced: Collection[str] = (),
    since: int = 0,
) -> Generation:
    """Add parts (folder names, digests of their manifests) to the newest generation, without those `replaced`: a new one.

    Its manifest is written under its number, then copied to manifest.json, by one publisher at a time. `gone`: of the splits
    that were looked at. `since`: the generation that was looked at; what it lacked is the newest, unless others have
    published meanwhile. Nothing is done where all of it is so already.
    """
    with on_disk.alone(path / "lock"):
        before = read_generation(path) if (path / "manifest.json").exists() else None
        kept = [p for p in (before.parts if before else ()) if p[0] not in replaced]
        if before is not None and before.number == since:  # files may be what they once were: that part is the newest again
            kept = [p for p in kept if p[0] not in {name for name, _ in added}]
        names = {name for name, _ in kept}  # one that is there keeps its place: what came after it is newer
        parts = (*kept, *(p for p in added if p[0] not in names))
        made = Generation(before.number + 1 if before else 1, parts, {**(before.gone if before else {}), **gone})
        if before is not None and made.document() | {"generation": before.number} == before.document():
            return before
        body = made.document()
        whole = {**body, "digest": on_disk.digest_of(on_disk.canonical(body))}
        for name in (numbered(made.number), "manifest.json"):
            on_disk.write_json(path / name, whole)
        return read_generation(path)


def numbered(generation: int) -> str:
    """Name of the copy of a generation's manifest."""
    return f"manifest.{generation:05d}.json"


def restored(path: Path) -> Generation:
    """The newest generation, put back into manifest.json from its numbered copy, or the other way round, if one is damaged."""
    names = ["manifest.json", *sorted((p.name for p in path.glob("manifest.*.json")), reverse=True)]
    found = None
    for name in names:
        try:
            found = read_generation(path, name)
        except CacheError:
            continue
        break
    if found is None:
        raise CacheError(
            f"{path} has no manifest that is whole; run `fastload precompute` again: it builds only what is missing"
        )
    body = found.document()
    for name in ("manifest.json", numbered(found.number)):
        data = on_disk.canonical({**body, "digest": found.digest})
        if not (path / name).exists() or (path / name).read_bytes() != data:
            on_disk.write_json(path / name, {**body, "digest": found.digest})
    return found


def _serving_nothing(path: Path, generation: Generation) -> list[str]:
    """Names of parts all of whose files later ones hold, or that are gone."""
    parts, dead = opened_parts(path, generation), []
    for k, part in enumerate(parts):
        splits = part.manifest["plan"]["splits"]
        later = [p for p in parts[k + 1 :] if set(splits) <= set(p.manifest["plan"]["splits"])]
        newer = {name for p in later for name in (*p.where, *p.bad)}
        gone = set.intersection(*(set(generation.gone.get(s, ())) for s in splits))
        if later and not (part.where.keys() | part.bad.keys()) - newer - gone:
            dead.append(part.path.name)
    return dead


def collect(path: Path) -> list[str]:
    """Remove earlier generations, and parts that the newest does not name; their names. Those in use stay readable on POSIX.

    A part that another process is building now would be removed too, so collect when nothing is being built.
    """
    generation = read_generation(path)
    if dead := _serving_nothing(path, generation):
        generation = publish(path, [], {}, dead, since=generation.number)
    named = {name for name, _ in generation.parts}
    parts = path / "parts"
    removed = [p for p in (parts.iterdir() if parts.is_dir() else ()) if p.name not in named]
    removed += [p for p in path.glob("manifest.*.json") if p.name not in ("manifest.json", numbered(generation.number))]
    removed += list(path.glob("*.tmp"))
    for left in removed:
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    for name in named:
        for left in (path / "parts" / name / "tmp").glob("*"):
            left.unlink()
    return sorted(str(p.relative_to(path)) for p in removed)
