"""Other loaders on the same photos and the same crops, each in a process of its own: `python benchmarks/rivals.py JOB`.

Every rival gets the same list of files and crops and gives batches of uint8 images with their item numbers, in the layout that
is natural to it. What it decodes and resizes with is its own; the boxes cost it nothing. Its images are compared with Pillow's
for the same crops first.
"""

from __future__ import annotations

import io
import json
import math
import random
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

SIZE = 224
BATCH = 64
AHEAD = 3  # batches in flight where a rival leaves that to its user
CHECKED = 192  # images compared with Pillow


@dataclass(frozen=True)
class Item:
    """One image to make: crop `box` (left, top, right, bottom), resize to 224 x 224, mirror if `flip`."""

    path: str
    box: tuple[int, int, int, int]
    flip: bool


Batches = Iterator[tuple[Any, Any]]  # images [64, H, W, 3] or [64, 3, H, W] uint8, and their item numbers
Rival = Callable[[list[Item], int, Path], Callable[[], Batches]]


def random_box(w: int, h: int, rng: random.Random) -> tuple[int, int, int, int]:
    """A RandomResizedCrop box: area 0.08 to 1, ratio 3/4 to 4/3, ten tries."""
    for _ in range(10):
        area, ratio = rng.uniform(0.08, 1) * w * h, math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        cw, ch = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < cw <= w and 0 < ch <= h:
            x, y = rng.randint(0, w - cw), rng.randint(0, h - ch)
            return x, y, x + cw, y + ch
    return centre_box(w, h)


def centre_box(w: int, h: int) -> tuple[int, int, int, int]:
    """The largest centred square: Resize(224) of a validation set."""
    side = min(w, h)
    x, y = (w - side) // 2, (h - side) // 2
    return x, y, x + side, y + side


def make_items(folder: Path, work: str, repeats: int) -> list[Item]:
    """Every photo `repeats` times in random order, with crops from one seed."""
    from PIL import Image

    rng = random.Random(1)
    sizes = {str(p): Image.open(p).size for p in sorted(folder.iterdir()) if p.suffix.lower() in (".jpg", ".jpeg")}
    paths = list(sizes) * repeats
    rng.shuffle(paths)
    if work == "resize":
        return [Item(p, centre_box(*sizes[p]), False) for p in paths]
    return [Item(p, random_box(*sizes[p], rng), rng.random() < 0.5) for p in paths]


def by_pillow(item: Item, data: bytes | None = None) -> Any:
    """The truth, [224, 224, 3] uint8: fastai's own calls."""
    from PIL import Image

    image = Image.open(item.path if data is None else io.BytesIO(data)).convert("RGB")
    image = image.crop(item.box).resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    return np.asarray(image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if item.flip else image)


def pooled(one: Callable[[Item], Any]) -> Rival:
    """`one` on a thread pool, a task an image, three batches in flight."""

    def rival(items: list[Item], threads: int, scratch: Path) -> Callable[[], Batches]:
        pool = ThreadPoolExecutor(threads)

        def task(out: Any, k: int, item: Item) -> None:
            out[k] = one(item)

        def epoch() -> Batches:
            flight: deque[tuple[Any, Any, list[Any]]] = deque()
            for start in range(0, len(items) - BATCH + 1, BATCH):
                out = np.empty((BATCH, SIZE, SIZE, 3), np.uint8)
                jobs = [pool.submit(task, out, k, items[start + k]) for k in range(BATCH)]
                flight.append((out, np.arange(start, start + BATCH), jobs))
                if len(flight) == AHEAD:
                    yield finished(*flight.popleft())
            while flight:
                yield finished(*flight.popleft())

        def finished(out: Any, numbers: Any, jobs: list[Any]) -> tuple[Any, Any]:
            for job in jobs:
                job.result()
            return out, numbers

        return epoch

    return rival


def with_cv2(interpolation: str, decoder: str = "cv2") -> Callable[[Item], Any]:
    """OpenCV's resize after its own decoder or simplejpeg's."""
    import cv2

    cv2.setNumThreads(0)
    how = getattr(cv2, interpolation)
    if decoder == "simplejpeg":
        import simplejpeg

    def one(item: Item) -> Any:
        left, top, right, bottom = item.box
        data = Path(item.path).read_bytes()
        if decoder == "cv2":
            image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
        else:
            image = simplejpeg.decode_jpeg(data, "RGB")
        image = cv2.resize(image[top:bottom, left:right], (SIZE, SIZE), interpolation=how)
        if decoder == "cv2":
            image = cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
        return image[:, ::-1] if item.flip else image

    return one


