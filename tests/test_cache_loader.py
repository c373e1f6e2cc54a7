"""A training script with `cache=`: stock's batches from every kind, executor and worker count; stale caches refused by name."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kinds import segmentation, target
from pictures import Pictures, make_pictures
from PIL import Image
from pipelines import ITEM_TFMS, augmented
from sidebyside import WAYS, assert_same_run, fast_run, seed_all, stock_run

import fastload
from fastload.cache._items import KINDS
from fastload.cache.read import open_cache
from fastload.commands import main
from fastload.errors import CacheError, SettingsError, StaleCache

PIPELINES = ("resize_crop_reflection", "random_resized_crop", "dihedral_sometimes", "crop_pad_flip_random_resized_crop")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Pictures:
    return make_pictures(tmp_path_factory.mktemp("cached") / "data")


def loaders(made: Pictures, name: str = "random_resized_crop", **how: Any) -> Any:
    from fastload.vision import ImageDataLoaders

    seed_all(4)
    item = ITEM_TFMS[name]()
    return ImageDataLoaders.from_folder(made.images, valid_pct=0.3, seed=1, item_tfms=item, bs=4, **{"num_workers": 1, **how})


@pytest.fixture(scope="module", params=KINDS)
def cache(made: Pictures, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp(request.param) / "cache"
    assert fastload.precompute(loaders(made), out, keep=request.param).whole
    return out


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("way", WAYS, ids=lambda w: w["executor"])
@pytest.mark.parametrize("name", PIPELINES)
def test_batches_are_stocks(made: Pictures, cache: Path, name: str, way: dict[str, Any], workers: int) -> None:
    found = []
    for how in ({"executor": "stock"}, {"cache": cache, **way}):
        dls = loaders(made, name, num_workers=workers, **how)
        seed_all(9)
        found.append([b for _ in range(2) for dl in (dls.train, dls.valid) for b in dl])
    for (x, y), (u, v) in zip(*found, strict=True):
        assert torch.equal(x, u)
        assert torch.equal(y, v)
        assert type(x) is type(u)


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


def test_a_changed_file_is_refused_by_name(made: Pictures, cache: Path, tmp_path: Path) -> None:
    copy = Pictures(tmp_path / "copy")
    shutil.copytree(made.path, copy.path)
    path = copy.files[3]
    Image.new("RGB", (40, 40)).save(path)
    with pytest.raises(StaleCache, match=f"{path} has other bytes"):
        next(iter(loaders(copy, cache=cache).train))


def test_a_new_file_is_refused_by_name(made: Pictures, cache: Path, tmp_path: Path) -> None:
    copy = Pictures(tmp_path / "copy")
    shutil.copytree(made.path, copy.path)
    shutil.copy(copy.files[0], copy.files[0].with_name("new.jpg"))
    dls = loaders(copy, cache=cache)
    with pytest.raises(StaleCache, match=r"new\.jpg is not in the cache"):
        assert [*dls.train, *dls.valid]


def test_damage_ends_the_epoch_with_its_name(made: Pictures, tmp_path: Path) -> None:
    fastload.precompute(loaders(made), tmp_path / "cache", keep="decoded")
    shard = next((tmp_path / "cache" / "shards").glob("*.lmdb"))
    data = bytearray(shard.read_bytes())
    data[int(open_cache(tmp_path / "cache").shards[0].rows["offset"][5]) + 100] ^= 4
    shard.write_bytes(data)
    dls = loaders(made, cache=tmp_path / "cache", bad_images="skip")
    with pytest.raises(CacheError, match="is damaged: item"):
        assert [*dls.train, *dls.valid]
    assert main(["cache", "verify", str(tmp_path / "cache")]) == 3


def test_a_loader_that_stays_with_stock_says_that_the_cache_is_left_out(
    made: Pictures, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dls = loaders(made, cache=cache, executor="stock")
    assert len(list(dls.valid)) == 2
    assert f"cache={str(cache)!r} is left out" in caplog.text


def test_explain_names_the_cache(made: Pictures, cache: Path) -> None:
    assert f"cache={str(cache)!r}: images come from there" in str(fastload.explain(loaders(made, cache=cache)))


def test_another_mode_than_was_kept_is_refused(made: Pictures, tmp_path: Path) -> None:
    from fastload.vision import CategoryBlock, DataBlock, ImageBlock, PILImageBW, Resize, get_image_files, parent_label

    fastload.precompute(loaders(made), tmp_path / "cache", keep="decoded")
    block = DataBlock(
        (ImageBlock(PILImageBW), CategoryBlock), get_items=get_image_files, get_y=parent_label, item_tfms=Resize(16)
    )
    with pytest.raises(StaleCache, match="holds RGB pixels and the loader wants L"):
        next(iter(block.dataloaders(made.images, bs=4, cache=tmp_path / "cache").train))


def test_what_is_no_cache_is_named(made: Pictures, tmp_path: Path) -> None:
    with pytest.raises(CacheError, match="no finished cache"):
        next(iter(loaders(made, cache=tmp_path).train))
    with pytest.raises(SettingsError, match="cache=3 is no path"):
        loaders(made, cache=3)


def test_the_commands(made: Pictures, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "cache"
    common = ["precompute", str(made.images), "--size", "32", "--bs", "4", "--out", str(out)]
    assert main([*common, "--dry-run", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["files"] == len(made.files)
    assert not out.exists()
    assert main([*common, "--keep", "decoded", "--shard", "0/1"]) == 0
    assert f"{len(made.files)} decoded records" in capsys.readouterr().out
    assert main(["cache", "info", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["records"] == len(made.files)
    assert main(["cache", "verify", str(out)]) == 0
    assert "every byte is as it was built" in capsys.readouterr().out
    next((out / "shards").glob("*.idx")).write_bytes(b"")
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
    assert "was begun with other" in capsys.readouterr().err


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
