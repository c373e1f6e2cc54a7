"""batch='fused': within rounding of fastai's own batch transforms, with the same random numbers, whatever is in the list."""

from __future__ import annotations

import copy
import pickle
import random
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
from pictures import Pictures
from sidebyside import seed_all

import fastload
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
        assert fused.arrange(holder, Settings(batch=batch, threads=2)) is None
        seed_all(seed)
        results.append(holder.after_batch((pictures.clone().as_subclass(cls), *copy.deepcopy(others))))
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
    assert fused.staying(tfms) == (
        {"Brightness": "it changes more than brightness and contrast"}  # fastai makes one transform of the three
        if isinstance(extra, Saturation)
        else {type(extra).__name__: "not one that fastload fuses"}
    )


def test_a_warp_near_its_horizon_is_left_to_stock() -> None:
    tfms = [TO_FLOAT, Warp(p=1.0, draw_x=0.0, draw_y=0.9995)]
    stock, ours = both(tfms, pictures_of())
    assert torch.equal(stock[0], ours[0])


def test_what_was_changed_is_left_to_stock(monkeypatch: pytest.MonkeyPatch) -> None:
    ownmade = Flip(p=1.0)
    ownmade.before_call = lambda b, split_idx: setattr(ownmade, "do", False)
    assert "before_call" in fused.staying([ownmade])["Flip"]
    with monkeypatch.context() as patch:
        patch.setattr(augment, "_grid_sample", lambda x, coords, **how: x)
        assert "_grid_sample" in fused.staying([TO_FLOAT, Flip(), NORM])["Flip"]
    assert fused.staying([TO_FLOAT, Flip(mode="nearest"), NORM]).keys() == {"Flip"}


@pytest.mark.parametrize("batch", [(), [], "nothing", 3, (torch.zeros(2),), (TensorImage(torch.zeros(3, 4, 4)), 1)])
def test_what_is_no_image_batch_passes_as_in_stock(batch: Any) -> None:
    holder = Holder([TO_FLOAT], 0)
    expected = holder.after_batch(copy.deepcopy(batch))
    fused.arrange(holder, Settings(batch="fused"))
    assert type(holder.after_batch(batch)) is type(expected)


def test_batches_are_not_changed_and_not_shared() -> None:
    holder = Holder([TO_FLOAT, *aug_transforms()], 0)
    fused.arrange(holder, Settings(batch="fused"))
    pictures = TensorImage(pictures_of())
    kept = pictures.clone()
    first = holder.after_batch((pictures,))[0]
    again = first.clone()
    holder.after_batch((pictures,))
    assert torch.equal(pictures, kept)
    assert torch.equal(first, again)


def test_a_pickled_pipeline_is_fastais() -> None:
    holder = Holder([TO_FLOAT, *aug_transforms()], 0)
    fused.arrange(holder, Settings(batch="fused"))
    data = pickle.dumps(holder.after_batch)
    assert b"fastload" not in data
    assert type(pickle.loads(data)) is Pipeline
    assert type(copy.deepcopy(holder.after_batch)) is Pipeline


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


def loaders(pictures: Pictures, **how: Any) -> Any:
    from fastload.vision import ImageDataLoaders, RandomResizedCrop

    seed_all(5)
    return ImageDataLoaders.from_folder(
        pictures.images,
        valid_pct=0.3,
        seed=1,
        item_tfms=RandomResizedCrop(32),
        batch_tfms=[*aug_transforms(), NORM],
        bs=4,
        num_workers=2,
        **how,
    )


def test_a_loader_fused_gives_stocks_batches_within_rounding(pictures: Pictures, tmp_path: Any) -> None:
    seen = []
    for batch in ("stock", "fused"):
        dls = loaders(pictures, batch=batch)
        seed_all(7)
        seen.append([b for dl in (dls.train, dls.valid) for b in dl])
    for (x, y), (u, v) in zip(*seen, strict=True):
        assert apart(x, u)[1] <= 10 * MOST  # normalised
        assert torch.equal(y, v)
    assert type(dls.train.after_batch) is not Pipeline
    assert type(pickle.loads(pickle.dumps(dls.train.after_batch))) is Pipeline
    fastload.accelerate(dls)
    next(iter(dls.train))
    assert type(dls.train.after_batch) is Pipeline


def test_a_learner_trains_predicts_and_exports_as_ever(pictures: Pictures, tmp_path: Any) -> None:
    from fastai.vision.all import Learner, accuracy, load_learner, nn

    results = []
    for batch in ("stock", "fused"):
        dls = loaders(pictures, batch=batch)
        seed_all(3)
        model = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, dls.c))
        learn = Learner(dls, model, metrics=accuracy, path=tmp_path)
        with learn.no_bar(), learn.no_logging():
            learn.fit(2, 0.01)
            found = [learn.get_preds()[0], learn.tta(n=2)[0], learn.predict(pictures.files[0])[2]]
        dls.show_batch()
        learn.show_results()
        learn.export("learner.pkl")
        assert b"fastload" not in (tmp_path / "learner.pkl").read_bytes()
        loaded = load_learner(tmp_path / "learner.pkl")
        assert type(loaded.dls.train.after_batch) is Pipeline
        results.append([*found, torch.tensor(learn.recorder.values)])
    for a, b in zip(*results, strict=True):
        assert torch.allclose(a, b, atol=1e-3)


def test_explain_prints_the_error_and_who_does_what(pictures: Pictures) -> None:
    dls = loaders(pictures, batch="fused")
    dls.train.after_batch.add(RandomErasing())
    before = random.getstate(), torch.get_rng_state().tolist()
    text = str(fastload.explain(dls))
    assert (random.getstate(), torch.get_rng_state().tolist()) == before
    assert "batch='fused' is an approximation: off from stock by" in text
    assert "fastload fused" in text
    assert "not one that fastload fuses" in text


def test_without_the_extension_fused_is_left_out_and_said_so(
    pictures: Pictures, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(native, "extension", lambda: None)
    dls = loaders(pictures, batch="fused", executor="threads")
    assert len(list(dls.train)) == 3
    assert type(dls.train.after_batch) is Pipeline
    assert "batch='fused' is left out: the native extension was not built" in caplog.text
    assert "batch='fused' is left out" in str(fastload.explain(dls))
