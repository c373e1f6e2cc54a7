"""What a cache of a data set would hold: its parts, their bytes, whether training stays exact; nothing is written."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fastload.bridge import Compiled, Refused, compile_outside
from fastload.cache._items import KINDS, Blueprint, Item, common_root, expected_bytes, fingerprint, listed, plain, sharded
from fastload.cache._make import Function
from fastload.cache._master import Loss, measured_loss, short_side
from fastload.cache.generations import new_items
from fastload.cache.read import open_cache
from fastload.errors import CacheError, DataError
from fastload.inspecting import Use
from fastload.listing import list_files
from fastload.loader import inner_loader
from fastload.ops import Op
from fastload.plan import Element, Plan, draws
from fastload.vouched import maker, promised, unmet

__all__ = ["Forecast", "Planned", "forecast", "parsed_keep"]

SPLITS = ("train", "valid")


@dataclass(frozen=True)
class Planned:
    """One part to be built. `function` makes its pixels where the steps have functions of the user's."""

    blueprint: Blueprint
    payload_bytes: int
    already: int = 0  # files that the cache holds as they are
    function: Function | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Forecast:
    """What a build would do: its parts, the root of the data, and per split files that are gone since."""

    parts: tuple[Planned, ...]
    root: Path
    gone: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    generation: int = 0  # of the cache that was looked at

    @property
    def payload_bytes(self) -> int:
        """Of all records to be built."""
        return sum(p.payload_bytes for p in self.parts)

    @property
    def files(self) -> int:
        """How many are to be read."""
        return sum(len(p.blueprint.items) for p in self.parts)

    @property
    def exact(self) -> bool:
        """Whether training stays equal to stock's, bit for bit."""
        return all(p.blueprint.variants == 0 and p.blueprint.kind != "master" for p in self.parts)

    def __str__(self) -> str:
        lines = [f"below {self.root}:"]
        for part in self.parts:
            plan = part.blueprint
            already = f", {part.already} more are there already" if part.already else ""
            shards = f"{len(plan.shards)} shard{'s' if len(plan.shards) > 1 else ''}"
            lines.append(
                f"  {' and '.join(plan.splits)}: {len(plan.items)} files{already}; {part.payload_bytes / 1e6:,.0f} MB of "
                f"{plan.kind} records in {shards}; {_words(plan)}"
            )
        return "\n".join(lines)


def _words(plan: Blueprint) -> str:
    if plan.loss:
        return f"masters of a short side of {plan.fingerprint['short side']} pixels: NOT stock's pixels, {Loss.of(plan.loss)}"
    if plan.variants:
        return (
            f"{plan.variants} drawn version{'s' if plan.variants > 1 else ''} of each image: NOT stock's batches, "
            "training meets no others"
        )
    return _EXACT[plan.kind]


_EXACT = {
    "source": "the files' own bytes, so training stays equal to stock's bit for bit, whatever the pipeline",
    "decoded": "Pillow's own pixels, so training stays equal to stock's bit for bit, whatever the pipeline",
    "final": "the item transforms' own output, equal to stock's bit for bit, for this pipeline alone",
}


def parsed_keep(keep: str) -> dict[str, str]:
    """What to keep for each split.

    >>> parsed_keep("source"), parsed_keep("train=decoded,valid=final")
    ({'train': 'source', 'valid': 'source'}, {'train': 'decoded', 'valid': 'final'})
    """
    given: Any = keep
    if not isinstance(given, str):
        raise CacheError(f"keep={keep!r} is no word; keep 'source', 'decoded', 'final' or 'master'")
    pairs = [part.strip().partition("=") for part in keep.split(",")]
    if len(pairs) == 1 and not pairs[0][1]:
        pairs = [(split, "=", pairs[0][0]) for split in SPLITS]
    found = {split.strip(): kind.strip() for split, _, kind in pairs}
    if not set(found) <= set(SPLITS) or not set(found.values()) <= set(KINDS) or len(found) != len(pairs):
        raise CacheError(f"keep={keep!r} is neither one of {', '.join(KINDS)} nor like train=decoded,valid=final")
    return found


@dataclass(frozen=True)
class Wish:
    """What the caller asked for, checked together."""

    keep: dict[str, str]
    variants: int = 0
    seed: int = 0
    freeze_augmentation: bool = False
    deterministic: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        variants: Any = self.variants
        if type(variants) is not int or variants < 0:
            raise CacheError(f"variants={self.variants!r} must be at least 1")
        if self.variants and self.keep.get("train") != "final":
            raise CacheError("variants are kept of finished training images: keep='final', or train=final")
        if self.variants == 1 and not self.freeze_augmentation:
            raise CacheError(
                "variants=1 would show the model one and the same crop of each image in every epoch; ask for more (8 is "
                "usual), or say freeze_augmentation=True (--freeze-augmentation)"
            )


