"""The promise as a matrix: batches, generators and errors are stock's for every pipeline, target, executor and worker count."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from fastai.callback.data import WeightedDL
from fastai.data.load import SkipItemException
from fastai.vision import all as fv
from pictures import CLASSES, Pictures, pixels, save
from PIL import Image
from sidebyside import (
    SERIAL,
    THREE_THREADS,
    WAYS,
    assert_as_stock,
    assert_same_run,
    built,
    fast_run,
    stock_only,
    stock_run,
    warned,
    watch,
)

import fastload

TRAIN, VALID = 0, 1
Make = Callable[[], Any]
NEAREST, LANCZOS, BICUBIC, BOX = (Image.Resampling(k) for k in (0, 1, 3, 4))

# Item transforms that end in one size for every image.
ITEM_TFMS: dict[str, Callable[[], list[Any]]] = {
    **{
        f"resize_{method}_{pad}": partial(lambda method, pad: [fv.Resize(24, method, pad)], method, pad)
        for method in ("crop", "pad", "squish")
        for pad in ("zeros", "border", "reflection")
    },
    "resize_not_square": lambda: [fv.Resize((20, 33))],
    "resize_pad_not_square": lambda: [fv.Resize((33, 20), "pad", "zeros")],
    "resize_enlarges": lambda: [fv.Resize(97, "pad", "reflection")],
    "resize_bicubic": lambda: [fv.Resize(24, resamples=(BICUBIC, NEAREST))],
    "resize_lanczos_squish": lambda: [fv.Resize(24, "squish", resamples=(LANCZOS, NEAREST))],
    "resize_box": lambda: [fv.Resize(24, resamples=(BOX, BOX))],
    "random_resized_crop": lambda: [fv.RandomResizedCrop(24)],
    "random_resized_crop_not_square": lambda: [fv.RandomResizedCrop((32, 18), min_scale=0.3)],
    "random_resized_crop_enlarges": lambda: [fv.RandomResizedCrop(80, min_scale=0.5)],
    "random_resized_crop_falls_back": lambda: [fv.RandomResizedCrop(24, min_scale=0.99, ratio=(0.98, 1.02))],
    "random_resized_crop_max_scale": lambda: [fv.RandomResizedCrop(24, max_scale=0.3, ratio=(0.5, 2))],
    "random_resized_crop_no_xtra": lambda: [fv.RandomResizedCrop(24, val_xtra=0.0)],
    "random_resized_crop_bicubic": lambda: [fv.RandomResizedCrop(24, resamples=(BICUBIC, NEAREST))],
    "random_crop": lambda: [fv.RandomCrop(16)],
    "random_crop_larger_than_images": lambda: [fv.RandomCrop(70)],
    "random_crop_not_square": lambda: [fv.RandomCrop((30, 18))],
    "crop_pad_zeros": lambda: [fv.CropPad(30, "zeros")],
    "crop_pad_border": lambda: [fv.CropPad((20, 50), "border")],
    "crop_pad_reflection": lambda: [fv.CropPad(64, "reflection")],
    "crop_pad_smaller": lambda: [fv.CropPad(16)],
    "flip_never": lambda: [fv.Resize(24), fv.FlipItem(0.0)],
    "flip_half": lambda: [fv.Resize(24), fv.FlipItem()],
    "flip_always": lambda: [fv.Resize(24), fv.FlipItem(1.0)],
    "dihedral": lambda: [fv.Resize(24), fv.DihedralItem()],
    "dihedral_sometimes": lambda: [fv.Resize((30, 20)), fv.DihedralItem(p=0.4)],
    "dihedral_random_resized_crop": lambda: [fv.DihedralItem(), fv.RandomResizedCrop((18, 28))],
    "dihedral_random_crop": lambda: [fv.DihedralItem(p=0.7), fv.RandomCrop(26)],
    "flip_and_dihedral": lambda: [fv.FlipItem(0.3), fv.DihedralItem(0.5), fv.Resize(24, "pad", "border")],
    "flip_random_resized_crop": lambda: [fv.RandomResizedCrop(24), fv.FlipItem()],
    "crop_pad_then_resize": lambda: [fv.CropPad((25, 45), "reflection"), fv.Resize(24)],
    "resize_then_random_crop": lambda: [fv.Resize(40), fv.RandomCrop(24), fv.FlipItem()],
    "ratio_resize_then_random_crop": lambda: [fv.RatioResize(40), fv.RandomCrop(24)],
    "ratio_resize_then_resize": lambda: [fv.RatioResize(50), fv.Resize(24)],
    "random_resized_crop_then_resize": lambda: [fv.RandomResizedCrop(40), fv.Resize((16, 24), "pad")],
    "crop_pad_flip_random_resized_crop": lambda: [fv.CropPad(44, "border"), fv.FlipItem(), fv.RandomResizedCrop(20)],
}
# Item transforms that leave images of different sizes.
LOOSE_TFMS: dict[str, Callable[[], list[Any] | None]] = {
    "none": lambda: None,
    "flip": lambda: [fv.FlipItem()],
    "dihedral": lambda: [fv.DihedralItem(p=0.6)],
    "ratio_resize": lambda: [fv.RatioResize(30)],
    "ratio_resize_enlarges": lambda: [fv.RatioResize(100, resamples=(BICUBIC, NEAREST)), fv.FlipItem()],
}


def augmented() -> list[Any]:
    return [*fv.aug_transforms(), fv.Normalize.from_stats(*fv.imagenet_stats)]


def folder(p: Pictures, item: Any, workers: int = 0, batch: Any = None, **kw: Any) -> Make:
    """A maker of ImageDataLoaders.from_folder with new transforms each time: 12 images to train on, 5 to validate."""

    def make() -> Any:
        kw_all = {"bs": 5, "valid_pct": 0.3, "seed": 1, "device": "cpu"} | kw
        tfms = batch() if callable(batch) else batch
        return fv.ImageDataLoaders.from_folder(p.images, item_tfms=item(), batch_tfms=tfms, num_workers=workers, **kw_all)

    return make


# Item transforms.


@pytest.mark.parametrize("name", ITEM_TFMS)
def test_every_item_transform_gives_stocks_training_batches(pictures: Pictures, name: str) -> None:
    assert_as_stock(folder(pictures, ITEM_TFMS[name]), TRAIN, ways=WAYS if name in DRAWING else WAYS[:2])


@pytest.mark.parametrize("name", ITEM_TFMS)
def test_every_item_transform_gives_stocks_validation_batches(pictures: Pictures, name: str) -> None:
    assert_as_stock(folder(pictures, ITEM_TFMS[name]), VALID, ways=WAYS[1:], epochs=1)


# Those that draw, once each: worker processes change whose numbers are drawn, not what is done with them.
DRAWING = (
    *("resize_crop_reflection", "resize_squish_zeros", "random_crop", "random_resized_crop", "random_resized_crop_falls_back"),
    *("flip_half", "dihedral_sometimes", "ratio_resize_then_random_crop", "crop_pad_flip_random_resized_crop"),
)


@pytest.mark.parametrize("name", DRAWING)
def test_random_item_transforms_draw_what_stocks_workers_draw(pictures: Pictures, name: str) -> None:
    make = folder(pictures, ITEM_TFMS[name], 2, bs=3)
    assert_as_stock(make, TRAIN, ways=(SERIAL, THREE_THREADS))
    assert_as_stock(make, VALID, ways=(THREE_THREADS,), epochs=1)


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "batch"), [(0, augmented), (1, None), (2, None), (3, augmented)])
@pytest.mark.parametrize("which", [TRAIN, VALID], ids=["train", "valid"])
@pytest.mark.parametrize("name", ITEM_TFMS)
def test_every_item_transform_with_every_worker_count_and_executor(
    pictures: Pictures, name: str, which: int, workers: int, batch: Any
) -> None:
    assert_as_stock(folder(pictures, ITEM_TFMS[name], workers, batch, bs=3), which)


@pytest.mark.parametrize("which", [TRAIN, VALID], ids=["train", "valid"])
@pytest.mark.parametrize("name", LOOSE_TFMS)
def test_images_of_different_sizes_go_out_one_by_one(pictures: Pictures, name: str, which: int) -> None:
    assert_as_stock(folder(pictures, LOOSE_TFMS[name], bs=1), which)


@pytest.mark.parametrize("workers", [0, 2])
def test_images_of_different_sizes_in_one_batch_raise_stocks_error(pictures: Pictures, workers: int) -> None:
    make = folder(pictures, lambda: None, workers)
    expected = assert_as_stock(make, ways=(SERIAL, THREE_THREADS), epochs=1)
    actual = fast_run(make, epochs=1)
    assert "at least two tensors in the batch are not the same size" in str(actual.error)
    if workers == 0:
        assert str(expected.error) == str(actual.error)


@pytest.mark.parametrize("workers", [0, 2])
def test_equal_sizes_need_no_resize(even_pictures: Pictures, workers: int) -> None:
    assert_as_stock(folder(even_pictures, lambda: [fv.FlipItem()], workers))


def test_a_transform_given_twice_counts_once_as_in_stock(pictures: Pictures) -> None:
    assert_as_stock(folder(pictures, lambda: [fv.Resize(40), fv.Resize(24, "pad")]))


def test_a_crop_of_no_pixels_raises_stocks_error(tmp_path: Path) -> None:
    for label in ("a", "b"):
        (tmp_path / label).mkdir()
        Image.new("RGB", (300, 2)).save(tmp_path / label / "thin.png")
    make = lambda: fv.ImageDataLoaders.from_lists(  # noqa: E731
        tmp_path, [*sorted(tmp_path.rglob("*.png"))] * 2, list("abab"), item_tfms=fv.Resize((4, 1000)), bs=2, num_workers=0
    )
    assert_as_stock(make, epochs=1)


# Workers, batch transforms, executors.


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
@pytest.mark.parametrize("which", [TRAIN, VALID], ids=["train", "valid"])
def test_augmented_batches_are_stocks_with_any_number_of_workers(pictures: Pictures, workers: int, which: int) -> None:
    item = ITEM_TFMS["flip_random_resized_crop"]
    assert_as_stock(folder(pictures, item, workers, augmented, bs=3), which)


@pytest.mark.parametrize("workers", [0, 2, 3])
def test_presizing_gives_stocks_batches(pictures: Pictures, workers: int) -> None:
    batch = lambda: fv.aug_transforms(size=20, min_scale=0.75)  # noqa: E731
    assert_as_stock(folder(pictures, lambda: [fv.Resize(40)], workers, batch), ways=(THREE_THREADS,))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("bs", [5, 4, 100])
def test_a_leftover_is_dropped_or_kept_as_in_stock(pictures: Pictures, workers: int, bs: int) -> None:
    item = ITEM_TFMS["random_resized_crop"]
    for drop_last in (True, False):
        make = folder(pictures, item, workers, bs=bs, drop_last=drop_last)
        if drop_last and bs == 100 and workers == 0:
            continue  # no batch at all: nothing to see but the generators
        assert_as_stock(make, ways=(THREE_THREADS,))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_of_a_dropped_leftover_alone_moves_the_generators_as_stock(pictures: Pictures, workers: int) -> None:
    make = folder(pictures, ITEM_TFMS["random_resized_crop"], workers, bs=100, drop_last=True)
    seen = assert_as_stock(make, ways=(SERIAL, THREE_THREADS))
    assert [[], []] == seen.batches


@pytest.mark.parametrize("workers", [0, 2])
def test_no_shuffle_and_fewer_items_are_kept(pictures: Pictures, workers: int) -> None:
    assert_as_stock(folder(pictures, ITEM_TFMS["flip_half"], workers, shuffle=False, n=7), ways=(THREE_THREADS,))


def random_erasing() -> list[Any]:
    return [fv.RandomErasing(p=0.7, max_count=3)]


def random_resized_crop_gpu() -> list[Any]:
    return [fv.RandomResizedCropGPU(18, min_scale=0.4)]


def one_draw_for_the_batch() -> list[Any]:
    return [fv.Rotate(p=1.0, batch=True), fv.Brightness(p=1.0, batch=True)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batch", [random_erasing, random_resized_crop_gpu, one_draw_for_the_batch])
def test_batch_transforms_may_draw_from_pythons_generator(pictures: Pictures, workers: int, batch: Any) -> None:
    assert_as_stock(folder(pictures, ITEM_TFMS["flip_random_resized_crop"], workers, batch, bs=3))


def drawing_between(dl: Any) -> Iterator[Any]:
    for k, batch in enumerate(dl):
        if k % 2:
            random.random()
        yield batch
        np.random.rand()
        torch.rand(1)


@pytest.mark.parametrize("workers", [0, 2])
def test_user_code_may_draw_between_batches(pictures: Pictures, workers: int) -> None:
    for name in ("flip_random_resized_crop", "resize_crop_reflection", "random_crop"):
        assert_as_stock(folder(pictures, ITEM_TFMS[name], workers, bs=2), visit=drawing_between)


def breaking_off(dl: Any) -> Iterator[Any]:
    yield from itertools.islice(dl, 2)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_early_break_leaves_everything_as_stock_does(pictures: Pictures, workers: int) -> None:
    make = folder(pictures, ITEM_TFMS["flip_random_resized_crop"], workers, bs=2)
    assert_as_stock(make, visit=breaking_off, epochs=3)


def nested(dl: Any) -> Iterator[Any]:
    """The valid loader runs inside an epoch of the train loader, as FetchPreds does; then the train loader inside itself."""
    for k, batch in enumerate(dl):
        yield batch
        if k == 1:
            yield from dl.partner
            yield from itertools.islice(dl, 2)


@pytest.mark.parametrize("workers", [0, 2])
def test_loaders_may_be_iterated_inside_one_another(pictures: Pictures, workers: int) -> None:
    def make() -> Any:
        dls = folder(pictures, ITEM_TFMS["flip_random_resized_crop"], workers, bs=2)()
        dls.train.partner = dls.valid
        return dls

    def partnered() -> Any:
        return fastload.accelerate(make())

    expected = stock_run(make, visit=nested)
    assert_same_run(expected, watch(built(partnered, TRAIN), visit=nested))


def test_zip_of_two_loaders_is_stocks(pictures: Pictures) -> None:
    make = folder(pictures, ITEM_TFMS["random_resized_crop"], bs=2)
    zipped = lambda dls: (part for pair in zip(dls.train, dls.valid, strict=False) for part in pair)  # noqa: E731
    with stock_only():
        dls = built(make)
        dls.rng = dls.train.rng
        expected = watch(dls, visit=zipped)
    dls = fastload.accelerate(built(make), threads=2)
    dls.rng = dls.train.rng
    assert_same_run(expected, watch(dls, visit=zipped))


# Loaders that choose their own indices.


@pytest.mark.parametrize("workers", [0, 2])
def test_weighted_loaders_keep_their_order(pictures: Pictures, workers: int) -> None:
    def make() -> Any:
        dblock = fv.DataBlock(
            (fv.ImageBlock, fv.CategoryBlock),
            get_items=fv.get_image_files,
            get_y=fv.parent_label,
            splitter=fv.RandomSplitter(0.3, seed=1),
            item_tfms=fv.RandomResizedCrop(24),
        )
        weights = np.arange(1, 18)
        return dblock.weighted_dataloaders(pictures.images, weights, bs=5, num_workers=workers, device="cpu")

    assert_as_stock(make, ways=(SERIAL, THREE_THREADS))
    assert isinstance(fastload.accelerate(built(make)).train, WeightedDL)


@pytest.mark.parametrize("workers", [0, 2])
def test_partial_loaders_keep_their_order(pictures: Pictures, workers: int) -> None:
    def make() -> Any:
        dsets = fv.DataBlock(
            (fv.ImageBlock, fv.CategoryBlock),
            get_items=fv.get_image_files,
            get_y=fv.parent_label,
            splitter=fv.RandomSplitter(0.3, seed=1),
        ).datasets(pictures.images)
        tfms = {"after_item": [fv.RandomResizedCrop(24), fv.ToTensor()], "after_batch": [fv.IntToFloatTensor()]}
        return dsets.partial_dataloaders(7, bs=3, num_workers=workers, device="cpu", **tfms)

    assert_as_stock(make, ways=(SERIAL, THREE_THREADS))


class Backwards(fv.TfmdDL):
    def get_idxs(self) -> list[int]:
        return super().get_idxs()[::-1]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_class_of_ones_own_with_its_own_order_is_run(pictures: Pictures, workers: int) -> None:
    assert_as_stock(folder(pictures, ITEM_TFMS["random_resized_crop"], workers, dl_type=Backwards), ways=(THREE_THREADS,))


def test_get_idxs_and_shuffle_fn_may_be_given(pictures: Pictures) -> None:
    item = ITEM_TFMS["random_resized_crop"]
    assert_as_stock(folder(pictures, item, shuffle_fn=lambda idxs: idxs[::-1]))
    assert_as_stock(folder(pictures, item, get_idxs=lambda: [3, 3, 1, 0]))


# Targets.


def regex_name(p: Pictures) -> Any:
    return fv.ImageDataLoaders.from_name_re(p.images, p.files, r"^(.*)_\d+\.", **COMMON)


def regex_path(p: Pictures) -> Any:
    return fv.ImageDataLoaders.from_path_re(p.images, p.files, r"/([^/]+)_\d+\.", **COMMON)


def name_func(p: Pictures) -> Any:
    return fv.ImageDataLoaders.from_name_func(p.images, p.files, lambda name: name[0] == "c", **COMMON)


def path_func(p: Pictures) -> Any:
    return fv.ImageDataLoaders.from_path_func(p.images, p.files, lambda path: path.parent.name, **COMMON)


def from_csv(p: Pictures) -> Any:
    return fv.ImageDataLoaders.from_csv(p.path, "labels.csv", **COMMON)


def from_csv_with_valid_column(p: Pictures) -> Any:
    return fv.ImageDataLoaders.from_csv(p.path, "labels.csv", valid_col="is_valid", **COMMON)


def from_lists(p: Pictures) -> Any:
    return fv.ImageDataLoaders.from_lists(p.path, p.files, [f.parent.name for f in p.files], **COMMON)


def from_lists_of_numbers(p: Pictures) -> Any:
    return fv.ImageDataLoaders.from_lists(p.path, p.files, [k % 3 for k, _ in enumerate(p.files)], **COMMON)


def multi_category(p: Pictures) -> Any:
    return fv.ImageDataLoaders.from_csv(p.path, "labels.csv", label_col="tags", label_delim=" ", **COMMON)


def one_hot_columns(p: Pictures) -> Any:
    df = pd.read_csv(p.path / "labels.csv")
    for name in CLASSES:
        df[name] = df.tags.str.contains(name).astype(int)
    block = fv.MultiCategoryBlock(encoded=True, vocab=list(CLASSES))
    return fv.ImageDataLoaders.from_df(df, p.path, label_col=list(CLASSES), y_block=block, **COMMON)


def regression(p: Pictures) -> Any:
    df = pd.read_csv(p.path / "labels.csv")
    return fv.ImageDataLoaders.from_df(df, p.path, label_col="value", y_block=fv.RegressionBlock(), **COMMON)


def regression_of_two(p: Pictures) -> Any:
    df = pd.read_csv(p.path / "labels.csv").assign(other=lambda d: -d.value)
    return fv.ImageDataLoaders.from_df(df, p.path, label_col=["value", "other"], y_block=fv.RegressionBlock(), **COMMON)


def segmentation(p: Pictures) -> Any:
    return fv.SegmentationDataLoaders.from_label_func(p.images, p.files, lambda f: p.mask(f), codes=list("abcd"), **COMMON)


def masks_without_codes(p: Pictures) -> Any:
    return block(p, (fv.ImageBlock, fv.MaskBlock()), get_y=lambda f: p.mask(f))


def points(p: Pictures) -> Any:
    return block(p, (fv.ImageBlock, fv.PointBlock), get_y=lambda f: fv.tensor(p.annotation(f)["points"]))


def points_as_lists(p: Pictures) -> Any:
    return block(p, (fv.ImageBlock, fv.PointBlock), get_y=lambda f: p.annotation(f)["points"])


def boxes(p: Pictures) -> Any:
    getters = [lambda f: p.annotation(f)["boxes"], lambda f: p.annotation(f)["labels"]]
    return block(p, (fv.ImageBlock, fv.BBoxBlock, fv.BBoxLblBlock), get_y=getters, n_inp=1)


def image_to_image(p: Pictures) -> Any:
    return block(p, (fv.ImageBlock, fv.ImageBlock), get_y=lambda f: f)


def image_to_another_image(p: Pictures) -> Any:
    files = p.files
    return block(p, (fv.ImageBlock, fv.ImageBlock), get_y=lambda f: files[files.index(f) - 1])


def gray_images(p: Pictures) -> Any:
    return block(p, (fv.ImageBlock(fv.PILImageBW), fv.CategoryBlock), get_y=fv.parent_label)


def gray_to_colour(p: Pictures) -> Any:
    return block(p, (fv.ImageBlock(fv.PILImageBW), fv.ImageBlock), get_y=lambda f: f)


def two_images_and_a_category(p: Pictures) -> Any:
    getters = {"get_x": [lambda f: f, lambda f: p.mask(f)], "get_y": fv.parent_label}
    return block(p, (fv.ImageBlock, fv.ImageBlock(fv.PILImageBW), fv.CategoryBlock), n_inp=2, **getters)


def category_between_images(p: Pictures) -> Any:
    return block(p, (fv.ImageBlock, fv.CategoryBlock, fv.MaskBlock), get_y=[fv.parent_label, lambda f: p.mask(f)], n_inp=1)


def image_alone(p: Pictures) -> Any:
    return block(p, (fv.ImageBlock,))


def category_and_regression(p: Pictures) -> Any:
    getters = [fv.parent_label, lambda f: float(f.stem[-2:])]
    return block(p, (fv.ImageBlock, fv.CategoryBlock, fv.RegressionBlock), get_y=getters, n_inp=1)


def paths_as_strings(p: Pictures) -> Any:
    return block(p, (fv.ImageBlock, fv.CategoryBlock), get_x=lambda f: str(f), get_y=lambda f: Path(f).parent.name)


def several_in_a_dict(p: Pictures) -> Any:
    return block(p, (fv.ImageBlock, fv.TransformBlock), get_y=lambda f: {"number": int(f.stem[-2:]), "row": torch.ones(2)})


def names(p: Pictures) -> Any:
    return block(p, (fv.ImageBlock, fv.TransformBlock), get_y=lambda f: f.stem)


TARGETS = (
    *(regex_name, regex_path, name_func, path_func, from_csv, from_csv_with_valid_column, from_lists, from_lists_of_numbers),
    *(multi_category, one_hot_columns, regression, regression_of_two, segmentation, masks_without_codes),
    *(points, points_as_lists, boxes, image_to_image, image_to_another_image, gray_images, gray_to_colour),
    *(two_images_and_a_category, category_between_images, image_alone, category_and_regression, paths_as_strings),
    *(several_in_a_dict, names),
)
COMMON: dict[str, Any] = {}


def block(p: Pictures, blocks: Any, **how: Any) -> Any:
    item, batch = COMMON["item_tfms"], COMMON["batch_tfms"]
    splitter = fv.RandomSplitter(0.3, seed=1)
    dblock = fv.DataBlock(blocks, get_items=lambda _: p.files, splitter=splitter, item_tfms=item, batch_tfms=batch, **how)
    return dblock.dataloaders(p.images, path=p.path, **{k: COMMON[k] for k in ("bs", "num_workers", "device")})


def target(make: Callable[[Pictures], Any], p: Pictures, item: Any, workers: int, batch: Any = None, bs: int = 5) -> Make:
    """A maker of the loaders of `make` with these item transforms, batch transforms and workers."""

    def made() -> Any:
        COMMON.clear()
        COMMON.update(item_tfms=item(), batch_tfms=batch() if batch else None, bs=bs, num_workers=workers, device="cpu")
        return make(p)

    return made


@pytest.mark.parametrize("kind", TARGETS, ids=lambda f: f.__name__)
def test_every_target_is_stocks(pictures: Pictures, kind: Any) -> None:
    make = target(kind, pictures, ITEM_TFMS["flip_random_resized_crop"], 0)
    assert_as_stock(make, TRAIN, ways=WAYS[:2])
    assert_as_stock(make, VALID, ways=WAYS[1:], epochs=1)


# One of each path that a target takes through the loader.
OF_WORKERS = (name_func, from_csv, multi_category, regression_of_two, segmentation, points, boxes, image_to_image, image_alone)


@pytest.mark.parametrize("kind", OF_WORKERS, ids=lambda f: f.__name__)
def test_targets_are_those_of_stocks_workers(pictures: Pictures, kind: Any) -> None:
    assert_as_stock(target(kind, pictures, ITEM_TFMS["flip_random_resized_crop"], 2, bs=3), ways=(THREE_THREADS,))


SPATIAL = (segmentation, boxes, image_to_another_image)  # all kinds with all item transforms: the slow test below


def impossible(kind: Any, name: str) -> bool:
    """Whether stock itself can't: CropPad runs before points are scaled, DihedralItem knows no mask and no mirrored box."""
    no_crop_pad = kind in (points, points_as_lists, boxes) and "crop_pad" in name
    no_dihedral = kind in (segmentation, masks_without_codes, category_between_images) and "dihedral" in name
    return no_crop_pad or no_dihedral or (kind is boxes and name == "flip_and_dihedral")