def spdl(items: list[Item], threads: int, scratch: Path) -> Callable[[], Batches]:
    """SPDL's pipeline, one task a batch: simplejpeg and OpenCV's area resize."""
    from spdl.pipeline import PipelineBuilder

    one = with_cv2("INTER_AREA", "simplejpeg")

    def render(numbers: Any) -> tuple[Any, Any]:
        return np.stack([one(items[k]) for k in numbers]), numbers

    def epoch() -> Batches:
        starts = range(0, len(items) - BATCH + 1, BATCH)
        source = (np.arange(start, start + BATCH) for start in starts)
        pipeline = PipelineBuilder().add_source(source).pipe(render, concurrency=threads).add_sink(AHEAD)
        with (built := pipeline.build(num_threads=threads)).auto_stop():
            yield from built

    return epoch


def torchvision(items: list[Item], threads: int, scratch: Path) -> Callable[[], Batches]:
    """torchvision v2 on tensors, antialiased, in DataLoader's worker processes."""
    import torch
    from torchvision.io import ImageReadMode, decode_jpeg, read_file
    from torchvision.transforms.v2 import functional

    class Photos(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return len(items)

        def __getitem__(self, k: int) -> tuple[Any, int]:
            left, top, right, bottom = items[k].box
            image = decode_jpeg(read_file(items[k].path), ImageReadMode.RGB)
            image = functional.resized_crop(image, top, left, bottom - top, right - left, [SIZE, SIZE], antialias=True)
            return (functional.horizontal_flip(image) if items[k].flip else image), k

    loader = torch.utils.data.DataLoader(Photos(), BATCH, num_workers=threads, drop_last=True)
    return lambda: iter(loader)


def dali(items: list[Item], threads: int, scratch: Path) -> Callable[[], Batches]:
    """A DALI pipeline on the CPU: sliced decoding, antialiased resize."""
    from nvidia.dali import fn, pipeline_def, types

    rows = len(items) // BATCH * BATCH

    def source(info: Any) -> Any:
        item = items[info.idx_in_epoch] if info.idx_in_epoch < rows else None
        if item is None:
            raise StopIteration
        left, top, right, bottom = item.box
        anchor, shape = np.array([left, top], np.int32), np.array([right - left, bottom - top], np.int32)
        return np.fromfile(item.path, np.uint8), anchor, shape, np.array(item.flip, np.int32), np.array(info.idx_in_epoch)

    @pipeline_def(batch_size=BATCH, num_threads=threads, device_id=None, prefetch_queue_depth=2)  # type: ignore[untyped-decorator]
    def pipe() -> Any:
        dtypes = [types.UINT8, types.INT32, types.INT32, types.INT32, types.INT64]
        data, anchor, shape, flip, number = fn.external_source(source, num_outputs=5, batch=False, dtype=dtypes)
        image = fn.decoders.image_slice(data, anchor, shape, axis_names="WH", adjust_orientation=False)
        image = fn.resize(image, size=(SIZE, SIZE), interp_type=types.INTERP_LINEAR, antialias=True)
        return fn.flip(image, horizontal=flip), number

    built = pipe()
    built.build()

    def epoch() -> Batches:
        while True:
            try:
                images, numbers = built.run()
            except StopIteration:
                built.reset()
                return
            yield np.array(images.as_array()), np.array(numbers.as_array())

    return epoch


def webdataset(items: list[Item], threads: int, scratch: Path) -> Callable[[], Batches]:
    """WebDataset shards of the same bytes, decoded by Pillow in DataLoader's workers."""
    import torch
    import webdataset as wds

    for shard in range(threads):
        with wds.TarWriter(str(scratch / f"{shard:04d}.tar")) as tar:
            for k in range(shard, len(items), threads):
                tar.write({"__key__": f"{k:09d}", "jpg": Path(items[k].path).read_bytes()})

    def one(sample: Any) -> tuple[Any, int]:
        k = int(sample["__key__"])
        return by_pillow(items[k], sample["jpg"]).copy(), k

    shards = [str(p) for p in sorted(scratch.glob("*.tar"))]
    data = wds.WebDataset(shards, shardshuffle=False).map(one)
    loader = torch.utils.data.DataLoader(data, BATCH, num_workers=threads, drop_last=True)
    return lambda: iter(loader)


def litdata(items: list[Item], threads: int, scratch: Path) -> Callable[[], Batches]:
    """LitData chunks of the same bytes, decoded by Pillow in its loader's workers."""
    import litdata as ld
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(str(scratch), chunk_bytes="64MB")
    for k, item in enumerate(items):
        writer[k] = {"number": k, "data": Path(item.path).read_bytes()}
    writer.done()
    writer.merge()

    class Photos(ld.StreamingDataset):  # type: ignore[misc]
        def __getitem__(self, k: Any) -> tuple[Any, int]:
            sample = super().__getitem__(k)
            return by_pillow(items[sample["number"]], sample["data"]).copy(), sample["number"]

    loader = ld.StreamingDataLoader(Photos(str(scratch)), batch_size=BATCH, num_workers=threads, drop_last=True)
    return lambda: iter(loader)


def mosaic(items: list[Item], threads: int, scratch: Path) -> Callable[[], Batches]:
    """MosaicML Streaming shards of the same bytes, decoded by Pillow in DataLoader's workers."""
    import streaming
    import torch

    with streaming.MDSWriter(out=str(scratch), columns={"number": "int", "data": "bytes"}) as writer:
        for k, item in enumerate(items):
            writer.write({"number": k, "data": Path(item.path).read_bytes()})

    class Photos(streaming.StreamingDataset):  # type: ignore[misc]
        def __getitem__(self, k: Any) -> tuple[Any, int]:
            sample = super().__getitem__(k)
            return by_pillow(items[sample["number"]], sample["data"]).copy(), sample["number"]

    loader = torch.utils.data.DataLoader(
        Photos(local=str(scratch), batch_size=BATCH), BATCH, num_workers=threads, drop_last=True
    )
    return lambda: iter(loader)


# Name: the modules it needs, whether it filters before it scales down as Pillow does, and how it is made.
RIVALS: dict[str, tuple[tuple[str, ...], bool, Callable[[], Rival]]] = {
    "Pillow, thread pool": (("PIL",), True, lambda: pooled(by_pillow)),
    "torchvision v2, DataLoader": (("torchvision",), True, lambda: torchvision),
    "DALI, CPU": (("nvidia.dali",), True, lambda: dali),
    "simplejpeg + cv2 area, thread pool": (("cv2", "simplejpeg"), True, lambda: pooled(with_cv2("INTER_AREA", "simplejpeg"))),
    "SPDL, simplejpeg + cv2 area": (("spdl.pipeline", "cv2", "simplejpeg"), True, lambda: spdl),
    "cv2 linear, thread pool": (("cv2",), False, lambda: pooled(with_cv2("INTER_LINEAR"))),
    "webdataset, Pillow": (("webdataset",), True, lambda: webdataset),
    "LitData, Pillow": (("litdata",), True, lambda: litdata),
    "MosaicML Streaming, Pillow": (("streaming",), True, lambda: mosaic),
}


def differences(items: list[Item], batches: Batches) -> tuple[float, int, int]:
    """Mean and largest difference from Pillow in levels of 255, and how many images were compared."""
    total, most, count = 0.0, 0, 0
    for images, numbers in batches:
        images = np.asarray(images)
        for image, number in zip(images.transpose(0, 2, 3, 1) if images.shape[1] == 3 else images, numbers, strict=True):
            error = np.abs(image.astype(np.int16) - by_pillow(items[int(number)]))
            total, most, count = total + float(error.mean()), max(most, int(error.max())), count + 1
        if count >= CHECKED:
            break
    return total / count, most, count


def fresh(scratch: str, name: str) -> Path:
    """An empty folder for a rival's own files."""
    folder = Path(scratch) / name
    folder.mkdir()
    return folder


def main() -> None:
    import torch  # noqa: F401  # `timed` asks it for GPUs: importing it is no part of any rival's first batch

    from fastload.benching import Peak, timed

    job = json.loads(sys.argv[1])
    items = make_items(Path(job["data"]), job["work"], job["repeats"])
    with tempfile.TemporaryDirectory() as scratch:
        make = RIVALS[job["rival"]][2]()
        mean, most, _ = differences(items, make(items, job["threads"], fresh(scratch, "compared"))())
        epoch = make(items, job["threads"], fresh(scratch, "timed"))

        class Loader:
            def __iter__(self) -> Batches:
                return epoch()

        with Peak() as peak:
            found = timed(Loader(), job["seconds"], peak.start)
    print(json.dumps({**found, "peak_mib": peak.mib, "mean": mean, "max": most}))


if __name__ == "__main__":
    main()
