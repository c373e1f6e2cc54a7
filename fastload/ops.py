"""The words of a Plan: each item transform of fastai that fastload knows, as frozen data.

Sizes are (width, height) in pixels, as Pillow has them. `applies` is False where stock draws an operation's random numbers
but does not carry it out (FlipItem on a validation set). Resample codes are Pillow's (0 nearest, 2 bilinear).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from fastload.errors import SettingsError

__all__ = [
    "CropPad",
    "Dihedral",
    "Flip",
    "Op",
    "RandomCrop",
    "RandomResizedCrop",
    "RatioResize",
    "Resize",
    "Size",
    "Stored",
    "from_json",
    "to_json",
]

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


@dataclass(frozen=True)
class Stored:
    """What a cache has done already: images of `size`, one of `variants` drawn versions each: one `randrange` if several."""

    size: Size
    variants: int = 1
    applies: bool = True


Op = CropPad | Flip | Dihedral | Resize | RandomCrop | RandomResizedCrop | RatioResize | Stored
_CLASSES: dict[str, Any] = {
    cls.__name__: cls for cls in (CropPad, Flip, Dihedral, Resize, RandomCrop, RandomResizedCrop, RatioResize)
}


def to_json(op: Op) -> dict[str, Any]:
    """An operation as JSON values.

    >>> to_json(Flip(0.25))
    {'op': 'Flip', 'p': 0.25, 'applies': True}
    """
    plain = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(op).items()}
    return {"op": type(op).__name__, **plain}


def from_json(value: Any) -> Op:
    """The operation that `to_json` described. Raises SettingsError for anything else: nothing is looked up by name.

    >>> from_json(to_json(Resize((8, 9)))) == Resize((8, 9))
    True
    """
    given = dict(value) if isinstance(value, dict) else {}
    cls = _CLASSES.get(str(given.pop("op", None)))
    names = {f.name for f in fields(cls)} if cls is not None else set()
    if cls is None or set(given) != names:
        raise SettingsError(f"{value!r} describes no operation of this version")
    given = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
    if not all(isinstance(n, bool | int | float | str) for v in given.values() for n in (v if isinstance(v, tuple) else (v,))):
        raise SettingsError(f"{value!r} describes no operation of this version")
    op: Op = cls(**given)
    return op