# The pad modes and filters of an image say nothing about what follows it.
_OF_THE_IMAGE = re.compile("resize_(crop|squish)_(zeros|border)|bicubic|lanczos|box|enlarges")
SPATIAL_TFMS = [n for n in ITEM_TFMS if not _OF_THE_IMAGE.search(n)]


@pytest.mark.parametrize(("kind", "name"), [(k, n) for k in SPATIAL for n in SPATIAL_TFMS if not impossible(k, n)])
def test_masks_points_boxes_and_second_images_follow_every_item_transform(pictures: Pictures, kind: Any, name: str) -> None:
    make = target(kind, pictures, ITEM_TFMS[name], 0, bs=12)
    assert_as_stock(make, TRAIN, ways=WAYS[1:], epochs=1)
    if name in DRAWING:
        assert_as_stock(make, VALID, ways=(SERIAL,), epochs=1)


@pytest.mark.parametrize("name", ["random_crop", "random_crop_larger_than_images", "random_crop_not_square"])
def test_a_second_image_of_another_size_is_cropped_as_stock_crops_it(pictures: Pictures, name: str) -> None:
    assert_as_stock(target(image_to_another_image, pictures, ITEM_TFMS[name], 0, bs=1))
    then_resized = lambda: [*ITEM_TFMS[name](), fv.Resize(24, "pad")]  # noqa: E731
    assert_as_stock(target(image_to_another_image, pictures, then_resized, 0, bs=4))


