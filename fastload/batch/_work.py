"""A batch on its way through fastai's batch transforms: what is known is noted, and carried out in one native call."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch

from fastload import native, stock
from fastload.batch._geometry import PADS, Stage, arguments, depths, is_identity, pooled, shifted

__all__ = ["Work", "unknown"]

MOST_SIDE = 1 << 15  # of an image, as in module.cpp
# Of a perspective map: single precision's 6e-8 on the depth moves a place by 6e-8 / depth of its distance from the centre, so
# nearer to the horizon stock is no longer within 1e-4 of its own formula, and decides.
_LEAST_DEPTH = 1e-3
_AFFINE = ("AffineCoordTfm", "Flip", "DeterministicFlip", "Dihedral", "DeterministicDihedral", "Rotate", "Zoom", "Warp")
_LIGHTING = ("LightingTfm", "Brightness", "Contrast")


@dataclass
class Pending:
    """An image batch [N, C, H, W] with what is yet to be done to it; `height` and `width` are what comes out."""

    source: Any
    height: int
    width: int
    divisor: float | None = None  # of bytes; None: they are still bytes
    stages: list[tuple[Any, ...]] = field(default_factory=list)
    light: Any = None  # float64 [N, 2]
    norm: tuple[Any, Any] | None = None  # float32 [C]

    @property
    def floating(self) -> bool:
        """Whether it is, or is to be, divided already."""
        return self.divisor is not None or self.source.dtype == torch.float32

    def stand_in(self) -> Any:
        """A batch of this shape that holds no memory: what fastai's drawing looks at."""
        shape = (*self.source.shape[:2], self.height, self.width)
        found = torch.zeros((), dtype=torch.float32).expand(shape).as_subclass(type(self.source))
        found.__dict__.update(self.source.__dict__)
        return found

    def tensor(self, threads: int) -> Any:
        """Carry it out: float32 [N, C, height, width], of the source's type; the source itself where nothing is pending."""
        if self.divisor is None and not self.stages and self.light is None and self.norm is None:
            return self.source
        plain = self.source.as_subclass(torch.Tensor).contiguous()
        out = torch.empty((*plain.shape[:2], self.height, self.width), dtype=torch.float32)
        mean, deviation = self.norm or (None, None)
        native.extension().augment(
            plain.numpy(), out.numpy(), self.stages, self.light, mean, deviation, self.divisor or 1.0, threads
        )
        if not self.source.is_contiguous():
            out = out.contiguous(memory_format=torch.channels_last)
        found = out.as_subclass(type(self.source))
        found.__dict__.update(self.source.__dict__)
        return found


class Work:
    """A batch on its way: images pending, everything else as fastai has made it so far."""

    def __init__(self, batch: Any, split_idx: int | None, threads: int) -> None:
        self.split_idx, self.threads = split_idx, threads
        self.parts: Any = batch  # with Pending in place of images
        if type(batch) is tuple and batch and _image(batch[0]):
            self.parts = tuple(_pend(part) if _image(part) else part for part in batch)

    @property
    def pending(self) -> list[Pending]:
        """The images of the batch."""
        return [p for p in self.parts if isinstance(p, Pending)] if type(self.parts) is tuple else []

    def finished(self) -> Any:
        """The batch as fastai would have it."""
        if self.pending:
            self.parts = tuple(p.tensor(self.threads) if isinstance(p, Pending) else p for p in self.parts)
        return self.parts

    def apply(self, f: Any) -> None:
        """One transform: noted where it is known and fits, else carried out by fastai on what is due."""
        if self.pending and unknown(f) is None and _STEPS[_kind(f)](self, f):
            return
        self._by_fastai(f)

    def _by_fastai(self, f: Any) -> None:
        self.parts = f(self.finished(), split_idx=self.split_idx)
        self._pend_again()

    def _pend_again(self) -> None:
        if type(self.parts) is tuple and self.parts and _image(self.parts[0]):
            self.parts = tuple(_pend(part) if _image(part) else part for part in self.parts)

    def settle(self) -> None:
        """Carry out what is pending and go on from there: what follows does not fit behind it."""
        self.finished()
        self._pend_again()

    def others(self, call: Any) -> None:
        """Let fastai transform what is no image: masks, points, boxes; labels pass it untouched."""
        rest = call(tuple(p for p in self.parts if not isinstance(p, Pending)))
        left = iter(rest)
        self.parts = tuple(p if isinstance(p, Pending) else next(left) for p in self.parts)

    def drawn(self, f: Any) -> None:
        """Let a random transform draw as in stock, looking at images that are not there yet."""
        f.before_call(tuple(p.stand_in() if isinstance(p, Pending) else p for p in self.parts), self.split_idx)

    def applies(self, f: Any) -> bool:
        return f.do and (f.split_idx is None or f.split_idx == self.split_idx)

    def after_drawing(self, f: Any) -> Any:
        """fastai's own transform without its drawing: what RandTransform calls next."""
        from fastai.vision.augment import RandTransform

        call: Any = super(RandTransform, f).__call__  # type: ignore[misc]
        return lambda parts: call(parts, split_idx=self.split_idx)


