"""A Learner on accelerated loaders: every number it gives, every file it writes and every plot it draws is stock's."""

from __future__ import annotations

import copy
import pickle
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fastai.data.core import TfmdDL
from fastai.vision import all as stock_vision
from learners import assert_same, both, learner, loaders, weights
from pictures import Pictures
from sidebyside import (
    assert_same_run,
    built,
    generator_states,
    seed_all,
    stock_only,
    stock_run,
    warned,
    watch,
)

import fastload
from fastload import vision as fast_vision
from fastload.intercept import attached_to

# Training.


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("mix", [None, stock_vision.MixUp, stock_vision.CutMix], ids=["plain", "mixup", "cutmix"])
def test_two_epochs_give_stocks_losses_metrics_and_weights(pictures: Pictures, mix: Any, workers: int) -> None:
    def story(vision: Any) -> Any:
        dls = loaders(vision, pictures, workers)
        learn = learner(vision, dls, cbs=[mix()] if mix else [])
        seed_all(5)
        learn.fit(2, 0.05)
        recorder = learn.recorder
        return recorder.losses, recorder.values, weights(learn), generator_states(dls.train), generator_states(dls.valid)

    losses, values, *_ = both(story)
    assert [6, 2] == [len(losses), len(values)]


@pytest.mark.parametrize("workers", [0, 2])
def test_everything_after_training_gives_stocks_numbers(pictures: Pictures, workers: int, tmp_path: Path) -> None:
    def story(vision: Any) -> dict[str, Any]:
        dls = loaders(vision, pictures, workers)
        learn = learner(vision, dls, tmp_path)
        seed_all(5)
        learn.fit_one_cycle(1, 0.05)
        test = dls.test_dl(pictures.files[:6])
        found = {
            "validate": learn.validate(),
            "get_preds": learn.get_preds(),
            "of the training set": learn.get_preds(ds_idx=0, with_input=True, with_decoded=True, with_loss=True),
            "of a test set": learn.get_preds(dl=test)[0],
            "tta": learn.tta(n=2),
            "predict": learn.predict(pictures.files[0]),
        }
        learn.lr_find(num_it=7, show_plot=False)
        learn.fit(1, 0.01)
        return found | {"lr_find": learn.recorder.losses, "weights": weights(learn), "states": generator_states(dls.train)}

    both(story)


def test_predict_takes_an_opened_image(pictures: Pictures) -> None:
    def story(vision: Any) -> Any:
        return learner(vision, loaders(vision, pictures)).predict(vision.PILImage.create(pictures.files[1]))

    with stock_only():
        expected = story(stock_vision)
    with warned() as lines:
        assert_same(expected, story(fast_vision))
    assert ["this loader stays with stock fastai: an image is given as PILImage, not as a path"] == lines


def test_callbacks_that_end_or_nest_epochs_see_stocks_batches(pictures: Pictures, tmp_path: Path) -> None:
    def story(vision: Any) -> Any:
        dls = loaders(vision, pictures, 2)
        cbs = [
            vision.GradientAccumulation(8),
            vision.FetchPredsCallback(ds_idx=1, with_input=True),
            vision.SaveModelCallback(fname="best"),
            vision.EarlyStoppingCallback(patience=1),
        ]
        learn = learner(vision, dls, tmp_path, cbs)
        seed_all(5)
        learn.fit(3, 0.05)
        short = learner(vision, dls, cbs=[vision.ShortEpochCallback(0.5)])
        short.fit(2, 0.05)
        fetched = learn.fetch_preds.preds
        return learn.recorder.values, fetched, weights(learn), weights(short), generator_states(dls.train)

    both(story)


def test_a_data_block_gives_stocks_training(pictures: Pictures) -> None:
    def story(vision: Any) -> Any:
        seed_all(3)
        dblock = vision.DataBlock(
            (vision.ImageBlock, vision.CategoryBlock),
            get_items=vision.get_image_files,
            get_y=vision.parent_label,
            splitter=vision.RandomSplitter(0.3, seed=1),
            item_tfms=vision.Resize(24),
            batch_tfms=vision.Flip(),
        )
        results = []
        for dls in (
            dblock.dataloaders(pictures.images, bs=4, num_workers=0, device="cpu"),
            dblock.weighted_dataloaders(pictures.images, list(range(17)), bs=4, num_workers=2, device="cpu"),
        ):
            learn = learner(vision, dls)
            seed_all(5)
            learn.fit(1, 0.05)
            results.append((learn.recorder.losses, weights(learn), learn.get_preds()))
        return results

    both(story)