def test_dihedral_on_masks_raises_stocks_error(pictures: Pictures) -> None:
    make = target(segmentation, pictures, ITEM_TFMS["dihedral"], 0)
    seen = assert_as_stock(make, stays="DihedralItem does not work on masks", epochs=1)
    assert isinstance(seen.error, AttributeError)


@pytest.mark.parametrize("kind", [segmentation, points, boxes, multi_category], ids=lambda f: f.__name__)
def test_augmented_targets_are_stocks(pictures: Pictures, kind: Any) -> None:
    make = target(kind, pictures, ITEM_TFMS["flip_half"], 2, lambda: fv.aug_transforms(max_rotate=20))
    assert_as_stock(make, ways=(THREE_THREADS,))


# Each pair once; the workers take turns, so that each target and each transform meets every number of them.
PAIRS = [(k, n, (i + j) % 4) for i, k in enumerate(TARGETS) for j, n in enumerate(ITEM_TFMS) if not impossible(k, n)]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name", "workers"), PAIRS)
def test_every_target_with_every_item_transform(pictures: Pictures, kind: Any, name: str, workers: int) -> None:
    for which in (TRAIN, VALID):
        assert_as_stock(target(kind, pictures, ITEM_TFMS[name], workers), which, ways=WAYS[1:], epochs=1)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("labelled", [False, True], ids=["unlabelled", "labelled"])
