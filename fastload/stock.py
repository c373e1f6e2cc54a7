"""Whether fastai is the version that was tested, and fastai and Pillow still as shipped.

Users extend fastai at run time: `@ToTensor def encodes(...)` adds to a class everywhere, and `load_image` is a favourite to
replace. Each function that fastload stands in for is checked by the file its code came from, so the order of imports does not
matter; functions that travelled inside an exported learner are compared by their bytecode.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

__all__ = ["TESTED_FASTAI", "altered", "altered_class", "same_code", "untested"]

TESTED_FASTAI = ("2.8.12",)


def untested() -> str | None:
    """One sentence if the installed fastai is not a version that was tested, else None."""
    import fastai

    if fastai.__version__ in TESTED_FASTAI:
        return None
    return f"fastai {fastai.__version__} was not tested with this fastload (tested: {', '.join(TESTED_FASTAI)})"


def altered() -> str | None:
    """One sentence naming the first function of fastai or Pillow that is not as shipped, else None. Takes about 0.2 ms."""
    return _first_altered(_functions()) or _altered_attribute() or _altered_pillow()


def altered_class(cls: type) -> str | None:
    """One sentence if what a batch transform of fastai's does is not as shipped, else None."""
    from fastai.vision import augment

    named = [(f"{cls.__name__}.encodes", m.implementation) for m in getattr(getattr(cls, "encodes", None), "methods", ())]
    named += [(f"{cls.__name__}.{n}", _raw(cls, n)) for n in ("before_call", "__call__", "_encode") if _raw(cls, n) is not None]
    if cls.__module__ != augment.__name__:
        return _first_altered(named)
    named += [(f"fastai.vision.augment.{n}", getattr(augment, n)) for n in ("_grid_sample", "affine_grid", "_prepare_mat")]
    named += [(f"fastai.vision.augment.{n}", getattr(augment, n)) for n in ("apply_perspective", "compose_tfms", "logit")]
    named += [(f"TensorImage.{n}", getattr(augment.TensorImage, n)) for n in ("affine_coord", "lighting")]
    parts = ("_WarpCoord", "_BrightnessLogit", "_ContrastLogit")
    named += [(f"{part}.__call__", _raw(getattr(augment, part), "__call__")) for part in parts]
    return _first_altered(named)


def _first_altered(named: Iterable[tuple[str, Any]]) -> str | None:
    return next((f"{name} is not fastai's own any more" for name, function in named if not _shipped(function)), None)


def same_code(function: Any, original: Any) -> bool:
    """Whether `function` is `original`, or a copy of it that travelled in a pickle."""
    a, b = (getattr(f, "__func__", f) for f in (function, original))
    if a is b:
        return True
    ca, cb = getattr(a, "__code__", None), getattr(b, "__code__", None)
    return ca is not None and cb is not None and ca.co_code == cb.co_code and ca.co_names == cb.co_names


def _altered_attribute() -> str | None:
    from fastai.vision import core

    for cls, mode in ((core.PILImage, "RGB"), (core.PILImageBW, "L"), (core.PILMask, "L")):
        if cls._open_args != {"mode": mode}:
            return f"{cls.__name__}._open_args is {cls._open_args!r}, not fastai's own {{'mode': {mode!r}}}"
    names = {core.PILImage: "TensorImage", core.PILImageBW: "TensorImageBW", core.PILMask: "TensorMask"}
    for cls, name in names.items():
        if cls._tensor_cls.__name__ != name:
            return f"{cls.__name__}._tensor_cls is {cls._tensor_cls.__name__}, not fastai's own {name}"
    return None


def _altered_pillow() -> str | None:
    """The same for what Pillow does to an image between its file and its pixels, and for who opens JPEG files."""
    from PIL import Image, ImageFile, JpegImagePlugin

    named = [(f"PIL.Image.{n}", getattr(Image, n)) for n in ("open", "new", "frombytes")]
    whole = ("convert", "resize", "crop", "transpose", "tobytes", "frombytes", "load")
    named += [(f"PIL.Image.Image.{n}", _raw(Image.Image, n)) for n in whole]
    named += [(f"ImageFile.{n}", _raw(ImageFile.ImageFile, n)) for n in ("load", "load_prepare", "load_end")]
    named += [(f"JpegImageFile.{n}", _raw(JpegImagePlugin.JpegImageFile, n)) for n in ("load", "_open", "draft", "load_read")]
    if "JPEG" in Image.OPEN:
        named.append(("what Pillow opens JPEG with", Image.OPEN["JPEG"][0]))
    home = os.path.join(os.path.dirname(os.path.abspath(Image.__file__)), "")
    return next((f"{name} is not Pillow's own any more" for name, function in named if not _from(function, (home,))), None)


def _functions() -> Iterator[tuple[str, Any]]:
    from fastai.data import load
    from fastai.vision import augment, core
    from PIL.Image import Image

    yield "fastai.vision.core.load_image", core.load_image
    yield "fastai.vision.core.image2tensor", core.image2tensor
    yield "PILBase.create", core.PILBase.create
    yield "fastai.data.load.fa_collate", load.fa_collate
    yield "PILImage.dihedral", core.PILImage.dihedral
    for name in ("flip_lr", "_do_crop_pad", "crop_pad"):
        yield f"Image.{name}", getattr(Image, name)
    yield from _machinery()
    for cls in _classes(augment, core):
        for method in getattr(getattr(cls, "encodes", None), "methods", ()):
            yield f"{cls.__name__}.encodes", method.implementation
        for name in ("before_call", "__call__"):
            if (found := _raw(cls, name)) is not None:
                yield f"{cls.__name__}.{name}", found


def _machinery() -> Iterator[tuple[str, Any]]:
    """What makes batches of items: users patch these to skip or to log."""
    from fastai.data.core import Datasets, TfmdDL, TfmdLists
    from fasttransform import Pipeline

    for name in ("create_batches", "create_item", "do_item", "create_batch", "do_batch", "retain", "chunkify", "sample"):
        yield f"TfmdDL.{name}", _raw(TfmdDL, name)
    for cls, name in (
        (Datasets, "__getitem__"),
        (TfmdLists, "__getitem__"),
        (TfmdLists, "_after_item"),
        (Pipeline, "__call__"),
    ):
        yield f"{cls.__name__}.{name}", _raw(cls, name)


def _classes(augment: Any, core: Any) -> tuple[type, ...]:
    names = ["Resize", "RandomResizedCrop", "RandomCrop", "CropPad", "RatioResize", "FlipItem", "DihedralItem"]
    return (*(getattr(augment, n) for n in names), core.ToTensor, core.PointScaler, core.AddMaskCodes, core.BBoxLabeler)


def _raw(cls: type, name: str) -> Callable[..., Any] | None:
    return next((base.__dict__[name] for base in cls.__mro__ if name in base.__dict__), None)


def _shipped(function: Any) -> bool:
    return _from(function, _homes())


def _from(function: Any, homes: tuple[str, ...]) -> bool:
    """Whether a function's code comes from one of these folders."""
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return code is not None and os.path.abspath(code.co_filename).startswith(homes)


@cache
def _homes() -> tuple[str, ...]:
    import fastai
    import fasttransform

    # with the separator: a package beside it may have a name that begins alike
    return tuple(os.path.join(os.path.dirname(os.path.abspath(m.__file__)), "") for m in (fastai, fasttransform))
