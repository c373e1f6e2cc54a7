"""How much sooner are 12-megapixel photos decoded scaled, and how far are the pixels from the exact ones?

    python benchmarks/bench_scaled.py DATA [--photos 6] [--crops 12] [--rounds 5] [--json FILE]

DATA is a folder of JPEG photos; each test photo is 4000 x 3000 pixels, a mosaic of sixteen of them enlarged, quality 85. Native
calls of one thread, bytes in memory to batch row, for random resized crops to 224, slack 1.5. They take turns crop by crop in
one process, which compares CPU time fairer than processes do. Answers, with data, machine and versions:
benchmarks/results/bench_scaled.json.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import statistics
import sys
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
from about import facts, photos
from PIL import Image
from rivals import random_box

from fastload import machine, native
from fastload.executors._one_pass import Pass

SIDE, TILE = (4000, 3000), (1000, 750)
OUT, SLACK = (224, 224), 1.5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="a folder of JPEG photos")
    parser.add_argument("--photos", type=int, default=6)
    parser.add_argument("--crops", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures, machine and versions to a file")
    args = parser.parse_args()
    if not native.status().decodes:
        sys.exit(native.status().reason)
    files = photos(args.data, 16)
    mosaics = [mosaic(files[16 * k :] + files) for k in range(args.photos)]
    rng = random.Random(1)
    work = [(photo, random_box(*SIDE, rng)) for photo in mosaics for _ in range(args.crops)]
    times, apart = [], []
    for _ in range(args.rounds):
        spent = {True: 0.0, False: 0.0}
        for photo, box in work:
            rows = {scaled: timed(photo, box, scaled, spent) for scaled in (False, True)}
            apart.append(np.abs(rows[True] - rows[False]))
        times.append({way: 1e3 * spent[way] / len(work) for way in spent})
    exact, scaled = (statistics.median(t[way] for t in times) for way in (False, True))
    report = {
        "question": (__doc__ or "").splitlines()[0],
        "photo_bytes": statistics.mean(len(p) for p in mosaics),
        "exact_cpu_ms": exact,
        "scaled_cpu_ms": scaled,
        "ratio": statistics.median(t[False] / t[True] for t in times),
        "mean_error": float(np.mean([a.mean() for a in apart])),
        "max_error": int(max(a.max() for a in apart)),
        "slack": SLACK,
        "rounds": args.rounds,
        "data": facts(files),
        "versions": {p: version(p) for p in ("pillow", "numpy")},
        "machine": machine.describe(),
    }
    print(
        f"exact {exact:.1f} ms, scaled {scaled:.1f} ms of CPU time: {report['ratio']:.2f} times; off by "
        f"{report['mean_error']:.2f} on average and {report['max_error']} at most, of 255"
    )
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0


def mosaic(files: list[Path]) -> bytes:
    """A photo of 12 megapixels with the detail of enlarged small ones."""
    photo = Image.new("RGB", SIDE)
    for k, path in enumerate(files[:16]):
        tile = Image.open(path).convert("RGB").resize(TILE, Image.Resampling.BICUBIC)
        photo.paste(tile, (k % 4 * TILE[0], k // 4 * TILE[1]))
    file = io.BytesIO()
    photo.save(file, "JPEG", quality=85)
    return file.getvalue()


def timed(photo: bytes, box: tuple[int, int, int, int], scaled: bool, spent: dict[bool, float]) -> np.ndarray:
    one = Pass(SIDE)
    one.box, one.size = box, OUT
    row = np.empty((3, OUT[1], OUT[0]), np.uint8)
    start = time.thread_time()
    refused = native.extension().render(
        photo, *one.arguments(), native.pillow13(), row, *one.rest(), scale=one.scale(SLACK) if scaled else 1
    )
    spent[scaled] += time.thread_time() - start
    if refused is not None:
        sys.exit(f"the native path refuses its own test photo: {refused}")
    return row.astype(int)


if __name__ == "__main__":
    sys.exit(main())
