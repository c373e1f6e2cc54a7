"""How many images a second come from a cache of source files or decoded pixels, against the files themselves and stock fastai?

    python benchmarks/bench_cache.py DATA [--rounds 5] [--work rrc|resize|final] [--json FILE]

`rrc` random crops, `resize` a centred one, `final` images finished beforehand (Resize(224, "squish")). FFCV is run where it is
installed (see ffcv_rival.py): for `rrc` with raw images of full size, for `final` with raw ones of 224 pixels. `final` has two
more rows: the cache's records read through its index by two threads, without a loader, and as many rows gathered from RAM.

DATA is a folder of JPEG photos. REPEATS folders of links to them make up the data set, so that every cache, fastload's and
FFCV's, holds each photo that many times. Batch 64, 224 pixels, path to uint8 batch, after_batch empty, two workers or threads.
The caches are built first, in a temporary folder, which is timed too. Every way runs in fresh processes, in
turn within each round, the order reversed every second round; medians are printed, and all batches are compared. Checksums are
compared in the first epoch alone, which is the default. Files and caches lie in the page cache. Answers, with data, machine and
versions: benchmarks/results/bench_cache_*.json.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from about import facts, photos

from fastload import machine
from fastload.bench import measure
from fastload.report import table

REPEATS = 12
KEPT = {"fastload, source cache": "source", "fastload, decoded cache": "decoded", "fastload, final cache": "final"}
FFCV, INDEX, GATHER = "FFCV, raw", "final cache, read through the index", "gather of the same rows from RAM"


def ways(work: str) -> tuple[str, ...]:
    """What is compared."""
    kept = tuple(way for way, kind in KEPT.items() if kind != "final" or work == "final")
    return (
        *("stock fastai", "fastload, files"),
        *kept,
        *((FFCV,) if work != "resize" and importlib.util.find_spec("ffcv") else ()),
        *((INDEX, GATHER) if work == "final" else ()),
    )


def item_transform(work: str) -> Any:
    """The pipeline of a kind of work."""
    from fastai.vision.all import RandomResizedCrop, Resize

    return {"rrc": RandomResizedCrop(224), "resize": Resize(224), "final": Resize(224, "squish")}[work]


def get_dls() -> Any:
    """The loaders of one way; called in each fresh process."""
    from fastai.vision.all import ImageDataLoaders, get_image_files

    from fastload import accelerate

    folder, way = Path(os.environ["BENCH_DATA"]), os.environ["BENCH_WAY"]
    files = sorted(get_image_files(folder))
    item = item_transform(os.environ["BENCH_WORK"])
    dls = ImageDataLoaders.from_lists(
        folder, files, ["photo"] * len(files), valid_pct=0.1, seed=1, item_tfms=item, bs=64, num_workers=2
    )
    kept = KEPT.get(way)
    if way != "stock fastai":
        accelerate(dls, threads=2, cache=None if kept is None else Path(os.environ["BENCH_CACHES"]) / kept)
    return dls


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="a folder of JPEG photos")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--work", choices=("rrc", "resize", "final"), default="rrc")
    parser.add_argument("--json", type=Path, help="write the figures, machine and versions to a file")
    args = parser.parse_args()
    files = photos(args.data)
    os.environ["BENCH_WORK"] = args.work
    names = ways(args.work)
    runs: dict[str, list[dict[str, Any]]] = {way: [] for way in names}
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(BENCH_CACHES=folder, BENCH_DATA=str(linked(files, Path(folder) / "photos")))
        builds = {kind: built(kind, Path(folder)) for way, kind in KEPT.items() if way in names}
        for k in range(args.rounds):
            for way in names if k % 2 == 0 else names[::-1]:
                print(f"round {k + 1} of {args.rounds}: {way}", file=sys.stderr, flush=True)
                runs[way].append(one_run(way, args.seconds))
    equal = len({run["digest"] for found in runs.values() for run in found if "digest" in run}) == 1
    report = {
        "question": (__doc__ or "").splitlines()[0],
        "work": args.work,
        "data": {**facts(files), "linked": REPEATS},
        "rounds": args.rounds,
        "builds": builds,
        "rows": {way: summary(found) for way, found in runs.items()},
        "equal": equal,
        "machine": machine.describe(),
        "versions": {p: version(p) for p in PACKAGES if found(p)},
    }
    print(rendered(report))
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0 if equal else 3


PACKAGES = ("fastai", "torch", "pillow", "numpy", "lmdb", "xxhash", "ffcv")


def found(package: str) -> bool:
    """Whether a package is installed."""
    try:
        return bool(version(package))
    except PackageNotFoundError:
        return False


def linked(files: Sequence[Path], folder: Path) -> Path:
    """REPEATS folders below `folder`, each with a hard link to every file, or a copy where links can't be made."""
    for k in range(REPEATS):
        (folder / f"{k:02}").mkdir(parents=True)
        for file in files:
            place = folder / f"{k:02}" / file.name
            try:
                os.link(file, place)
            except OSError:
                shutil.copyfile(file, place)
    return folder


