"""Where Pillow resizes otherwise than the extension (Pillow-SIMD), the extension decodes and Pillow resizes, as stock."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fastai.vision.all import PILImageBW
from pictures import Pictures
from sidebyside import seed_all

import fastload
from fastload import native

pytestmark = pytest.mark.skipif(not native.status().decodes, reason="the native decoder is not there")


@pytest.fixture
def decodes_only(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The extension found to decode as Pillow and to resize otherwise; the list fills with the sizes it decodes to."""
    calls: list[Any] = []
    extension = native.extension()

    class Watched:
        def __getattr__(self, name: str) -> Any:
            return getattr(extension, name)

        def render(self, data: bytes, box: Any, size: Any, *rest: Any, **how: Any) -> Any:
            refused = extension.render(data, box, size, *rest, **how)
            calls.append((box, size, refused))
            return refused

        def resize(self, *arguments: Any, **how: Any) -> Any:
            raise AssertionError("a resize that does not equal this Pillow's was called")

    watched = Watched()
    monkeypatch.setattr(native, "status", lambda: native.Status(True, False, "portable", "the native resize does not equal"))
    monkeypatch.setattr(native, "extension", lambda: watched)
    return calls


def batches(pictures: Pictures, item_tfms: Any, cls: type | None = None, **how: Any) -> list[Any]:
    from fastload.vision import CategoryBlock, DataBlock, ImageBlock, get_image_files, parent_label

    seed_all(1)
    block = ImageBlock if cls is None else ImageBlock(cls)
    made = DataBlock((block, CategoryBlock), get_items=get_image_files, get_y=parent_label, item_tfms=item_tfms)
    dls = made.dataloaders(pictures.images, bs=4, num_workers=1, **how)
    dls.train.after_batch.fs.clear()
    seed_all(2)
    return [batch for dl in (dls.train, dls.valid) for batch in dl]


def pipelines() -> dict[str, Any]:
    from fastload import vision as v

    return {
        "random_crop": [v.RandomResizedCrop(32), v.FlipItem()],
        "resize": [v.Resize(32)],
        "pad": [v.Resize(40, method="pad", pad_mode="zeros")],
        "turned": [v.DihedralItem(p=1.0), v.Resize(24, method="squish")],
        "padded_crop": [v.CropPad(50, pad_mode="reflection")],
    }


@pytest.mark.parametrize("gray", [False, True])
@pytest.mark.parametrize("name", pipelines())
def test_batches_equal_stock(pictures: Pictures, decodes_only: list[Any], name: str, gray: bool) -> None:
    cls = PILImageBW if gray else None
    ours = batches(pictures, pipelines()[name], cls, executor="native", threads=2)
    for a, b in zip(batches(pictures, pipelines()[name], cls, executor="stock"), ours, strict=True):
        assert torch.equal(a[0], b[0])
        assert torch.equal(a[1], b[1])
    assert any(refused is None for *_, refused in decodes_only)
    assert all((box[2] - box[0], box[3] - box[1]) == tuple(size) for box, size, _ in decodes_only)


def test_damaged_files_raise_as_in_stock(tmp_path: Any, decodes_only: list[Any]) -> None:
    from pictures import make_pictures

    made = make_pictures(tmp_path / "set")
    jpegs = [p for p in made.files if p.suffix == ".jpg"]
    jpegs[0].write_bytes(jpegs[0].read_bytes()[:-200])
    with pytest.raises(OSError, match=jpegs[0].name):
        batches(made, pipelines()["resize"], executor="native", threads=2)


def test_auto_takes_it_and_explain_says_so(pictures: Pictures, decodes_only: list[Any]) -> None:
    from fastload.vision import ImageDataLoaders, Resize

    dls = ImageDataLoaders.from_folder(pictures.images, valid_pct=0.3, item_tfms=Resize(32), bs=4, num_workers=1)
    text = str(fastload.explain(dls))
    assert "fastload native" in text
    assert "libjpeg by the extension, resized by Pillow" in text


def test_scaled_decoding_is_left_out_and_said_so(
    pictures: Pictures, decodes_only: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    resize = pipelines()["resize"]
    exact, scaled = (batches(pictures, resize, executor="native", decode=how) for how in ("exact", "scaled"))
    for a, b in zip(exact, scaled, strict=True):
        assert torch.equal(a[0], b[0])
    said = "decode='scaled' is left out: Pillow has to resize, and needs every pixel: the native resize does not equal"
    assert said in caplog.text
    from fastload.vision import ImageDataLoaders, Resize

    dls = ImageDataLoaders.from_folder(
        pictures.images, valid_pct=0.3, item_tfms=Resize(32), bs=4, executor="native", decode="scaled"
    )
    assert said in str(fastload.explain(dls))
    assert "is an approximation" not in str(fastload.explain(dls))
