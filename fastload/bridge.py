"""A fastai pipeline in, a Plan out, or every reason why not.

Recognition is exact: a transform counts only if its class is one that fastload knows (no subclass), its instance carries no
override, and fastai is as shipped. Anything else is a reason, never an error and never an approximation. It is redone whenever
an iterator starts, since pipelines change after construction (vision_learner appends Normalize, TTA swaps split_idx).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fastload import stock
from fastload.ops import CropPad, Dihedral, Flip, Op, RandomCrop, RandomResizedCrop, RatioResize, Resize
from fastload.plan import Element, Plan

__all__ = ["Compiled", "Refused", "compile_loader", "compile_outside", "image_class", "pixel_class"]

PAD_MODES = ("zeros", "border", "reflection")
# The methods of a loader that decide what a batch is; a class or instance that changes one is left to stock.
# (get_idxs, shuffle_fn, before_iter, after_iter and after_batch may be anything: they are called as stock calls them.)
FIXED = (
    *("create_batches", "create_item", "do_item", "create_batch", "do_batch", "retain", "chunkify", "sample", "wif"),
    *("before_batch", "after_item"),
)


@dataclass(frozen=True)
class Refused:
    """Why a loader stays with stock: at least one sentence."""

    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Compiled:
    """A Plan and what belongs to it on fastai's side.

    `steps`: the item transforms in order, each with the index of its operation in the plan, or None for those that do nothing
    to an image. `images`: per element the TfmdLists and Pillow class; `targets`: places in the tuple that are not images.
    `functions`: place and name, and digest, of each step that is not in the plan because the user vouches for it: only a cache
    of what comes out of all steps can stand in for these.
    """

    plan: Plan
    steps: tuple[tuple[Any, int | None], ...]
    images: tuple[tuple[Any, type], ...]
    targets: tuple[int, ...]
    split_idx: int | None
    functions: tuple[tuple[str, str], ...] = ()


Vouched = Callable[[Any], tuple[str, str] | None]


def compile_loader(dl: Any, vouched: Vouched = lambda tfm: None) -> Compiled | Refused:
    """Compile the pipelines of a fastai TfmdDL as they are now. Never raises for something unknown: it says so.

    `vouched` gives name and digest of an unknown item transform that always makes the same of the same image.
    """
    reason = stock.untested() or stock.altered()
    if reason is not None:
        return Refused((reason,))
    reasons = _loader_reasons(dl) + _dataset_reasons(dl)
    if reasons:
        return Refused(tuple(reasons))
    return _compile(dl, vouched)


def compile_outside(dl: Any, vouched: Vouched = lambda tfm: None) -> Compiled | Refused:
    """Compile while no iterator runs: the pipelines know the data set's split meanwhile, as they do in an epoch."""
    if not hasattr(dl.after_item, "fs"):
        return Refused(("it is no TfmdDL with pipelines",))
    with _split_known(dl):
        return compile_loader(dl, vouched)


@contextmanager
def _split_known(dl: Any) -> Iterator[None]:
    """What TfmdDL.before_iter does, taken back afterwards; a user's own before_iter may draw, so it is not called."""
    from fastai.data.core import TfmdDL
    from fasttransform import Pipeline

    found = [getattr(dl, name, None) for name in ("after_item", "before_batch", "after_batch")]
    pipelines = [(p, p.split_idx) for p in found if isinstance(p, Pipeline)]
    TfmdDL.before_iter(dl)
    try:
        yield
    finally:
        for pipeline, split in pipelines:
            pipeline.split_idx = split


