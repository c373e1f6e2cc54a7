"""batch='fused': within rounding of fastai's own batch transforms, with the same random numbers, whatever is in the list."""

from __future__ import annotations

import copy
import pickle
import random
import types
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from fastai.data.transforms import IntToFloatTensor, Normalize
from fastai.torch_core import TensorImage, TensorImageBW
from fastai.vision import augment
from fastai.vision.augment import (
    AffineCoordTfm,
    Brightness,
    Contrast,
    DeterministicDihedral,
    DeterministicFlip,
    Dihedral,
    Flip,
    RandomErasing,
    RandomResizedCropGPU,
    Rotate,
    Saturation,
    Warp,
    Zoom,
    aug_transforms,
)
from fastai.vision.core import TensorBBox, TensorMask, TensorPoint, imagenet_stats
from fasttransform import Pipeline, Transform
from sidebyside import seed_all

from fastload import native
from fastload.batch import fused
from fastload.settings import Settings

pytestmark = pytest.mark.skipif(native.extension() is None, reason="the native extension was not built")
MEAN, MOST = 1e-6, 1e-4  # of values in [0, 1]: float32 stock is itself 5e-5 from its own formula
TO_FLOAT = IntToFloatTensor()
NORM = Normalize.from_stats(*imagenet_stats, cuda=False)


@pytest.fixture(params=native.extension().usable_kernels() if native.extension() is not None else ["none"])
def kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each set of kernels in turn."""
    extension = native.extension()
    before = extension.kernels_in_use()
    extension.use_kernels(request.param)
    yield request.param
    extension.use_kernels(before)


class Holder:
    """What has an after_batch."""

    def __init__(self, tfms: Sequence[Any], split_idx: int) -> None:
        self.after_batch = Pipeline(copy.deepcopy(list(tfms)), split_idx=split_idx)


def pictures_of(n: int = 4, channels: int = 3, height: int = 40, width: int = 56) -> Any:
    return fused.made_pictures((n, channels, height, width))


def both(tfms: Sequence[Any], pictures: Any, *others: Any, split_idx: int = 0, seed: int = 1, cls: type = TensorImage) -> Any:
    """Stock's batch and the fused one from the same seed; generators end alike."""
    results, states = [], []
    for batch in ("stock", "fused"):
        holder = Holder(tfms, split_idx)
        seed_all(seed)
        with fused.during(holder, Settings(batch=batch, threads=2)) as reason:
            assert reason is None
            assert (type(holder.after_batch) is Pipeline) == (batch == "stock")
            results.append(holder.after_batch((pictures.clone().as_subclass(cls), *copy.deepcopy(others))))
        assert type(holder.after_batch) is Pipeline
        states.append((random.getstate(), torch.get_rng_state().tolist()))
    assert states[0] == states[1]
    return results


def apart(stock: Any, ours: Any) -> tuple[float, float]:
    assert type(stock) is type(ours)
    assert stock.shape == ours.shape
    assert stock.dtype == ours.dtype
    difference = (stock.as_subclass(torch.Tensor).double() - ours.as_subclass(torch.Tensor).double()).abs()
    return float(difference.mean()), float(difference.max())


def assert_near(tfms: Sequence[Any], pictures: Any, **how: Any) -> None:
    stock, ours = both(tfms, pictures, **how)
    mean, most = apart(stock[0], ours[0])
    assert mean <= MEAN
    assert most <= MOST


