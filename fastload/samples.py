"""A class-folder data set of photo-like JPEG files, made offline from the two photographs scikit-learn ships.

Each image is a random crop of one photograph, mirrored or not, under its class's colour cast and its own light, with
the grain of a sensor. Sizes, bits per pixel and chroma subsampling follow ImageNet's, because they set what decoding
costs: on average 470x400 pixels and 4.5 to 5.5 bits per pixel; three quarters 4:4:4, one fifth 4:2:0, a few grayscale,
none progressive.

Layout: DIR/train/<class>/NNNN.jpg, DIR/valid/<class>/NNNN.jpg, and DIR/samples.json, which says how they were made.
"""

from __future__ import annotations

import io
import json
import math
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastload.errors import DataError, MissingPackage, SettingsError
from fastload.machine import usable_cpus

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

__all__ = ["SampleReport", "make_samples"]

_MANIFEST = "samples.json"
_FORMAT = 1  # raised whenever the same parameters would give other bytes
_PHOTOS = ("china", "flower")  # the order of scikit-learn's load_sample_images
_MAX_CLASSES = 20  # more casts than ten would look alike
_GRAIN = 4.5  # standard deviation in gray levels; without it, enlarged crops are too smooth for ImageNet's bits per pixel


@dataclass(frozen=True)
class SampleReport:
    """What `path` holds: counts, bytes of all JPEG files, mean size in pixels; `reused` where it was there already."""

    path: Path
    train: int
    valid: int
    bytes: int
    mean_width: float
    mean_height: float
    reused: bool = False


@dataclass(frozen=True)
class _Recipe:
    """The parameters that decide every byte of the set."""

    images: int
    classes: int
    seed: int
    valid_share: float

    def __post_init__(self) -> None:
        if not 2 <= self.classes <= _MAX_CLASSES:
            raise SettingsError(f"classes must be 2 to {_MAX_CLASSES}, found {self.classes!r}; ask for fewer or more")
        if self.images < 2 * self.classes:
            raise SettingsError(
                f"each of {self.classes} classes needs an image to train and one to validate, found images="
                f"{self.images!r}; ask for at least {2 * self.classes}"
            )
        if not 0 < self.valid_share < 1:
            raise SettingsError(f"valid_share must lie between 0 and 1, found {self.valid_share!r}; 0.2 is usual")
        if self.seed < 0:
            raise SettingsError(f"seed must not be negative, found {self.seed!r}; ask for 0 or more")

    @property
    def valid(self) -> int:
        """The number of validation images: at least one a class, and as many left to train."""
        return min(max(round(self.images * self.valid_share), self.classes), self.images - self.classes)


@dataclass(frozen=True)
class _Image:
    """One image to be made: its number, its class, and its path below the data set's folder."""

    number: int
    label: int
    path: str


def make_samples(
    dest: str | Path,
    images: int = 600,
    classes: int = 4,
    seed: int = 0,
    valid_share: float = 0.2,
    progress: Callable[[int, int], None] | None = None,
) -> SampleReport:
    """Make `images` JPEG files in `dest`, or reuse the complete set that the same parameters made there before.

    `progress(done, images)` is called in the calling thread. The set is built in a temporary folder next to `dest` and
    renamed at the end; on failure or interrupt that folder is removed and `dest` is as before.
    The same parameters and the same Pillow give the same bytes, whatever the number of threads.

    Raises SettingsError for impossible numbers, MissingPackage without scikit-learn, DataError where `dest` holds
    anything else or can't be written.
    """
    recipe = _Recipe(images, classes, seed, valid_share)
    target = Path(dest).resolve()
    try:
        return _existing(target, recipe) or _build_aside(target, recipe, progress or (lambda done, total: None))
    except OSError as err:
        raise DataError(
            f"making samples in {str(target)!r} failed with {err!r}; give a new folder where you may write"
        ) from err


# The folder: what is there already, and how a new one appears at once.