def test_segmentation_gives_stocks_training(pictures: Pictures) -> None:
    def story(vision: Any) -> Any:
        seed_all(3)
        masks = lambda f: pictures.mask(f)  # noqa: E731
        kw = {"codes": list("abcd"), "valid_pct": 0.3, "seed": 1, "bs": 4, "num_workers": 0, "device": "cpu"}
        tfms = {"item_tfms": vision.RandomResizedCrop(16), "batch_tfms": vision.Flip()}
        dls = vision.SegmentationDataLoaders.from_label_func(pictures.images, pictures.files, masks, **tfms, **kw)
        seed_all(4)
        learn = vision.Learner(dls, torch.nn.Conv2d(3, 4, 3, padding=1), loss_func=vision.CrossEntropyLossFlat(axis=1))
        learn.remove_cb(vision.ProgressCallback)
        learn.logger = lambda _: None
        learn.fit(1, 0.05)
        return learn.recorder.losses, weights(learn), learn.get_preds()

    both(story)


# Export.


@pytest.fixture(scope="module")
def exported(pictures: Pictures, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.Tensor]:
    """A learner trained and exported on accelerated loaders, and its predictions for seven files."""
    path = tmp_path_factory.mktemp("exported")
    learn = learner(fast_vision, loaders(fast_vision, pictures, 2, threads=2), path)
    learn.fit(1, 0.05)
    preds, _ = learn.get_preds(dl=learn.dls.test_dl(pictures.files[:7]))
    learn.export("learner.pkl")
    return path / "learner.pkl", preds


def test_an_exported_learner_names_nothing_of_fastload(exported: tuple[Path, torch.Tensor]) -> None:
    assert b"fastload" not in exported[0].read_bytes()


def test_an_exported_learner_predicts_the_same(pictures: Pictures, exported: tuple[Path, torch.Tensor]) -> None:
    with stock_only():
        learn = stock_vision.load_learner(exported[0])
        learn.remove_cb(stock_vision.ProgressCallback)
        assert TfmdDL is type(learn.dls.train)
        assert_same(exported[1], learn.get_preds(dl=learn.dls.test_dl(pictures.files[:7]))[0])


def test_export_leaves_the_learner_accelerated(pictures: Pictures, tmp_path: Path) -> None:
    learn = learner(fast_vision, loaders(fast_vision, pictures), tmp_path)
    learn.export("learner.pkl")
    assert attached_to(learn.dls.train) is not None
    learn.fit(1)


def test_a_loaded_learner_may_be_accelerated(pictures: Pictures, exported: tuple[Path, torch.Tensor]) -> None:
    stages: Counter[str] = Counter()
    learn = stock_vision.load_learner(exported[0])
    learn.remove_cb(stock_vision.ProgressCallback)
    assert learn is fastload.accelerate(learn, threads=2, hook=lambda stage, *_: stages.update([stage]))
    with warned() as lines:
        assert_same(exported[1], learn.get_preds(dl=learn.dls.test_dl(pictures.files[:7]))[0])
    assert [] == lines
    assert 7 == stages["transform"] + stages["native"]


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))  # stock has no older
def test_a_pickled_loader_is_a_stock_loader(pictures: Pictures, protocol: int) -> None:
    make = lambda vision: lambda: loaders(vision, pictures, 2, batch_tfms=None)  # noqa: E731
    text = pickle.dumps(make(fast_vision)(), protocol)
    assert b"fastload" not in text
    dls = pickle.loads(text)
    assert [TfmdDL, TfmdDL] == [type(dl) for dl in dls.loaders]
    assert_same_run(stock_run(make(stock_vision)), watch(dls.train))


# Copies.


@pytest.mark.parametrize("workers", [0, 2])
def test_a_deep_copy_goes_on_like_stocks_and_stays_accelerated(pictures: Pictures, workers: int) -> None:
    def make(vision: Any) -> Callable[[], Any]:
        return lambda: copy.deepcopy(loaders(vision, pictures, workers, **({"threads": 2} if vision is fast_vision else {})))

    expected = stock_run(make(stock_vision))
    twin = built(make(fast_vision), 0)
    assert 2 == attached_to(twin).settings.threads
    assert twin.fake_l.d is twin
    assert_same_run(expected, watch(twin))


def test_a_shallow_copy_shares_what_stocks_shares(pictures: Pictures) -> None:
    dl = loaders(fast_vision, pictures, threads=2).train
    twin = copy.copy(dl)
    assert (type(dl), dl.dataset, dl.fake_l) == (type(twin), twin.dataset, twin.fake_l)
    assert 2 == attached_to(twin).settings.threads
    assert attached_to(twin) is not attached_to(dl)
    list(dl)
    assert len(dl) == len(list(twin))
