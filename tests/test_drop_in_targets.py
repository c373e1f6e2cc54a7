"""Every kind of target, label and file gives stock's batches after the swap of the import."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from fastai.data.load import SkipItemException
from fastai.vision import all as fv
from kinds import (
    TARGETS,
    boxes,
    category_between_images,
    from_csv,
    image_alone,
    image_to_another_image,
    image_to_image,
    masks_without_codes,
    multi_category,
    name_func,
    points,
    points_as_lists,
    regression_of_two,
    segmentation,
    target,
)
from pictures import Pictures, pixels, save
from PIL import Image
from pipelines import DRAWING, ITEM_TFMS, TRAIN, VALID
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