def built(kind: str, folder: Path) -> dict[str, float]:
    """Build one cache; its bytes and seconds."""
    from fastload import precompute

    os.environ["BENCH_WAY"] = "stock fastai"
    start = time.perf_counter()
    outcome = precompute(get_dls(), folder / kind, keep=kind)
    return {"bytes": outcome.shard_bytes, "records": outcome.records, "seconds": time.perf_counter() - start}


def one_run(way: str, seconds: float) -> dict[str, Any]:
    """One way in a fresh process; `engine` stock leaves the loaders as get_dls made them."""
    os.environ["BENCH_WAY"] = way
    if way == FFCV:
        job = {"data": os.environ["BENCH_DATA"], "mode": "raw", "work": os.environ["BENCH_WORK"]}
        return process("ffcv_rival.py", {**job, "threads": 2, "seconds": seconds})
    if way in (INDEX, GATHER):
        return process("gathering.py", {"cache": os.environ["BENCH_CACHES"], "index": way == INDEX, "seconds": seconds})
    target = {"where": f"{Path(__file__).resolve()}:get_dls"}
    return measure({"target": target, "seconds": seconds, "threads": 2, "engine": "stock", "executor": "auto", "part": "uint8"})


def process(script: str, job: dict[str, Any]) -> dict[str, Any]:
    """One of the programs beside this one; its last line is the result."""
    command = [sys.executable, "-W", "ignore", str(Path(__file__).with_name(script)), json.dumps(job)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{script} failed: {(done.stderr.strip().splitlines() or ['nothing'])[-1]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the rounds; the largest peak."""
    rates = [r["images_per_s"] for r in runs]
    middle = {key: statistics.median(r[key] for r in runs) for key in ("images_per_s", "cpu_ms_per_image", "first_batch_s")}
    return {**middle, "spread": [min(rates), max(rates)], "peak_mib": max(r["peak_mib"] or 0 for r in runs)}


def rendered(report: dict[str, Any]) -> str:
    stock = report["rows"]["stock fastai"]["images_per_s"]
    cells = [("", "images/s", "(spread)", "times stock", "CPU ms/image", "first batch s", "peak MiB")]
    for way, r in report["rows"].items():
        spread = f"({r['spread'][0]:.0f}-{r['spread'][1]:.0f})"
        rate, times = f"{r['images_per_s']:.0f}", f"{r['images_per_s'] / stock:.2f}"
        cells.append(
            (way, rate, spread, times, f"{r['cpu_ms_per_image']:.3f}", f"{r['first_batch_s']:.3f}", f"{r['peak_mib']:.0f}")
        )
    builds = [
        f"built {k}: {b['records']} records, {b['bytes'] / 1e6:.0f} MB in {b['seconds']:.1f} s"
        for k, b in report["builds"].items()
    ]
    same = "fastload's and stock's batches are equal" if report["equal"] else "BATCHES DIFFER"
    cpu = report["machine"].get("cpu", "an unknown CPU")
    return "\n".join([*table(cells), *builds, same, f"on {cpu}, {report['rounds']} interleaved rounds"])


if __name__ == "__main__":
    sys.exit(main())