def test_test_loaders_are_stocks(pictures: Pictures, workers: int, labelled: bool) -> None:
    for kind in (from_csv, segmentation, boxes):
        items = pd.read_csv(pictures.path / "labels.csv").iloc[:7] if kind is from_csv else pictures.files[:7]
        make = target(kind, pictures, ITEM_TFMS["flip_random_resized_crop"], workers)
        with stock_only():
            expected = watch(built(make).test_dl(items, with_labels=labelled))
        dls = fastload.accelerate(built(make), threads=3)
        with warned() as lines:
            actual = watch(dls.test_dl(items, with_labels=labelled))
        assert [] == lines
        assert_same_run(expected, actual)


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "P", "CMYK", "1", "LA", "I;16", "I", "F"])
def test_every_image_mode_is_opened_as_stock(tmp_path: Path, mode: str) -> None:
    rng = np.random.default_rng(2)
    for k, size in enumerate([(40, 30), (30, 40), (25, 25), (60, 31)]):
        image = Image.fromarray(pixels(size, rng))
        if mode == "I;16":
            image = Image.fromarray(np.asarray(image.convert("L"), dtype=np.uint16) * 3)
        elif mode in ("I", "F"):
            image = image.convert("L").convert(mode)
        else:
            image = image.convert(mode)
        suffixes = {"CMYK": ["jpg", "tif"], "RGB": ["jpg", "bmp", "webp", "tif", "ppm", "gif"], "F": ["tif"], "I": ["tif"]}
        for suffix in suffixes.get(mode, ["png", "tif"]):
            file = tmp_path / "ab"[k % 2] / f"{k}.{suffix}"
            file.parent.mkdir(exist_ok=True)
            image.save(file)
    files = sorted(f for f in tmp_path.rglob("*") if f.is_file())
    for create in (fv.PILImage, fv.PILImageBW, fv.PILMask):

        def make(create: Any = create) -> Any:
            tfms = [fv.RandomCrop(24)] if create is fv.PILMask else [fv.RandomResizedCrop(24)]
            dblock = fv.DataBlock((fv.ImageBlock(create), fv.CategoryBlock), get_y=fv.parent_label, item_tfms=tfms)
            return dblock.dataloaders(files, bs=len(files), num_workers=0, device="cpu")

        assert_as_stock(make, ways=(SERIAL, THREE_THREADS), epochs=1)