GEOMETRY = {
    "aug": aug_transforms(),
    "all_eight": aug_transforms(flip_vert=True, max_rotate=45, max_warp=0.4),
    "zeros": aug_transforms(pad_mode="zeros", max_rotate=30),
    "border": aug_transforms(pad_mode="border", max_rotate=30),
    "no_align": aug_transforms(align_corners=False),
    "none_align": [AffineCoordTfm(aff_fs=augment.rotate_mat)],
    "smaller": aug_transforms(size=24),
    "larger": aug_transforms(size=(90, 70)),
    "pooled": aug_transforms(size=12),
    "whole_batch": aug_transforms(batch=True),
    "far_zoom": [Zoom(min_zoom=0.3, max_zoom=0.5, p=1.0)],
    "zoomed_in": [Zoom(min_zoom=2.0, max_zoom=3.0, p=1.0, size=16)],
    "flip": [Flip(p=1.0)],
    "counted_flip": [DeterministicFlip()],
    "dihedral": [Dihedral(p=1.0)],
    "counted_dihedral": [DeterministicDihedral()],
    "rotate": [Rotate(max_deg=170, p=1.0)],
    "warp": [Warp(magnitude=0.3, p=1.0)],
    "two_warps": [Warp(magnitude=0.2, p=1.0), Warp(magnitude=0.1, p=1.0)],
    "presize": aug_transforms(size=20, min_scale=0.75),
    "crop": [RandomResizedCropGPU(20, min_scale=0.2)],
    "crop_pooled": [RandomResizedCropGPU(8, min_scale=0.5, valid_scale=0.8)],
    "light": [Brightness(max_lighting=0.9, p=1.0), Contrast(max_lighting=0.6, p=1.0)],
    "dark_first": [Contrast(max_lighting=0.6, p=1.0), Brightness(p=1.0)],
}


@pytest.mark.parametrize("split_idx", [0, 1])
@pytest.mark.parametrize("name", GEOMETRY)
def test_every_transform_is_within_rounding_of_stock(kernels: str, name: str, split_idx: int) -> None:
    for seed in (1, 2, 3):
        assert_near([TO_FLOAT, *GEOMETRY[name]], pictures_of(), split_idx=split_idx, seed=seed)


@pytest.mark.parametrize("shape", [(1, 3, 1, 1), (2, 3, 1, 9), (3, 1, 33, 17), (2, 4, 20, 20), (2, 5, 12, 30), (1, 3, 100, 20)])
def test_every_shape(kernels: str, shape: tuple[int, int, int, int]) -> None:
    tfms = [TO_FLOAT, *aug_transforms(max_warp=0.0 if 1 in shape[2:] else 0.2)]
    assert_near(tfms, pictures_of(*shape), cls=TensorImageBW if shape[1] == 1 else TensorImage)


def test_division_and_normalisation_alone_are_exact(kernels: str) -> None:
    for tfms in ([TO_FLOAT], [TO_FLOAT, NORM], [IntToFloatTensor(div=127.0), NORM]):
        stock, ours = both(tfms, torch.arange(256, dtype=torch.uint8).repeat(2, 3, 5, 1))
        assert apart(stock[0], ours[0]) == (0.0, 0.0)


def test_normalised_batches_are_as_near(kernels: str) -> None:
    stock, ours = both([TO_FLOAT, *aug_transforms(), NORM], pictures_of())
    scale = float(NORM.std.min())
    mean, most = apart(stock[0], ours[0])
    assert mean * scale <= MEAN
    assert most * scale <= MOST


def test_masks_points_boxes_and_labels_are_fastais_own() -> None:
    mask = TensorMask(torch.arange(4 * 40 * 56).view(4, 40, 56) % 5)
    points = TensorPoint(torch.rand(4, 3, 2) * 2 - 1, img_size=(56, 40))
    boxes = TensorBBox(torch.rand(4, 2, 4) * 2 - 1, img_size=(56, 40))
    for tfms in ([TO_FLOAT, *aug_transforms(), NORM], [TO_FLOAT, *aug_transforms(size=24), NORM]):
        stock, ours = both(tfms, pictures_of(), mask, points, boxes, torch.arange(4))
        for a, b in zip(stock[1:], ours[1:], strict=True):
            assert apart(a, b) == (0.0, 0.0)
            assert a.__dict__.keys() == b.__dict__.keys()


class Doubled(Transform):
    """A user's own batch transform, between others."""

    order = 35

    def encodes(self, x: TensorImage) -> Any:
        return x * 2 / 2


