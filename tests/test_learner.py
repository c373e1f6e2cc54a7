"""A Learner on accelerated loaders: every number it gives, every file it writes and every plot it draws is stock's."""

from __future__ import annotations

import copy
import io
import json
import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fastai
import pytest
import torch
from fastai.data.core import TfmdDL
from fastai.vision import all as stock_vision
from pictures import Pictures
from sidebyside import (
    SERIAL,
    THREE_THREADS,
    assert_as_stock,
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


def loaders(vision: Any, p: Pictures, workers: int = 0, **kw: Any) -> Any:
    """Loaders of a usual pipeline from one seed."""
    seed_all(3)
    tfms = {
        "item_tfms": [vision.RandomResizedCrop(24), vision.FlipItem()],
        "batch_tfms": [vision.Rotate(), vision.Brightness(), vision.Normalize()],
    }
    kw = {"valid_pct": 0.3, "seed": 1, "bs": 4, "device": "cpu", "num_workers": workers} | tfms | kw
    return vision.ImageDataLoaders.from_folder(p.images, **kw)


def learner(vision: Any, dls: Any, path: Path | None = None, cbs: Any = ()) -> Any:
    """A tiny convolution net with seeded weights."""
    seed_all(4)
    nn = torch.nn
    head = [nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(4, 3)]
    model = nn.Sequential(nn.Conv2d(3, 4, 5, 4), *head)
    learn = vision.Learner(dls, model, loss_func=vision.CrossEntropyLossFlat(), metrics=vision.accuracy, path=path, cbs=cbs)
    learn.remove_cb(vision.ProgressCallback)
    learn.logger = lambda _: None
    return learn


def weights(learn: Any) -> list[torch.Tensor]:
    return [p.detach().clone() for p in learn.model.parameters()]


def assert_same(expected: Any, actual: Any, where: str = "") -> None:
    """Equal to the last bit, whatever it is made of."""
    if isinstance(expected, torch.Tensor):
        assert type(expected) is type(actual), where
        assert expected.dtype == actual.dtype and expected.shape == actual.shape, where
        assert expected.detach().contiguous().numpy().tobytes() == actual.detach().contiguous().numpy().tobytes(), where
    elif isinstance(expected, dict):
        assert list(expected) == list(actual), where
        for key in expected:
            assert_same(expected[key], actual[key], f"{where}/{key}")
    elif isinstance(expected, list | tuple | stock_vision.L):
        assert len(expected) == len(actual), where
        for k, (a, b) in enumerate(zip(expected, actual, strict=True)):
            assert_same(a, b, f"{where}/{k}")
    else:
        assert expected == actual or (expected != expected and actual != actual), where


def both(story: Callable[[Any], Any]) -> Any:
    """Tell the story with stock and with the import swap, and compare what they came to; returns stock's."""
    with stock_only():
        expected = story(stock_vision)
    with warned() as lines:
        actual = story(fast_vision)
    assert [] == lines
    assert_same(expected, actual)
    return expected


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


# Showing.


@pytest.fixture
def _plots() -> Iterator[None]:
    import matplotlib.pyplot as plt

    plt.switch_backend("Agg")
    yield
    plt.close("all")


@pytest.mark.usefixtures("_plots")
def test_everything_that_shows_works_and_shows_stocks_items(pictures: Pictures, capsys: pytest.CaptureFixture[str]) -> None:
    import matplotlib.pyplot as plt

    def picture() -> bytes:
        file = io.BytesIO()
        plt.gcf().savefig(file, format="rgba", dpi=30)
        plt.close("all")
        return file.getvalue()

    def story(vision: Any) -> list[bytes]:
        dls = loaders(vision, pictures)
        learn = learner(vision, dls)
        seed_all(5)
        shown = []
        for show in (
            lambda: dls.show_batch(max_n=4),
            lambda: dls.valid.show_batch(max_n=2),
            lambda: dls.train.show_batch(unique=True, max_n=4),
            lambda: learn.show_results(max_n=4),
        ):
            show()
            shown.append(picture())
        interp = vision.ClassificationInterpretation.from_learner(learn)
        interp.plot_top_losses(3)
        shown.append(picture())
        interp.plot_confusion_matrix()
        shown.append(picture())
        capsys.readouterr()
        print(interp.confusion_matrix(), interp.most_confused(), learn.summary(), dls.train.decode_batch(dls.one_batch()))
        return [*shown, capsys.readouterr().out.encode()]

    both(story)


def test_one_batch_new_and_test_dl_give_stocks_batches(pictures: Pictures) -> None:
    for workers in (0, 2):

        def story(vision: Any, workers: int = workers) -> Any:
            dls = loaders(vision, pictures, workers)
            seed_all(5)
            return [
                dls.one_batch(),
                dls.valid.one_batch(),
                list(dls.train.new(bs=3, shuffle=False, num_workers=0)),
                list(dls.valid.new(shuffle=True, drop_last=True)),
                list(dls.test_dl(pictures.files[:5], with_labels=True)),
                list(dls.test_dl(pictures.files[:5], bs=2, num_workers=0)),
                dls.train.one_batch(),
                dls.bs,
                dls.n,
                generator_states(dls.train),
            ]

        both(story)


def test_one_batch_reads_no_more_than_one_batch(pictures: Pictures) -> None:
    stages: Counter[str] = Counter()
    dls = loaders(fast_vision, pictures, 2, hook=lambda stage, *_: stages.update([stage]), prefetch_factor=5)
    stages.clear()
    dls.one_batch()
    assert 4 == stages["read"]


def test_vision_learner_and_the_normalisation_it_adds_are_seen(pictures: Pictures) -> None:
    from fastai.vision.learner import _add_norm, model_meta

    def story(vision: Any) -> Any:
        dls = loaders(vision, pictures, 2, batch_tfms=None)
        before = dls.one_batch()[0]
        seed_all(4)
        learn = vision.vision_learner(dls, vision.resnet18, pretrained=False, metrics=vision.accuracy)
        _add_norm(dls, model_meta[vision.resnet18], True)  # what it does for pretrained weights, which would be downloaded
        learn.remove_cb(vision.ProgressCallback)
        seed_all(5)
        assert dls.one_batch()[0].min() < 0 <= before.min()
        return learn.validate(), list(dls.train), list(dls.valid)

    both(story)


def test_transforms_added_later_are_seen(pictures: Pictures) -> None:
    def story(vision: Any) -> Any:
        dls = loaders(vision, pictures, item_tfms=vision.Resize(24))
        list(dls.train)
        dls.add_tfms([vision.FlipItem(1.0)], "after_item")
        seed_all(5)
        flipped = list(dls.train)
        dls.add_tfms([vision.Flip(1.0)], "after_batch")
        return flipped, list(dls.train), list(dls.valid)

    both(story)


# Switching on and off.


def test_enable_runs_stock_loaders_and_leaves_them_alone_afterwards(pictures: Pictures) -> None:
    stages: Counter[str] = Counter()
    make = lambda: loaders(stock_vision, pictures, 2)  # noqa: E731
    expected = stock_run(make, epochs=1)
    with fastload.enable(threads=2, hook=lambda stage, *_: stages.update([stage])):
        assert_same_run(expected, watch(built(make, 0), epochs=1))
        assert stages["transform"] > 0
    stages.clear()
    dl = built(make, 0)
    assert_same_run(expected, watch(dl, epochs=1))
    assert ({}, TfmdDL, None) == (stages, type(dl), attached_to(dl))


def test_enable_takes_over_loaders_made_before(pictures: Pictures) -> None:
    stages: Counter[str] = Counter()
    dls = loaders(stock_vision, pictures)
    with fastload.enable(hook=lambda stage, *_: stages.update([stage])):
        list(dls.train)
    assert stages["transform"] > 0


def test_each_enable_has_its_own_settings(pictures: Pictures) -> None:
    dl, heard = loaders(stock_vision, pictures).train, []
    for name in ("first", "second"):
        with fastload.enable(hook=lambda *_, name=name: heard.append(name)):
            list(dl)
    with fastload.enable(hook=lambda *_: heard.append("outer")):
        with fastload.enable(hook=lambda *_: heard.append("inner")):
            list(dl)
        list(dl)
    assert ["first", "second", "inner", "outer"] == list(dict.fromkeys(heard))


def test_enable_without_with_stays_on_until_closed(pictures: Pictures) -> None:
    stages: Counter[str] = Counter()
    dl = loaders(stock_vision, pictures).train
    opened = fastload.enable(hook=lambda stage, *_: stages.update([stage]))
    try:
        list(dl)
        assert stages["transform"] > 0
    finally:
        opened.__exit__(None, None, None)
    stages.clear()
    opened.__exit__(None, None, None)
    list(dl)
    assert {} == stages


def test_an_error_inside_enable_turns_it_off(pictures: Pictures) -> None:
    dl = loaders(stock_vision, pictures).train
    with pytest.raises(ZeroDivisionError), fastload.enable():
        assert attached_to(dl) is not None
        raise ZeroDivisionError
    assert attached_to(dl) is None


def test_enable_and_accelerate_refuse_unknown_keywords_by_name(pictures: Pictures) -> None:
    dls = loaders(stock_vision, pictures)
    with pytest.raises(fastload.FastloadError, match=r"no setting 'thread' \(did you mean threads=\?\)"):
        fastload.enable(thread=3)
    with pytest.raises(fastload.FastloadError, match="no setting 'bs'"):
        fastload.accelerate(dls, bs=3)
    assert TfmdDL is type(dls.train)
    assert attached_to(dls.train) is None


@pytest.mark.parametrize("found", [3, None, [1], "dls"])
def test_accelerate_says_what_it_was_given_instead_of_a_loader(found: Any) -> None:
    with pytest.raises(fastload.FastloadError, match=f"found {type(found).__name__}"):
        fastload.accelerate(found)


def test_an_untested_fastai_stays_with_stock(pictures: Pictures, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastai, "__version__", "2.9.0")
    make = lambda: loaders(stock_vision, pictures)  # noqa: E731
    assert_as_stock(make, ways=(SERIAL,), stays="fastai 2.9.0 was not tested with this fastload (tested: 2.8.12)")


def test_fastload_off_in_the_environment_is_heeded_at_once(pictures: Pictures, monkeypatch: pytest.MonkeyPatch) -> None:
    stages: Counter[str] = Counter()
    dls = loaders(fast_vision, pictures, hook=lambda stage, *_: stages.update([stage]))
    stages.clear()
    monkeypatch.setenv("FASTLOAD", "off")
    list(dls.train)
    assert {} == stages
    assert TfmdDL is type(loaders(fast_vision, pictures).train)
    with fastload.enable():
        assert "FASTLOAD=off" in str(fastload.explain(dls))
        list(dls.train)


def test_executor_stock_is_stock_and_says_nothing(pictures: Pictures) -> None:
    stages: Counter[str] = Counter()
    make = lambda: loaders(stock_vision, pictures, 2)  # noqa: E731
    dl = fastload.accelerate(built(make, 0), executor="stock", hook=lambda stage, *_: stages.update([stage]))
    with warned() as lines:
        assert_same_run(stock_run(make), watch(dl))
    assert ([], {}) == (lines, stages)
    assert "executor='stock' was asked for" in str(fastload.explain(dl))


# The import swap.


def test_the_swap_exports_fastais_names() -> None:
    ours: dict[str, Any] = {}
    theirs: dict[str, Any] = {}
    exec("from fastload.vision import *", ours)
    exec("from fastai.vision.all import *", theirs)
    assert set(theirs) == set(ours)
    swapped = {name for name in theirs if theirs[name] is not ours[name] and name != "__builtins__"}
    assert {"ImageDataLoaders", "SegmentationDataLoaders", "DataBlock"} == swapped
    for name in swapped:
        assert issubclass(ours[name], theirs[name])
        assert (theirs[name].__name__, theirs[name].__doc__) == (ours[name].__name__, ours[name].__doc__)


def test_explain_is_json_and_names_every_transform(pictures: Pictures) -> None:
    dls = loaders(fast_vision, pictures, 2)
    report = json.loads(fastload.explain(dls).to_json())
    assert ["train", "valid"] == list(report)
    assert [True, True] == [report[name]["accelerated"] for name in report]
    text = str(fastload.explain(dls))
    assert all(word in text for word in ("RandomResizedCrop", "Flip", "Rotate", "Brightness", "Normalize", "threads"))
    with warned() as lines, fastload.enable(**THREE_THREADS):
        assert "accelerated" in fastload.explain(loaders(stock_vision, pictures)).to_json()
    assert [] == lines