def test_exif_turns_and_progressive_files_are_opened_as_stock(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    exif = Image.Exif()
    exif[0x0112] = 6
    for k, options in enumerate([{"exif": exif}, {"progressive": True}, {"quality": 20}, {"subsampling": 0, "optimize": True}]):
        file = tmp_path / "ab"[k % 2] / f"{k}.jpg"
        file.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels((50, 35), rng)).save(file, **options)
    make = lambda: fv.ImageDataLoaders.from_path_func(  # noqa: E731
        tmp_path, fv.get_image_files(tmp_path), fv.parent_label, item_tfms=fv.Resize(24), bs=4, num_workers=0, valid_pct=0.3
    )
    assert_as_stock(make)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("damage", ["truncated", "empty", "text", "missing"])
def test_a_damaged_file_raises_stocks_error_and_leaves_stocks_generators(tmp_path: Path, damage: str, workers: int) -> None:
    rng = np.random.default_rng(2)
    files = [save(tmp_path / f"{k}.jpg", (40, 30), rng) for k in range(9)]
    whole = files[5].read_bytes()
    files[5].write_bytes({"truncated": whole[:-300], "empty": b"", "text": b"no image", "missing": b""}[damage])
    if damage == "missing":
        files[5].unlink()

    def make() -> Any:
        labels = [str(k % 2) for k in range(9)]
        kw = {"item_tfms": [fv.RandomResizedCrop(24), fv.FlipItem()], "bs": 2, "shuffle": False, "drop_last": False}
        return fv.ImageDataLoaders.from_lists(tmp_path, files, labels, valid_pct=0.1, seed=1, num_workers=workers, **kw)

    expected = stock_run(make, epochs=1)
    assert isinstance(expected.error, OSError)
    for way in WAYS:
        actual = fast_run(make, epochs=1, way=way)
        assert_same_run(expected, actual)
        assert str(files[5]) in str(actual.error)


