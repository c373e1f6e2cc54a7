"""Caches of made pictures, built and opened for tests without fastai."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pictures import Pictures

from fastload.cache import _items as what
from fastload.cache._part import read_manifest
from fastload.cache.build import How, build_part
from fastload.cache.generations import publish
from fastload.cache.read import Cache, CacheSource, Held, read_generation
from fastload.ops import Flip, RandomResizedCrop, Resize
from fastload.source import Ref

SMALL = 9_000  # bytes a shard, so that there are several


KINDS = ("source", "decoded", "final")


OPS = {"final": (Resize((20, 24)),), "variants": (Flip(), RandomResizedCrop((24, 20), random=True))}


def blueprint(made: Pictures, kind: str, mode: str = "RGB", most: int = SMALL) -> what.Blueprint:
    items = what.listed([str(p) for p in made.files], made.images)
    variants, ops = (3, OPS[kind]) if kind == "variants" else (0, OPS.get(kind, ()))
    kind = "final" if variants else kind
    sizes = [what.expected_bytes(item, kind, mode, made.images, 2000 if ops else 0) for item in items]
    shards = what.sharded(sizes, most)
    return what.Blueprint(kind, mode, what.fingerprint(kind, ops), shards, items, variants=variants, seed=7)


def finish(plan: what.Blueprint, root: Path, out: Path, **how: Any) -> bool:
    """Build a cache of one part."""
    whole = build_part(plan, root, out / "parts" / plan.name, How(**how))
    if whole:
        publish(out, [(plan.name, read_manifest(out / "parts" / plan.name)["digest"])], {})
    return whole


def opened(out: Path) -> Held:
    """A cache opened anew."""
    return Cache(out, read_generation(out)).held("train")


def built(made: Pictures, out: Path, kind: str, **how: Any) -> Held:
    assert finish(blueprint(made, kind), made.images, out, **how)
    return opened(out)


def shards(kept: Held) -> list[Any]:
    return [shard for part in kept.parts for shard in part.shards]


def content(out: Path) -> dict[str, bytes]:
    """Every file of a cache by its name."""
    return {str(p.relative_to(out)): p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file() and p.name != "lock"}


def everything(out: Path, made: Pictures) -> list[bytes]:
    """Every record of a cache, opened anew."""
    source = CacheSource(opened(out), made.images)
    versions = range(max(1, source.held.variants))
    records = [source.read(Ref(k, str(p), v)) for k, p in enumerate(made.files) for v in versions]
    return [r.data if r.data is not None else r.image.tobytes() for r in records]
