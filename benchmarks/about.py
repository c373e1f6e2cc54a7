"""What every benchmark says of its photos."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

__all__ = ["facts", "photos"]


def photos(folder: Path, least: int = 1) -> list[Path]:
    """The JPEG files below a folder, sorted; ends the process where there are fewer than `least`."""
    found = sorted(p for p in folder.rglob("*") if p.suffix.lower() in (".jpg", ".jpeg"))
    if len(found) < least:
        sys.exit(f"{folder} holds {len(found)} JPEG files, and at least {least} are needed; `fastload sample DIR` makes some")
    return found


def facts(files: list[Path]) -> dict[str, Any]:
    """Number of files and their mean size in bytes and pixels."""
    from PIL import Image

    sizes = [Image.open(p).size for p in files]
    width, height = (round(sum(side) / len(sizes)) for side in zip(*sizes, strict=True))
    kilobytes = round(sum(p.stat().st_size for p in files) / len(files) / 1000)
    return {"files": len(files), "mean_kB": kilobytes, "mean_pixels": f"{width}x{height}"}
