"""A training script with `cache=`: stock's batches from every kind, executor and worker count."""

from __future__ import annotations

import json
import os
import pickle
import random
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cached import KEEPS, loaders
from fastai.vision.all import PILImage
from kinds import TARGETS, segmentation, target
from pictures import Pictures
from PIL import Image, UnidentifiedImageError
from pipelines import ITEM_TFMS, TRAIN, augmented
from sidebyside import WAYS, assert_same_run, fast_run, seed_all, stock_run

import fastload
from fastload.cache.read import CacheSource, open_cache
from fastload.cache.verify import verify
from fastload.commands import main
from fastload.errors import CacheError, StaleCache, StateError
from fastload.forecasting import forecast
from fastload.source import Ref

PIPELINES = ("resize_crop_reflection", "random_resized_crop", "dihedral_sometimes", "crop_pad_flip_random_resized_crop")


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("way", WAYS, ids=lambda w: w["executor"])
@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("name", PIPELINES)
def test_batches_are_stocks(made: Pictures, caches: Any, name: str, keep: str, way: dict[str, Any], workers: int) -> None:
    assert_as_stock(made, caches(name, keep), name, way, workers)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("way", WAYS, ids=lambda w: w["executor"])
@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("name", sorted(set(ITEM_TFMS) - set(PIPELINES)))
def test_batches_of_every_pipeline_are_stocks(
    made: Pictures, caches: Any, name: str, keep: str, way: dict[str, Any], workers: int
) -> None:
    assert_as_stock(made, caches(name, keep), name, way, workers)


def assert_as_stock(made: Pictures, cache: Path, name: str, way: dict[str, Any], workers: int) -> None:
    found = []
    for how in ({"executor": "stock"}, {"cache": cache, **way}):
        dls = loaders(made, name, num_workers=workers, **how)
        seed_all(9)
        batches = [b for _ in range(2) for dl in (dls.train, dls.valid) for b in dl]
        found.append((batches, random.getstate(), torch.get_rng_state()))
    for (x, y), (u, v) in zip(found[0][0], found[1][0], strict=True):
        assert torch.equal(x, u)
        assert torch.equal(y, v)
        assert type(x) is type(u)
    assert found[0][1] == found[1][1]
    assert torch.equal(found[0][2], found[1][2])


def test_masks_come_from_a_cache_of_source_files(made: Pictures, tmp_path: Path) -> None:
    make = target(segmentation, made, ITEM_TFMS["resize_crop_reflection"], 2, augmented)
    dls = make()
    outcome = fastload.precompute(dls, tmp_path / "cache")
    assert outcome.records == 2 * len(made.files)
    with pytest.raises(CacheError, match="opened as L and RGB"):
        fastload.precompute(dls, tmp_path / "other", keep="decoded")
    assert_same_run(stock_run(make), fast_run(make, way={"executor": "serial", "cache": tmp_path / "cache"}))