@pytest.mark.parametrize("extra", [RandomErasing(p=1.0), Saturation(p=1.0), Doubled()], ids=lambda t: type(t).__name__)
def test_other_transforms_stay_in_their_place(extra: Any) -> None:
    tfms = [TO_FLOAT, *aug_transforms(xtra_tfms=[extra]), NORM]
    stock, ours = both(tfms, pictures_of())
    assert apart(stock[0], ours[0])[1] <= 20 * MOST  # saturation's hue is steep, and Normalize multiplies by five
    reasons = [(type(f).__name__, why) for f, why in zip(tfms, fused.staying(tfms), strict=True) if why is not None]
    assert reasons == [
        ("Brightness", "it changes more than brightness and contrast")  # fastai makes one transform of the three
        if isinstance(extra, Saturation)
        else (type(extra).__name__, "not one that fastload fuses")
    ]


def test_a_warp_near_its_horizon_is_left_to_stock() -> None:
    tfms = [TO_FLOAT, Warp(p=1.0, draw_x=0.0, draw_y=0.9995)]
    stock, ours = both(tfms, pictures_of())
    assert torch.equal(stock[0], ours[0])


def _halved(*args: Any, **how: Any) -> Any:
    """Some other function than the one it stands for."""
    return ORIGINAL[0](*args, **how) / 2


ORIGINAL: list[Any] = []
PATCHED = {
    "_grid_sample": Rotate(p=1.0),
    "_BrightnessLogit.__call__": Brightness(p=1.0),
    "_ContrastLogit.__call__": Contrast(p=1.0),
    "_WarpCoord.__call__": Warp(p=1.0),
    "apply_perspective": Warp(p=1.0),
    "logit": Brightness(p=1.0),
}


