"""Item transforms of the user's own, which the user says are deterministic: known again by their source code and arguments."""

from __future__ import annotations

import hashlib
import inspect
import re
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from fastload.bridge import Compiled, wrapped
from fastload.errors import CacheError

__all__ = ["maker", "named", "promised", "unmet"]

Vouched = Callable[[Any], tuple[str, str] | None]
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def promised(functions: Sequence[Any]) -> Vouched:
    """Recognises the transforms that were named: the functions, classes or objects themselves, or their names."""
    return lambda tfm: (_name(tfm), digest(tfm)) if any(_meant(f, tfm) for f in functions) else None


def unmet(functions: Sequence[Any], tfms: Sequence[Any]) -> list[Any]:
    """Those of the functions that mean none of the transforms."""
    return [f for f in functions if not any(_meant(f, tfm) for tfm in tfms)]


def _meant(given: Any, tfm: Any) -> bool:
    own = wrapped(tfm)
    same = given is tfm or given is (own if own is not None else type(tfm))
    return same or (isinstance(given, str) and given in (_name(tfm), _name(tfm).rpartition(".")[2]))


def named(names: Collection[str]) -> Vouched:
    """Recognises transforms by names that a cache keeps; whether they are still what they were, the digest tells."""
    return lambda tfm: (_name(tfm), digest(tfm)) if _name(tfm) in names else None


def _name(tfm: Any) -> str:
    own = wrapped(tfm)
    return str(getattr(own, "__qualname__", None) or type(own).__qualname__) if own is not None else type(tfm).__qualname__


def digest(tfm: Any) -> str:
    """Of a transform's source code, arguments, closure, and what of the script's own it uses by name.

    Raises CacheError where that can't be had in full. What it uses of installed packages is not looked into.
    """
    own, name, seen = wrapped(tfm), _name(tfm), set[int]()
    meant = own if own is not None else type(tfm)
    parts = [*_described(meant, name, seen), *([] if own is not None else _values(vars(tfm), name, seen))]
    return hashlib.blake2b("\0".join(parts).encode(errors="surrogateescape"), digest_size=16).hexdigest()


def _described(own: Any, name: str, seen: set[int]) -> list[str]:
    """Source code, defaults, closure and globals of a function; of a class that of its methods; of an object its values too."""
    if id(own) in seen:
        return [name]
    seen.add(id(own))
    if hasattr(own, "func") and hasattr(own, "keywords"):  # functools.partial
        return [*_described(own.func, name, seen), *_values({"args": own.args, **own.keywords}, name, seen)]
    if (bound := getattr(own, "__self__", None)) is not None and not isinstance(bound, ModuleType):
        return [*_described(own.__func__, name, seen), *_described(bound, name, seen)] if hasattr(own, "__func__") else [name]
    if not inspect.isclass(own) and not inspect.isroutine(own):
        return [*_described(type(own), name, seen), *_values(vars(own), name, seen)]
    if inspect.isclass(own):
        bases = [base for base in own.__mro__[1:] if _of_the_script(base.__module__)]
        named = [part for method in _methods(own) for part in _named_in(method, name, seen)]
        held = {k: v for k, v in vars(own).items() if not k.startswith("__") and not callable(v) and not _wraps(v)}
        rest = [part for base in bases for part in _described(base, base.__qualname__, seen)]
        return [_source(own, name), *named, *_values(held, name, seen), *rest]
    if not isinstance(own, FunctionType):
        raise CacheError(f"the source code of {name} can't be read, so a change of it would go unnoticed")
    cells = {n: c.cell_contents for n, c in zip(own.__code__.co_freevars, own.__closure__ or (), strict=True)}
    held = {"defaults": own.__defaults__, "keywords": own.__kwdefaults__, **cells}
    return [_source(own.__code__, name), *_values(held, name, seen), *_named_in(own, name, seen)]


