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
from functools import cache
from typing import Any

import torch

from fastload import native, stock
from fastload.batch._work import Work, unknown
from fastload.generators import Generators
from fastload.machine import usable_cpus
from fastload.settings import Settings

__all__ = ["arrange", "made_pictures", "measured_error", "refuses", "staying"]


def refuses() -> str | None:
    """Why batch='fused' can't be had here: one sentence, or None."""
    if native.extension() is None:
        return f"the native extension was not built; {native.GET_IT}"
    return stock.untested()


def arrange(dl: Any, settings: Settings) -> str | None:
    """Let `dl.after_batch` run fused, or as fastai's own again, as `settings` say; why it stays fastai's where it has to.

    The pipeline keeps its identity, its transforms and its state; pickled it is fastai's.
    """
    from fasttransform import Pipeline

    pipe, kinds = dl.after_batch, _fused_class()
    wanted = settings.batch == "fused"
    reason = refuses() if wanted else None
    if wanted and reason is None and type(pipe) not in (Pipeline, kinds):
        reason = f"after_batch is a {type(pipe).__name__}, not fastai's Pipeline"
    if wanted and reason is None:
        pipe.__class__ = kinds
        pipe.__dict__["_fastload_threads"] = settings.threads or usable_cpus().count
    elif type(pipe) is kinds:
        pipe.__dict__.pop("_fastload_threads", None)
        pipe.__class__ = Pipeline
    return reason


@cache
def _fused_class() -> type:
    """fastai's Pipeline with another `__call__`; made when first needed, since fastai is slow to import."""
    from fasttransform import Pipeline

    def call(self: Any, batch: Any) -> Any:
        return _run(self, batch)

    def reduce(self: Any, protocol: Any) -> Any:
        state = {k: v for k, v in self.__dict__.items() if k != "_fastload_threads"}
        # not copyreg.__newobj__: pickle refuses that where the class it is given is not the object's own
        return copyreg._reconstructor, (Pipeline, object, None), state  # type: ignore[attr-defined]

    body = {"__call__": call, "__reduce_ex__": reduce, "__doc__": Pipeline.__doc__, "__module__": __name__}
    return types.new_class("FusedPipeline", (Pipeline,), {}, lambda space: space.update(body))


def staying(fs: Any) -> dict[str, str]:
    """Which of the transforms `fs` are not fused, and why: name to reason."""
    return {type(f).__name__: reason for f in fs if (reason := unknown(f)) is not None}


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
    threads = pipe.__dict__.get("_fastload_threads", 1)
    work = Work(batch, pipe.split_idx, threads)
    for f in pipe.fs:
        work.apply(f)
    return work.finished()