def forecast(  # the keywords are the command's options
    target: Any,
    *,
    keep: str = "source",
    root: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    variants: int = 0,
    seed: int = 0,
    freeze_augmentation: bool = False,
    deterministic: Sequence[Any] = (),
) -> Forecast:
    """What `precompute` would build of a DataLoaders or Learner; nothing is written. Raises DataError, CacheError."""
    wish = Wish(
        parsed_keep(keep),
        variants,
        seed,
        freeze_augmentation,
        (deterministic,) if isinstance(deterministic, str) else tuple(deterministic),
    )
    loaders = list(getattr(getattr(target, "dls", target), "loaders", [target]))
    uses: dict[str, dict[str, set[Use]]] = {split: {} for split in SPLITS}
    for k, dl in enumerate(loaders):
        for path, use in list_files(dl, SPLITS[min(k, 1)]).files:
            uses[SPLITS[min(k, 1)]].setdefault(path, set()).add(use)
    uses = {split: found for split, found in uses.items() if found and split in wish.keep}
    tfms = [tfm for dl in loaders for tfm in inner_loader(dl).after_item.fs]
    if strange := unmet(wish.deterministic, tfms):
        names = ", ".join(type(tfm).__name__ if not hasattr(tfm, "name") else tfm.name for tfm in tfms)
        raise CacheError(f"deterministic={strange[0]!r} is none of the item transforms ({names})")
    if not uses:
        raise DataError("these loaders name no image files, so there is nothing to keep")
    everything = [path for found in uses.values() for path in found]
    folder = common_root(everything) if root is None else Path(plain(root))
    if not folder.is_dir():
        raise CacheError(f"root={root!r} is no folder; name one above all files, or leave it out")
    parts: list[Planned] = []
    gone: dict[str, tuple[str, ...]] = {}
    for splits in _groups(wish, uses):
        ways = [_way(wish, split, dl, uses) for split, dl in _loaders_of(loaders, splits)]
        if odd := next((w for w in ways if w != ways[0]), None):
            raise CacheError(
                f"the validation loaders have different item transforms ({odd.ops} and {ways[0].ops}); keep 'decoded'"
            )
        items = listed([path for split in splits for path in uses[split]], folder)
        part, missing = _planned(ways[0], splits, items, folder, out)
        parts += [] if part is None else [part]
        gone |= dict.fromkeys(splits, missing)
    number = open_cache(out).generation.number if out is not None and (Path(out) / "manifest.json").exists() else 0
    return Forecast(tuple(parts), folder, gone, number)


