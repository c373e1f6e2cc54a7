"""Whatever turns fastload on and off: enable, accelerate, the environment, an untested fastai; and what is shown."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import fastai
import pytest
from fastai.data.core import TfmdDL
from fastai.vision import all as stock_vision
from learners import both, learner, loaders
from pictures import Pictures
from sidebyside import (
    SERIAL,
    THREE_THREADS,
    assert_as_stock,
    assert_same_run,
    built,
    generator_states,
    seed_all,
    stock_run,
    warned,
    watch,
)

import fastload
from fastload import vision as fast_vision
from fastload.intercept import attached_to

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
