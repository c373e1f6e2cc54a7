"""How fast are fastload, stock fastai and the other loaders on the same photos, and how far are their pixels from stock's?

    python benchmarks/bench_loaders.py DATA [--work rrc|resize] [--rounds 3] [--seconds 4] [--json FILE]

DATA is a folder of JPEG photos, each listed REPEATS times. Path to uint8 batch of 64, 224 pixels, two threads or two workers
each: RandomResizedCrop(224), rivals with a flip besides, or Resize(224). Every loader that is installed (`pip install -e
.[rivals]`) runs in fresh processes, in turn within each round, the order reversed every second round; medians are printed. Rows
named "whole" are whole loaders with fastai's default IntToFloatTensor, compared with stock's whole loader. The rivals are in
rivals.py; FFCV, which needs a data set of its own and OpenCV's headers, is not among them. The last line
compares the CPU time of the extension's one call, bytes in memory, with that of libjpeg's entropy decoding alone. Answers, with
data, machine and versions: benchmarks/results/bench_loaders_*.json.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from about import facts, photos
from rivals import RIVALS, centre_box, random_box

from fastload import machine
from fastload.bench import measure
from fastload.errors import FastloadError
from fastload.report import table

REPEATS = 4
STOCK, WHOLE = "stock fastai", "stock fastai, whole"
OURS: dict[str, dict[str, str]] = {
    STOCK: {"engine": "stock", "executor": "auto", "part": "uint8"},
    "fastload": {"engine": "fastload", "executor": "native", "part": "uint8"},
    "fastload, packages alone": {"engine": "fastload", "executor": "threads", "part": "uint8"},
    WHOLE: {"engine": "stock", "executor": "auto", "part": "whole"},
    "fastload, whole": {"engine": "fastload", "executor": "native", "part": "whole"},
    "fastload fused, whole": {"engine": "fastload", "executor": "native", "part": "whole", "batch": "fused"},
}
PACKAGES = (
    *("fastai", "torch", "torchvision", "pillow", "numpy", "simplejpeg", "opencv-python-headless", "nvidia-dali-cuda120"),
    *("nvidia-dali-cuda130", "spdl-core", "webdataset", "litdata", "mosaicml-streaming"),
)


def get_dls() -> Any:
    """Stock loaders of the photos; called in each fresh process."""
    from fastai.vision.all import ImageDataLoaders, RandomResizedCrop, Resize, get_image_files

    folder = Path(os.environ["BENCH_DATA"])
    files = sorted(get_image_files(folder)) * REPEATS
    item = RandomResizedCrop(224) if os.environ["BENCH_WORK"] == "rrc" else Resize(224)
    kw = {"valid_pct": 0.1, "seed": 1, "item_tfms": item, "bs": 64, "num_workers": int(os.environ["BENCH_THREADS"])}
    return ImageDataLoaders.from_lists(folder, files, ["photo"] * len(files), **kw)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="a folder of JPEG photos")
    parser.add_argument("--work", choices=("rrc", "resize"), default="rrc")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--threads", type=int, default=2, help="threads or worker processes of each loader")
    parser.add_argument("--only", nargs="*", help="names of loaders, as printed; default: all that are installed")
    parser.add_argument("--json", type=Path, help="write the figures, machine and versions to a file")
    args = parser.parse_args()
    os.environ.update(BENCH_DATA=str(args.data.resolve()), BENCH_THREADS=str(args.threads), BENCH_WORK=args.work)
    names = [n for n in [*OURS, *(r for r in RIVALS if installed(r))] if not args.only or n in args.only]
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    left_out = {name: "not installed" for name in RIVALS if not installed(name)}
    for k in range(args.rounds):
        for name in names if k % 2 == 0 else names[::-1]:
            if name not in left_out:
                print(f"round {k + 1} of {args.rounds}: {name}", file=sys.stderr, flush=True)
                try:
                    runs[name].append(one_run(name, args))
                except FastloadError as err:
                    left_out[name] = str(err)
    rows = {name: summary(found) for name, found in runs.items() if found and name not in left_out}
    report = {
        "question": __doc__.splitlines()[0],
        "work": args.work,
        "data": {**facts(photos(args.data)), "listed": REPEATS},
        "rounds": args.rounds,
        "rows": rows,
        "left_out": left_out,
        "equal": all(len(digests(runs, part)) <= 1 for part in ("uint8", "whole")),
        "floor": floor(args.data, args.work),
        "machine": machine.describe(),
        "versions": {p: v for p in PACKAGES if (v := version_of(p))},
    }
    print(rendered(report))
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0 if report["equal"] else 3


def installed(rival: str) -> bool:
    try:
        return all(importlib.util.find_spec(module) is not None for module in RIVALS[rival][0])
    except ModuleNotFoundError:
        return False


def version_of(package: str) -> str | None:
    try:
        return version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def digests(runs: dict[str, list[dict[str, Any]]], part: str) -> set[str]:
    return {run["digest"] for name, how in OURS.items() if how["part"] == part for run in runs.get(name, [])}


def one_run(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """One loader in a fresh process."""
    if name in OURS:
        target = {"where": f"{Path(__file__).resolve()}:get_dls"}
        return measure({"target": target, "seconds": args.seconds, "threads": args.threads, **OURS[name]})
    job = {"rival": name, "data": str(args.data.resolve()), "work": args.work, "repeats": REPEATS}
    job |= {"threads": args.threads, "seconds": args.seconds}
    script = Path(__file__).resolve().parent / "rivals.py"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), json.dumps(job)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise FastloadError((done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1])
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the rounds; the largest peak and difference."""
    rates = [r["images_per_s"] for r in runs]
    middle = {key: statistics.median(r[key] for r in runs) for key in ("images_per_s", "cpu_ms_per_image", "first_batch_s")}
    peaks = [r["peak_mib"] for r in runs if r["peak_mib"] is not None]
    pixels = {key: max(r.get(key, 0) for r in runs) for key in ("mean", "max")}
    return {**middle, "spread": [min(rates), max(rates)], "peak_mib": max(peaks, default=None), **pixels}


