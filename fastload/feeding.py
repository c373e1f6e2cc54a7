"""Where a loader's images come from: their files, or a cache of them; for a pipeline that is left to stock too."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from multiprocessing.context import get_spawning_popen
from pathlib import Path
from typing import Any

from PIL import Image

from fastload import pixels
from fastload.bridge import Compiled, Vouched, image_class
from fastload.cache.comparing import Comparisons
from fastload.cache.opening import Wanted, as_cached, attach
from fastload.cache.read import Cache, CacheSource, open_cache
from fastload.errors import StaleCache
from fastload.generators import preserved
from fastload.plan import Element, Plan
from fastload.source import Files, Ref, Source
from fastload.targets import Unplanned, path_reader
from fastload.vouched import maker, named

__all__ = ["fed", "listing", "stock_fed", "versions_of", "vouched_by"]

log = logging.getLogger("fastload")
Say = Callable[[str], None]


def vouched_by(cache: Any) -> Vouched:
    """Recognises the functions of the user's whose outcome a cache keeps."""
    if cache is None or not (Path(as_cached(cache).path) / "manifest.json").exists():
        return lambda tfm: None
    names = {
        key.removeprefix("function ").partition(" ")[2]
        for part in open_cache(as_cached(cache).path).parts
        for key in part.fingerprint
        if key.startswith("function ")
    }
    return named(names)


def versions_of(cache: Any, split: int | None) -> str:
    """How many drawn versions of each image come from a cache, as a word; empty where its draws are the pipeline's own."""
    if cache is None or not (Path(as_cached(cache).path) / "manifest.json").exists():
        return ""
    kept, name = open_cache(as_cached(cache).path), "valid" if split else "train"
    return f", {kept.held(name).variants} versions" if name in kept.splits and kept.held(name).variants else ""


def fed(dl: Any, compiled: Compiled, cache: Any, say: Say) -> tuple[Compiled, list[Source]]:
    """What is left to do, and a source for each image of an item. Raises StaleCache, CacheError."""
    if cache is None:
        return compiled, [Files() for _ in compiled.images]
    if dl.n == 0:
        return compiled, [Files() for _ in compiled.images]
    lists, seen, start = [tl for tl, _ in compiled.images], open_cache(as_cached(cache).path).comparisons, time.perf_counter()
    wanted = _wanted(lists, compiled.plan, compiled.split_idx, seen)
    if compiled.functions and wanted is not None:
        wanted = replace(wanted, functions=compiled.functions, function=maker(dl, compiled))
    chosen = _chosen(cache, wanted, say)
    if chosen is None and compiled.functions:
        raise Unplanned(f"its item transforms are kept in {as_cached(cache).path}, but not these images")
    if chosen is None:
        return compiled, [Files() for _ in compiled.images]
    with preserved():  # what is built anew may draw
        plan, sources = attach(as_cached(cache), chosen, say)
    if not chosen.compared:
        seen.note([tl.items for tl in lists], chosen.first, time.perf_counter() - start)
    return replace(compiled, plan=plan), list(sources)


def _wanted(lists: Sequence[Any], plan: Plan, split: int | None, seen: Comparisons) -> Wanted | None:
    """What the loader needs; None where its first image is no file, or is skipped."""
    name = "valid" if split else "train"
    if (first := seen.recent([tl.items for tl in lists])) is not None:
        return Wanted(name, plan, first, lambda: _paths(lists), compared=True)
    paths = _paths(lists)
    return Wanted(name, plan, paths[0], lambda: paths) if paths else None


def _paths(lists: Sequence[Any]) -> list[str]:
    """Every file of the loader; getters run once more, so the generators are put back. None where they don't all give paths."""
    from fastai.data.load import SkipItemException

    found = []
    with preserved():
        for tl in lists:
            read = path_reader(tl)
            for k in range(len(tl.items)):
                try:
                    found.append(read(k))
                except SkipItemException:
                    continue
                except Unplanned:
                    return []
    return found


def _chosen(cache: Any, wanted: Wanted | None, say: Say) -> Wanted | None:
    """The same, of the split whose part of the cache has these images; None where their files are to be read, which is said.

    Images of one split are met in the pipeline of another by TTA and by `test_dl`. Files for prediction may be none of those
    that were kept, although their names are the same below another folder.
    """
    path = as_cached(cache).path
    if wanted is None:
        say(f"cache={path!r} is left out: these images are not given as paths")
        return None
    kept, mine = open_cache(path), wanted.split
    for split in sorted(kept.splits, key=lambda name: name != mine):
        held = kept.held(split)
        if not held.holds(wanted.first):
            continue
        if split != wanted.split and held.kind == "final" and held.differing(wanted.plan, wanted.functions):
            say(f"cache={path!r} holds {wanted.first} finished by other steps than these, so files are read")
            return None
        wanted = replace(wanted, split=split)
        break
    if wanted.split == "valid" and "valid" in kept.splits and not wanted.compared:
        held = kept.held("valid")
        foreign = [p for p in wanted.paths() if held.place_of(p) is None]
        if foreign or not any(map(held.holds, wanted.paths())):
            first = foreign[0] if foreign else wanted.first
            say(
                f"cache={path!r} does not hold {len(foreign) or 'any'} of these images as they are ({first}), so files are read"
            )
            return None
    return wanted


