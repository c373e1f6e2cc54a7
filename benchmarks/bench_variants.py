"""What does training lose when it meets K drawn versions of each image, not a new one each time?

    python benchmarks/bench_variants.py DATA [--seeds 3] [--epochs 30] [--json FILE]

DATA is a folder of class folders. A small convolutional network is trained from scratch at 64 pixels on random resized crops
and mirrors, the crops drawn online by stock fastai's rules or taken from a cache of K = 1, 2, 4, 8 versions (mirrors stay
online). Everything but the crops is the same for one seed: split, weights, order. Accuracy on the validation images (a quarter,
which nothing is drawn for) after the last epoch; means over the seeds with 95 % intervals (Student's t), and the paired
difference from online. Answers: benchmarks/results/bench_variants.json.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from fastload import machine
from fastload.report import table

WAYS = (0, 1, 2, 4, 8)  # 0: online
T95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 8: 2.365, 10: 2.262}  # by number of seeds


def get_dls(data: Path, seed: int, cache: Path | None = None) -> Any:
    from fastload.vision import FlipItem, ImageDataLoaders, RandomResizedCrop

    return ImageDataLoaders.from_folder(
        data,
        valid_pct=0.25,
        seed=seed,
        item_tfms=[RandomResizedCrop(64, min_scale=0.35), FlipItem()],
        bs=64,
        num_workers=2,
        cache=cache,
    )


def trained(data: Path, seed: int, versions: int, epochs: int, folder: Path) -> float:
    """Accuracy of one training."""
    from fastai.basics import Learner, accuracy, set_seed
    from fastai.layers import SimpleCNN

    from fastload import precompute

    cache = None
    if versions:
        cache = folder / f"{seed}-{versions}"
        how = {"keep": "final", "variants": versions, "seed": seed, "freeze_augmentation": True}
        precompute(get_dls(data, seed), cache, **how)
    set_seed(seed, reproducible=True)
    dls = get_dls(data, seed, cache)
    set_seed(seed, reproducible=True)
    learn = Learner(dls, SimpleCNN([3, 16, 32, 64, 128, dls.c]), metrics=accuracy)
    with learn.no_bar(), learn.no_logging():
        learn.fit_one_cycle(epochs, 4e-3)
    return float(learn.recorder.values[-1][-1])


def interval(values: list[float]) -> tuple[float, float]:
    """Mean and half of the 95 % interval."""
    half = T95[len(values)] * statistics.stdev(values) / math.sqrt(len(values))
    return statistics.mean(values), half


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="a folder of class folders")
    parser.add_argument("--seeds", type=int, default=3, choices=sorted(T95))
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--json", type=Path, help="write the figures to a file")
    args = parser.parse_args()
    found: dict[int, list[float]] = {versions: [] for versions in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(args.seeds):
            for versions in WAYS:
                found[versions].append(trained(args.data.resolve(), seed, versions, args.epochs, Path(folder)))
                print(f"seed {seed}, {versions or 'online'}: {found[versions][-1]:.4f}", file=sys.stderr, flush=True)
    cells, rows = [("crops", "accuracy %", "from online, points")], {}
    for versions, values in found.items():
        mean, half = interval(values)
        apart = interval([v - o for v, o in zip(values, found[0], strict=True)]) if versions else (0.0, 0.0)
        name = f"{versions} versions" if versions else "online"
        cells.append((name, f"{100 * mean:.1f} +- {100 * half:.1f}", f"{100 * apart[0]:+.1f} +- {100 * apart[1]:.1f}"))
        rows[name] = {"accuracies": values, "mean": mean, "half": half, "from_online": apart[0], "from_online_half": apart[1]}
    print("\n".join(table(cells)))
    if args.json:
        images = sum(1 for p in args.data.rglob("*") if p.suffix.lower() in (".jpg", ".jpeg", ".png"))
        facts = {"images": images, "epochs": args.epochs, "seeds": args.seeds, "machine": machine.describe()}
        args.json.write_text(json.dumps({"question": (__doc__ or "").splitlines()[0], **facts, "rows": rows}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
