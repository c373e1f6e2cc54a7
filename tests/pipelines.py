"""Item transforms by name, and image folders with them: what the drop-in tests are run over."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from fastai.vision import all as fv
from pictures import Pictures
from PIL import Image

TRAIN, VALID = 0, 1
Make = Callable[[], Any]
NEAREST, LANCZOS, BICUBIC, BOX = (Image.Resampling(k) for k in (0, 1, 3, 4))

# Item transforms that end in one size for every image.
ITEM_TFMS: dict[str, Callable[[], list[Any]]] = {
    **{
        f"resize_{method}_{pad}": partial(lambda method, pad: [fv.Resize(24, method, pad)], method, pad)
        for method in ("crop", "pad", "squish")
        for pad in ("zeros", "border", "reflection")
    },
    "resize_not_square": lambda: [fv.Resize((20, 33))],
    "resize_pad_not_square": lambda: [fv.Resize((33, 20), "pad", "zeros")],
    "resize_enlarges": lambda: [fv.Resize(97, "pad", "reflection")],
    "resize_bicubic": lambda: [fv.Resize(24, resamples=(BICUBIC, NEAREST))],
    "resize_lanczos_squish": lambda: [fv.Resize(24, "squish", resamples=(LANCZOS, NEAREST))],
    "resize_box": lambda: [fv.Resize(24, resamples=(BOX, BOX))],
    "random_resized_crop": lambda: [fv.RandomResizedCrop(24)],
    "random_resized_crop_not_square": lambda: [fv.RandomResizedCrop((32, 18), min_scale=0.3)],
    "random_resized_crop_enlarges": lambda: [fv.RandomResizedCrop(80, min_scale=0.5)],
    "random_resized_crop_falls_back": lambda: [fv.RandomResizedCrop(24, min_scale=0.99, ratio=(0.98, 1.02))],
    "random_resized_crop_max_scale": lambda: [fv.RandomResizedCrop(24, max_scale=0.3, ratio=(0.5, 2))],
    "random_resized_crop_no_xtra": lambda: [fv.RandomResizedCrop(24, val_xtra=0.0)],
    "random_resized_crop_bicubic": lambda: [fv.RandomResizedCrop(24, resamples=(BICUBIC, NEAREST))],
    "random_crop": lambda: [fv.RandomCrop(16)],
    "random_crop_larger_than_images": lambda: [fv.RandomCrop(70)],
    "random_crop_not_square": lambda: [fv.RandomCrop((30, 18))],
    "crop_pad_zeros": lambda: [fv.CropPad(30, "zeros")],
    "crop_pad_border": lambda: [fv.CropPad((20, 50), "border")],
    "crop_pad_reflection": lambda: [fv.CropPad(64, "reflection")],
    "crop_pad_smaller": lambda: [fv.CropPad(16)],
    "flip_never": lambda: [fv.Resize(24), fv.FlipItem(0.0)],
    "flip_half": lambda: [fv.Resize(24), fv.FlipItem()],
    "flip_always": lambda: [fv.Resize(24), fv.FlipItem(1.0)],
    "dihedral": lambda: [fv.Resize(24), fv.DihedralItem()],
    "dihedral_sometimes": lambda: [fv.Resize((30, 20)), fv.DihedralItem(p=0.4)],
    "dihedral_random_resized_crop": lambda: [fv.DihedralItem(), fv.RandomResizedCrop((18, 28))],
    "dihedral_random_crop": lambda: [fv.DihedralItem(p=0.7), fv.RandomCrop(26)],
    "flip_and_dihedral": lambda: [fv.FlipItem(0.3), fv.DihedralItem(0.5), fv.Resize(24, "pad", "border")],
    "flip_random_resized_crop": lambda: [fv.RandomResizedCrop(24), fv.FlipItem()],
    "crop_pad_then_resize": lambda: [fv.CropPad((25, 45), "reflection"), fv.Resize(24)],
    "resize_then_random_crop": lambda: [fv.Resize(40), fv.RandomCrop(24), fv.FlipItem()],
    "ratio_resize_then_random_crop": lambda: [fv.RatioResize(40), fv.RandomCrop(24)],
    "ratio_resize_then_resize": lambda: [fv.RatioResize(50), fv.Resize(24)],
    "random_resized_crop_then_resize": lambda: [fv.RandomResizedCrop(40), fv.Resize((16, 24), "pad")],
    "crop_pad_flip_random_resized_crop": lambda: [fv.CropPad(44, "border"), fv.FlipItem(), fv.RandomResizedCrop(20)],
}
# Item transforms that leave images of different sizes.
LOOSE_TFMS: dict[str, Callable[[], list[Any] | None]] = {
    "none": lambda: None,
    "flip": lambda: [fv.FlipItem()],
    "dihedral": lambda: [fv.DihedralItem(p=0.6)],
    "ratio_resize": lambda: [fv.RatioResize(30)],
    "ratio_resize_enlarges": lambda: [fv.RatioResize(100, resamples=(BICUBIC, NEAREST)), fv.FlipItem()],
}


def augmented() -> list[Any]:
    return [*fv.aug_transforms(), fv.Normalize.from_stats(*fv.imagenet_stats)]


def folder(p: Pictures, item: Any, workers: int = 0, batch: Any = None, **kw: Any) -> Make:
    """A maker of ImageDataLoaders.from_folder with new transforms each time: 12 images to train on, 5 to validate."""

    def make() -> Any:
        kw_all = {"bs": 5, "valid_pct": 0.3, "seed": 1, "device": "cpu"} | kw
        tfms = batch() if callable(batch) else batch
        return fv.ImageDataLoaders.from_folder(p.images, item_tfms=item(), batch_tfms=tfms, num_workers=workers, **kw_all)

    return make


# Those that draw, once each: worker processes change whose numbers are drawn, not what is done with them.
DRAWING = (
    *("resize_crop_reflection", "resize_squish_zeros", "random_crop", "random_resized_crop", "random_resized_crop_falls_back"),
    *("flip_half", "dihedral_sometimes", "ratio_resize_then_random_crop", "crop_pad_flip_random_resized_crop"),
)