@pytest.mark.parametrize("name", PATCHED)
def test_a_changed_helper_of_fastai_is_left_to_stock(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    holder: Any = augment
    *path, last = name.split(".")
    for part in path:
        holder = getattr(holder, part)
    before = both([TO_FLOAT, PATCHED[name]], pictures_of())[0][0]
    ORIGINAL[:] = [getattr(holder, last)]
    monkeypatch.setattr(holder, last, lambda *args, **how: _halved(*args, **how))
    assert name in str(fused.staying([PATCHED[name]])[0])
    stock, ours = both([TO_FLOAT, PATCHED[name]], pictures_of())
    assert torch.equal(stock[0], ours[0])
    assert name == "logit" or not torch.equal(stock[0], before)  # logit is taken from fastai.torch_core, too


def test_a_transforms_own_methods_are_left_to_stock() -> None:
    own: dict[str, Any] = {
        "before_call": lambda self, b, split_idx: setattr(self, "do", False),
        "_encode": lambda self, x, mode, reverse=False: x / 2,
    }
    for name, method in own.items():
        changed = Flip(p=1.0)
        setattr(changed, name, types.MethodType(method, changed))
        assert fused.staying([changed]) == [f"it carries its own {name}"]
        stock, ours = both([TO_FLOAT, changed], pictures_of())
        assert torch.equal(stock[0], ours[0])
    assert fused.staying([TO_FLOAT, Flip(mode="nearest"), NORM])[1] == "mode 'nearest', pad_mode 'reflection'"
    assert fused.staying([Flip(p=1.0), Flip(mode="nearest")])[0] is None  # told apart though they share a name


@pytest.mark.parametrize(
    "batch", [(), [], "nothing", 3, (torch.arange(2),), (TensorImage(torch.arange(48.0).view(3, 4, 4)), 1), [TensorImage([1])]]
)
def test_what_is_no_image_batch_passes_as_in_stock(batch: Any) -> None:
    stock = Holder([TO_FLOAT], 0).after_batch(copy.deepcopy(batch))
    ours = Holder([TO_FLOAT], 0)
    with fused.during(ours, Settings(batch="fused")):
        assert_alike(stock, ours.after_batch(copy.deepcopy(batch)))


def assert_alike(stock: Any, ours: Any) -> None:
    """Equal in type and content, tensors and what holds them."""
    assert type(stock) is type(ours)
    if isinstance(stock, torch.Tensor):
        assert torch.equal(stock, ours)
    elif isinstance(stock, list | tuple):
        assert len(stock) == len(ours)
        for a, b in zip(stock, ours, strict=True):
            assert_alike(a, b)
    else:
        assert stock == ours


def test_two_images_of_different_size_are_cropped_as_in_stock() -> None:
    """The crop is drawn for the first; torch clips it at the second's border."""
    second = TensorImage(pictures_of(4, 3, 20, 28))
    for seed in range(6):
        stock, ours = both([TO_FLOAT, RandomResizedCropGPU(16, min_scale=0.2)], pictures_of(), second, seed=seed)
        for a, b in zip(stock, ours, strict=True):
            assert apart(a, b)[1] <= MOST


def test_what_is_not_a_number_stays_so() -> None:
    pictures = pictures_of().float() / 255
    pictures[0, 0, 3, 4] = float("nan")
    stock, ours = both([Brightness(p=1.0), Contrast(p=1.0), NORM], pictures)
    assert torch.equal(stock[0].isnan(), ours[0].isnan())
    assert int(ours[0].isnan().sum()) == 1


def test_light_that_is_not_finite_is_left_to_stock() -> None:
    stock, ours = both([TO_FLOAT, Contrast(p=1.0, draw=lambda x: torch.full((x.size(0),), float("inf")))], pictures_of())
    assert torch.equal(stock[0].nan_to_num(2), ours[0].nan_to_num(2))


def test_batches_are_not_changed_and_not_shared() -> None:
    holder = Holder([TO_FLOAT, *aug_transforms()], 0)
    pictures = TensorImage(pictures_of())
    kept = pictures.clone()
    with fused.during(holder, Settings(batch="fused")):
        first = holder.after_batch((pictures,))[0]
        again = first.clone()
        holder.after_batch((pictures,))
    assert torch.equal(pictures, kept)
    assert torch.equal(first, again)


def test_a_pickled_pipeline_is_fastais() -> None:
    holder = Holder([TO_FLOAT, *aug_transforms()], 0)
    with fused.during(holder, Settings(batch="fused")):
        data = pickle.dumps(holder.after_batch)
        copied = copy.deepcopy(holder.after_batch)
    assert b"fastload" not in data
    assert type(pickle.loads(data)) is Pipeline
    assert type(copied) is Pipeline
    assert not [name for name in (*copied.__dict__, *holder.after_batch.__dict__) if "fastload" in name]


def test_the_native_call_refuses_what_would_read_elsewhere() -> None:
    import numpy as np

    images, out = np.zeros((2, 3, 8, 8), np.uint8), np.zeros((2, 3, 4, 4), np.float32)
    maps = np.tile(np.eye(3).reshape(1, 9), (2, 1))
    good = ((0, 0, 8, 8), (0, 0), (4, 4), 2, True, maps)
    call = native.extension().augment
    call(images, out, [good], None, None, None, 255.0, 1)
    infinite = maps.copy()
    infinite[1, 8] = 0
    wrong = [
        [((0, 0, 9, 8), *good[1:])],
        [((0, 0, 8, 8), (9, 9), *good[2:])],
        [(*good[:2], (5, 4), *good[3:])],
        [(*good[:3], 3, *good[4:])],
        [(*good[:5], maps[:1].copy())],
        [(*good[:5], infinite)],
        [(*good[:5], maps * float("nan"))],
        [good, good],
        [],
    ]
    for stages in wrong:
        with pytest.raises(ValueError, match="stage|map|output"):
            call(images, out, stages, None, None, None, 255.0, 1)
    for rest in ((np.zeros((1, 2)), None, None), (None, np.zeros(2, np.float32), np.zeros(2, np.float32))):
        with pytest.raises(ValueError, match="light|mean"):
            call(images, out, [good], *rest, 255.0, 1)
