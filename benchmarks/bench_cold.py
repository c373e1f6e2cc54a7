"""How much of a cache is read from a cold disk, and how often is a page waited for?

    python benchmarks/bench_cold.py DATA [--json FILE]

DATA is a folder of photos. A source and a decoded cache of it are built on the disk below the current folder, dropped from the
page cache, and read once in random order as a training loader would (batches of 64, two of them asked for ahead), in a fresh
process each. Bytes are the kernel's own count of what came from the device. Without asking ahead: `--blind`. Answers:
benchmarks/results/bench_cold.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from about import facts, photos

from fastload import machine

BATCH, AHEAD = 64, 2


def drop(folder: Path) -> None:
    """Forget every shard's pages; they were synced when it was sealed."""
    for path in folder.rglob("*.lmdb"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def one(cache: Path, blind: bool) -> dict[str, float]:
    """Read every record once; in a process of its own."""
    from fastload.cache.read import CacheSource, open_cache
    from fastload.source import Ref

    held = open_cache(cache).held("train")
    source, names = CacheSource(held, Path("/")), list(held.where)
    random.Random(1).shuffle(names)
    batches = [[Ref(0, f"/{name}") for name in names[k : k + BATCH]] for k in range(0, len(names), BATCH)]
    drop(cache)
    bytes_before, faults_before = from_device(), machine.major_faults()
    wanted = total = 0
    for batch in () if blind else batches[:AHEAD]:
        source.ahead(source.places(batch))
    for k, batch in enumerate(batches):
        if not blind and k + AHEAD < len(batches):
            source.ahead(source.places(batches[k + AHEAD]))
        for ref in batch:
            record = source.read(ref)
            wanted += len(record.data) if record.data is not None else record.image.nbytes
            total += 0 if record.data is not None else int(record.image[:: max(1, len(record.image) // 8)].sum())
    faults, found = machine.major_faults() - faults_before, from_device() - bytes_before
    return {"records": len(names), "bytes_over_payload": found / wanted, "major_faults_per_record": faults / len(names)}


def from_device() -> int:
    """Bytes that this process had read from a device."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["read_bytes"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="a folder of photos")
    parser.add_argument("--blind", action="store_true", help="ask for nothing ahead")
    parser.add_argument("--json", type=Path, help="write the figures, machine and versions to a file")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one is not None:
        print(json.dumps(one(args.one, args.blind)))
        return 0
    files = photos(args.data)
    rows: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(dir=".") as folder:
        for kind in ("source", "decoded"):
            build(args.data.resolve(), Path(folder).resolve() / kind, kind)
            command = [sys.executable, "-W", "ignore", __file__, str(args.data), "--one", str(Path(folder).resolve() / kind)]
            done = subprocess.run([*command, *(["--blind"] if args.blind else [])], capture_output=True, text=True, check=True)
            rows[kind] = json.loads(done.stdout.strip().splitlines()[-1])
            print(f"{kind}: {rows[kind]['bytes_over_payload']:.3f} times the bytes, "
                  f"{rows[kind]['major_faults_per_record']:.3f} major faults a record")  # fmt: skip
    if args.json:
        report = {
            "question": (__doc__ or "").splitlines()[0],
            "data": facts(files),
            "rows": rows,
            "machine": machine.describe(),
        }
        args.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0


def build(data: Path, out: Path, kind: str) -> None:
    """A cache of every photo."""
    from fastai.vision.all import ImageDataLoaders, Resize, get_image_files

    from fastload import precompute

    files = sorted(get_image_files(data))
    dls = ImageDataLoaders.from_lists(data, files, ["photo"] * len(files), valid_pct=0.1, item_tfms=Resize(224), num_workers=0)
    precompute(dls, out, keep=kind)


if __name__ == "__main__":
    sys.exit(main())