def listing(get_items: Callable[[Any], Any], cache: Any, stack: ExitStack) -> Callable[[Any], Any]:
    """The same listing of a folder's images, or where there are none any more, the files that the cache was made of.

    These come in the order of their paths, of every split that it holds; `folders` of fastai's get_image_files counts. fastai
    opens the first image to learn its type: until `stack` is closed that one comes from the cache too.
    """

    def found(source: Any) -> Any:
        from fastcore.foundation import L

        if not isinstance(source, str | os.PathLike):
            return get_items(source)
        items = get_items(source)
        if len(items):
            return items
        kept = open_cache(as_cached(cache).path)
        folders = getattr(get_items, "keywords", {}).get("folders") or ()
        below = sorted({name for split in kept.splits for name in kept.held(split).where})
        chosen = [Path(source) / name for name in below if not folders or name.partition("/")[0] in folders]
        stack.enter_context(_first_from(kept, Path(source)))
        log.warning("no images are left below %s: the cache %s gives the listing of %d", source, kept.path, len(chosen))
        return L(chosen)

    return found


@contextmanager
def _first_from(kept: Cache, root: Path) -> Iterator[None]:
    """fastai's load_image, for files below `root` from a cache of their bytes or pixels, or a stand-in of the right mode."""
    from fastai.vision import core

    real = core.load_image

    def load_image(file: Any, mode: str | None = None) -> Any:
        if not isinstance(file, str | os.PathLike) or not Path(file).is_relative_to(root):
            return real(file, mode)
        held = kept.held(kept.splits[0])
        if held.kind == "final":
            return Image.new(mode or held.mode, (8, 8))
        return pixels.load(CacheSource(held, root).read(Ref(0, os.fspath(file))), mode or held.mode)

    core.load_image = load_image
    try:
        yield
    finally:
        core.load_image = real


@contextmanager
def stock_fed(dl: Any, cache: Any, say: Say) -> Iterator[None]:
    """While this lasts, stock's own opening of the loader's images takes their bytes from the cache."""
    if cache is None or dl.n == 0:
        yield
        return
    path = as_cached(cache).path
    found = [(tl, cls) for tl in getattr(dl.dataset, "tls", ()) if (cls := image_class(tl)) is not None]
    if not found:
        say(f"cache={path!r} is left out: fastload does not recognise how this loader opens its images")
        yield
        return
    plan = Plan(
        tuple(Element(k, "RGB" if c.__name__ == "PILImage" else "L", c.__name__ == "PILMask") for k, (_, c) in enumerate(found))
    )
    lists, seen, start = [tl for tl, _ in found], open_cache(as_cached(cache).path).comparisons, time.perf_counter()
    wanted = _chosen(cache, _wanted(lists, plan, getattr(dl.dataset, "split_idx", None), seen), say)
    if wanted is None:
        yield
        return
    kind = open_cache(path).held(wanted.split).kind
    if kind == "final":
        raise StaleCache(
            f"{path} holds finished images, and this loader is left to stock fastai, which would transform them again"
        )
    if kind != "source":
        say(
            f"cache={path!r} is left out: it holds pixels alone, and transforms that fastload does not know may read what else "
            "an image file says (Exif); keep 'source' for this loader"
        )
        yield
        return
    _, sources = attach(as_cached(cache), wanted, say)
    if not wanted.compared:
        seen.note([tl.items for tl in lists], wanted.first, time.perf_counter() - start)
    with ExitStack() as stack:
        for (tl, _), source in zip(found, sources, strict=True):
            stack.callback(_read_from(tl.tfms, source))
        yield


def _read_from(pipeline: Any, source: CacheSource) -> Callable[[], None]:
    """Let a pipeline open its images from a cache; returns what undoes that.

    It gets a list of its own, since fastai's subsets share theirs. Undone while a later one is in place, it opens files again.
    """
    from fastcore.foundation import L

    before, reader = pipeline.fs, _FromCache(pipeline.fs[-1], source)
    mine = pipeline.fs = L([*before[:-1], reader])

    def undo() -> None:
        reader.source = None
        if pipeline.fs is mine:
            pipeline.fs = before

    return undo


class _FromCache:
    """Stands in for the transform that opens an image: the same transform, given the file's bytes from a cache.

    Pickled for a worker process it takes the cache along; pickled for anything else it is the transform alone.
    """

    def __init__(self, opener: Any, source: CacheSource | None) -> None:
        self.opener, self.source = opener, source

    def __call__(self, x: Any, **how: Any) -> Any:
        path = os.fspath(x) if isinstance(x, str | os.PathLike) else None
        if not isinstance(path, str) or self.source is None:
            return self.opener(x, **how)
        record = self.source.read(Ref(0, path))
        if not record.kept:  # a file that could not be kept
            return self.opener(x, **how)
        return self.opener(record.data, **how)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["opener"], name)

    def __reduce__(self) -> Any:
        if get_spawning_popen() is not None:
            return _FromCache, (self.opener, self.source)
        return _itself, (self.opener,)


def _itself(opener: Any) -> Any:
    return opener
