"""The hot path in C++: JPEG bytes to batch row in one pass, GIL released; what it can't do exactly it refuses.

It decodes with the very libjpeg that Pillow has loaded and resizes with Pillow's own integer arithmetic. Both are compared
with Pillow on a few pictures when first used. Where the resize differs (Pillow-SIMD rounds otherwise), Pillow resizes what is
decoded here; where the decoder differs, Pillow does all the work.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import PIL
from PIL import Image

__all__ = ["Status", "extension", "status"]

GET_IT = "install a C++ compiler and libjpeg's headers (Debian: apt-get install g++ libjpeg62-turbo-dev) and fastload again"


@dataclass(frozen=True)
class Status:
    """What of the native path may be used here. `reason`: one sentence where a half is missing, else empty."""

    decodes: bool
    resizes: bool
    kernels: str = ""
    reason: str = ""


@cache
def extension() -> Any:
    """The compiled module, or None where it was not built."""
    try:
        return importlib.import_module("fastload.native._native")
    except ImportError:
        return None


@cache
def status() -> Status:
    """Load, connect to Pillow's libjpeg, and compare with Pillow; once per process, a few milliseconds."""
    native = extension()
    if native is None:
        return Status(False, False, "", f"the native extension was not built; {GET_IT}")
    from PIL import _imaging

    missing = native.load_jpeg(_imaging.__file__)
    if missing:
        return Status(False, False, "", f"Pillow's JPEG library can't be used: {missing}")
    decodes, resizes = all(map(_decodes_like_pillow, _pictures())), all(map(_resizes_like_pillow, _pictures()))
    names = [name for name, good in (("decoder", decodes), ("resize", resizes)) if not good]
    reason = f"the native {' and '.join(names)} does not equal this Pillow ({PIL.__version__})" if names else ""
    return Status(decodes, resizes, native.kernels_in_use(), reason)


def pillow13() -> bool:
    """Whether this Pillow may do the vertical pass first (13 and later)."""
    return int(PIL.__version__.split(".")[0]) >= 13


def _pictures() -> Iterator[bytes]:
    """Small JPEG files of every common layout, with odd sizes and sharp edges."""
    rng = np.random.default_rng(1)
    for k, (mode, sampling) in enumerate((("RGB", 0), ("RGB", 1), ("RGB", 2), ("L", 0), ("RGB", 2))):
        shape = (61 + 8 * k, 90 - 9 * k, 3) if mode == "RGB" else (70, 53)
        smooth = np.cumsum(rng.integers(-9, 10, shape), axis=1)
        pixels = np.where(rng.random(shape) < 0.1, rng.integers(0, 256, shape), smooth % 256).astype(np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG", quality=85 + k, subsampling=sampling, optimize=k == 2)
        yield file.getvalue()


def _decodes_like_pillow(data: bytes) -> bool:
    truth = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    box = (9, 7, truth.shape[1] - 4, truth.shape[0] - 11)
    size = (box[2] - box[0], box[3] - box[1])
    return _same(data, box, size, truth[box[1] : box[3], box[0] : box[2]], mirrored=False)


def _resizes_like_pillow(data: bytes) -> bool:
    image = Image.open(io.BytesIO(data)).convert("RGB")
    w, h = image.size
    shapes = (((0, 0, w, h), (24, 40), False), ((5, 3, w - 2, h), (31, 17), True), ((1, 0, 20, h), (64, 9), True))
    for box, size, mirrored in shapes:
        crop = image.crop(box)
        crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if mirrored else crop
        if not _same(data, box, size, np.asarray(crop.resize(size, 2)), mirrored):
            return False
        mask, out = np.asarray(image.convert("L"))[..., None], np.empty((1, size[1], size[0]), np.uint8)
        extension().resize(mask, box, size, (0, 0, *size), mirrored, pillow13(), out, nearest=True)
        if not np.array_equal(out[0], np.asarray(crop.convert("L").resize(size, 0))):
            return False
    return True


def _same(data: bytes, box: tuple[int, ...], size: tuple[int, int], truth: Any, mirrored: bool) -> bool:
    out = np.empty((3, size[1], size[0]), np.uint8)
    refused = extension().render(data, box, size, (0, 0, *size), mirrored, pillow13(), out)
    return refused is None and np.array_equal(out, truth.transpose(2, 0, 1))