def _existing(target: Path, recipe: _Recipe) -> SampleReport | None:
    """Return the report of a matching complete set, None for nothing there; raises DataError for anything else."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return None
    advice = "give another folder, or remove this one"
    if not target.is_dir():
        raise DataError(f"samples go into a folder, found a file at {str(target)!r}; {advice}")
    manifest = _manifest(target)
    if manifest is None:
        raise DataError(f"samples go into a new or empty folder, found other files in {str(target)!r}; {advice}")
    made_from = manifest.get("recipe")
    if manifest.get("format") != _FORMAT or made_from != asdict(recipe):
        raise DataError(f"asked for samples with {asdict(recipe)}, found {made_from!r} in {str(target)!r}; {advice}")
    return _reused(target, manifest.get("report"), advice)


def _manifest(target: Path) -> dict[str, Any] | None:
    try:
        loaded = json.loads((target / _MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None  # no readable manifest means that the folder isn't ours: the caller refuses it
    return loaded if isinstance(loaded, dict) else None


def _reused(target: Path, stored: object, advice: str) -> SampleReport:
    """Return the stored report if the files still add up to it."""
    sizes = {split: [file.stat().st_size for file in target.glob(f"{split}/*/*.jpg")] for split in ("train", "valid")}
    now = {"train": len(sizes["train"]), "valid": len(sizes["valid"]), "bytes": sum(sizes["train"] + sizes["valid"])}
    if not isinstance(stored, dict) or any(stored.get(key) != value for key, value in now.items()):
        raise DataError(f"samples in {str(target)!r} should be {stored!r}, found {now}; {advice}")
    return SampleReport(target, **stored, reused=True)


def _build_aside(target: Path, recipe: _Recipe, progress: Callable[[int, int], None]) -> SampleReport:
    photos = _photographs()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as aside:
        building = Path(aside) / "set"
        report = _build(building, recipe, photos, progress)
        return _moved(building, target, recipe) or replace(report, path=target)


def _moved(building: Path, target: Path, recipe: _Recipe) -> SampleReport | None:
    """Rename the finished set into place; return the report of another process's set if that came first."""
    try:
        if target.exists():
            target.rmdir()  # fails unless empty
        building.rename(target)
    except OSError:
        first = _existing(target, recipe)
        if first is None:
            raise
        return first
    return None


def _build(folder: Path, recipe: _Recipe, photos: list[Image], progress: Callable[[int, int], None]) -> SampleReport:
    """Write every image, several at a time (Pillow and numpy release the GIL), then the manifest."""
    plan = list(_planned(recipe))
    for parent in {(folder / image.path).parent for image in plan}:
        parent.mkdir(parents=True, exist_ok=True)
    pool = ThreadPoolExecutor(usable_cpus().count, thread_name_prefix="fastload-sample")
    made = []
    try:
        futures = [pool.submit(_write, folder, image, recipe, photos) for image in plan]
        for done, future in enumerate(as_completed(futures), 1):
            made.append(future.result())
            progress(done, len(plan))
    finally:
        pool.shutdown(cancel_futures=True)
    report = _report(folder, recipe, made)
    _write_manifest(folder, recipe, report)
    return report


def _report(folder: Path, recipe: _Recipe, made: list[tuple[int, int, int]]) -> SampleReport:
    """Add up the (width, height, bytes) of each image."""
    width, height, size = (sum(column) for column in zip(*made, strict=True))
    mean_width, mean_height = round(width / len(made), 1), round(height / len(made), 1)
    return SampleReport(folder, recipe.images - recipe.valid, recipe.valid, size, mean_width, mean_height)


def _write_manifest(folder: Path, recipe: _Recipe, report: SampleReport) -> None:
    stored = {key: value for key, value in asdict(report).items() if key not in ("path", "reused")}
    text = json.dumps({"format": _FORMAT, "recipe": asdict(recipe), "report": stored}, indent=2)
    (folder / _MANIFEST).write_text(f"{text}\n", encoding="utf-8")


# The plan: which image is of which class.


def _planned(recipe: _Recipe) -> Iterator[_Image]:
    """Yield every image; classes take turns within each split, so that they are equal to within one."""
    names = [_class_name(label, recipe.classes) for label in range(recipe.classes)]
    train = recipe.images - recipe.valid
    for number in range(recipe.images):
        split, place = ("train", number) if number < train else ("valid", number - train)
        turn, label = divmod(place, recipe.classes)
        yield _Image(number, label, f"{split}/{names[label]}/{turn:04d}.jpg")


def _class_name(label: int, classes: int) -> str:
    """Return photograph and hue of the cast in degrees.

    >>> [_class_name(label, 4) for label in range(4)]
    ['china-000', 'flower-000', 'china-180', 'flower-180']
    """
    return f"{_PHOTOS[label % 2]}-{round(math.degrees(_cast_angle(label, classes))):03d}"


