"""batch='fused' through a loader: it lasts for an epoch of a loader that fastload runs, no longer, and says what it does."""

from __future__ import annotations

import gc
import itertools
import random
from typing import Any

import pytest
import torch
from fastai.data.transforms import Normalize
from fastai.vision.augment import RandomErasing, aug_transforms
from fastai.vision.core import imagenet_stats
from fasttransform import Pipeline
from pictures import Pictures
from PIL import Image
from sidebyside import seed_all

import fastload
from fastload import native

pytestmark = pytest.mark.skipif(native.extension() is None, reason="the native extension was not built")
MOST = 1e-4  # of values in [0, 1]
NORM = Normalize.from_stats(*imagenet_stats, cuda=False)


def apart(stock: Any, ours: Any) -> float:
    assert type(stock) is type(ours)
    return float((stock.as_subclass(torch.Tensor).double() - ours.as_subclass(torch.Tensor).double()).abs().max())


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
        assert apart(x, u) <= 10 * MOST  # normalised
        assert torch.equal(y, v)
    assert type(dls.train.after_batch) is Pipeline  # again


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


def kinds_during(dl: Any, last: int | None = None) -> set[str]:
    """Class names of after_batch seen while iterating `dl`, at most `last` batches."""
    return {type(dl.after_batch).__name__ for _ in itertools.islice(dl, last)}


def test_it_lasts_as_long_as_an_epoch(pictures: Pictures) -> None:
    dls = loaders(pictures, batch="fused")
    assert type(dls.train.after_batch) is Pipeline
    assert kinds_during(dls.train) == {"FusedPipeline"}
    assert type(dls.train.after_batch) is Pipeline
    assert kinds_during(dls.train, 1) == {"FusedPipeline"}  # left in the middle
    gc.collect()
    assert type(dls.train.after_batch) is Pipeline
    dls.one_batch()
    assert type(dls.train.after_batch) is Pipeline


def test_an_epoch_within_an_epoch_does_not_end_it(pictures: Pictures) -> None:
    dls = loaders(pictures, batch="fused")
    outer = iter(dls.train)
    next(outer)
    dls.train.one_batch()
    assert type(dls.train.after_batch).__name__ == "FusedPipeline"
    assert len(list(outer)) == 2
    assert type(dls.train.after_batch) is Pipeline


def test_switched_off_it_is_pure_stock(pictures: Pictures, monkeypatch: pytest.MonkeyPatch) -> None:
    dls = loaders(pictures, batch="fused")
    assert kinds_during(dls.train) == {"FusedPipeline"}
    monkeypatch.setenv("FASTLOAD", "off")
    assert kinds_during(dls.train) == {"Pipeline"}
    monkeypatch.delenv("FASTLOAD")
    from fastai.vision.all import ImageDataLoaders, Resize

    plain = ImageDataLoaders.from_folder(
        pictures.images, valid_pct=0.3, item_tfms=Resize(32), batch_tfms=aug_transforms(), bs=4
    )
    with fastload.enable(batch="fused"):
        assert kinds_during(plain.train) == {"FusedPipeline"}
    assert kinds_during(plain.train) == {"Pipeline"}


def test_what_stays_with_stock_is_not_fused(pictures: Pictures) -> None:
    from fastload.vision import ImageDataLoaders

    asked = loaders(pictures, batch="fused", executor="stock")
    refused = ImageDataLoaders.from_folder(
        pictures.images, valid_pct=0.3, item_tfms=_own, batch_tfms=aug_transforms(), bs=4, batch="fused"
    )
    for dls in (asked, refused):
        assert kinds_during(dls.train) == {"Pipeline"}
        assert "stock fastai does everything" in str(fastload.explain(dls))
        assert "fastload fused" not in str(fastload.explain(dls))


def _own(image: Any) -> Any:
    """A user's item transform."""
    return image.resize((32, 32)) if isinstance(image, Image.Image) else image


def test_a_loader_on_another_device_or_with_another_pipeline_is_not_fused(
    pictures: Pictures, caplog: pytest.LogCaptureFixture
) -> None:
    class Other(Pipeline):  # type: ignore[misc]
        pass

    dls = loaders(pictures, batch="fused")
    dls.train.after_batch.__class__ = Other
    assert kinds_during(dls.train) == {"Other"}
    assert "batch='fused' is left out: after_batch is a Other, not fastai's Pipeline" in caplog.text
    dls = loaders(pictures, batch="fused")
    dls.train.device = torch.device("meta")
    text = str(fastload.explain(dls))
    assert "batch='fused' is left out: its batches go to meta, and fused transforms run on the CPU" in text
    assert "fastload fused" not in text.partition("valid")[0]


def bench_note(pictures: Pictures, **job: Any) -> dict[str, Any]:
    """What one measurement says of its approximations."""
    from fastload.benching import run

    target = {"where": str(pictures.images), "size": 32, "bs": 4, "workers": 1}
    common = {"target": target, "engine": "fastload", "part": "uint8", "threads": 1, "seconds": 0.0, "executor": "auto"}
    return run({**common, **job})


def test_bench_leaves_out_the_error_of_what_it_could_not_have(pictures: Pictures, monkeypatch: pytest.MonkeyPatch) -> None:
    report = bench_note(pictures, executor="threads", decode="scaled")
    assert report["errors"] == {}
    assert report["note"] == "decode='scaled' is left out: the threads executor decodes exactly, only the native one scales"
    monkeypatch.setattr(native, "extension", lambda: None)
    report = bench_note(pictures, executor="threads", batch="fused", part="whole")
    assert report["errors"] == {}
    assert report["note"].startswith("batch='fused' is left out: the native extension was not built")
