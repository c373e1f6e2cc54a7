"""The parts of an item that are not pixels: paths, labels, points and boxes, made by fastai's own code.

Paths and labels are worked out on the consumer's thread, in stock's order, so user functions (get_x, get_y) never meet a
thread. Points and boxes follow the image's random crop: copies of the item transforms are given the numbers that were drawn
and fastai's own `encodes` does the arithmetic.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from fastload import pixels
from fastload.bridge import Compiled, point_class, same, wrapped
from fastload.ops import CropPad, Dihedral, Flip, RandomCrop, RandomResizedCrop, RatioResize, Resize, Size

__all__ = ["Unplanned", "follow", "label_reader", "path_reader", "pure"]


class Unplanned(Exception):
    """An item turned out to be something the Plan cannot hold; the loader goes on with stock. Never reaches the user."""


def path_reader(tl: Any) -> Callable[[int], str]:
    """A function from item number to image path, as stock's getters give it; `Unplanned` where it is no path."""
    get, getters = _item(tl), _calls(tl.tfms.fs[:-1], tl.tfms.split_idx)

    def read(index: int) -> str:
        value = get(index)
        for call in getters:
            value = call(value)
        if type(value) is str:
            return value
        if isinstance(value, os.PathLike) and isinstance(path := os.fspath(value), str):
            return path
        raise Unplanned(f"an image is given as {type(value).__name__}, not as a path")

    return read


def label_reader(tl: Any) -> Callable[[int], Any]:
    """A function from item number to the target as stock's `tl[index]`; categories are encoded once per label."""
    from fastai.data.transforms import Categorize
    from fastai.torch_core import TensorBase
    from PIL.Image import Image

    if len(tl.tfms.fs) and type(tl.tfms.fs[-1]) is Categorize and "encodes" not in tl.tfms.fs[-1].__dict__:
        return _category_reader(tl)
    points = point_class(tl) is not None

    def read(index: int) -> Any:
        value = tl[index]
        if isinstance(value, tuple | Image) or (not points and _spatial(value, TensorBase)):
            raise Unplanned(f"a target is a {type(value).__name__}, which item transforms may change")
        return value

    return read


def _spatial(value: Any, base: type) -> bool:
    """Whether item transforms act on `value`: fastai's image, mask, point and box tensors."""
    names = ("TensorImageBase", "TensorPoint", "TensorMask")
    return isinstance(value, base) and any(cls.__name__ in names for cls in type(value).__mro__)


def _category_reader(tl: Any) -> Callable[[int], Any]:
    get, getters = _item(tl), _calls(tl.tfms.fs[:-1], tl.tfms.split_idx)
    encode, split, known = tl.tfms.fs[-1], tl.tfms.split_idx, {}

    def read(index: int) -> Any:
        label = get(index)
        for call in getters:
            label = call(label)
        kind = type(label)
        if kind is not str and kind is not int:
            return encode(label, split_idx=split)
        if (kind, label) not in known:
            known[kind, label] = encode(label, split_idx=split)
        return known[kind, label]

    return read


def pure(tl: Any) -> bool:
    """Whether every getter of the list is fastai's own and draws no random numbers, so that calling it ahead is safe."""
    from fastai.data.transforms import AttrGetter, ColReader, ItemGetter

    own = (ItemGetter, AttrGetter, ColReader)
    return all(type(f) in own or _raw(f) is not None or _known_last(f) for f in tl.tfms.fs)


def _known_last(tfm: Any) -> bool:
    from fastai.data import transforms as t

    classes = (t.Categorize, t.MultiCategorize, t.OneHotEncode, t.EncodedMultiCategorize, t.RegressionSetup)
    owner = getattr(wrapped(tfm), "__self__", None)
    return type(tfm) in classes or getattr(owner, "__module__", "") == "fastai.vision.core"


def _item(tl: Any) -> Callable[[int], Any]:
    """Item number to raw item, as TfmdLists does it."""
    from fastcore.foundation import L

    items = tl.items
    if type(items) is list:
        return items.__getitem__
    return lambda index: L(items, use_list=None)[index]


def _calls(fs: Iterable[Any], split: int | None) -> list[Callable[[Any], Any]]:
    """One call per getter: fastai's own pure ones directly, others through the transform."""
    from fastai.data.transforms import ItemGetter

    return [partial(_get, f.i) if type(f) is ItemGetter else _call(f, split) for f in fs if _raw(f) is not _noop]


