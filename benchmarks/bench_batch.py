"""How fast are fastai's batch transforms on the CPU, stock and fused, and how far apart are their values?

    python benchmarks/bench_batch.py DATA [--rounds 5] [--threads 2] [--json FILE]

DATA is a folder of JPEG photos; 64 of them (or all, at least 8), resized, are the batch. Recipes: aug_transforms() + Normalize
at 224 pixels; the presizing recipe from 460 to 224, with and without min_scale; Normalize alone. Each measurement is a fresh
process, in turn within each round, the order reversed every second round; medians of each process's own medians are printed.
"kept": after fastload.keep_memory(), so that glibc does not give the buffers back. Errors are of values before Normalize.
Answers, with data, machine and versions: benchmarks/results/bench_batch.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from about import facts, photos

from fastload import machine
from fastload.report import table

RECIPES = ("aug_transforms at 224", "460 to 224", "460 to 224, min_scale .75", "Normalize at 224")
WAYS = ("stock", "stock, kept", "fused", "fused, kept")
BATCH = 64
LEAST = 8
CALLS = 6  # the first is left out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="a folder of JPEG photos")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write the figures, machine and versions to a file")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(one(args, *json.loads(args.one))))
        return 0
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    for k in range(args.rounds):
        print(f"round {k + 1} of {args.rounds}", file=sys.stderr, flush=True)
        for recipe in RECIPES:
            for way in WAYS if k % 2 == 0 else WAYS[::-1]:
                found.setdefault((recipe, way), []).append(measure(args, recipe, way))
    report = summary(args, found)
    print(rendered(report))
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0


def measure(args: argparse.Namespace, recipe: str, way: str) -> dict[str, float]:
    command = [sys.executable, "-W", "ignore", __file__, str(args.data), "--threads", str(args.threads)]
    done = subprocess.run([*command, "--one", json.dumps([recipe, way])], capture_output=True, text=True, check=True)
    result: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def one(args: argparse.Namespace, recipe: str, way: str) -> dict[str, float]:
    """Milliseconds an image of one recipe done one way, in this process; with "fused" also the error."""
    import torch
    from fastai.torch_core import TensorImage
    from fasttransform import Pipeline

    import fastload
    from fastload.batch import fused
    from fastload.settings import Settings

    if "kept" in way:
        fastload.keep_memory()
    torch.set_num_threads(args.threads)
    holder = argparse.Namespace(after_batch=Pipeline(transforms(recipe), split_idx=0))
    images = TensorImage(pictures(args.data, 460 if recipe.startswith("460") else 224))
    settings = Settings(batch="fused" if way.startswith("fused") else "stock", threads=args.threads)
    walls, cpus = [], []
    with fused.during(holder, settings) as reason:
        if reason is not None:
            sys.exit(reason)
        for _ in range(CALLS):
            wall, cpu = time.perf_counter(), time.process_time()
            holder.after_batch((images,))
            walls.append(1e3 * (time.perf_counter() - wall) / len(images))
            cpus.append(1e3 * (time.process_time() - cpu) / len(images))
    result = {"wall_ms": statistics.median(walls[1:]), "cpu_ms": statistics.median(cpus[1:])}
    if way == "fused":
        result["mean"], result["max"] = fused.measured_error(holder.after_batch, images)
    return result


def transforms(recipe: str) -> list[Any]:
    from fastai.data.transforms import IntToFloatTensor, Normalize
    from fastai.vision.all import aug_transforms, imagenet_stats

    between = {
        RECIPES[0]: lambda: aug_transforms(),
        RECIPES[1]: lambda: aug_transforms(size=224),
        RECIPES[2]: lambda: aug_transforms(size=224, min_scale=0.75),
        RECIPES[3]: list,
    }
    return [IntToFloatTensor(), *between[recipe](), Normalize.from_stats(*imagenet_stats, cuda=False)]


def pictures(folder: Path, size: int) -> Any:
    import numpy as np
    import torch
    from PIL import Image

    files = photos(folder, LEAST)[:BATCH]
    arrays = [np.asarray(Image.open(f).convert("RGB").resize((size, size), Image.Resampling.BILINEAR)) for f in files]
    return torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2).contiguous()


def summary(args: argparse.Namespace, found: dict[tuple[str, str], list[dict[str, float]]]) -> dict[str, Any]:
    rows: dict[str, dict[str, Any]] = {recipe: {} for recipe in RECIPES}
    for (recipe, way), runs in found.items():
        middle = {key: statistics.median(r[key] for r in runs) for key in ("wall_ms", "cpu_ms")}
        errors = {key: max(r[key] for r in runs) for key in ("mean", "max") if key in runs[0]}
        rows[recipe][way] = {**middle, **errors, "spread": [min(r["wall_ms"] for r in runs), max(r["wall_ms"] for r in runs)]}
    return {
        "question": (__doc__ or "").splitlines()[0],
        "rounds": args.rounds,
        "threads": args.threads,
        "data": facts(photos(args.data)[:BATCH]),
        "rows": rows,
        "machine": machine.describe(),
        "versions": {p: version(p) for p in ("fastai", "torch", "numpy")},
    }


def rendered(report: dict[str, Any]) -> str:
    cells = [("recipe", "way", "ms/image", "(spread)", "CPU ms/image", "times stock", "mean error", "max error")]
    for recipe, ways in report["rows"].items():
        for way, r in ways.items():
            ratio = ways["stock"]["wall_ms"] / r["wall_ms"]
            errors = (f"{r['mean']:.1e}", f"{r['max']:.1e}") if "mean" in r else ("", "")
            spread = f"({r['spread'][0]:.2f}-{r['spread'][1]:.2f})"
            cells.append((recipe, way, f"{r['wall_ms']:.2f}", spread, f"{r['cpu_ms']:.2f}", f"{ratio:.1f}", *errors))
    cpu = report["machine"].get("cpu", "an unknown CPU")
    return "\n".join(
        [*table(cells), f"errors of values in [0, 1] before Normalize; on {cpu}, {report['rounds']} interleaved rounds"]
    )


if __name__ == "__main__":
    sys.exit(main())
