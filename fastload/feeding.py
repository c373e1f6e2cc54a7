"""Where a loader's images come from: their files, or a cache of them; for a pipeline that is left to stock too."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing.context import get_spawning_popen
from pathlib import Path
from typing import Any

from PIL import Image

from fastload import pixels
from fastload.bridge import Compiled, Vouched, image_class
from fastload.cache.opening import Wanted, as_cached, attach
from fastload.cache.read import Cache, CacheSource, open_cache
from fastload.errors import StaleCache
from fastload.generators import preserved
from fastload.plan import Element, Plan
from fastload.source import Files, Ref, Source
from fastload.targets import path_reader
from fastload.vouched import maker, named

__all__ = ["fed", "listing", "stock_fed", "vouched_by"]

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


def fed(dl: Any, compiled: Compiled, cache: Any, say: Say) -> tuple[Compiled, list[Source]]:
    """What is left to do, and a source for each image of an item. Raises StaleCache, CacheError."""
    if cache is None:
        return compiled, [Files() for _ in compiled.images]
    if dl.n == 0:
        return compiled, [Files() for _ in compiled.images]
    lists = [tl for tl, _ in compiled.images]
    wanted = _wanted(dl, lists, compiled.plan, compiled.split_idx)
    if _outside(cache, wanted, say):
        return compiled, [Files() for _ in compiled.images]
    if compiled.functions:
        wanted = replace(wanted, functions=compiled.functions, function=maker(dl, compiled))
    plan, sources = attach(as_cached(cache), wanted, say)
    return replace(compiled, plan=plan), list(sources)


def _wanted(dl: Any, lists: Sequence[Any], plan: Plan, split: int | None) -> Wanted:
    with preserved():
        first = path_reader(lists[0])(0)
    return Wanted("valid" if split else "train", plan, first, partial(_paths, dl, tuple(lists)))


def _paths(dl: Any, lists: Sequence[Any]) -> list[str]:
    """Every file of the loader; getters run once more, so the generators are put back."""
    with preserved():
        return [path_reader(tl)(k) for tl in lists for k in range(len(tl.items))]


def _outside(cache: Any, wanted: Wanted, say: Say) -> bool:
    """Whether these are images for prediction that the cache was never meant to hold: none of them is in it."""
    path = as_cached(cache).path
    kept = open_cache(path)
    if wanted.split != "valid" or "valid" not in kept.splits:
        return False
    held = kept.held("valid")
    for file in (wanted.first, *wanted.paths()):
        try:
            held.root_of(file)
        except StaleCache:
            continue
        return False
    say(f"cache={path!r} holds none of these images ({wanted.first} is the first), so their files are read")
    return True


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
    """While this lasts, stock's own opening of the loader's images takes their bytes or pixels from the cache."""
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
    wanted = _wanted(dl, [tl for tl, _ in found], plan, getattr(dl.dataset, "split_idx", None))
    if _outside(cache, wanted, say):
        yield
        return
    kept = open_cache(path).held(wanted.split)
    if kept.kind == "final":
        raise StaleCache(
            f"{path} holds finished images, and this loader is left to stock fastai, which would transform them again"
        )
    _, sources = attach(as_cached(cache), wanted, say)
    before = [tl.tfms.fs[-1] for tl, _ in found]
    for (tl, _), source in zip(found, sources, strict=True):
        tl.tfms.fs[-1] = _FromCache(tl.tfms.fs[-1], source)
    try:
        yield
    finally:
        for (tl, _), opener in zip(found, before, strict=True):
            tl.tfms.fs[-1] = opener


class _FromCache:
    """Stands in for the transform that opens an image: the same transform, given the file's bytes or pixels from a cache.

    Pickled for a worker process it takes the cache along; pickled for anything else it is the transform alone.
    """

    def __init__(self, opener: Any, source: CacheSource) -> None:
        self.opener, self.source = opener, source

    def __call__(self, x: Any, **how: Any) -> Any:
        path = os.fspath(x) if isinstance(x, str | os.PathLike) else None
        if not isinstance(path, str):
            return self.opener(x, **how)
        record = self.source.read(Ref(0, path))
        if record.data is not None:
            return self.opener(record.data, **how)
        return self.opener(record.image if record.image.shape[2] == 3 else record.image[..., 0], **how)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["opener"], name)

    def __reduce__(self) -> Any:
        if get_spawning_popen() is not None:
            return _FromCache, (self.opener, self.source)
        return _itself, (self.opener,)


def _itself(opener: Any) -> Any:
    return opener
