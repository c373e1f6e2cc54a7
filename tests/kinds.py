"""Kinds of targets by function, each a way to make loaders twice: what the drop-in tests are run over."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from fastai.vision import all as fv
from pictures import CLASSES, Pictures
from pipelines import Make

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