# Code of the user's own inside the items.


def drawing_label(file: Path) -> float:
    return random.random() + np.random.rand()


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("from_item", [0, 7])
def test_a_label_function_that_draws_gives_stocks_labels(pictures: Pictures, workers: int, from_item: int) -> None:
    calm = set(pictures.files[:from_item])

    def make() -> Any:
        draw = lambda f: 0.5 if f in calm else drawing_label(f)  # noqa: E731
        dblock = fv.DataBlock((fv.ImageBlock, fv.RegressionBlock), get_y=draw, item_tfms=fv.RandomResizedCrop(24))
        return dblock.dataloaders(pictures.files, bs=2, num_workers=workers, device="cpu", shuffle=False)

    expected = stock_run(make)
    for way in (SERIAL, THREE_THREADS):
        stays = "get_x or get_y draws random numbers"
        dl = fastload.accelerate(built(make, TRAIN), **way)
        with warned() as lines:
            assert_same_run(expected, watch(dl))
        assert [True] == [stays in line for line in lines]


class Switch:
    """A label function that asks to skip some items once `on`; set-up sees every item."""

    def __init__(self, skip: set[Path], on: bool = False) -> None:
        self.skip, self.on = skip, on

    def __call__(self, file: Path) -> float:
        if self.on and file in self.skip:
            raise SkipItemException
        return 1.0


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("workers", [0, 2, 3])
def test_skipped_items_leave_stocks_batch_sizes(pictures: Pictures, workers: int, drop_last: bool) -> None:
    for skipped in ({1, 2, 8}, {0, 1, 2, 3}, set(range(12, 17))):

        def make(skipped: set[int] = skipped) -> Any:
            label = Switch({pictures.files[k] for k in skipped})
            dblock = fv.DataBlock(
                (fv.ImageBlock, fv.RegressionBlock),
                get_y=label,
                splitter=fv.IndexSplitter([16]),
                item_tfms=[fv.RandomResizedCrop(24), fv.FlipItem()],
            )
            kw = {"bs": 3, "num_workers": workers, "device": "cpu", "shuffle": False, "drop_last": drop_last}
            dls = dblock.dataloaders(pictures.files, **kw)
            label.on = True
            return dls

        assert_as_stock(make, ways=(SERIAL, THREE_THREADS) if workers != 2 else (THREE_THREADS,))


