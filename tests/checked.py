"""Small trees of images, sound and broken, and what the checker says of them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fastload.checking import CheckReport, Finding, check
from fastload.recipes import Target

SIZE = 16
CASES = Path(__file__).resolve().parents[2] / "shared" / "cases"


def picture(seed: int, size: tuple[int, int] = (24, 20), mode: str = "RGB") -> Image.Image:
    bands = len(Image.new(mode, (1, 1)).getbands())
    array = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], bands), dtype=np.uint8)
    return Image.fromarray(array[..., 0] if bands == 1 else array, mode)


def save(path: Path, image: Image.Image, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **options)
    return path


def tree(root: Path, count: int = 3) -> Path:
    """Two classes, `count` images each to train and to validate, no two alike."""
    for k, (split, label) in enumerate((s, c) for s in ("train", "valid") for c in ("cat", "dog")):
        for n in range(count):
            save(root / split / label / f"{n}.png", picture(100 * k + n))
    return root


def checked(root: Path, size: int = SIZE) -> CheckReport:
    return check(Target(str(root), "squish", size, bs=2, workers=0))


def kinds(report: CheckReport) -> list[tuple[str, str]]:
    return sorted((f.kind, f.severity) for f in report.findings)


def one(report: CheckReport, kind: str) -> Finding:
    (finding,) = (f for f in report.findings if f.kind == kind)
    return finding


def encoded(image: Image.Image, form: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def turned(tag: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = tag
    return exif
