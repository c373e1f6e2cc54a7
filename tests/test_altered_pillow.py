"""What a user replaces in Pillow is honoured: the loader goes to stock, which says so and gives the user's pixels."""

from __future__ import annotations

import gc
import math
import subprocess
import sys
import threading
from typing import Any

import pytest
import torch
from pictures import Pictures
from PIL import Image, ImageOps, JpegImagePlugin
from sidebyside import WAYS, seed_all

import fastload
from fastload import native, stock
from fastload.attached import Attached
from fastload.bench import bench
from fastload.errors import DataError
from fastload.recipes import Target


def loaders(pictures: Pictures, **how: Any) -> Any:
    from fastload.vision import ImageDataLoaders, RandomResizedCrop

    seed_all(1)
    common = {"valid_pct": 0.3, "seed": 1, "item_tfms": RandomResizedCrop(24), "bs": 4}
    return ImageDataLoaders.from_folder(pictures.images, **{**common, "num_workers": 0, **how})


def batches(dls: Any) -> list[Any]:
    seed_all(2)
    return [x for dl in (dls.train, dls.valid) for x, _ in dl]


class Subclass(JpegImagePlugin.JpegImageFile):
    """A user's own opener."""

    def load(self) -> Any:
        found = super().load()
        self.im = ImageOps.invert(Image.Image._new(self, self.im)).im
        return found


def patches(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Put the user's own function in place: it calls Pillow's and inverts what comes out."""
    if name == "opener":
        Image.preinit()
        monkeypatch.setitem(Image.OPEN, "JPEG", (Subclass, Image.OPEN["JPEG"][1]))
        return
    holder, _, last = name.rpartition(".")
    owner: Any = {"": Image, "Image": Image.Image}[holder]
    own = getattr(owner, last)
    monkeypatch.setattr(owner, last, lambda *args, **how: ImageOps.invert(own(*args, **how).convert("RGB")))


@pytest.mark.parametrize("way", WAYS, ids=lambda w: w["executor"])
@pytest.mark.parametrize("name", ["open", "Image.resize", "Image.crop", "opener"])
def test_a_changed_pillow_function_is_honoured(
    pictures: Pictures, monkeypatch: pytest.MonkeyPatch, name: str, way: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    plain = batches(loaders(pictures, executor="stock"))
    assert stock.altered() is None
    patches(monkeypatch, name)
    wanted = batches(loaders(pictures, executor="stock"))
    for a, b in zip(wanted, batches(loaders(pictures, **way)), strict=True):
        assert torch.equal(a, b)
    assert not all(torch.equal(a, b) for a, b in zip(plain, wanted, strict=True))
    assert "this loader stays with stock fastai" in caplog.text


@pytest.mark.parametrize("method", ["convert", "transpose", "tobytes", "frombytes", "load"])
def test_every_method_between_file_and_pixels_is_watched(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    own = getattr(Image.Image, method)
    monkeypatch.setattr(Image.Image, method, lambda *args, **how: own(*args, **how))
    assert stock.altered() == f"PIL.Image.Image.{method} is not Pillow's own any more"


@pytest.mark.parametrize("executor", ["threads", "native"])
def test_idle_threads_hold_no_job(pictures: Pictures, executor: str) -> None:
    dls = loaders(pictures, executor=executor, threads=3, persistent_workers=True)
    batches(dls)
    gc.collect()
    assert not [o for o in gc.get_objects() if type(o).__name__ in ("Tidy", "_NativeJob")]
    before = {t.name for t in threading.enumerate()}
    assert any("fastload" in name for name in before)
    del dls
    gc.collect()
    assert not [o for o in gc.get_objects() if isinstance(o, Attached) and o.pool is not None]


@pytest.mark.parametrize("how", [{"num_workers": -1}, {"timeout": -1}, {"timeout": "x"}])
def test_numbers_that_make_no_sense_have_stocks_error(pictures: Pictures, how: dict[str, Any]) -> None:
    errors = []
    for executor in ("stock", "threads"):
        dls = loaders(pictures, executor=executor)
        fastload.accelerate(dls, executor=executor, **how)
        with pytest.raises(AssertionError) as caught:
            next(iter(dls.train))
        errors.append(str(caught.value))
    assert errors[0] == errors[1]


@pytest.mark.parametrize("seconds", [math.nan, math.inf, 0, -1])
def test_bench_refuses_durations_that_never_end(pictures: Pictures, seconds: float) -> None:
    with pytest.raises(DataError, match="seconds"):
        bench(Target(str(pictures.images)), seconds=seconds)


def test_the_extension_refuses_before_it_is_connected(pictures: Pictures) -> None:
    if native.extension() is None:
        pytest.skip("the native extension was not built")
    code = (
        "import sys, numpy as np\nfrom fastload import native\n"
        "data, out = open(sys.argv[1], 'rb').read(), np.zeros((3, 8, 8), np.uint8)\n"
        "print(native.extension().render(data, (0, 0, 8, 8), (8, 8), (0, 0, 8, 8), False, True, out))"
    )
    file = next(p for p in pictures.files if p.suffix == ".jpg")
    done = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == "Pillow's libjpeg is not connected"
