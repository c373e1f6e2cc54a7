"""FFCV on the same photos: its own files, its own crops, decoded and resized by its own compiled code.

FFCV 1.0.2 is built against OpenCV's and libturbojpeg's headers (Debian: libopencv-dev, libturbojpeg0-dev, pkg-config).
Its loader draws the crops itself, so its images can't be compared with Pillow's for given crops; its filter averages areas.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

SIZE, BATCH = 224, 64


def ffcv(paths: list[str], mode: str, work: str, threads: int, scratch: Path) -> Callable[[], Iterator[tuple[Any, Any]]]:
    """A function that starts an epoch. `mode`: 'raw' or 'jpg'; `work`: 'rrc', or 'final' for images of 224 x 224 beforehand."""
    from ffcv.fields import IntField, RGBImageField
    from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder, SimpleRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import ToTensor, ToTorchImage
    from ffcv.writer import DatasetWriter
    from PIL import Image

    class Photos:
        def __len__(self) -> int:
            return len(paths)

        def __getitem__(self, k: int) -> tuple[Any, int]:
            image = Image.open(paths[k]).convert("RGB")
            return np.asarray(image if work == "rrc" else image.resize((SIZE, SIZE), Image.Resampling.BILINEAR)), k

    file = scratch / "photos.beton"
    fields = {"image": RGBImageField(write_mode=mode, jpeg_quality=95), "number": IntField()}
    DatasetWriter(str(file), fields, num_workers=threads).from_indexed_dataset(Photos())
    decoder = RandomResizedCropRGBImageDecoder((SIZE, SIZE)) if work == "rrc" else SimpleRGBImageDecoder()
    loader = Loader(
        str(file),
        batch_size=BATCH,
        num_workers=threads,
        order=OrderOption.RANDOM,
        os_cache=True,
        drop_last=True,
        pipelines={"image": [decoder, ToTensor(), ToTorchImage()], "number": [IntDecoder(), ToTensor()]},
    )
    return lambda: iter(loader)


def main() -> None:
    import torch  # noqa: F401  # as in rivals.py

    from fastload.benching import Peak, timed

    job = json.loads(sys.argv[1])
    photos = sorted(str(p) for p in Path(job["data"]).rglob("*") if p.suffix.lower() in (".jpg", ".jpeg"))
    with tempfile.TemporaryDirectory() as scratch:
        epoch = ffcv(photos, job["mode"], job["work"], job["threads"], Path(scratch))
        size = (Path(scratch) / "photos.beton").stat().st_size
        for _ in epoch():  # its code is compiled in the first epoch
            break

        class Loader:
            def __iter__(self) -> Iterator[tuple[Any, Any]]:
                return epoch()

        with Peak() as peak:
            found = timed(Loader(), job["seconds"], peak.start)
    print(json.dumps({**found, "peak_mib": peak.mib, "bytes": size}))


if __name__ == "__main__":
    main()
