"""Item transforms of the user's own, which the user says are deterministic: known again by their source code and arguments."""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable, Collection, Sequence
from types import FunctionType
from typing import Any

from fastload.bridge import Compiled, wrapped
from fastload.errors import CacheError

__all__ = ["maker", "named", "promised"]

Vouched = Callable[[Any], tuple[str, str] | None]
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def promised(functions: Sequence[Any]) -> Vouched:
    """Recognises the transforms that were named: the functions, classes or objects themselves, or their names."""
    names = {f for f in functions if isinstance(f, str)}

    def known(tfm: Any) -> tuple[str, str] | None:
        own = wrapped(tfm)
        meant = own if own is not None else type(tfm)
        hit = any(f is tfm or f is meant for f in functions) or _name(tfm) in names
        return (_name(tfm), digest(tfm)) if hit else None

    return known


def named(names: Collection[str]) -> Vouched:
    """Recognises transforms by names that a cache keeps; whether they are still what they were, the digest tells."""
    return lambda tfm: (_name(tfm), digest(tfm)) if _name(tfm) in names else None


def _name(tfm: Any) -> str:
    own = wrapped(tfm)
    return str(getattr(own, "__qualname__", None) or type(own).__qualname__) if own is not None else type(tfm).__qualname__


def digest(tfm: Any) -> str:
    """Of a transform's source code, arguments and closure. Raises CacheError where that can't be had in full."""
    own = wrapped(tfm)
    parts = (
        _described(own, _name(tfm))
        if own is not None
        else [*_described(type(tfm), _name(tfm)), *_values(vars(tfm), _name(tfm))]
    )
    return hashlib.blake2b("\0".join(parts).encode(errors="surrogateescape"), digest_size=16).hexdigest()


def _described(own: Any, name: str) -> list[str]:
    """Source code, defaults and what a function has closed over; of a partial or a callable object, its parts."""
    if hasattr(own, "func") and hasattr(own, "keywords"):  # functools.partial
        return [*_described(own.func, name), *_values({"args": own.args, **own.keywords}, name)]
    if not inspect.isclass(own) and not inspect.isroutine(own):
        return [*_described(type(own), name), *_values(vars(own), name)]
    own = getattr(own, "__func__", own)
    try:
        source = inspect.getsource(own)
    except (OSError, TypeError) as err:
        raise CacheError(f"the source code of {name} can't be read ({err}), so a change of it would go unnoticed") from err
    if not isinstance(own, FunctionType):  # a class
        return [source]
    cells = {n: c.cell_contents for n, c in zip(own.__code__.co_freevars, own.__closure__ or (), strict=True)}
    return [source, *_values({"defaults": own.__defaults__, "keywords": own.__kwdefaults__, **cells}, name)]


def _values(values: dict[str, Any], name: str) -> list[str]:
    """Names and texts of values; those whose text is an address alone say nothing of what they are."""
    found = []
    for key, value in sorted(values.items()):
        if callable(value) and hasattr(value, "__code__"):
            found += [key, *_described(value, f"{name}'s {key}")]
            continue
        text = repr(value)
        if _ADDRESS.search(text) and not _dispatch(value):
            raise CacheError(f"{name} holds {key}={text}, whose text says nothing of its value, so a change would go unnoticed")
        found += [key, "" if _dispatch(value) else text]
    return found


def _dispatch(value: Any) -> bool:
    """Whether it is the table of a transform's own methods, which its class's source code has."""
    return type(value).__module__.partition(".")[0] in ("plum", "fasttransform")


def maker(dl: Any, compiled: Compiled) -> Callable[[str], Any]:
    """A function from a file's path to the pixels after every item transform, uint8 [channels, H, W], by fastai itself."""
    import numpy as np

    (_, cls), tfms, split = compiled.images[0], list(dl.after_item.fs), compiled.split_idx

    def make(path: str) -> Any:
        item: Any = (cls.create(path),)  # type: ignore[attr-defined]  # fastai's
        for tfm in tfms:
            item = tfm(item, split_idx=split)
        array = np.asarray(item[0])
        if array.dtype != np.uint8 or array.ndim != 3:
            raise CacheError(
                f"the item transforms end in {array.dtype} {list(array.shape)}, and uint8 [channels, H, W] can be kept"
            )
        return array

    return make