def _source(own: Any, name: str) -> str:
    """Of a class or a code object: of a function that wraps another, inspect would give the other's."""
    try:
        return inspect.getsource(own)
    except (OSError, TypeError) as err:
        raise CacheError(f"the source code of {name} can't be read ({err}), so a change of it would go unnoticed") from err


def _wraps(value: Any) -> bool:
    return isinstance(value, property | classmethod | staticmethod) or _dispatch(value) or inspect.isdatadescriptor(value)


def _of_the_script(module: str | None) -> bool:
    """Whether a module is the user's own: neither Python's nor an installed package's."""
    found = sys.modules.get(str(module))
    file = str(getattr(found, "__file__", None) or "")
    installed = any(part in ("site-packages", "dist-packages") for part in Path(file).parts)
    return str(module).partition(".")[0] not in sys.stdlib_module_names and not installed


def _methods(own: type) -> list[FunctionType]:
    """A class's own functions, and those behind the tables that fasttransform makes of `encodes` and others."""
    found = []
    for value in vars(own).values():
        behind = [m.implementation for m in getattr(value, "methods", ())] if _dispatch(value) else [value]
        found += [getattr(f, "__func__", f) for f in behind]
    return [f for f in found if isinstance(f, FunctionType)]


def _named_in(function: FunctionType, name: str, seen: set[int]) -> list[str]:
    """The values of the script's own global names that a function's code has; of others the names alone."""
    found = {n: function.__globals__[n] for n in _names(function.__code__) if n in function.__globals__}
    own = {n: v for n, v in found.items() if not isinstance(v, ModuleType) and _of_the_script(_home(v, function))}
    return [*sorted(found.keys() - own.keys()), *_values(own, name, seen)]


def _home(value: Any, function: FunctionType) -> str:
    """The module of a function or class; that of any other value is the one it was found in."""
    return str(value.__module__) if inspect.isclass(value) or inspect.isroutine(value) else function.__module__


def _names(code: CodeType) -> list[str]:
    """Global names in a function's code and in that of the functions inside it."""
    inside = [n for c in code.co_consts if isinstance(c, CodeType) for n in _names(c)]
    return sorted({*code.co_names, *inside})


def _values(values: dict[str, Any], name: str, seen: set[int]) -> list[str]:
    """Names and texts of values."""
    return [part for key, value in sorted(values.items()) for part in (key, *_value(value, f"{name}'s {key}", seen))]


def _value(value: Any, name: str, seen: set[int]) -> list[str]:
    """The text of a value; raises CacheError for one whose text is an address, which says nothing of what it is."""
    if _dispatch(value):
        return []
    if inspect.isclass(value) or isinstance(value, FunctionType) or hasattr(value, "keywords"):
        return _described(value, name, seen)
    if isinstance(value, dict):
        return _values({repr(k): v for k, v in value.items()}, name, seen)
    if isinstance(value, set | frozenset):
        return [type(value).__name__, *sorted(map(repr, value))]
    if inspect.ismethod(value):
        return _described(value, name, seen)
    if isinstance(value, list | tuple):
        return [type(value).__name__, *(part for k, v in enumerate(value) for part in _value(v, f"{name}[{k}]", seen))]
    if hasattr(value, "detach") or hasattr(value, "tobytes"):  # tensors and arrays, whose text may be shortened
        array = value.detach().cpu().numpy() if hasattr(value, "detach") else value
        kind = f"{getattr(array, 'dtype', '')}{getattr(array, 'shape', '')}"
        return [kind, hashlib.blake2b(array.tobytes(), digest_size=16).hexdigest()]
    if hasattr(value, "__dict__") and _of_the_script(type(value).__module__):
        return _described(value, name, seen)
    text = repr(value)
    if _ADDRESS.search(text):
        raise CacheError(f"{name} is {text}, whose text says nothing of its value, so a change of it would go unnoticed")
    return [type(value).__name__, text]


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
