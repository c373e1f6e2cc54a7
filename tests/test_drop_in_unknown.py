"""What fastload does not know stays with stock, and is said once; mixing callbacks see stock's batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from fastai.vision import all as fv
from pictures import Pictures
from PIL import Image
from pipelines import ITEM_TFMS, TRAIN, VALID, folder
from sidebyside import (
    SERIAL,
    THREE_THREADS,
    WAYS,
    assert_as_stock,
    assert_same_run,
    built,
    stock_only,
    stock_run,
    warned,
    watch,
)

import fastload


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