def _compile(dl: Any, vouched: Vouched) -> Compiled | Refused:
    tls, split = list(dl.dataset.tls), dl.after_item.split_idx
    classes = [image_class(tl) for tl in tls]
    images = tuple((tl, cls) for tl, cls in zip(tls, classes, strict=True) if cls is not None)
    elements = tuple(_element(k, cls) for k, cls in enumerate(classes) if cls is not None)
    reasons = _tuple_reasons(classes, tls)
    steps: list[tuple[Any, int | None]] = []
    ops: list[Op] = []
    functions: list[tuple[str, str]] = []
    for place, tfm in enumerate(dl.after_item.fs):
        op, reason = recognise(tfm, split, any(e.mask for e in elements))
        if reason is not None and (own := vouched(tfm) if _by_part(tfm) else None) is not None:
            functions.append((f"{place} {own[0]}", own[1]))
        elif reason is not None:
            reasons.append(reason)
        elif op is not None and any(_is(before, "ToTensor") for before, _ in steps):
            reasons.append(f"{_name(tfm)} comes after ToTensor, where it meets tensors")
        steps.append((copy.copy(tfm), None if op is None else len(ops)))  # as it is now: a user may change it later
        ops += [] if op is None else [op]
    if not any(_is(tfm, "ToTensor") for tfm in dl.after_item.fs):
        reasons.append("there is no ToTensor among the item transforms")
    if reasons:
        return Refused(tuple(reasons))
    spatial = tuple(k for k, tl in enumerate(tls) if classes[k] is not None or point_class(tl) is not None)
    targets = tuple(k for k, cls in enumerate(classes) if cls is None)
    batch = tuple(_name(f) for f in dl.after_batch.fs)
    plan = Plan(elements, tuple(ops), spatial, batch, tuple(_chain(tls[k]) for k in targets))
    return Compiled(plan, tuple(steps), images, targets, split, tuple(functions))


def _by_part(tfm: Any) -> bool:
    """Whether a transform acts on each part of an item by itself, and draws nothing."""
    from fastai.vision.augment import RandTransform
    from fasttransform import ItemTransform

    return not isinstance(tfm, ItemTransform | RandTransform)


def _element(position: int, cls: type) -> Element:
    return Element(position, "RGB" if cls.__name__ == "PILImage" else "L", cls.__name__ == "PILMask")


def _tuple_reasons(classes: list[type | None], tls: list[Any]) -> list[str]:
    if classes and classes[0] is not None:
        return []
    return [f"the first part of an item is not an image opened by fastai: {_chain(tls[0]) if tls else 'nothing'}"]


def _loader_reasons(dl: Any) -> list[str]:
    from fastai.data.core import TfmdDL
    from fasttransform import Pipeline

    reasons = []
    if dl.bs is None:
        reasons.append("bs is None: the data set makes its own batches")
    if not dl.indexed:
        reasons.append("the data set is not indexed")
    for name in FIXED:
        if getattr(type(dl), name, None) is not getattr(TfmdDL, name, None):
            reasons.append(f"{type(dl).__name__} has its own {name}")
        elif name in dl.__dict__ and not isinstance(dl.__dict__[name], Pipeline):
            reasons.append(f"the loader was given its own {name}")
    reasons += [r for f in getattr(dl.before_batch, "fs", ()) if (r := _before_batch_reason(f))]
    return reasons


def _before_batch_reason(tfm: Any) -> str | None:
    from fastai.vision.data import bb_pad

    function = wrapped(tfm)
    if _name(tfm) == "noop" or (function is not None and same(function, bb_pad)):
        return None
    return f"before_batch has {_name(tfm)}, which may need whole items"


def _dataset_reasons(dl: Any) -> list[str]:
    from fastai.data.core import Datasets, TfmdLists

    ds = dl.dataset
    if type(ds) is not Datasets:
        return [f"the data set is a {type(ds).__name__}, not fastai's Datasets"]
    odd = [type(tl).__name__ for tl in ds.tls if type(tl) is not TfmdLists]
    return [f"the data set holds a {odd[0]}, not fastai's TfmdLists"] if odd else []


def recognise(tfm: Any, split: int | None, masks: bool = False) -> tuple[Op | None, str | None]:
    """The operation of one item transform (None if it leaves images alone), or the reason why it is not known."""
    name = type(tfm).__name__
    if not _is(tfm, name):
        return None, f"item transform {_name(tfm)} is not one that fastload knows"
    states = {"do"} if name in ("FlipItem", "DihedralItem") else set()  # what these two set at each call
    own = {"encodes", "before_call", "__call__", "do"} & set(tfm.__dict__) - states
    if own:
        return None, f"this {name} carries its own {', '.join(sorted(own))}"
    if name in _PASSIVE:
        return None, None
    if name == "DihedralItem" and masks:
        return None, "DihedralItem does not work on masks in stock fastai (it raises AttributeError)"
    op = _MAKERS[name](tfm, not split, tfm.split_idx is None or tfm.split_idx == split)
    if getattr(op, "pad_mode", "zeros") not in PAD_MODES:
        return None, f"{name} has pad_mode {op.pad_mode!r}; known are {', '.join(PAD_MODES)}"
    return op, None