def _to_float(work: Work, f: Any) -> bool:
    if any(p.floating for p in work.pending) or not f.div > 0 or f.split_idx not in (None, work.split_idx):
        return False
    work.others(lambda rest: f(rest, split_idx=work.split_idx))
    for p in work.pending:
        p.divisor = float(f.div)
    return True


def _affine(work: Work, f: Any) -> bool:
    if not all(p.floating for p in work.pending):
        return False
    if any(p.light is not None or p.norm is not None for p in work.pending):
        work.settle()
    work.drawn(f)
    stages = [_affine_stage(f, p, work.split_idx) for p in work.pending]
    return _staged(work, f, stages)


def _staged(work: Work, f: Any, stages: list[Any]) -> bool:
    """Note a stage for each image, or let fastai go on with what it has drawn where one can't be told."""
    if not work.applies(f):
        return True
    rest = work.after_drawing(f)
    if any(s is None for s in stages):
        work.parts = rest(work.finished())
        work._pend_again()
        return True
    for p, stage in zip(work.pending, stages, strict=True):
        _append(p, stage)
    work.others(rest)
    return True


def _cropped(work: Work, f: Any) -> bool:
    if f.mode != "bilinear" or not all(p.floating for p in work.pending):
        return False
    if any(p.light is not None or p.norm is not None for p in work.pending):
        work.settle()
    work.drawn(f)
    (top, left), (height, width) = f.tl, f.cp_size
    box = (left, top, left + width, top + height)
    stages = [_crop_stage(p, box, (f.size[1], f.size[0])) for p in work.pending]
    return _staged(work, f, stages)


def _lit(work: Work, f: Any) -> bool:
    from fastai.torch_core import logit

    if not all(p.floating for p in work.pending):
        return False
    if any(p.norm is not None or p.light is not None for p in work.pending):  # between two of them values are clipped
        work.settle()
    work.drawn(f)
    if not work.applies(f):
        return True
    light = np.tile([1.0, 0.0], (len(work.pending[0].source), 1))
    for change in f.fs:
        if type(change).__name__ == "_BrightnessLogit":
            light[:, 1] += logit(change.change).as_subclass(torch.Tensor).double().numpy()
        else:
            light *= change.change.as_subclass(torch.Tensor).double().numpy()[:, None]
    if not np.isfinite(light).all():
        work.parts = work.after_drawing(f)(work.finished())
        work._pend_again()
        return True
    for p in work.pending:
        p.light = light
    return True


def _normalised(work: Work, f: Any) -> bool:
    if not all(p.floating for p in work.pending) or f.mean is None or f.std is None:
        return False
    norms = [(_per_channel(f.mean, p), _per_channel(f.std, p)) for p in work.pending]
    if any(mean is None or std is None for mean, std in norms):
        return False
    if any(p.norm is not None for p in work.pending):
        work.settle()
    work.others(lambda rest: f(rest, split_idx=work.split_idx))
    if f.split_idx is None or f.split_idx == work.split_idx:
        for p, norm in zip(work.pending, norms, strict=True):
            p.norm = norm
    return True


_STEPS = {"float": _to_float, "affine": _affine, "crop": _cropped, "light": _lit, "norm": _normalised}


@cache
def _kinds() -> dict[type, str]:
    from fastai.data.transforms import IntToFloatTensor, Normalize
    from fastai.vision import augment

    kinds: dict[type, str] = {IntToFloatTensor: "float", Normalize: "norm", augment.RandomResizedCropGPU: "crop"}
    kinds |= {getattr(augment, name): "affine" for name in _AFFINE}
    return kinds | {getattr(augment, name): "light" for name in _LIGHTING}