def brighter(image: fv.PILImage) -> fv.PILImage:
    return image.point(lambda v: min(255, v + 9))


class MyResize(fv.Resize):
    pass


class Darken(fv.RandTransform):
    def encodes(self, x: fv.PILImage) -> Any:
        return x.point(lambda v: v // 2)


class Albumentations(fv.Transform):
    """Like the adapter in fastai's tutorials: numpy in and out, its draws from numpy's generator."""

    def __init__(self, aug: Any) -> None:
        self.aug = aug

    def encodes(self, img: fv.PILImage) -> Any:
        return fv.PILImage.create(self.aug(image=np.array(img))["image"])


def rolled(image: Any) -> dict[str, Any]:
    return {"image": np.roll(image, np.random.randint(5), 0)}


UNKNOWN = {
    "function": (lambda: [brighter, fv.Resize(24)], "item transform brighter is not one that fastload knows"),
    "lambda": (lambda: [fv.Resize(24), lambda x: x], "is not one that fastload knows"),
    "subclass": (lambda: [MyResize(24)], "item transform MyResize is not one"),
    "rand_transform": (lambda: [fv.Resize(24), Darken(p=0.5)], "item transform Darken is not one"),
    "albumentations": (lambda: [fv.Resize(24), Albumentations(rolled)], "item transform Albumentations is not one"),
    "own_before_call": (lambda: [fv.Resize(24), own_before_call()], "FlipItem carries its own before_call"),
    "own_do": (lambda: [fv.Resize(24), never()], "RandomCrop carries its own do"),
    "own_encodes": (lambda: [own_encodes(), fv.Resize(24)], "is not one that fastload knows"),
}


def own_before_call() -> Any:
    flip = fv.FlipItem()
    flip.before_call = lambda b, split_idx: setattr(flip, "do", True)
    return flip


def never() -> Any:
    crop = fv.RandomCrop(20)
    crop.do = False
    return crop


def own_encodes() -> Any:
    return fv.Transform(enc=brighter)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_item_transform_stays_with_stock_and_is_reported_once(pictures: Pictures, name: str, workers: int) -> None:
    item, reason = UNKNOWN[name]
    for which in (TRAIN, VALID) if workers == 0 else (TRAIN,):
        assert_as_stock(folder(pictures, item, workers), which, ways=(THREE_THREADS,), stays=reason)


@pytest.mark.parametrize("late", [lambda: fv.Resize(24), lambda: fv.FlipItem(1.0)], ids=["resize", "flip"])
def test_an_item_transform_moved_behind_to_tensor_stays_with_stock(even_pictures: Pictures, late: Any) -> None:
    def item() -> list[Any]:
        tfm = late()
        tfm.order = 9
        return [tfm]

    assert_as_stock(folder(even_pictures, item), ways=(SERIAL,), stays="comes after ToTensor")


def test_loaders_made_by_new_do_not_report_again(pictures: Pictures) -> None:
    dls = fastload.accelerate(built(folder(pictures, UNKNOWN["function"][0])))
    with warned() as lines:
        list(dls.valid)
        list(dls.valid.new())
        list(dls.test_dl(pictures.files[:3]))
        dls.valid.one_batch()
    assert 1 == len(lines)


def test_every_reason_is_named_at_once(pictures: Pictures) -> None:
    make = folder(pictures, lambda: [MyResize(24), Darken()])
    with warned() as lines:
        list(fastload.accelerate(built(make)).train)
    assert [True, True] == ["Darken" in lines[0], "MyResize" in lines[0]]


class OwnItems(fv.TfmdDL):
    def create_item(self, s: Any) -> Any:
        return super().create_item(s)


def test_a_loader_class_that_makes_its_own_items_stays_with_stock(pictures: Pictures) -> None:
    make = folder(pictures, ITEM_TFMS["flip_half"], dl_type=OwnItems)
    assert_as_stock(make, ways=(SERIAL,), stays="OwnItems has its own create_item")


def test_a_loader_that_was_given_its_own_method_stays_with_stock(pictures: Pictures) -> None:
    for name, given in {"create_batch": fv.fa_collate, "wif": lambda: None}.items():
        make = folder(pictures, ITEM_TFMS["flip_half"], **{name: given})
        assert_as_stock(make, ways=(SERIAL,), stays=f"the loader was given its own {name}")


def test_items_that_are_images_already_go_to_stock(pictures: Pictures) -> None:
    def make() -> Any:
        opened = [fv.PILImage.create(f) for f in pictures.files]
        dblock = fv.DataBlock((fv.ImageBlock, fv.RegressionBlock), get_y=lambda _: 1.0, item_tfms=fv.RandomResizedCrop(24))
        return dblock.dataloaders(opened, bs=4, num_workers=0, device="cpu")

    assert_as_stock(make, stays="an image is given as PILImage, not as a path")


def test_one_item_that_is_no_path_sends_the_rest_of_the_epoch_to_stock(pictures: Pictures) -> None:
    for workers in (0, 2):

        def make(workers: int = workers) -> Any:
            odd = {pictures.files[9]: np.asarray(Image.open(pictures.files[9]).convert("RGB"))}
            dblock = fv.DataBlock(
                (fv.ImageBlock, fv.RegressionBlock),
                get_x=lambda f: odd.get(f, f),
                get_y=lambda _: 1.0,
                splitter=fv.IndexSplitter([16]),
                item_tfms=[fv.RandomResizedCrop(24), fv.FlipItem()],
            )
            return dblock.dataloaders(pictures.files, bs=2, num_workers=workers, device="cpu", shuffle=False)

        expected = stock_run(make)
        assert expected.error is None
        for way in WAYS:
            dl = fastload.accelerate(built(make, TRAIN), **way)
            with warned() as lines:
                assert_same_run(expected, watch(dl))
            assert [True] == ["not as a path" in line for line in lines]


# Batches as a learner sees them.


class Watcher(fv.Callback):
    """Keeps what the model is given."""

    order = 200

    def before_fit(self) -> None:
        self.seen: list[Any] = []

    def before_batch(self) -> None:
        self.seen.append((tuple(x.clone() for x in self.xb), tuple(y.clone() for y in self.yb)))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("mix", [fv.MixUp, fv.CutMix])
def test_mixed_batches_are_stocks(pictures: Pictures, mix: Any, workers: int) -> None:
    make = folder(pictures, ITEM_TFMS["flip_random_resized_crop"], workers)

    def mixed(dls: Any) -> Any:
        def visit(dl: Any) -> Iterator[Any]:
            model = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 3))
            learn = fv.Learner(dls, model, loss_func=fv.CrossEntropyLossFlat(), cbs=[mix(), Watcher()])
            with learn.no_bar(), learn.no_logging():
                learn.fit(1)
            yield from learn.watcher.seen
            yield [p.detach().clone() for p in model.parameters()]

        return watch(dls.train, visit=visit)

    with stock_only():
        expected = mixed(built(make))
    assert expected.error is None
    for way in (SERIAL, THREE_THREADS):
        assert_same_run(expected, mixed(fastload.accelerate(built(make), **way)))
