"""A sample's steps as one native call, where they have that form: turn, crop, pad, mirror, resize, keep a window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastload import pixels
from fastload.ops import Size

__all__ = ["Box", "Pass", "one_pass"]

Box = tuple[int, int, int, int]
NEAREST, BILINEAR = 0, 2  # Pillow's codes


class Pass:
    """What one native call does: turn the source, crop `box`, pad, mirror, resize to `size`, keep `window` of that.

    `turn`: bits 1 swap x and y, 2 flip the source's x, 4 flip its y. `box` is in the coordinates of the turned image.
    `nearest`: the resize is a mask's, for decoded pixels of one channel alone.
    """

    __slots__ = ("box", "frame", "mirrored", "mode", "nearest", "pad", "size", "turn", "window")

    def __init__(self, size: Size) -> None:
        self.frame: Size = size  # of the image as the steps so far have left it
        self.box: Box = (0, 0, *size)
        self.turn, self.mirrored, self.mode, self.nearest = 0, False, 0, False
        self.pad: Box | None = None
        self.size: Size | None = None
        self.window: Box | None = None

    def arguments(self) -> tuple[Any, ...]:
        """box, size, window, mirrored: the arguments between the image and the rest."""
        return self.box, self.size or self.frame, self.window or (0, 0, *(self.size or self.frame)), self.mirrored

    def scale(self, slack: float) -> int:
        """The largest of 8, 4 and 2 by which the crop may shrink and still be `slack` times what it is resized to, else 1.

        >>> [(p := Pass((1600, 1200))), setattr(p, "size", (224, 224)), p.scale(1.5), p.scale(1.0)][2:]
        [2, 4]
        """
        if self.size is None or self.turn or self.pad is not None:
            return 1
        least = min((self.box[2] - self.box[0]) / self.size[0], (self.box[3] - self.box[1]) / self.size[1])
        return next((f for f in (8, 4, 2) if least >= f * slack), 1)

    def rest(self) -> tuple[Any, ...]:
        """turn, pad, pad_mode: the arguments after the output."""
        return self.turn, self.pad or (0, 0, 0, 0), self.mode


def one_pass(todo: Sequence[pixels.Step], size: Size) -> Pass | None:
    """The steps for an image of `size` as one native call, or None where they are not of that form.

    >>> p = one_pass([pixels.Turn(0), pixels.Window((10, 0, 40, 20), None, "zeros", (8, 8))], (100, 20))
    >>> p.arguments(), p.rest()
    (((60, 0, 90, 20), (8, 8), (0, 0, 8, 8), True), (0, (0, 0, 0, 0), 0))
    """
    one = Pass(size)
    for step in todo:
        if not (_turn(one, step.method) if isinstance(step, pixels.Turn) else _window(one, step)):
            return None
    return one


def _turn(one: Pass, method: int) -> bool:
    if one.size is not None:
        return False
    if method == 0:
        one.mirrored = not one.mirrored
        return True
    if one.box != (0, 0, *one.frame) or one.pad is not None:
        return False  # a turn after a crop
    turn = _after_mirror(one.turn) if one.mirrored else one.turn
    for bit in _TURNS[method]:
        turn ^= 1 if bit == "swap" else _flipped(turn, bit)
    one.turn, one.mirrored = turn, False
    if "swap" in _TURNS[method]:
        one.frame = (one.frame[1], one.frame[0])
        one.box = (0, 0, *one.frame)
    return True


# Pillow's transpositions as flips of x or y, then perhaps a swap of the two (PIL.Image.Transpose)
_TURNS = {1: ("y",), 2: ("x", "swap"), 3: ("x", "y"), 4: ("y", "swap"), 5: ("swap",), 6: ("x", "y", "swap")}


def _flipped(turn: int, axis: str) -> int:
    """The bit that a flip of the turned image's `axis` changes: the source's other axis where they are swapped."""
    return 2 if (axis == "x") != bool(turn & 1) else 4


def _after_mirror(turn: int) -> int:
    return turn ^ _flipped(turn, "x")


def _window(one: Pass, step: pixels.Window) -> bool:
    if step.box is not None and not _crop(one, step.box):
        return False
    if any(step.pad or ()) and not _pad(one, step):
        return False
    if step.out is None:
        return True
    if one.size is not None or step.resample not in (NEAREST, BILINEAR):
        return False
    one.size, one.nearest = step.out, step.resample == NEAREST
    return True


def _crop(one: Pass, box: Box) -> bool:
    width, height = one.size or one.frame
    if one.pad is not None and one.size is None:
        return False  # a crop of what was padded
    if not (0 <= box[0] < box[2] <= width and 0 <= box[1] < box[3] <= height):
        return False
    if one.size is not None:
        one.window = box
        return True
    left, top, right, _ = one.box
    x, y = (right - box[2] if one.mirrored else left + box[0]), top + box[1]
    one.frame = (box[2] - box[0], box[3] - box[1])
    one.box = (x, y, x + one.frame[0], y + one.frame[1])
    return True


def _pad(one: Pass, step: pixels.Window) -> bool:
    if one.size is not None or one.pad is not None or step.pad is None:
        return False
    left, top, right, bottom = step.pad
    one.pad = (right, top, left, bottom) if one.mirrored else step.pad
    one.mode = _MODES[step.pad_mode]
    one.frame = (one.frame[0] + left + right, one.frame[1] + top + bottom)
    return True


_MODES = {"zeros": 0, "border": 1, "reflection": 2}