def _groups(wish: Wish, uses: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The splits that share a part: all of them, unless they are kept differently or finished."""
    kinds = {wish.keep[split] for split in uses}
    return (
        [tuple(uses)]
        if len(kinds) == 1 and not kinds & {"final", "master"} and set(wish.keep) == set(SPLITS)
        else [(s,) for s in uses]
    )


def _loaders_of(loaders: Sequence[Any], splits: Sequence[str]) -> list[tuple[str, Any]]:
    return [(split, dl) for k, dl in enumerate(loaders) if (split := SPLITS[min(k, 1)]) in splits]


@dataclass(frozen=True)
class _Way:
    """How the images of a split are made into records."""

    kind: str
    mode: str
    ops: tuple[Op, ...] = ()
    functions: tuple[tuple[str, str], ...] = ()
    variants: int = 0
    seed: int = 0
    function: Function | None = field(default=None, compare=False)
    side: int = 0  # short side of masters
    plan: Plan | None = field(default=None, compare=False)


def _way(wish: Wish, split: str, dl: Any, uses: Mapping[str, Mapping[str, set[Use]]]) -> _Way:
    kind = wish.keep[split]
    modes = {use.mode for found in uses[split].values() for use in found}
    if kind == "source":
        return _Way(kind, "RGB")
    if len(modes) > 1:
        raise CacheError(f"images are opened as {' and '.join(sorted(modes))}, and one cache holds one of them; keep 'source'")
    mode = modes.pop()
    if kind == "master":
        return _master_way(split, dl, mode)
    return _Way(kind, mode) if kind == "decoded" else _final_way(wish, split, dl, mode)


def _master_way(split: str, dl: Any, mode: str) -> _Way:
    compiled = compile_outside(inner_loader(dl))
    if isinstance(compiled, Refused):
        raise CacheError(f"the {split} images can't be kept as masters: {'; '.join(compiled.reasons)}")
    return _Way("master", mode, side=short_side(compiled.plan), plan=compiled.plan)


def _final_way(wish: Wish, split: str, dl: Any, mode: str) -> _Way:
    inner = inner_loader(dl)
    compiled = compile_outside(inner, promised(wish.deterministic))
    if isinstance(compiled, Refused):
        raise CacheError(f"the {split} images can't be kept finished: {'; '.join(compiled.reasons)}")
    _one_image(compiled, split)
    random = [op for op in compiled.plan.kept()[0] if draws(op)]
    variants = wish.variants if split == "train" and random else 0
    kept, left = compiled.plan.kept(moving=variants > 0)
    if compiled.functions and (mirrors := [type(op).__name__ for op in left if op.applies]):
        raise CacheError(
            f"the {split} images can't be kept finished: {mirrors[0]} would be drawn twice beside functions of yours"
        )
    if random and not variants:
        raise CacheError(
            f"the {split} images are drawn anew each time ({', '.join(type(op).__name__ for op in random)}), so there is no "
            "one outcome to keep: ask for variants (--variants 8), or keep train=decoded,valid=final"
        )
    if Plan(compiled.plan.elements, kept).size is None and not compiled.functions:
        raise CacheError(f"the {split} images end in different sizes; keep 'decoded'")
    function = maker(inner, compiled) if compiled.functions else None
    if function is not None and random:
        raise CacheError(f"the {split} images are drawn anew each time, which goes with fastai's own item transforms alone")
    return _Way("final", mode, kept, compiled.functions, variants, wish.seed if variants else 0, function)


def _one_image(compiled: Compiled, split: str) -> None:
    plan = compiled.plan
    if len(plan.elements) != 1 or plan.spatial != (plan.elements[0].position,):
        raise CacheError(
            f"{split} items have masks, points or boxes that go with their images, so images alone can't be kept finished"
        )


def _planned(
    way: _Way, splits: tuple[str, ...], items: tuple[Item, ...], root: Path, out: Any
) -> tuple[Planned | None, tuple[str, ...]]:
    """The part that has to be built, if any, and paths that the cache holds and the data set no longer names."""
    now, wanted = fingerprint(way.kind, way.ops, way.functions, way.side), items
    meaning = Blueprint(way.kind, way.mode, now, ((0, 0),), (), splits, way.variants, way.seed).meaning()
    gone: tuple[str, ...] = ()
    if out is not None and (Path(out) / "manifest.json").exists():
        held = open_cache(out)
        parts = [p for p in held.parts if set(p.manifest["plan"]["splits"]) & set(splits)]
        for part in parts:
            if words := _unlike(part.meaning(), meaning):
                raise CacheError(f"{out} was built otherwise ({words}); choose another folder")
        items = new_items(parts, items, root)
        names = {item.path for item in wanted}
        gone = tuple(sorted({path for part in parts for path in part.where if path not in names}))
    if not items:
        return None, gone
    size = Plan((Element(0, way.mode),), way.ops).size if way.kind == "final" and way.ops else None
    final = 0 if size is None else size[0] * size[1] * len(way.mode) * max(1, way.variants)
    sizes = [expected_bytes(item, way.kind, way.mode, root, final, way.side) for item in items]
    loss = {}
    if way.plan is not None:
        loss = asdict(measured_loss([root / item.path for item in items], way.plan, way.side, way.mode))
    blueprint = Blueprint(way.kind, way.mode, now, sharded(sizes), items, splits, way.variants, way.seed, loss)
    return Planned(blueprint, sum(sizes), len(wanted) - len(items), way.function), gone


def _unlike(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The values that differ, those inside the fingerprint each by its name; of another kind, that alone."""
    if then["kind"] != now["kind"]:
        then, now = ({"kind": m["kind"], "fingerprint": {}} for m in (then, now))
    flat = [{**{k: v for k, v in m.items() if k != "fingerprint"}, **m["fingerprint"]} for m in (then, now)]
    keys = sorted(k for k in flat[0].keys() | flat[1].keys() if flat[0].get(k) != flat[1].get(k))
    return "; ".join(f"{k}: {flat[0].get(k)!r} there, {flat[1].get(k)!r} here" for k in keys)
