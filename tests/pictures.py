"""Small image data sets for tests: noise over a gradient, many sizes and formats, made anew in a temporary folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

CLASSES = ("cat", "dog", "owl")
# (width, height): wide, tall, square, smaller and larger than the crops the tests ask for, odd, one pixel off
SIZES = ((48, 36), (36, 48), (32, 32), (61, 23), (23, 61), (40, 40), (17, 19), (33, 32), (90, 20), (20, 90), (28, 27))
COUNT = 17


@dataclass(frozen=True)
class Pictures:
    """Where a made data set lies: `path`/images/CLASS/CLASS_NN.ext, masks of the same stem, labels.csv, boxes.json."""

    path: Path

    @property
    def images(self) -> Path:
        """Folder of class folders."""
        return self.path / "images"

    @property
    def files(self) -> list[Path]:
        """Every image, sorted."""
        return sorted(p for p in self.images.rglob("*") if p.is_file())

    def mask(self, image: Path) -> Path:
        """The mask that belongs to an image."""
        return self.path / "masks" / f"{image.stem}.png"

    def annotation(self, image: Path) -> dict[str, Any]:
        """Points, boxes and box labels of an image, in pixels."""
        return dict(json.loads((self.path / "annotations.json").read_text())[image.stem])


def make_pictures(path: Path, count: int = COUNT, same_size: bool = False) -> Pictures:
    """Write a data set of `count` images; `same_size` gives all of them 40 by 30 pixels."""
    made, rng = Pictures(path), np.random.default_rng(5)
    annotations, rows = {}, ["name,label,tags,value,is_valid"]
    (path / "masks").mkdir(parents=True)
    for k in range(count):
        name = CLASSES[k % len(CLASSES)]
        size = (40, 30) if same_size else SIZES[k % len(SIZES)]
        file = made.images / name / f"{name}_{k:02d}{'.png' if k % 4 == 3 else '.jpg'}"
        file.parent.mkdir(parents=True, exist_ok=True)
        save(file, size, rng, gray=k % 8 == 5)
        Image.fromarray(rng.integers(0, 4, size[::-1], dtype=np.uint8)).save(made.mask(file))
        annotations[file.stem] = _annotation(size, rng, boxes=1 + k % 3)
        tags = " ".join(sorted({name, CLASSES[(k + k // 3) % 3]}))
        rows.append(f"{file.relative_to(path).as_posix()},{name},{tags},{k / 7:.3f},{k % 3 == 2}")
    (path / "annotations.json").write_text(json.dumps(annotations))
    (path / "labels.csv").write_text("\n".join(rows) + "\n")
    return made


def pixels(size: tuple[int, int], rng: np.random.Generator, gray: bool = False) -> np.ndarray:
    """Noise over a gradient, uint8 [H, W, 3] or [H, W]."""
    w, h = size
    ramp = np.add.outer(np.linspace(0, 120, h), np.linspace(0, 90, w))
    shape = (h, w) if gray else (h, w, 3)
    return np.uint8((ramp if gray else ramp[..., None]) + rng.integers(0, 45, shape))


def save(file: Path, size: tuple[int, int], rng: np.random.Generator, gray: bool = False) -> Path:
    """Write one image; the format follows from the file's name."""
    options = {"quality": 90, "subsampling": int(rng.integers(0, 3))} if file.suffix == ".jpg" else {}
    Image.fromarray(pixels(size, rng, gray)).save(file, **options)
    return file


def _annotation(size: tuple[int, int], rng: np.random.Generator, boxes: int) -> dict[str, Any]:
    corners = [sorted(rng.uniform(0, side, 2).tolist()) for _ in range(boxes) for side in size]
    rects = [[x[0], y[0], x[1], y[1]] for x, y in zip(corners[::2], corners[1::2], strict=True)]
    points = (rng.random((3, 2)) * size).tolist()
    return {"points": points, "boxes": rects, "labels": [CLASSES[int(k)] for k in rng.integers(0, 3, boxes)]}
