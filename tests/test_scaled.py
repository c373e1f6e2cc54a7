"""decode='scaled': near the exact pixels, never for crops that leave no room, never by default."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sidebyside import seed_all

import fastload
from fastload import native
from fastload.errors import SettingsError
from fastload.executors._one_pass import Pass
from fastload.executors.native import measured_error

pytestmark = pytest.mark.skipif(not native.status().resizes, reason="the native decoder and resize are not there")


def photo(width: int, height: int, subsampling: int = 2, mode: str = "RGB") -> bytes:
    """Smooth colours and a little grain, as photos have."""
    rng = np.random.default_rng(4)
    channels = len(mode)
    coarse = rng.integers(0, 256, (9, 12, 3)).astype(np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))[..., :channels]
    grain = smooth.astype(np.int16) + rng.integers(-8, 9, smooth.shape)
    file = io.BytesIO()
    pixels = grain.clip(0, 255).astype(np.uint8)
    Image.fromarray(pixels if channels == 3 else pixels[..., 0]).save(file, "JPEG", quality=92, subsampling=subsampling)
    return file.getvalue()


def rendered(data: bytes, one: Pass, scale: int, channels: int = 3) -> Any:
    assert one.size is not None
    out = np.empty((channels, one.size[1], one.size[0]), np.uint8)
    refused = native.extension().render(data, *one.arguments(), native.pillow13(), out, *one.rest(), scale=scale)
    assert refused is None
    return out.astype(int)


def a_pass(size: tuple[int, int], box: tuple[int, int, int, int] | None, out: tuple[int, int]) -> Pass:
    one = Pass(size)
    one.box, one.size = box or (0, 0, *size), out
    return one


@pytest.mark.parametrize("scale", [2, 4, 8])
@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("box", [None, (0, 0, 333, 290), (77, 33, 613, 455), (201, 101, 641, 479)])
def test_scaled_pixels_are_near_the_exact_ones(scale: int, subsampling: int, box: Any) -> None:
    data = photo(641, 479, subsampling)
    one = a_pass((641, 479), box, (32, 24))
    apart = np.abs(rendered(data, one, 1) - rendered(data, one, scale))
    assert apart.mean() < 2
    assert apart.max() < 16


def test_places_are_kept_to_a_fraction_of_a_pixel() -> None:
    """A ramp stays the same ramp: a shift by half a decoded pixel would show as a constant difference."""
    ramp = np.linspace(0, 255, 640).astype(np.uint8)[None, :, None].repeat(480, 0).repeat(3, 2)
    file = io.BytesIO()
    Image.fromarray(ramp).save(file, "JPEG", quality=100, subsampling=0)
    for box in ((3, 1, 611, 473), (5, 7, 600, 460)):
        for scale in (2, 4, 8):
            one = a_pass((640, 480), box, (40, 30))
            shift = (rendered(file.getvalue(), one, scale) - rendered(file.getvalue(), one, 1))[:, 1:-1, 2:-2].mean()
            assert abs(shift) < 0.12  # of a slope of 0.4 a pixel


def test_mirrored_is_the_mirror_image() -> None:
    data, one = photo(640, 480), a_pass((640, 480), (13, 9, 600, 433), (40, 30))
    straight = rendered(data, one, 4)
    one.mirrored = True
    assert np.array_equal(rendered(data, one, 4), straight[:, :, ::-1])


def test_gray_is_scaled_too() -> None:
    data, one = photo(640, 480, mode="L"), a_pass((640, 480), None, (40, 30))
    assert np.abs(rendered(data, one, 1, 1) - rendered(data, one, 4, 1)).mean() < 1


@pytest.mark.parametrize("scale", [0, 3, 16, -1])
def test_other_scales_are_refused(scale: int) -> None:
    with pytest.raises(ValueError, match="scale"):
        rendered(photo(64, 48), a_pass((64, 48), None, (8, 8)), scale)


def test_small_crops_turned_and_padded_ones_are_decoded_exactly() -> None:
    assert a_pass((640, 480), None, (224, 224)).scale(1.5) == 1
    assert a_pass((640, 480), (0, 0, 100, 100), (10, 10)).scale(1.5) == 4
    turned, padded = a_pass((640, 480), None, (32, 32)), a_pass((640, 480), None, (32, 32))
    turned.turn, padded.pad = 1, (1, 1, 1, 1)
    assert (turned.scale(1.5), padded.scale(1.5)) == (1, 1)


def test_the_printed_error_is_measured() -> None:
    assert 0 < measured_error(1.5)[0] <= measured_error(1.0)[0] < 2
    assert measured_error(8.0) == (0.0, 0.0)  # no room


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for k in range(6):
        (folder / f"{k}.jpg").write_bytes(photo(320 + 8 * k, 240))
    return folder


def loaders(folder: Path, **how: Any) -> Any:
    from fastload.vision import ImageDataLoaders, RandomResizedCrop, get_image_files

    seed_all(2)
    files = sorted(get_image_files(folder))
    return ImageDataLoaders.from_lists(
        folder, files, ["a"] * 6, valid_pct=0.0, item_tfms=RandomResizedCrop(32, min_scale=0.8), bs=3, num_workers=1, **how
    )


def first_batch(dls: Any) -> Any:
    seed_all(3)
    dls.train.after_batch.fs.clear()
    return dls.train.one_batch()[0].as_subclass(torch.Tensor).int()


def test_a_loader_is_exact_unless_told_otherwise(photos: Path, caplog: pytest.LogCaptureFixture) -> None:
    exact = first_batch(loaders(photos, executor="native"))
    assert torch.equal(exact, first_batch(loaders(photos, executor="stock")))
    scaled = first_batch(loaders(photos, executor="native", decode="scaled"))
    apart = (exact - scaled).abs().float()
    assert 0 < apart.mean() < 1.5
    assert torch.equal(exact, first_batch(loaders(photos, executor="native", decode="scaled", slack=8)))
    assert torch.equal(exact, first_batch(loaders(photos, executor="threads", decode="scaled")))
    assert "decode='scaled' is left out: the threads executor decodes exactly" in caplog.text


def test_explain_prints_the_error(photos: Path) -> None:
    assert "decode='scaled' with slack=2 is an approximation: on a made photo" in str(
        fastload.explain(loaders(photos, executor="native", decode="scaled", slack=2))
    )
    assert "decode='scaled' is left out" in str(fastload.explain(loaders(photos, executor="threads", decode="scaled")))


@pytest.mark.parametrize("wrong", [{"decode": "fast"}, {"slack": 0.5}, {"slack": 9}, {"slack": True}, {"batch": "quick"}])
def test_wrong_choices_are_named(photos: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        loaders(photos, **wrong)