def test_files_are_not_opened(made: Pictures, cache: Path, tmp_path: Path) -> None:
    copy = Pictures(tmp_path / "copy")
    shutil.copytree(made.path, copy.path)
    dls = loaders(copy, cache=cache)
    wanted = [b[0] for b in loaders(copy, executor="stock").valid]
    for path in copy.files:
        path.unlink()  # gone is not stale
    for a, b in zip(wanted, [b[0] for b in dls.valid], strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("keep", ["source", "decoded"])
def test_a_pipeline_left_to_stock_reads_from_the_cache(
    made: Pictures, caches: Any, keep: str, workers: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copy = Pictures(tmp_path / "copy")
    shutil.copytree(made.path, copy.path)
    item = [*ITEM_TFMS["random_resized_crop"](), inverted]
    wanted = loaders(copy, item, num_workers=workers, executor="stock")
    dls = loaders(copy, item, num_workers=workers, cache=caches("", keep))
    seed_all(3)
    first = [b for dl in (wanted.train, wanted.valid) for b in dl]
    assert len(pickle.dumps(dls.train_ds)) < 100_000
    for path in copy.files if keep == "source" else ():
        path.unlink()
    seed_all(3)
    for (x, y), (u, v) in zip(first, [b for dl in (dls.train, dls.valid) for b in dl], strict=True):
        assert torch.equal(x, u)
        assert torch.equal(y, v)
    assert ("it holds pixels alone" in caplog.text) == (keep == "decoded")
    assert type(dls.train_ds.tls[0].tfms.fs[-1]).__name__ == "Transform"  # as it was


@pytest.mark.parametrize("k", [2, 5])
def test_versions_are_drawn_anew_each_epoch(made: Pictures, tmp_path: Path, k: int) -> None:
    name = "crop_pad_flip_random_resized_crop"
    out = tmp_path / "cache"
    with pytest.raises(CacheError, match="ask for variants"):
        fastload.precompute(loaders(made, name), out, keep="final")
    with pytest.raises(CacheError, match="freeze_augmentation=True"):
        fastload.precompute(loaders(made, name), out, keep="final", variants=1)
    outcome = fastload.precompute(loaders(made, name), out, keep="final", variants=k)
    dls = loaders(made, name, cache=out)
    assert outcome.records == k * len(dls.train_ds) + len(dls.valid_ds)
    kept = {
        shard.contents(row, "always")
        for part in open_cache(out).parts
        for shard in part.shards
        for row in range(len(shard.rows))
    }
    seen = set()
    for _ in range(8):
        for x, _ in dls.train:
            for image in (x * 255).round().to(torch.uint8).numpy():
                assert image.tobytes() in kept or image[..., ::-1].tobytes() in kept
                seen.add(image.tobytes())
    assert len(seen) > 1.5 * len(dls.train_ds)
    stock = loaders(made, name, executor="stock")
    assert all(torch.equal(a[0], b[0]) for a, b in zip(stock.valid, dls.valid, strict=True))


def test_versions_are_the_same_for_every_executor(made: Pictures, tmp_path: Path) -> None:
    out = tmp_path / "cache"
    fastload.precompute(loaders(made), out, keep="train=final,valid=final", variants=3)
    found = []
    for way in WAYS:
        dls = loaders(made, cache=out, num_workers=2, **way)
        seed_all(5)
        found.append([b[0] for _ in range(2) for b in dls.train])
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_explain_names_the_cache(made: Pictures, cache: Path) -> None:
    text = str(fastload.explain(loaders(made, cache=cache)))
    assert f"cache={str(cache)!r}: images come from there" in text
    assert "exact" in text
    text = str(fastload.explain(loaders(made, [*ITEM_TFMS["random_resized_crop"](), inverted], cache=cache)))
    assert "stock's own opening takes a file's bytes from there" in text


def test_the_commands(made: Pictures, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "cache"
    common = ["precompute", str(made.images), "--size", "32", "--bs", "4", "--out", str(out)]
    assert main([*common, "--dry-run", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["files"] == len(made.files)
    assert not out.exists()
    assert main([*common, "--keep", "decoded", "--shard", "0/1"]) == 0
    assert f"{len(made.files)} decoded records" in capsys.readouterr().out
    assert main([*common, "--keep", "decoded", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["built"] == 0
    assert main(["cache", "info", str(out)]) == 0
    assert f"{len(made.files)} files as {len(made.files)} decoded records" in capsys.readouterr().out
    assert main(["cache", "info", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parts"][0]["records"] == len(made.files)
    assert main(["cache", "verify", str(out)]) == 0
    assert "every byte is as it was built" in capsys.readouterr().out
    next(out.glob("parts/*/shards/*.idx")).write_bytes(b"")
    assert main(["cache", "verify", str(out), "--json"]) == 3
    assert "0 bytes instead of" in json.loads(capsys.readouterr().out)["damaged"][0]
    assert main(["cache", "repair", str(out)]) == 1
    assert main(["cache", "repair", str(out), "--root", str(made.images)]) == 0
    assert "1 shard built anew" in capsys.readouterr().out
    assert main(["cache", "verify", str(out)]) == 0
    assert main(["cache", "info", str(tmp_path)]) == 1
    assert main([*common, "--shard", "2/2"]) == 1
    assert main([*common, "--threads", "0"]) == 1
    assert main(common) == 1  # another kind in the same folder
    assert "was built otherwise (kind" in capsys.readouterr().err
    assert main([*common[:-1], str(tmp_path / "versions"), "--keep", "final", "--variants", "2", "--recipe", "imagenet"]) == 0
    assert "final records" in capsys.readouterr().out


def test_a_full_disk_is_seen_before_anything_is_written(
    made: Pictures, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: os.terminal_size((1, 1)) and shutil._ntuple_diskusage(9, 8, 1))
    with pytest.raises(CacheError, match="MB free; free the disk first"):
        fastload.precompute(loaders(made), tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


def test_pixels_of_a_cache_are_not_changed_by_training(made: Pictures, cache: Path) -> None:
    before = {p: p.read_bytes() for p in cache.rglob("*") if p.is_file()}
    for x, _ in loaders(made, cache=cache).train:
        x.fill_(0)
    assert before == {p: p.read_bytes() for p in cache.rglob("*") if p.is_file()}
    assert np.all(x.numpy() == 0)


def test_masters_are_an_approximation_that_says_so(made: Pictures, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    photos, out = tmp_path / "photos", tmp_path / "cache"
    (photos / "a").mkdir(parents=True)
    rng = np.random.default_rng(4)
    for k in range(6):
        small = Image.fromarray(rng.integers(0, 256, (30, 40, 3)).astype(np.uint8))
        small.resize((400 + k, 300), Image.Resampling.BICUBIC).save(photos / "a" / f"{k}.png")

    def get(size: int, **how: Any) -> Any:
        from fastload.vision import ImageDataLoaders, RandomResizedCrop

        item = RandomResizedCrop(size, min_scale=0.35)
        return ImageDataLoaders.from_folder(photos, valid_pct=0.3, seed=1, item_tfms=item, bs=2, num_workers=1, **how)

    planned = forecast(get(32), keep="train=master,valid=decoded")
    assert not planned.exact
    words = r"masters of a short side of 63 pixels: NOT stock's pixels, median PSNR [2-4]\d\.\d dB, 0 % of the"
    assert re.search(words, str(planned))
    fastload.precompute(get(32), out, keep="train=master,valid=decoded")
    record = CacheSource(open_cache(out).held("train"), photos / "a").read(Ref(0, str(get(32).train.items[0])))
    assert min(record.image.shape[:2]) == 63
    seed_all(3)
    wanted = [b[0] for dl in (lambda d: (d.train, d.valid))(get(32, executor="stock")) for b in dl]
    seed_all(3)
    dls = get(32, cache=out)
    found = [b[0] for dl in (dls.train, dls.valid) for b in dl]
    assert "holds masters, an approximation: median PSNR" in caplog.text
    assert "masters, an approximation: median PSNR" in str(fastload.explain(dls))
    assert torch.equal(wanted[-1], found[-1])  # validation is exact
    assert wanted[0].shape == found[0].shape  # other crops: where they lie is drawn in the master's own pixels
    with pytest.raises(StaleCache, match="short side of 63 pixels and the loader's crops need 125"):
        next(iter(get(64, cache=out).train))
    with pytest.raises(CacheError, match="masters go with one Resize or RandomResizedCrop"):
        fastload.precompute(loaders(made, "random_crop"), tmp_path / "other", keep="master")
    assert verify(out) == []


@pytest.mark.parametrize("keep", [*KEEPS, "train=decoded,valid=source"])
def test_tta_and_predictions_are_stocks(made: Pictures, caches: Any, keep: str, caplog: pytest.LogCaptureFixture) -> None:
    from fastai.vision.all import Learner, SimpleCNN, accuracy

    name, found = "random_resized_crop", []
    for how in ({"executor": "stock"}, {"cache": caches(name, keep)}):
        dls = loaders(made, name, num_workers=0, **how)
        seed_all(2)
        learn = Learner(dls, SimpleCNN([3, 4, dls.c]), metrics=accuracy)
        with learn.no_bar(), learn.no_logging():
            learn.fit(1)
            seed_all(4)
            found.append(
                [*learn.tta(n=2), *learn.get_preds(ds_idx=0), *learn.get_preds(dl=dls.test_dl(dls.train.items[:5]))[:1]]
            )
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)
    assert ("finished by other steps than these, so files are read" in caplog.text) == ("final" in keep)


def test_bad_files_are_skipped_or_raised_as_in_stock(made: Pictures, tmp_path: Path) -> None:
    copy, out = Pictures(tmp_path / "copy"), tmp_path / "cache"
    shutil.copytree(made.path, copy.path)
    bad = loaders(copy).train.items[2]
    bad.write_bytes(b"no picture")
    fastload.precompute(loaders(copy), out, keep="decoded", max_bad=0.5)
    with pytest.raises(UnidentifiedImageError, match=re.escape(str(bad))):
        list(loaders(copy, cache=out).train)
    dls = loaders(copy, cache=out, bad_images="skip", drop_last=False)
    assert sum(len(b[1]) for b in dls.train) == len(dls.train_ds) - 1


def test_a_state_of_drawn_versions_goes_with_the_cache(made: Pictures, tmp_path: Path) -> None:
    out = tmp_path / "cache"
    fastload.precompute(loaders(made), out, keep="final", variants=3)
    dls = loaders(made, cache=out, num_workers=2)
    seed_all(6)
    whole = [b[0] for b in dls.train]
    dls = loaders(made, cache=out, num_workers=2)
    seed_all(6)
    running = iter(dls.train)
    first, state = next(running)[0], dls.train.state_dict()
    again = loaders(made, cache=out, num_workers=2)
    again.train.load_state_dict(state)
    for a, b in zip(whole, [first, *(b[0] for b in again.train)], strict=True):
        assert torch.equal(a, b)
    with pytest.raises(StateError, match="the item pipeline differs"):
        loaders(made, num_workers=2).train.load_state_dict(state)


@pytest.mark.parametrize("kind", TARGETS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("keep", ["source", "decoded"])
def test_every_target_is_stocks(made: Pictures, tmp_path: Path, kind: Any, keep: str) -> None:
    make = target(kind, made, ITEM_TFMS["flip_random_resized_crop"], 2)
    try:
        fastload.precompute(make(), tmp_path / "cache", keep=keep)
    except CacheError as err:
        assert "one cache holds one of them" in str(err)  # images of several modes
        return
    for way in WAYS:
        assert_same_run(stock_run(make, TRAIN), fast_run(make, TRAIN, way={**way, "cache": tmp_path / "cache"}))


def inverted(image: PILImage) -> PILImage:
    """A user's item transform."""
    return PILImage(image.point(lambda v: 255 - v))
