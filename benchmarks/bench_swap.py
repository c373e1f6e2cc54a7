"""How much sooner do the same batches come after the import swap, natively and with packages alone?

    python benchmarks/bench_swap.py DATA [--rounds 5] [--num-workers 2] [--json FILE]

DATA is any folder of JPEG photos; its files are listed REPEATS times, so that an epoch is long and starting workers does not
flatter either side. RandomResizedCrop(224), batch 64. Two parts: from path to uint8 batch with after_batch empty, and the whole
loader with fastai's default IntToFloatTensor. Stock and fastload take turns in fresh processes, their pixels are compared.
Answers, with machine and versions: benchmarks/results/bench_swap*.json.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from about import facts, photos

from fastload.bench import PARTS, bench
from fastload.recipes import Target

REPEATS = 4


def get_dls() -> Any:
    """The loaders that are measured; called in each fresh process."""
    from fastai.vision.all import ImageDataLoaders, RandomResizedCrop, get_image_files

    folder = Path(os.environ["BENCH_DATA"])
    files = sorted(get_image_files(folder)) * REPEATS
    workers = int(os.environ["BENCH_WORKERS"])
    return ImageDataLoaders.from_lists(
        folder,
        files,
        ["photo"] * len(files),
        valid_pct=0.1,
        seed=1,
        item_tfms=RandomResizedCrop(224),
        bs=64,
        num_workers=workers,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="a folder of JPEG photos")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--part", choices=("both", *PARTS), default="both")
    parser.add_argument("--executor", default="auto", help="threads: with packages alone, without the native extension")
    parser.add_argument("--json", type=Path, help="write the figures, machine and versions to a file")
    args = parser.parse_args()
    os.environ.update(BENCH_DATA=str(args.data.resolve()), BENCH_WORKERS=str(args.num_workers))
    target = Target(f"{Path(__file__).resolve()}:get_dls")
    report = bench(target, args.rounds, args.seconds, _parts(args.part), executor=args.executor, progress=_say)
    print(report)
    if args.json:
        facts = {"question": __doc__.splitlines()[0], "data": _facts(args.data), "num_workers": args.num_workers}
        facts["executor"] = args.executor
        found = {**facts, **json.loads(report.to_json()), "target": "benchmarks/bench_swap.py:get_dls"}
        args.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0 if all(report.equal.values()) else 3


def _parts(part: str) -> tuple[str, ...]:
    return PARTS if part == "both" else (part,)


def _facts(folder: Path) -> dict[str, Any]:
    """What was read, and how often each file is listed."""
    return {**facts(photos(folder)), "listed": REPEATS}


def _say(done: int, total: int, what: str) -> None:
    print(f"{done} of {total}: {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
