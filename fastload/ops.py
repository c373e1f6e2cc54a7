"""The words of a Plan: each item transform of fastai that fastload knows, as frozen data.

Sizes are (width, height) in pixels, as Pillow has them. `applies` is False where stock draws an operation's random numbers
but does not carry it out (FlipItem on a validation set). Resample codes are Pillow's (0 nearest, 2 bilinear).
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CropPad", "Dihedral", "Flip", "Op", "RandomCrop", "RandomResizedCrop", "RatioResize", "Resize", "Size"]

Size = tuple[int, int]


@dataclass(frozen=True)
class CropPad:
    """Centre crop or pad to `size` (fastai.vision.augment.CropPad); draws nothing."""

    size: Size
    pad_mode: str = "zeros"
    applies: bool = True


@dataclass(frozen=True)
class Flip:
    """Horizontal mirror with probability `p` (FlipItem): one `random()` unless p is 1."""

    p: float = 0.5
    applies: bool = True


@dataclass(frozen=True)
class Dihedral:
    """One of the eight symmetries (DihedralItem): one `random()` unless p is 1, then one `randint(0, 7)`."""

    p: float = 1.0
    applies: bool = True


@dataclass(frozen=True)
class Resize:
    """Resize to `size` by method crop, pad or squish (Resize); `random` draws two `random()` for crop and pad."""

    size: Size
    method: str = "crop"
    pad_mode: str = "reflection"
    resamples: tuple[int, int] = (2, 0)
    random: bool = False
    applies: bool = True


@dataclass(frozen=True)
class RandomCrop:
    """Crop `size` at a random place, zero padded (RandomCrop); `random` False takes the centre."""

    size: Size
    random: bool = False
    applies: bool = True


@dataclass(frozen=True)
class RandomResizedCrop:
    """Random area and aspect ratio, resized to `size` (RandomResizedCrop); `random` False squishes, then crops the centre."""

    size: Size
    min_scale: float = 0.08
    max_scale: float = 1.0
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    val_xtra: float = 0.14
    resamples: tuple[int, int] = (2, 0)
    random: bool = False
    applies: bool = True


@dataclass(frozen=True)
class RatioResize:
    """Longest side to `max_sz` pixels (RatioResize); two `random()` for each element, on validation sets too."""

    max_sz: int
    resamples: tuple[int, int] = (2, 0)
    applies: bool = True


Op = CropPad | Flip | Dihedral | Resize | RandomCrop | RandomResizedCrop | RatioResize