def _get(key: Any, value: Any) -> Any:
    return value[key]


def _call(tfm: Any, split: int | None) -> Callable[[Any], Any]:
    raw = _raw(tfm)

    def call(value: Any) -> Any:
        # a Transform maps over tuples; the plain function is the same for anything else
        return tfm(value, split_idx=split) if raw is None or isinstance(value, tuple) else raw(value)

    return call


def _noop(value: Any) -> Any:
    return value


def _raw(tfm: Any) -> Callable[[Any], Any] | None:
    """The plain function of a getter that is known to be pure, else None."""
    from fastai.data.transforms import RegexLabeller, parent_label

    function = wrapped(tfm)
    if function is None or tfm.split_idx is not None:
        return None
    if function.__name__ == "noop" and getattr(function, "__module__", "").startswith("fastcore"):
        return _noop
    if same(function, parent_label):
        return function  # type: ignore[no-any-return]
    cells = [c.cell_contents for c in getattr(function, "__closure__", None) or ()]
    return function if len(cells) == 1 and type(cells[0]) is RegexLabeller else None


def follow(compiled: Compiled, place: int, value: Any, drawn: tuple[Any, ...], sizes: list[Size]) -> Any:
    """The points or boxes at `place` after the item transforms, given the draws and source sizes of the item's images."""
    plan = compiled.plan
    trails = [pixels.sizes_along(plan, e, drawn, size, sizes[0]) for e, size in zip(plan.elements, sizes, strict=True)]
    before = [k for k, e in enumerate(plan.elements) if e.position < place]
    done = 0
    for tfm, op in compiled.steps:
        if op is not None:
            first = trails[0][op]
            value = _replay(tfm, plan.ops[op], drawn[op], value, first, plan.spatial.index(place), compiled.split_idx)
            done = op + 1
        elif type(tfm).__name__ == "PointScaler":
            scaler = copy.copy(tfm)
            scaler.sz = _fastuple(trails[before[-1]][done])
            value = scaler(value, split_idx=compiled.split_idx)
    return value


def _replay(tfm: Any, op: Any, drawn: Any, value: Any, first: Size, rank: int, split: int | None) -> Any:
    """fastai's own `encodes` of a copy of `tfm` that carries the drawn numbers."""
    from fasttransform import Transform

    if not op.applies or (isinstance(op, Flip) and not drawn) or (isinstance(op, Dihedral) and not drawn[0]):
        return value
    twin = copy.copy(tfm)
    if isinstance(op, RatioResize):
        twin, drawn, op = _ratio_twin(tfm, value), drawn[rank], Resize((0, 0))
    for name, state in _state(op, drawn, first).items():
        setattr(twin, name, state)
    return Transform.__call__(twin, value, split_idx=twin.split_idx if twin.split_idx is not None else split)


def _state(op: Any, drawn: Any, first: Size) -> dict[str, Any]:
    """What stock's `before_call` would have left on the transform."""
    if isinstance(op, Resize):
        return {"pcts": drawn}
    if isinstance(op, Dihedral):
        return {"k": drawn[1]}
    if isinstance(op, RandomCrop):
        corner = drawn or ((first[0] - op.size[0]) // 2, (first[1] - op.size[1]) // 2)
        return {"orig_sz": _fastuple(first), "tl": _fastuple(corner)}
    if isinstance(op, RandomResizedCrop):
        corner, crop = drawn if op.random else ((0, 0), first)
        return {"orig_sz": _fastuple(first), "tl": corner, "cp_size": crop, "final_size": pixels.squish_size(op)}
    if isinstance(op, Flip | CropPad):
        return {}
    raise TypeError(f"no replay for {op!r}")


def _ratio_twin(tfm: Any, value: Any) -> Any:
    """The Resize that RatioResize makes for these points."""
    from fastai.vision import augment

    w, h = augment._get_sz(value)
    nw, nh = (tfm.max_sz, h * tfm.max_sz / w) if w >= h else (w * tfm.max_sz / h, tfm.max_sz)
    return augment.Resize(size=(int(nh), int(nw)), resamples=tfm.resamples)


def _fastuple(size: Size) -> Any:
    from fastcore.basics import fastuple

    return fastuple(size)
