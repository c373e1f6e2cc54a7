"""The promise as a matrix: batches, generators and errors are stock's for every pipeline, order, executor and worker count."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fastai.callback.data import WeightedDL
from fastai.vision import all as fv
from pictures import Pictures
from PIL import Image
from pipelines import DRAWING, ITEM_TFMS, LOOSE_TFMS, TRAIN, VALID, augmented, folder
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
    watch,
)

import fastload

# Item transforms.


@pytest.mark.parametrize("name", ITEM_TFMS)
def test_every_item_transform_gives_stocks_training_batches(pictures: Pictures, name: str) -> None:
    assert_as_stock(folder(pictures, ITEM_TFMS[name]), TRAIN, ways=WAYS if name in DRAWING else WAYS[:2])


@pytest.mark.parametrize("name", ITEM_TFMS)
def test_every_item_transform_gives_stocks_validation_batches(pictures: Pictures, name: str) -> None:
    assert_as_stock(folder(pictures, ITEM_TFMS[name]), VALID, ways=WAYS[1:], epochs=1)


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
