"""A training script with `cache=`: stock's batches from every kind, executor and worker count; stale caches refused by name."""

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
from fastai.vision.all import CropPad, PILImage, Resize
from kinds import TARGETS, segmentation, target
from pictures import Pictures, make_pictures
from PIL import Image, UnidentifiedImageError
from pipelines import ITEM_TFMS, TRAIN, augmented
from sidebyside import WAYS, assert_same_run, fast_run, seed_all, stock_run

import fastload
from fastload.cache import _items
from fastload.cache.read import CacheSource, open_cache
from fastload.cache.verify import verify
from fastload.commands import main
from fastload.errors import CacheError, SettingsError, StaleCache, StateError
from fastload.forecasting import forecast
from fastload.source import Ref

PIPELINES = ("resize_crop_reflection", "random_resized_crop", "dihedral_sometimes", "crop_pad_flip_random_resized_crop")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Pictures:
    return make_pictures(tmp_path_factory.mktemp("cached") / "data")


def loaders(made: Pictures, name: Any = "random_resized_crop", **how: Any) -> Any:
    """Loaders with a pipeline by its name, or with these item transforms."""
    from fastload.vision import ImageDataLoaders

    seed_all(4)
    item = ITEM_TFMS[name]() if isinstance(name, str) and name else name or None
    return ImageDataLoaders.from_folder(made.images, valid_pct=0.3, seed=1, item_tfms=item, bs=4, **{"num_workers": 1, **how})


KEEPS = ("source", "decoded", "train=decoded,valid=final")