def _kind(f: Any) -> str:
    return _kinds()[type(f)]


def unknown(f: Any) -> str | None:
    """Why fastai has to carry out a transform, or None."""
    from fastai.vision import augment

    kind = _kinds().get(type(f))
    if kind is None:
        return "not one that fastload fuses"
    if own := {"encodes", "before_call", "__call__", "_encode"} & set(f.__dict__):
        return f"it carries its own {', '.join(sorted(own))}"
    if reason := stock.altered_class(type(f)):
        return reason
    if kind == "affine":
        if f.mode != "bilinear" or f.pad_mode not in PADS:
            return f"mode {f.mode!r}, pad_mode {f.pad_mode!r}"
        if any(type(c) is not augment._WarpCoord for c in f.coord_fs):
            return "it changes coordinates in a way that fastload does not know"
    if kind == "light" and (
        f.space_fn is not augment.TensorImage.lighting
        or any(type(c) not in (augment._BrightnessLogit, augment._ContrastLogit) for c in f.fs)
    ):
        return "it changes more than brightness and contrast"
    return None


def _image(part: Any) -> bool:
    from fastai.torch_core import TensorImage, TensorImageBW

    return (
        type(part) in (TensorImage, TensorImageBW)
        and part.dtype in (torch.uint8, torch.float32)
        and part.ndim == 4
        and part.device.type == "cpu"
        and (part.is_contiguous() or part.is_contiguous(memory_format=torch.channels_last))
        and not part.requires_grad
        and min(part.shape) > 0
        and max(part.shape[2:]) <= MOST_SIDE
    )


def _pend(part: Any) -> Pending:
    return Pending(part, *part.shape[2:])


def _per_channel(value: Any, p: Pending) -> Any:
    channels = p.source.shape[1]
    if not isinstance(value, torch.Tensor) or value.device.type != "cpu" or value.dtype != torch.float32:
        return None
    if value.numel() not in (1, channels) or (value.ndim and tuple(value.shape) not in ((1, channels, 1, 1), (1, 1, 1, 1))):
        return None
    return np.ascontiguousarray(np.broadcast_to(value.detach().as_subclass(torch.Tensor).reshape(-1).numpy(), channels))


def _identity(p: Pending) -> Any:
    return np.tile(np.eye(3), (len(p.source), 1, 1))


def _affine_stage(f: Any, p: Pending, split_idx: int | None) -> Stage | None:
    """What an AffineCoordTfm has drawn as one stage; None near the horizon of a warp, where stock decides."""
    from fastai.vision.augment import find_coeffs

    maps = _identity(p)
    maps[:, :2] = f.mat.as_subclass(torch.Tensor).double().numpy()
    for warp in () if split_idx else f.coord_fs:
        found = find_coeffs(warp.orig_pts, warp.targ_pts).as_subclass(torch.Tensor).double().numpy()
        maps = np.concatenate([found.reshape(-1, 8), np.ones((len(found), 1))], 1).reshape(-1, 3, 3) @ maps
    size = f.size if f.size is not None else (p.height, p.width)
    height, width = (size, size) if isinstance(size, int) else tuple(size)
    stage = Stage(maps, (0, 0, p.width, p.height), (width, height), str(f.pad_mode), bool(f.align_corners))
    return stage if depths(stage).min() > _LEAST_DEPTH and max(stage.size) <= MOST_SIDE else None


def _crop_stage(p: Pending, box: tuple[int, int, int, int], size: tuple[int, int]) -> Stage | None:
    """A resize of a crop; None where it does not lie in this image: the crop was drawn for the first image of the item."""
    left, top, right, bottom = box
    inside = 0 <= left < right <= p.width and 0 <= top < bottom <= p.height
    return Stage(_identity(p), box, size, "reflection", True) if inside and max(size) <= MOST_SIDE else None


def _append(p: Pending, stage: Stage) -> None:
    """Note a stage for `p`; one that changes nothing is left out, and the one before it makes only what a crop leaves."""
    pool = pooled(stage)
    if pool is None and is_identity(stage, p.width, p.height):
        return
    made = arguments(stage, pool)
    if p.stages:
        p.stages[-1] = shifted(p.stages[-1], stage.box)
        made = ((0, 0, *p.stages[-1][2]), *made[1:])
    p.stages.append(made)
    p.width, p.height = stage.size