def _resize(t: Any, train: bool, applies: bool) -> Resize:
    method = t.method if t.method in ("squish", "pad") else "crop"
    return Resize(_size(t), method, str(t.pad_mode), (int(t.mode), int(t.mode_mask)), train, applies)


def _resized_crop(t: Any, train: bool, applies: bool) -> RandomResizedCrop:
    modes = (int(t.mode), int(t.mode_mask))
    return RandomResizedCrop(_size(t), t.min_scale, t.max_scale, tuple(t.ratio), t.val_xtra, modes, train, applies)


def _ratio(t: Any, train: bool, applies: bool) -> RatioResize:
    return RatioResize(t.max_sz, (int(t.resamples[0]), int(t.resamples[1])), applies)


def _size(t: Any) -> tuple[int, int]:
    return (int(t.size[0]), int(t.size[1]))


_MAKERS: dict[str, Callable[[Any, bool, bool], Any]] = {
    "Resize": _resize,
    "RandomResizedCrop": _resized_crop,
    "RandomCrop": lambda t, train, applies: RandomCrop(_size(t), train, applies),
    "CropPad": lambda t, train, applies: CropPad(_size(t), str(t.pad_mode), applies),
    "RatioResize": _ratio,
    "FlipItem": lambda t, train, applies: Flip(float(t.p), applies),
    "DihedralItem": lambda t, train, applies: Dihedral(float(t.p), applies),
}
_PASSIVE = ("ToTensor", "PointScaler", "AddMaskCodes", "BBoxLabeler")  # ToTensor is what every executor ends with


def _is(tfm: Any, name: str) -> bool:
    """Whether `tfm` is exactly fastai's own class `name`."""
    from fastai.vision import augment, core

    return name in (*_MAKERS, *_PASSIVE) and type(tfm) is getattr(augment, name, getattr(core, name, None))


def wrapped(tfm: Any) -> Any:
    """The one function inside a plain `Transform(function)`, else None."""
    from fasttransform import Transform

    methods = getattr(tfm.__dict__.get("encodes"), "methods", ()) if type(tfm) is Transform else ()
    return methods[0].implementation if methods else None


def same(function: Any, original: Any) -> bool:
    """Whether `function` is `original`, here or from inside an exported learner."""
    return stock.same_code(function, original)


def image_class(tl: Any) -> type | None:
    """PILImage, PILImageBW or PILMask if the list ends by opening an image of that class as stock does, else None."""
    from fastai.vision.core import PILBase, PILImage, PILImageBW, PILMask

    function = wrapped(tl.tfms.fs[-1]) if len(tl.tfms.fs) else None
    owner = getattr(function, "__self__", None)
    if owner in (PILImage, PILImageBW, PILMask) and same(function, PILBase.create):
        return owner  # type: ignore[no-any-return]  # fastai has no types
    return None


def point_class(tl: Any) -> type | None:
    """TensorPoint or TensorBBox if the list ends by making one as stock does, else None."""
    from fastai.vision.core import TensorBBox, TensorPoint

    function = wrapped(tl.tfms.fs[-1]) if len(tl.tfms.fs) else None
    owner = getattr(function, "__self__", None)
    return owner if owner in (TensorPoint, TensorBBox) else None


def pixel_class(cls: type) -> Any:
    """The tensor class that stock's ToTensor gives for an image class."""
    return cls._tensor_cls  # type: ignore[attr-defined]  # set by fastai at import


def _chain(tl: Any) -> str:
    return " -> ".join(_name(f) for f in tl.tfms.fs) or "nothing"


def _name(tfm: Any) -> str:
    return str(getattr(tfm, "_name", None) or type(tfm).__name__)