def floor(folder: Path, work: str) -> dict[str, float] | None:
    """CPU ms an image of the native call and of libjpeg's entropy decoding, bytes in memory, one thread; None without it."""
    import numpy as np

    from fastload import native

    if not native.status().decodes:
        return None
    extension, rng, out = native.extension(), random.Random(1), np.empty((3, 224, 224), np.uint8)
    files = [p.read_bytes() for p in photos(folder)]
    heads = [extension.probe(data) for data in files]
    todo = [(d, h[0], h[1]) for d, h in zip(files, heads, strict=True) if not isinstance(h, str)]
    boxes = [random_box(w, h, rng) if work == "rrc" else centre_box(w, h) for _, w, h in todo]

    def whole() -> None:
        for (data, *_), box in zip(todo, boxes, strict=True):
            extension.render(data, box, (224, 224), (0, 0, 224, 224), False, native.pillow13(), out)

    def entropy(ours: bool) -> None:
        for (data, *_), box in zip(todo, boxes, strict=True):
            extension.entropy_only(data, box[3] - 1, ours)

    best = {"native_call_ms": 1e9, "libjpeg_entropy_ms": 1e9, "own_entropy_ms": 1e9}
    for _ in range(5):
        for key, work_of in zip(best, (whole, lambda: entropy(False), lambda: entropy(True)), strict=True):
            start = time.thread_time()
            work_of()
            best[key] = min(best[key], 1e3 * (time.thread_time() - start) / len(todo))
    return {**best, "ratio": best["native_call_ms"] / best["libjpeg_entropy_ms"]}


def rendered(report: dict[str, Any]) -> str:
    rows = report["rows"]
    bases = {name: rows.get(name, {}).get("images_per_s") for name in (STOCK, WHOLE)}
    cells = [("", "images/s", "(spread)", "times stock", "CPU ms/image", "first batch s", "peak MiB", "mean diff", "max diff")]
    for name, r in sorted(rows.items(), key=lambda item: -item[1]["images_per_s"]):
        spread = f"({r['spread'][0]:.0f}-{r['spread'][1]:.0f})"
        base = bases[WHOLE if name.endswith(", whole") else STOCK]
        ratio = f"{r['images_per_s'] / base:.2f}" if base else "?"
        peak = "?" if r["peak_mib"] is None else f"{r['peak_mib']:.0f}"
        figures = (f"{r['cpu_ms_per_image']:.2f}", f"{r['first_batch_s']:.3f}", peak, f"{r['mean']:.3f}", f"{r['max']}")
        cells.append((name, f"{r['images_per_s']:.0f}", spread, ratio, *figures))
    lines = [*table(cells), *(f"left out: {name}: {why}" for name, why in report["left_out"].items())]
    lines.append("fastload's batches equal stock's" if report["equal"] else "DIFFERENT batches: please report this")
    if (f := report["floor"]) is not None:
        lines.append(
            f"native call {f['native_call_ms']:.3f} ms, libjpeg's entropy decoding {f['libjpeg_entropy_ms']:.3f} ms "
            f"(ratio {f['ratio']:.2f}), fastload's own {f['own_entropy_ms']:.3f} ms"
        )
    return "\n".join([*lines, f"on {report['machine'].get('cpu', 'an unknown CPU')}, {report['rounds']} interleaved rounds"])


if __name__ == "__main__":
    sys.exit(main())
