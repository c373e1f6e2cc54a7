"""What must happen to each image of a loader, as frozen data.

A `Plan` is made by a bridge (or by hand, in tests), checked when made, and read by draws, executors and caches. It holds no
fastai object and no file name: two loaders with equal plans give equal pixels for equal bytes and equal draws.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from fastload.errors import SettingsError
from fastload.ops import CropPad, Dihedral, Flip, Op, RandomCrop, RandomResizedCrop, RatioResize, Resize, Size, Stored

__all__ = ["Element", "Plan", "draws"]

MODES = ("RGB", "L")


@dataclass(frozen=True)
class Element:
    """One image of an item: its place in the item's tuple, Pillow mode, and whether it is a mask (uint8 [H, W])."""

    position: int
    mode: str = "RGB"
    mask: bool = False

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise SettingsError(f"an Element's mode is one of {MODES}, not {self.mode!r}")

    def shape(self, size: Size) -> tuple[int, ...]:
        """Shape of one finished image of `size` (width, height).

        >>> Element(0).shape((224, 160)), Element(1, "L", mask=True).shape((224, 160))
        ((3, 160, 224), (160, 224))
        """
        w, h = size
        return (h, w) if self.mask else (len(self.mode), h, w)

    def resample(self, resamples: tuple[int, int]) -> int:
        """The Pillow resample code of an operation for this element: bilinear for images, nearest for masks by default."""
        return resamples[1] if self.mask else resamples[0]


@dataclass(frozen=True)
class Plan:
    """The item operations of a loader, in stock's order, for the images of one item.

    `spatial`: places in the item's tuple that stock's operations act on (images, masks, points, boxes), in order.
    `batch_ops`: names of the batch transforms, which stay fastai's; kept so that `explain` and profiles can name them.
    """

    elements: tuple[Element, ...]
    ops: tuple[Op, ...] = ()
    spatial: tuple[int, ...] = ()
    batch_ops: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.elements:
            raise SettingsError("a Plan needs at least one image element")
        if not self.spatial:
            object.__setattr__(self, "spatial", tuple(e.position for e in self.elements))

    @property
    def draws(self) -> bool:
        """Whether any operation consumes random numbers."""
        return any(draws(op) for op in self.ops)

    @property
    def needs_size(self) -> bool:
        """Whether random numbers depend on the image's size, so that headers must be read before drawing."""
        return any(isinstance(op, RandomResizedCrop | RandomCrop) and op.random for op in self.ops)

    @property
    def varied(self) -> bool:
        """Whether a cache holds several drawn versions of each image: the first number drawn says which."""
        return bool(self.ops) and isinstance(self.ops[0], Stored) and self.ops[0].variants > 1

    @property
    def finished(self) -> bool:
        """Whether a cache holds the images as they go into the batch."""
        return (
            bool(self.ops) and isinstance(self.ops[0], Stored) and not self.varied and not any(o.applies for o in self.ops[1:])
        )

    @property
    def size(self) -> Size | None:
        """Size (width, height) of every finished image, or None where it depends on the file."""
        size: Size | None = None
        for op in self.ops:
            size = _size_after(op, size)
            if isinstance(op, RandomCrop) and len(self.elements) > 1:
                size = None  # it pads by the first image's size, so a second one of another size may stay larger
        return size

    def kept(self, moving: bool = False) -> tuple[tuple[Op, ...], tuple[Op, ...]]:
        """The operations whose outcome a cache may keep, and those left to do: mirrors behind them, what is drawn but not done.

        With `moving` a mirror before a crop is left to do after it: other pixels by a column for the same draws, and as likely.

        >>> plan = Plan((Element(0),), (Flip(), Resize((8, 8))))
        >>> [len(plan.kept(moving)[0]) for moving in (False, True)]
        [2, 1]
        """
        last = max((k for k, op in enumerate(self.ops) if op.applies and not isinstance(op, Flip | Dihedral)), default=-1)
        drawn = [k for k, op in enumerate(self.ops) if draws(op)]
        left = {k for k in drawn if not (op := self.ops[k]).applies or k > last or (moving and isinstance(op, Flip))}
        return tuple(op for k, op in enumerate(self.ops) if k not in left), tuple(self.ops[k] for k in sorted(left))

    def fingerprint(self) -> str:
        """Hex SHA-256 of everything that decides pixels for given bytes and draws (not of targets, batch transforms)."""
        return hashlib.sha256(repr((self.elements, self.ops, self.spatial)).encode()).hexdigest()


def draws(op: Op) -> bool:
    """Whether an operation consumes random numbers."""
    if isinstance(op, CropPad):
        return False
    if isinstance(op, Stored):
        return op.variants > 1
    if isinstance(op, Flip):
        return op.p != 1.0
    if isinstance(op, Resize):
        return op.random and op.method != "squish"
    if isinstance(op, RandomCrop | RandomResizedCrop):
        return op.random
    return isinstance(op, Dihedral | RatioResize)


def _size_after(op: Op, size: Size | None) -> Size | None:
    if not op.applies or isinstance(op, Flip):
        return size
    if isinstance(op, RatioResize):
        return None
    if isinstance(op, Dihedral):
        return size if size is not None and size[0] == size[1] else None
    return op.size