def _cast_angle(label: int, classes: int) -> float:
    casts = math.ceil(classes / 2)
    return 2 * math.pi * (label // 2) / casts


# One image.


def _photographs() -> list[Image]:
    """Return china.jpg and flower.jpg, RGB, 640x427."""
    try:
        from sklearn.datasets import load_sample_images
    except ImportError as err:
        raise MissingPackage(
            "the photographs that samples are cut from come with scikit-learn, which can't be imported "
            f'({err}); run: pip install "fastai-fastload[sample]"'
        ) from err
    from PIL import Image

    return [Image.fromarray(pixels) for pixels in load_sample_images().images]


def _write(folder: Path, image: _Image, recipe: _Recipe, photos: list[Image]) -> tuple[int, int, int]:
    """Make and write one JPEG; return its width, height and bytes. All chance comes from the seed and its number."""
    import numpy as np

    rng = np.random.default_rng([recipe.seed, image.number])
    crop = _crop(photos[image.label % 2], _size(rng), rng)
    picture = _developed(crop, _cast_angle(image.label, recipe.classes), rng)
    data = _encoded(picture, rng)
    (folder / image.path).write_bytes(data)
    return crop.width, crop.height, len(data)


def _size(rng: np.random.Generator) -> tuple[int, int]:
    """Return width and height in pixels: mostly 500 on the long side and 4:3, as ImageNet's, 78 in 100 landscape."""
    long = 500 if rng.random() < 0.7 else int(rng.integers(340, 651))
    ratio = float(rng.choice([3 / 4, 2 / 3, rng.uniform(0.7, 1.0)], p=[0.6, 0.2, 0.2]))
    short = round(long * ratio)
    return (long, short) if rng.random() < 0.78 else (short, long)


def _crop(photo: Image, size: tuple[int, int], rng: np.random.Generator) -> Image:
    """Cut 55 to 100 percent of the largest window of `size`'s shape, scale it to `size`, mirror every other one."""
    from PIL import Image

    scale = min(photo.width / size[0], photo.height / size[1]) * rng.uniform(0.55, 1.0)
    width, height = size[0] * scale, size[1] * scale
    left, top = rng.uniform(0, photo.width - width), rng.uniform(0, photo.height - height)
    # Rounding may push the window past the edge by less than a millionth of a pixel, which Pillow refuses.
    box = (left, top, min(left + width, photo.width), min(top + height, photo.height))
    crop = photo.resize(size, Image.Resampling.BICUBIC, box=box)
    return crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < 0.5 else crop


def _developed(crop: Image, angle: float, rng: np.random.Generator) -> Image:
    """Add the class's cast towards hue `angle` (radians), light and contrast of its own, and gray grain."""
    import numpy as np
    from PIL import Image

    hues = 2 * np.pi * np.arange(3) / 3
    gains = 1 + 0.25 * np.cos(angle - hues) + rng.normal(0, 0.06, 3)
    contrast, light = rng.uniform(0.8, 1.2), rng.uniform(-25, 25)
    pixels = (np.asarray(crop, np.float32) - 128) * np.float32(contrast) + np.float32(128 + light)
    pixels *= gains.astype(np.float32)
    pixels += _GRAIN * rng.standard_normal((crop.height, crop.width, 1), dtype=np.float32)
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def _encoded(picture: Image, rng: np.random.Generator) -> bytes:
    """Return JPEG bytes of the quality that comes closest to the bits per pixel drawn for this picture."""
    kind = float(rng.random())
    bits = float(rng.uniform(4.4, 5.6))
    if kind < 0.03:
        # Without colour, as many bits would take a quality that no camera uses.
        return _closest(picture.convert("L"), 0.8 * bits, {})
    if kind < 0.23:
        return _closest(picture, 0.9 * bits, {"subsampling": "4:2:0"})
    return _closest(picture, bits, {"subsampling": "4:4:4"})


def _closest(picture: Image, bits_per_pixel: float, options: dict[str, str]) -> bytes:
    """Bisect the JPEG quality between 80 and 98; libjpeg's size grows with it."""
    wanted = bits_per_pixel * picture.width * picture.height / 8
    low, high = 80, 98
    tried: list[bytes] = []
    while low <= high:
        middle = (low + high) // 2
        buffer = io.BytesIO()
        picture.save(buffer, "JPEG", quality=middle, **options)
        tried.append(buffer.getvalue())
        low, high = (middle + 1, high) if len(tried[-1]) < wanted else (low, middle - 1)
    return min(tried, key=lambda data: abs(len(data) - wanted))
