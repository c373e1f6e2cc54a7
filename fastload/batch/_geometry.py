"""Where the pixels of a resampled batch come from: fastai's grids as 3 x 3 maps, in double precision.

Formulas: fastai 2.8 vision/augment.py (`affine_coord`, `_grid_sample`), torch's affine_grid and grid_sample.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Stage", "arguments", "depths", "is_identity", "pooled", "shifted"]

PADS = {"zeros": 0, "border": 1, "reflection": 2}


@dataclass(frozen=True)
class Stage:
    """One grid_sample of an input of which `box` (left, top, right, bottom) is used; `size`: (width, height) of the output.

    `maps` [N, 3, 3], float64: from the output's normalised coordinates to the input's.
    """

    maps: Any
    box: tuple[int, int, int, int]
    size: tuple[int, int]
    pad_mode: str
    align_corners: bool

    def __post_init__(self) -> None:
        left, top, right, bottom = self.box
        if not (left < right and top < bottom and min(self.size) > 0 and self.pad_mode in PADS):
            raise ValueError(f"no stage: box {self.box}, size {self.size}, pad mode {self.pad_mode!r}")


def depths(stage: Stage) -> Any:
    """What the corners' coordinates are divided by, [N, 4]: nowhere else in the output is it smaller or larger."""
    return _at_corners(stage)[:, 2]


def pooled(stage: Stage) -> tuple[int, int] | None:
    """The (width, height) that fastai's `_grid_sample` averages its input down to first, or None."""
    left, top, right, bottom = stage.box
    width, height = right - left, bottom - top
    d = min(height / stage.size[0], width / 2) / 2  # stock's own indices
    if d <= 1:
        return None
    at = _at_corners(stage)
    places = at[:, :2] / at[:, 2:]  # straight lines stay straight: no place lies beyond those of the corners
    spread = float(np.float32(places.max()) - np.float32(places.min()))
    if spread == 0 or d <= 1 / spread * 2:
        return None
    scale = 1 / d
    return math.floor(width * scale), math.floor(height * scale)


def is_identity(stage: Stage, width: int, height: int) -> bool:
    """Whether the stage gives its whole input of this size back."""
    return stage.box == (0, 0, width, height) and stage.size == (width, height) and bool((stage.maps == np.eye(3)).all())


def arguments(stage: Stage, pool: tuple[int, int] | None) -> tuple[Any, ...]:
    """The stage for the native call: box, pool, size, pad mode, align_corners, and [N, 9] maps from pixel to pixel."""
    left, top, right, bottom = stage.box
    size = pool or (right - left, bottom - top)
    maps = _to_pixels(size, stage.align_corners) @ stage.maps @ _from_pixels(stage.size, stage.align_corners)
    flat = np.ascontiguousarray(maps.reshape(-1, 9))
    return stage.box, pool or (0, 0), stage.size, PADS[stage.pad_mode], stage.align_corners, flat


def shifted(made: tuple[Any, ...], box: tuple[int, int, int, int]) -> tuple[Any, ...]:
    """A stage's arguments where only `box` of its output is wanted."""
    left, top, right, bottom = box
    shift = np.array([[1, 0, left], [0, 1, top], [0, 0, 1]], float)
    maps = np.ascontiguousarray((made[5].reshape(-1, 3, 3) @ shift).reshape(-1, 9))
    return (*made[:2], (right - left, bottom - top), *made[3:5], maps)


def _at_corners(stage: Stage) -> Any:
    """Where the output's corner pixels come from, [N, 3, 4], not yet divided by depth."""
    right, bottom = stage.size[0] - 1, stage.size[1] - 1
    corners = np.array([[0, right, 0, right], [0, 0, bottom, bottom], [1, 1, 1, 1]], float)
    return stage.maps @ (_from_pixels(stage.size, stage.align_corners) @ corners)


def _from_pixels(size: tuple[int, int], align: bool) -> Any:
    """Pixel (x, y, 1) to normalised coordinates, as torch's affine_grid."""
    (sx, ox), (sy, oy) = (_to_unit(n, align) for n in size)
    return np.array([[sx, 0, ox], [0, sy, oy], [0, 0, 1]], float)


def _to_unit(n: int, align: bool) -> tuple[float, float]:
    if not align:
        return 2 / n, 1 / n - 1
    return (2 / (n - 1), -1.0) if n > 1 else (0.0, 0.0)


def _to_pixels(size: tuple[int, int], align: bool) -> Any:
    """Normalised coordinates to pixels, as torch's grid_sample."""
    (sx, ox), (sy, oy) = (((n - 1) / 2, (n - 1) / 2) if align else (n / 2, (n - 1) / 2) for n in size)
    return np.array([[sx, 0, ox], [0, sy, oy], [0, 0, 1]], float)
