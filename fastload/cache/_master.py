"""Masters: images shrunk to the smallest size that a pipeline's crops allow, and what that costs; an approximation.

A random crop takes at least `min_scale` of the area, of a shape between the ratios; so that it is never enlarged, a master's
short side must be size * sqrt(4/3) / sqrt(min_scale) pixels. Where that is more than the image has, nothing is lost.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fastload import pixels
from fastload.draws import Sample, draw_sample
from fastload.errors import CacheError
from fastload.ops import Flip, RandomResizedCrop, Resize, Size
from fastload.plan import Element, Plan

__all__ = ["Loss", "measured_loss", "short_side", "shrunk"]

PROBED = 200  # images that the loss is measured on
EQUAL_DB = 100.0  # stands for no difference at all


@dataclass(frozen=True)
class Loss:
    """What masters cost: median PSNR (dB) of a pipeline's output, share of crops that are newly enlarged, images measured."""

    psnr_db: float
    enlarged: float
    images: int

    @staticmethod
    def of(found: dict[str, float]) -> Loss:
        """From JSON values."""
        return Loss(found["psnr_db"], found["enlarged"], int(found["images"]))

    def __str__(self) -> str:
        quality = "most images keep every pixel" if self.psnr_db >= EQUAL_DB else f"median PSNR {self.psnr_db:.1f} dB"
        return f"{quality}, {100 * self.enlarged:.0f} % of the crops newly enlarged (measured on {self.images} images)"


def short_side(plan: Plan) -> int:
    """Pixels that a master's short side needs. Raises CacheError for steps that say nothing of it.

    >>> short_side(Plan((Element(0),), (RandomResizedCrop((224, 224), min_scale=0.35, random=True),)))
    438
    """
    sizing = [op for op in plan.ops if op.applies and not isinstance(op, Flip)]
    if len(sizing) != 1 or not isinstance(sizing[0], RandomResizedCrop | Resize):
        raise CacheError(
            "masters go with one Resize or RandomResizedCrop, and mirrors; keep 'decoded' for other item transforms"
        )
    op = sizing[0]
    if isinstance(op, Resize):
        return max(op.size)
    stretch = math.sqrt(max(op.ratio[1], 1 / op.ratio[0]))
    return (
        math.ceil(max(op.size) * stretch / math.sqrt(op.min_scale))
        if op.random
        else math.ceil(max(op.size) * (1 + op.val_xtra))
    )


def shrunk(image: Any, side: int) -> Any:
    """The image with a short side of at most `side` pixels."""
    if min(image.size) <= side:
        return image
    return image.resize(master_size(image.size, side), Image.Resampling.LANCZOS)


def master_size(size: Size, side: int) -> Size:
    """Width and height of the master of an image of `size`.

    >>> master_size((1000, 500), 250), master_size((100, 50), 250)
    ((500, 250), (100, 50))
    """
    scale = min(1.0, side / min(size))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def measured_loss(files: Sequence[Path], plan: Plan, side: int, mode: str, seed: int = 0) -> Loss:
    """The pipeline's output from masters against that from the images, one drawn crop each of up to 200, evenly chosen."""
    chosen = files[:: max(1, len(files) // PROBED)][:PROBED]
    element, quality, enlarged = Element(0, mode), [], 0
    only = Plan((element,), tuple(op for op in plan.ops if op.applies and not isinstance(op, Flip)))
    for k, path in enumerate(chosen):
        try:
            with Image.open(path) as opened:
                image = opened.convert(mode)
        except Exception:  # noqa: BLE001  Pillow raises anything; the build lists what can't be read
            continue
        small, sample = shrunk(image, side), draw_sample(only, random.Random(f"{seed} {k}"), image.size)
        exact, of = _finished(only, element, image, sample)
        near, near_of = _finished(only, element, small, tuple(_scaled(d, image.size, small.size) for d in sample))
        enlarged += near_of < 1 <= of
        error = float(((exact.astype(np.float64) - near) ** 2).mean())
        quality.append(EQUAL_DB if error == 0 else min(EQUAL_DB, 10 * math.log10(255**2 / error)))
    if not quality:
        raise CacheError("none of the images can be read, so nothing is known of what masters would lose")
    return Loss(float(np.median(quality)), enlarged / len(quality), len(quality))


def _scaled(drawn: Any, size: Size, to: Size) -> Any:
    """The draws of a random resized crop for the same part of a smaller image; others are the same for every size."""
    if not (isinstance(drawn, tuple) and drawn and isinstance(drawn[0], tuple)):
        return drawn
    corner, crop = drawn
    crop = tuple(max(1, min(t, round(c * t / s))) for c, s, t in zip(crop, size, to, strict=True))
    return tuple(min(t - c, round(x * t / s)) for x, c, s, t in zip(corner, crop, size, to, strict=True)), crop


def _finished(plan: Plan, element: Element, image: Any, sample: Sample) -> tuple[Any, float]:
    """Pixels after the steps, and how many source pixels the crop has for one of the output, along its scarcer side."""
    size = (image.width, image.height)
    todo = pixels.tidy(pixels.steps(plan, element, sample, size, size), size)
    have, per_pixel = size, math.inf
    for step in todo:
        if isinstance(step, pixels.Window):
            have = (step.box[2] - step.box[0], step.box[3] - step.box[1]) if step.box is not None else have
            if step.out is not None:
                per_pixel = min(have[0] / step.out[0], have[1] / step.out[1])
    return pixels.decode(pixels.apply(image, todo), element), per_pixel