@pytest.fixture(scope="module", params=KEEPS)
def cache(made: Pictures, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("kept") / "cache"
    assert fastload.precompute(loaders(made), out, keep=request.param).whole
    return out


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


@pytest.fixture(scope="module")
def caches(made: Pictures, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A function from pipeline and what to keep to a cache, each built once."""
    kept: dict[Any, Path] = {}

    def get(name: str, keep: str) -> Path:
        key = (name if "final" in keep else "", keep)
        if key not in kept:
            kept[key] = tmp_path_factory.mktemp("kept") / "cache"
            try:
                fastload.precompute(loaders(made, name), kept[key], keep=keep)
            except CacheError as err:
                assert "are drawn anew each time" in str(err) or "end in different sizes" in str(err)
                kept[key] = get(name, "decoded")
        return kept[key]

    return get


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
    dls = loaders(copy, cache=cache)  # a file more, so the split is another one: a part for each split misses others too
    with pytest.raises(StaleCache, match=r"\.\w+ is not in the cache"):
        assert [*dls.train, *dls.valid]


def test_damage_ends_the_epoch_with_its_name(made: Pictures, tmp_path: Path) -> None:
    fastload.precompute(loaders(made), tmp_path / "cache", keep="decoded")
    shard = next((tmp_path / "cache").glob("parts/*/shards/*.lmdb"))
    data = bytearray(shard.read_bytes())
    data[int(open_cache(tmp_path / "cache").parts[0].shards[0].rows["offset"][5]) + 100] ^= 4
    shard.write_bytes(data)
    dls = loaders(made, cache=tmp_path / "cache", bad_images="skip")
    with pytest.raises(CacheError, match="is damaged: item"):
        assert [*dls.train, *dls.valid]
    assert main(["cache", "verify", str(tmp_path / "cache")]) == 3


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("keep", ["source", "decoded"])
def test_a_pipeline_left_to_stock_reads_from_the_cache(
    made: Pictures, caches: Any, keep: str, workers: int, tmp_path: Path
) -> None:
    copy = Pictures(tmp_path / "copy")
    shutil.copytree(made.path, copy.path)
    item = [*ITEM_TFMS["random_resized_crop"](), inverted]
    wanted = loaders(copy, item, num_workers=workers, executor="stock")
    dls = loaders(copy, item, num_workers=workers, cache=caches("", keep))
    seed_all(3)
    first = [b for dl in (wanted.train, wanted.valid) for b in dl]
    assert len(pickle.dumps(dls.train_ds)) < 100_000
    for path in copy.files:
        path.unlink()
    seed_all(3)
    for (x, y), (u, v) in zip(first, [b for dl in (dls.train, dls.valid) for b in dl], strict=True):
        assert torch.equal(x, u)
        assert torch.equal(y, v)
    assert type(dls.train_ds.tls[0].tfms.fs[-1]).__name__ == "Transform"  # as it was


def inverted(image: PILImage) -> PILImage:
    """A user's item transform."""
    return PILImage(image.point(lambda v: 255 - v))


def test_a_users_function_is_kept_by_its_source_code(made: Pictures, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    item = [*ITEM_TFMS["resize_squish_zeros"](), inverted]
    out = tmp_path / "cache"
    with pytest.raises(CacheError, match="item transform inverted is not one that fastload knows"):
        fastload.precompute(loaders(made, item), out, keep="final")
    assert fastload.precompute(loaders(made, item), out, keep="final", deterministic=[inverted]).records == len(made.files)
    for workers in (0, 2):
        found = []
        for how in ({"executor": "stock"}, {"cache": out}):
            dls = loaders(made, item, num_workers=workers, **how)
            seed_all(1)
            found.append([b for dl in (dls.train, dls.valid) for b in dl])
        for (x, y), (u, v) in zip(*found, strict=True):
            assert torch.equal(x, u)
            assert torch.equal(y, v)
    assert "stays with stock" not in caplog.text

    def inverted_otherwise(image: PILImage) -> PILImage:
        return PILImage(image.point(lambda v: 254 - v))

    inverted_otherwise.__qualname__ = "inverted"
    with pytest.raises(StaleCache, match=r"function \d inverted was '"):
        next(iter(loaders(made, [*ITEM_TFMS["resize_squish_zeros"](), inverted_otherwise], cache=out).train))
    with pytest.raises(StaleCache, match=r"function \d inverted was '"):
        next(iter(loaders(made, ITEM_TFMS["resize_squish_zeros"](), cache=out).train))


STALE = {
    "size": ([lambda: Resize(32, "squish")], r"step 0 was .*\[24,24\].* and is .*\[32,32\]"),
    "method": ([lambda: Resize(24, "pad")], r"step 0 was .*squish.* and is .*pad"),
    "step": ([lambda: Resize(24, "squish"), lambda: CropPad(20)], "step 1 was None and is"),
}


@pytest.mark.parametrize("name", STALE)
def test_other_steps_are_stale_by_name(made: Pictures, caches: Any, name: str) -> None:
    makers, words = STALE[name]
    with pytest.raises(StaleCache, match=words):
        next(iter(loaders(made, [make() for make in makers], cache=caches("resize_squish_zeros", "final")).valid))


@pytest.mark.parametrize("field", ["pillow", "decoder jpg", "decoder webp", "arithmetic"])
def test_other_versions_are_stale_by_name(made: Pictures, caches: Any, field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    out = caches("resize_squish_zeros", "final")
    real = _items.fingerprint
    monkeypatch.setattr("fastload.cache.read.fingerprint", lambda *a: real(*a) | {field: "9.9"})
    with pytest.raises(StaleCache, match=f"{field} was '.*' and is '9.9'"):
        next(iter(loaders(made, "resize_squish_zeros", cache=out).valid))


def test_a_stale_cache_may_be_used_or_rebuilt(made: Pictures, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    copy, out = Pictures(tmp_path / "copy"), tmp_path / "cache"
    shutil.copytree(made.path, copy.path)
    fastload.precompute(loaders(copy), out, keep="decoded")
    old = [b[0] for b in loaders(copy, executor="stock").valid]
    for path in copy.files[:3]:
        Image.new("RGB", (40, 40), (9, 8, 7)).save(path, format="PNG")
    shutil.copy(copy.files[4], copy.files[4].with_name("new.jpg"))
    dls = loaders(copy, cache=fastload.cached(out, stale="use"))
    assert "it is used as it is, as asked" not in caplog.text
    with pytest.raises(StaleCache, match=r"new\.jpg is not in the cache"):
        assert [b for dl in (dls.train, dls.valid) for b in dl]
    assert "it is used as it is, as asked" in caplog.text
    dls = loaders(copy, cache=fastload.cached(out, stale="rebuild"))
    stock = loaders(copy, executor="stock")
    seed_all(2)
    wanted = [b[0] for dl in (stock.train, stock.valid) for b in dl]
    seed_all(2)
    found = [b[0] for dl in (dls.train, dls.valid) for b in dl]
    assert all(torch.equal(a, b) for a, b in zip(wanted, found, strict=True))
    assert not all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(old, wanted[-len(old) :], strict=True))
    assert "what differs is built anew" in caplog.text
    assert open_cache(out).generation.number == 3  # the new file is for validation
    with pytest.raises(SettingsError, match="stale='never' is not one of"):
        fastload.cached(out, stale="never")


def test_changed_new_and_gone_files_make_a_new_generation(made: Pictures, tmp_path: Path) -> None:
    copy, out = Pictures(tmp_path / "copy"), tmp_path / "cache"
    shutil.copytree(made.path, copy.path)
    fastload.precompute(loaders(copy), out)
    again = fastload.precompute(loaders(copy), out)
    assert (again.generation, again.built) == (1, 0)
    copy.files[0].unlink()
    os.utime(copy.files[1])
    Image.new("RGB", (40, 40), (9, 8, 7)).save(copy.files[2], format="PNG")
    shutil.copy(copy.files[4], copy.files[4].with_name("new.jpg"))
    with pytest.raises(StaleCache, match="has other bytes"):
        assert list(loaders(copy, cache=out).train)
    made_now = fastload.precompute(loaders(copy), out)
    assert (made_now.generation, made_now.built) == (2, 2)
    held = open_cache(out).held("train")
    assert set(held.where) == {str(p.relative_to(copy.images)) for p in copy.files}
    assert len([b for dl in (loaders(copy, cache=out).train, loaders(copy, cache=out).valid) for b in dl]) > 3
    before = {p.name for p in (out / "parts").iterdir()}
    (out / "parts" / "all-0123456789abcdef").mkdir()
    assert main(["cache", "gc", str(out)]) == 0
    assert {p.name for p in (out / "parts").iterdir()} == before
    assert sorted(p.name for p in out.glob("manifest*")) == ["manifest.00002.json", "manifest.json"]
    assert main(["cache", "verify", str(out)]) == 0
    with pytest.raises(CacheError, match=r"was built otherwise \(kind: 'source' there, 'decoded' here"):
        fastload.precompute(loaders(copy), out, keep="decoded")


def test_a_staged_cache_is_a_copy_that_is_whole(made: Pictures, cache: Path, tmp_path: Path) -> None:
    how = fastload.cached(cache, stage=tmp_path / "fast")
    wanted = [b[0] for b in loaders(made, cache=cache).valid]
    assert all(torch.equal(a, b) for a, b in zip(wanted, [b[0] for b in loaders(made, cache=how).valid], strict=True))
    (copy,) = [p for p in (tmp_path / "fast").iterdir() if p.is_dir()]
    assert verify(copy) == []
    shard = next(cache.glob("parts/*/shards/*.lmdb"))
    data = shard.read_bytes()
    shard.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    shutil.rmtree(copy)
    with pytest.raises(CacheError, match="is damaged, or changed while it was copied"):
        next(iter(loaders(made, cache=how).valid))
    assert [p.name for p in (tmp_path / "fast").iterdir() if p.is_dir()] == []
    shard.write_bytes(data)


@pytest.mark.parametrize("block", [False, True])
def test_where_the_files_are_gone_the_cache_lists_them(made: Pictures, cache: Path, tmp_path: Path, block: bool) -> None:
    from fastload.vision import CategoryBlock, DataBlock, ImageBlock, get_image_files, parent_label

    gone = tmp_path / "moved" / "images"
    gone.mkdir(parents=True)
    if block:
        item = ITEM_TFMS["random_resized_crop"]()
        blocks = DataBlock((ImageBlock, CategoryBlock), get_items=get_image_files, get_y=parent_label, item_tfms=item)
        dls = blocks.dataloaders(gone, bs=4, num_workers=0, cache=cache)
    else:
        dls = loaders(Pictures(tmp_path / "moved"), cache=cache, num_workers=0)
    files = sorted([*dls.train.items, *dls.valid.items])
    assert [p.relative_to(gone) for p in files] == [p.relative_to(made.images) for p in made.files]
    assert dls.vocab == sorted({p.parent.name for p in made.files})
    if len(open_cache(cache).parts) == 1:  # one that is kept by split goes with that split alone
        assert len([b for dl in (dls.train, dls.valid) for b in dl]) > 3


def test_images_for_prediction_need_no_cache(
    made: Pictures, cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "unseen.png"
    Image.new("RGB", (50, 40), (200, 100, 50)).save(path)
    dls = loaders(made, cache=cache)
    (x,) = next(iter(dls.test_dl([path, path])))
    (u,) = next(iter(loaders(made, executor="stock").test_dl([path, path])))
    assert torch.equal(x, u)
    assert "holds none of these images" in caplog.text
    (x,) = next(iter(dls.test_dl(dls.valid.items[:2])))  # these it has
    assert len(x) == 2


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
    assert "stock's own opening takes them from there" in text


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
    words = r"masters of a short side of 63 pixels: NOT stock's pixels, median PSNR \d+\.\d dB, 0 % of the"
    assert re.search(words, str(planned))
    fastload.precompute(get(32), out, keep="train=master,valid=decoded")
    record = CacheSource(open_cache(out).held("train"), photos).read(Ref(0, str(get(32).train.items[0])))
    assert min(record.image.shape[:2]) == 63
    seed_all(3)
    wanted = [b[0] for dl in (lambda d: (d.train, d.valid))(get(32, executor="stock")) for b in dl]
    seed_all(3)
    dls = get(32, cache=out)
    found = [b[0] for dl in (dls.train, dls.valid) for b in dl]
    assert "holds masters, an approximation: median PSNR" in caplog.text
    assert "masters, an approximation: median PSNR" in str(fastload.explain(dls))
    assert torch.equal(wanted[-1], found[-1])  # validation is exact
    assert 0 < (wanted[0] - found[0]).abs().mean() < 0.05
    with pytest.raises(StaleCache, match="short side of 63 pixels and the loader's crops need 125"):
        next(iter(get(64, cache=out).train))
    with pytest.raises(CacheError, match="masters go with one Resize or RandomResizedCrop"):
        fastload.precompute(loaders(made, "random_crop"), tmp_path / "other", keep="master")
    assert verify(out) == []


@pytest.mark.parametrize("keep", [*KEEPS, "train=decoded,valid=source"])
def test_tta_and_predictions_are_stocks(made: Pictures, caches: Any, keep: str, caplog: pytest.LogCaptureFixture) -> None:
    from fastai.vision.all import Learner, accuracy, simple_cnn

    name, found = "random_resized_crop", []
    for how in ({"executor": "stock"}, {"cache": caches(name, keep)}):
        dls = loaders(made, name, num_workers=0, **how)
        seed_all(2)
        learn = Learner(dls, simple_cnn([3, 4, dls.c]), metrics=accuracy)
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
