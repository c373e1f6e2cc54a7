"""A cache that is not what the data are now is refused by name, used or rebuilt as asked; it grows, moves, lists its files."""

from __future__ import annotations

import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cached import loaders
from fastai.vision.all import CropPad, FlipItem, PILImage, Resize
from pictures import Pictures
from PIL import Image
from pipelines import ITEM_TFMS
from sidebyside import seed_all

import fastload
from fastload.cache import _items, comparing
from fastload.cache.generations import publish, read_generation
from fastload.cache.read import open_cache
from fastload.cache.verify import verify
from fastload.commands import main
from fastload.errors import CacheError, SettingsError, StaleCache


def test_a_changed_file_is_refused_by_name(made: Pictures, cache: Path, tmp_path: Path) -> None:
    copy = Pictures(tmp_path / "copy")
    shutil.copytree(made.path, copy.path)
    path = copy.files[3]
    Image.new("RGB", (40, 40)).save(path)
    with pytest.raises(StaleCache, match=f"{path} has other bytes"):
        next(iter(loaders(copy, cache=cache).train))


def test_a_new_file_is_refused_by_name_in_training_and_read_in_validation(
    made: Pictures, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copy, out = Pictures(tmp_path / "copy"), tmp_path / "cache"
    shutil.copytree(made.path, copy.path)
    fastload.precompute(loaders(copy), out, keep="decoded")
    for split in ("train", "valid"):
        for k in range(40):  # one that the random split puts there
            new = copy.files[0].with_name(f"new-{split}-{k}.jpg")
            shutil.copy(copy.files[0], new)
            if new in getattr(loaders(copy), split).items:
                break
            new.unlink()
        dl = getattr(loaders(copy, cache=out), split)
        if split == "train":
            with pytest.raises(StaleCache, match=f"{new.name} is not in the cache"):
                list(dl)
        else:
            assert len(list(dl)) > 1
            assert f"does not hold 1 of these images as they are ({new})" in caplog.text
        new.unlink()


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
    assert [b for dl in (dls.train, dls.valid) for b in dl]
    assert "new.jpg), so files are read" in caplog.text
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
    assert open_cache(out).generation.number == 2
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
    assert "does not hold 2 of these images as they are" in caplog.text
    (x,) = next(iter(dls.test_dl(dls.valid.items[:2])))  # these it has
    assert len(x) == 2


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


def test_parts_published_at_the_same_time_are_all_kept(made: Pictures, tmp_path: Path) -> None:
    out = tmp_path / "cache"
    out.mkdir()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda k: publish(out, [(f"all-{k:016x}", f"{k:032x}")], {}), range(24)))
    found = read_generation(out)
    assert found.number == 24
    assert publish(out, [found.parts[0]], {}) == found  # a late builder of what was there before
    assert sorted(name for name, _ in found.parts) == [f"all-{k:016x}" for k in range(24)]


def test_files_that_change_between_epochs_are_noticed(made: Pictures, tmp_path: Path) -> None:
    copy, out = Pictures(tmp_path / "copy"), tmp_path / "cache"
    shutil.copytree(made.path, copy.path)
    fastload.precompute(loaders(copy), out)
    dls = loaders(copy, cache=out)
    assert list(dls.train)
    a, b = dls.train.items[:2]
    one, two = a.read_bytes(), b.read_bytes()
    a.write_bytes(two)
    b.write_bytes(one)
    for train in (dls.train, loaders(copy, cache=out).train):
        with pytest.raises(StaleCache, match="has other bytes than when it was kept"):
            next(iter(train))


@pytest.mark.parametrize("stale", ["error", "use", "rebuild"])
def test_files_of_the_same_names_elsewhere_are_other_files(made: Pictures, tmp_path: Path, stale: str) -> None:
    out, other = tmp_path / "cache", Pictures(tmp_path / "other")
    fastload.precompute(loaders(made), out, keep="decoded")
    shutil.copytree(made.path, other.path)
    for k, path in enumerate(other.files):
        Image.new("RGB", (40, 30 + k), (k, 9, 200)).save(path, format="PNG")
    dls = loaders(made, cache=fastload.cached(out, stale=stale))
    found = next(iter(dls.test_dl(other.files)))[0]
    assert torch.equal(found, next(iter(loaders(made, executor="stock").test_dl(other.files)))[0])
    assert open_cache(out).generation.number == 1


