"""Several files of a batch by one native call: the pixels, faults and counters of files that are handled one by one."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fastload import native, ops
from fastload.draws import Drawer
from fastload.executors import Batch, Options, executors
from fastload.executors import native as by_native
from fastload.plan import Element, Plan
from fastload.source import Files, Ref

pytestmark = pytest.mark.skipif(not native.status().resizes, reason=f"no native path: {native.status().reason}")

PLANS = {
    "crop": Plan((Element(0),), (ops.Flip(), ops.RandomResizedCrop((24, 20), random=True))),
    "squish": Plan((Element(0),), (ops.Resize((24, 24), "squish"),)),  # needs no size beforehand
    "pad": Plan((Element(0),), (ops.Resize((24, 24), "pad", random=True),)),
    "gray": Plan((Element(0, "L"),), (ops.RandomResizedCrop((24, 20), random=True),)),
}


def photo(size: tuple[int, int], mode: str = "RGB") -> Image.Image:
    rng = np.random.default_rng(size[0])
    shape = (size[1], size[0]) if mode == "L" else (size[1], size[0], 4 if mode == "CMYK" else 3)
    return Image.fromarray((np.cumsum(rng.integers(-9, 10, shape), axis=1) % 256).astype(np.uint8), mode)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty readable files of every kind, in an order that mixes them."""
    made = tmp_path_factory.mktemp("files")
    for k in range(12):
        photo((40 + 7 * k, 90 - 4 * k)).save(made / f"{k:02}.jpg", quality=85, subsampling=k % 3)
    photo((50, 60), "L").save(made / "01-gray.jpg")
    photo((50, 60), "CMYK").save(made / "02-cmyk.jpg")
    photo((61, 60)).save(made / "03-progressive.jpg", progressive=True)
    photo((62, 60)).save(made / "04.png")
    photo((63, 60)).save(made / "05.bmp")
    photo((64, 60)).save(made / "06-exif.jpg", exif=Image.Exif())
    (made / "07-named.png").write_bytes((made / "03.jpg").read_bytes())
    (made / "08-é ü.jpg").write_bytes((made / "04.jpg").read_bytes())
    return made


def run(name: str, plan: Plan, paths: list[str], **options: Any) -> tuple[list[Any], Any]:
    executor = executors()[name].open_executor(plan, [Files()], Options(**{"threads": 2, **options}))
    try:
        random.seed(5)
        refs = [(Ref(k, p),) for k, p in enumerate(paths)]
        batches: Iterator[Batch] = iter([Batch(n, tuple(refs[i : i + 10])) for n, i in enumerate(range(0, len(refs), 10))])
        return list(executor.run(batches, Drawer(plan, 2, 99))), executor.counts()
    finally:
        executor.close()


def arrays(found: list[Any]) -> list[Any]:
    return [np.asarray(image) for batch in found for image in batch.images[0]]


@pytest.mark.parametrize("plan", PLANS)
def test_every_kind_of_file_has_the_serial_pixels(plan: str, folder: Path) -> None:
    paths = sorted(map(str, folder.iterdir()))
    truth, (found, counts) = run("serial", PLANS[plan], paths)[0], run("native", PLANS[plan], paths)
    for a, b in zip(arrays(truth), arrays(found), strict=True):
        assert np.array_equal(a, b)
    assert counts["read"][0] == len(paths)
    assert counts["native"][0] > len(paths) // 2


def test_several_files_go_into_one_call(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, real = [], by_native._NativeJob.render_several
    monkeypatch.setattr(by_native._NativeJob, "render_several", lambda job, p: (calls.append(len(p)), real(job, p))[1])
    run("native", PLANS["squish"], sorted(map(str, folder.iterdir())))
    assert max(calls) > 1
    calls.clear()
    run("native", PLANS["squish"], sorted(map(str, folder.iterdir())), hook=lambda *event: None)
    assert set(calls) == {1}  # so that the hook hears of each image


def spoilt(kind: str, place: Path, whole: bytes) -> None:
    """One file that can't be read, of the named kind."""
    if kind == "folder":
        place.mkdir()
    elif kind == "pipe":
        os.mkfifo(place)
    elif kind != "missing":
        place.write_bytes({"empty": b"", "truncated": whole[: len(whole) // 2], "text": b"no image " * 40}[kind])


@pytest.mark.parametrize("plan", ["crop", "squish"])
@pytest.mark.parametrize("kind", ["missing", "folder", "pipe", "empty", "truncated", "text"])
def test_a_spoilt_file_is_its_own_fault_alone(kind: str, plan: str, folder: Path, tmp_path: Path) -> None:
    whole = sorted(folder.iterdir())[:9]
    bad = tmp_path / "bad.jpg"
    spoilt(kind, bad, whole[0].read_bytes())
    paths = [*map(str, whole[:3]), str(bad), *map(str, whole[3:])]
    with pytest.raises(Exception, match="bad.jpg") as ours:
        run("native", PLANS[plan], paths)
    with pytest.raises(Exception, match="bad.jpg") as truth:
        run("serial", PLANS[plan], paths)
    assert type(ours.value) is type(truth.value)
    kept = {}
    for name in ("serial", "native"):
        (batch,), _ = run(name, PLANS[plan], paths, skip_bad=True)
        assert [path for path, _ in batch.skipped] == [str(bad)]
        kept[name] = arrays([batch])
    for a, b in zip(kept["serial"], kept["native"], strict=True):
        assert np.array_equal(a, b)


def test_the_size_limit_is_pillows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(Image.DecompressionBombError):
        run("native", PLANS["crop"], sorted(map(str, folder.iterdir())))


def test_reading_together_leaves_what_is_not_ordinary(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "large.jpg").write_bytes((folder / "00.jpg").read_bytes() + bytes(1 << 20))
    os.symlink(folder / "00.jpg", tmp_path / "link.jpg")
    names = [folder / "00.jpg", folder / "04.png", tmp_path / "large.jpg", tmp_path / "link.jpg", tmp_path, tmp_path / "none"]
    found = native.extension().read_several([os.fsencode(name) for name in names] + [bytes(folder / "00.jpg") + b"\0.jpg"])
    data = (folder / "00.jpg").read_bytes()
    assert found[0] == (data, *Image.open(folder / "00.jpg").size) == found[3]
    assert found[1] == ((folder / "04.png").read_bytes(), 0, 0)  # for Pillow to look at
    assert found[2] is found[4] is found[5] is found[6] is None
    assert native.extension().read_several([]) == []
