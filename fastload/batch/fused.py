"""`batch="fused"`: fastai's batch transforms on the CPU in one native call, within rounding of stock.

The random numbers, matrices and lighting changes are drawn by fastai's own transform objects (`before_call`), so generators
move as in stock; only the arithmetic on pixels is fastload's. Recognised: IntToFloatTensor, everything that affine and
coordinate transforms are composed of (Flip, Dihedral, Rotate, Zoom, Warp), RandomResizedCropGPU, Brightness and Contrast,
Normalize. Whatever else is in the list, and masks, points and boxes, stay fastai's, in their places.

Formulas: fastai 2.8 vision/augment.py (`affine_coord`, `_grid_sample`, `find_coeffs`, `lighting`), torch's grid_sample and
adaptive_avg_pool2d. Coordinates are computed in double, stock's in single precision: that is where most of the difference
comes from.
"""

from __future__ import annotations

import copy
import copyreg
import random
import types
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from fastload import native, stock
from fastload.batch._work import Work, unknown
from fastload.generators import Generators
from fastload.machine import usable_cpus
from fastload.settings import Settings

__all__ = ["during", "made_pictures", "measured_error", "refuses", "staying"]


def refuses(dl: Any) -> str | None:
    """Why batch='fused' can't be had for a loader: one sentence, or None."""
    from fasttransform import Pipeline

    if native.extension() is None:
        return f"the native extension was not built; {native.GET_IT}"
    if type(dl.after_batch) not in (Pipeline, _fused_class()):
        return f"after_batch is a {type(dl.after_batch).__name__}, not fastai's Pipeline"
    device = torch.device("cpu" if getattr(dl, "device", None) is None else dl.device)
    if device.type != "cpu":
        return f"its batches go to {device}, and fused transforms run on the CPU"
    return stock.untested()


@contextmanager
def during(dl: Any, settings: Settings) -> Iterator[str | None]:
    """Run `dl.after_batch` fused for one epoch where `settings` ask for it; gives the reason why not where it can't be.

    The pipeline keeps its identity, its transforms and its state, and is fastai's own again once no epoch uses it. A pickle
    made in between is fastai's, too.
    """
    from fasttransform import Pipeline

    reason = refuses(dl) if settings.batch == "fused" else None
    if settings.batch != "fused" or reason is not None:
        yield reason
        return
    pipe = dl.after_batch
    pipe.__class__ = _fused_class()
    own = pipe.__dict__
    own[_EPOCHS], own[_THREADS] = own.get(_EPOCHS, 0) + 1, settings.threads or usable_cpus().count
    try:
        yield None
    finally:
        own[_EPOCHS] -= 1
        if not own[_EPOCHS]:
            del own[_EPOCHS], own[_THREADS]
            pipe.__class__ = Pipeline


_EPOCHS, _THREADS = "_fastload_epochs", "_fastload_threads"  # what a pipeline holds while it runs fused


@cache
def _fused_class() -> type:
    """fastai's Pipeline with another `__call__`; made when first needed, since fastai is slow to import."""
    from fasttransform import Pipeline

    def call(self: Any, batch: Any) -> Any:
        return _run(self, batch)

    def reduce(self: Any, protocol: Any) -> Any:
        state = {k: v for k, v in self.__dict__.items() if k not in (_EPOCHS, _THREADS)}
        # not copyreg.__newobj__: pickle refuses that where the class it is given is not the object's own
        return copyreg._reconstructor, (Pipeline, object, None), state  # type: ignore[attr-defined]

    body = {"__call__": call, "__reduce_ex__": reduce, "__doc__": Pipeline.__doc__, "__module__": __name__}
    return types.new_class("FusedPipeline", (Pipeline,), {}, lambda space: space.update(body))


def staying(fs: Any) -> list[str | None]:
    """For each of the transforms `fs` why it is not fused, or None."""
    return [unknown(f) for f in fs]


def measured_error(pipe: Any, pictures: Any, seed: int = 0) -> tuple[float, float]:
    """Mean and largest difference to stock of one batch after the transforms that are fused, but for Normalize: of [0, 1].

    `pictures`: uint8 [N, C, H, W]. Generators and transforms are left as they were.
    """
    before = Generators.now()
    try:
        return _difference(pipe, pictures, seed)
    finally:
        before.restore()


def made_pictures(shape: tuple[int, int, int, int]) -> Any:
    """Smooth random pictures, uint8 [N, C, H, W], to measure on where no file is to be read."""
    n, channels, height, width = shape
    numbers = torch.Generator().manual_seed(1)
    small = torch.randint(0, 256, (n, channels, -(-height // 4), -(-width // 4)), generator=numbers)
    return torch.nn.functional.interpolate(small.float(), (height, width), mode="bilinear").byte()


def _difference(pipe: Any, pictures: Any, seed: int) -> tuple[float, float]:
    from fastai.torch_core import TensorImage
    from fasttransform import Pipeline

    results = []
    for fused in (False, True):
        known = [f for f in pipe.fs if unknown(f) is None and type(f).__name__ != "Normalize"]
        fs = copy.deepcopy(known)  # some of them count their calls
        one = Pipeline(fs, split_idx=pipe.split_idx)
        if fused:
            one.__class__ = _fused_class()
        torch.manual_seed(seed)
        random.seed(seed)
        plain = pictures.detach().as_subclass(torch.Tensor).contiguous().clone()
        results.append(one((plain.as_subclass(TensorImage),))[0].as_subclass(torch.Tensor).double())
    apart = (results[0] - results[1]).abs()
    return float(apart.mean()), float(apart.max())


def _run(pipe: Any, batch: Any) -> Any:
    """One batch through the transforms of `pipe`: runs of those that are known as one native call each."""
    threads = pipe.__dict__.get(_THREADS, 1)
    work = Work(batch, pipe.split_idx, threads)
    for f in pipe.fs:
        work.apply(f)
    return work.finished()
