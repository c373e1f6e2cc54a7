"""Does training with fastload give the same losses as stock fastai, and how long does each take?

    python benchmarks/train_compare.py DATA [--epochs 2] [--size 96] [--json FILE]

DATA holds one folder per class (below train/ and valid/, or a fifth is set apart). Each engine trains the same small network
with the same seed in a fresh process; the losses must be equal to the last digit, or the exit status is 3. Measured answers are
in benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from fastload import machine
from fastload.recipes import Target, open_target
from fastload.report import table

ENGINES = ("stock", "fastload")
SEED = 7


def train(engine: str, data: str, epochs: int, size: int, bs: int) -> dict[str, Any]:
    """Train in this process and return the losses of every epoch and the seconds of the fit."""
    import torch
    from fastai.vision.all import Learner, accuracy, set_seed
    from torchvision.models import resnet18

    from fastload.front import accelerate

    set_seed(SEED, reproducible=True)
    dls = open_target(Target(data, "imagenet", size, bs))
    if engine == "fastload":
        accelerate(dls)
    torch.manual_seed(SEED)
    learn = Learner(dls, resnet18(num_classes=dls.c), metrics=accuracy)
    start = time.perf_counter()
    learn.logger = partial(print, file=sys.stderr, flush=True)  # a line an epoch
    with learn.no_bar():
        learn.fit_one_cycle(epochs, 3e-3)
    values = [[float(v) for v in row] for row in learn.recorder.values]
    return {"engine": engine, "values": values, "seconds": time.perf_counter() - start}


def compare(data: str, epochs: int, size: int, bs: int) -> list[dict[str, Any]]:
    """Both engines, each in a fresh process."""
    found = []
    for engine in ENGINES:
        print(f"training with {engine} ...", file=sys.stderr, flush=True)
        command = [sys.executable, "-W", "ignore", __file__, data, "--engine", engine]
        command += ["--epochs", str(epochs), "--size", str(size), "--bs", str(bs)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            sys.exit(done.returncode)
        found.append(json.loads(done.stdout.strip().splitlines()[-1]))
    return found


def show(stock: dict[str, Any], fast: dict[str, Any]) -> str:
    """Losses side by side."""
    rows: list[tuple[str, ...]] = [("epoch", "", "train loss", "valid loss", "accuracy")]
    for k, values in enumerate(zip(stock["values"], fast["values"], strict=True)):
        rows += [(str(k), name, *(f"{v:.9f}" for v in row)) for name, row in zip(ENGINES, values, strict=True)]
    equal = stock["values"] == fast["values"]
    verdict = "equal to the last digit" if equal else "DIFFERENT: please report this"
    times = f"stock {stock['seconds']:.1f} s, fastload {fast['seconds']:.1f} s"
    return "\n".join([*table(rows), f"losses are {verdict}; {times}, one run each"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="a folder of class folders")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--bs", type=int, default=32)
    parser.add_argument("--json", type=Path, help="write the figures, machine and versions to a file")
    parser.add_argument("--engine", choices=ENGINES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.engine:
        print(json.dumps(train(args.engine, args.data, args.epochs, args.size, args.bs)))
        return 0
    stock, fast = compare(args.data, args.epochs, args.size, args.bs)
    print(show(stock, fast))
    if args.json:
        args.json.write_text(json.dumps({"stock": stock, "fastload": fast, "machine": machine.describe()}, indent=2) + "\n")
    return 0 if stock["values"] == fast["values"] else 3


if __name__ == "__main__":
    sys.exit(main())