def test_data_that_become_what_they_were_are_served_as_they_are(made: Pictures, tmp_path: Path) -> None:
    copy, out = Pictures(tmp_path / "copy"), tmp_path / "cache"
    shutil.copytree(made.path, copy.path)
    path = loaders(copy).train.items[0]
    fastload.precompute(loaders(copy), out, keep="decoded")
    how = fastload.cached(out, stale="rebuild")
    kept = path.with_suffix(".kept")
    os.rename(path, kept)
    for restore in (False, True, False, True):
        if restore:
            os.replace(kept, path)
        else:
            if path.exists():
                os.rename(path, kept)
            Image.new("RGB", (40, 30), (1, 2, 3)).save(path, format="PNG")
        found = []
        for given in ({"executor": "stock"}, {"cache": how}):
            seed_all(3)
            dls = loaders(copy, **given)
            found.append([b[0] for b in dls.train])
        assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_gc_removes_parts_that_serve_nothing(made: Pictures, tmp_path: Path) -> None:
    copy, out = Pictures(tmp_path / "copy"), tmp_path / "cache"
    shutil.copytree(made.path, copy.path)
    fastload.precompute(loaders(copy), out, keep="decoded")
    (old,) = (out / "parts").iterdir()
    for path in copy.files:
        Image.new("RGB", (40, 30), (1, 2, 3)).save(path, format="PNG")
    fastload.precompute(loaders(copy), out, keep="decoded")
    assert main(["cache", "gc", str(out)]) == 0
    assert not old.exists()
    assert len(list(loaders(copy, cache=out).train)) > 2


def test_images_that_are_no_files_are_left_to_stock(made: Pictures, cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    array = np.zeros((30, 40, 3), np.uint8)
    (x,) = loaders(made, cache=cache).test_dl([array, array]).one_batch()
    assert x.shape[0] == 2
    assert "is left out: these images are not given as paths" in caplog.text


def test_a_mirror_before_a_crop_is_kept_in_its_place(made: Pictures, tmp_path: Path) -> None:
    item = [FlipItem(), CropPad(25)]
    with pytest.raises(CacheError, match=r"drawn anew each time \(Flip\)"):
        fastload.precompute(loaders(made, item), tmp_path / "cache", keep="final")
    after = [CropPad(25), FlipItem()]
    fastload.precompute(loaders(made, after), tmp_path / "cache", keep="final")
    found = []
    for how in ({"executor": "stock"}, {"cache": tmp_path / "cache"}):
        seed_all(1)
        dls = loaders(made, after, **how)
        found.append([b[0] for dl in (dls.train, dls.valid) for b in dl])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_files_that_took_a_while_to_compare_are_not_compared_again_at_once(
    made: Pictures, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, now = Pictures(tmp_path / "copy"), [1000.0]
    shutil.copytree(made.path, copy.path)
    fastload.precompute(loaders(copy), tmp_path / "cache", keep="decoded")
    dls = loaders(copy, cache=tmp_path / "cache")
    monkeypatch.setattr(comparing, "_FREE_S", 0.0)
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    start = time.perf_counter()
    list(dls.train)
    took = time.perf_counter() - start  # more than comparing took
    changed = next(p for p in copy.files if p in dls.train.items)
    Image.new("RGB", (40, 40)).save(changed)
    list(dls.train)
    with pytest.raises(StaleCache, match=f"{changed} has other bytes"):
        list(loaders(copy, cache=tmp_path / "cache").train)  # another list of files
    now[0] += 100 * took
    with pytest.raises(StaleCache, match=f"{changed} has other bytes"):
        list(dls.train)


def test_files_that_were_copied_are_hashed_once_which_is_said(
    made: Pictures, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fastload.precompute(loaders(made), tmp_path / "cache", keep="decoded")
    copy = Pictures(tmp_path / "copy")
    shutil.copytree(made.path, copy.path)
    dl = loaders(copy, cache=tmp_path / "cache").train
    list(dl)
    assert f"{len(dl.items)} files below {copy.images} look other than when" in caplog.text
    caplog.clear()
    list(dl)
    assert "look other" not in caplog.text


def test_files_on_a_slow_disk_are_looked_at_by_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "_PROBE", 3)
    seen: set[str] = set()

    def look(path: str) -> str | None:
        seen.add(threading.current_thread().name)
        time.sleep(0.001)
        return path if path == "7" else None

    found = comparing.each(look, [str(k) for k in range(300)])
    assert [k for k in found if k is not None] == ["7"]
    assert found.index("7") == 7
    assert len(seen) > 2
