"""`fastload bench`: stock against fastload on your data and pipeline."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from fastload.recipes import add_target_arguments, target_of

__all__ = ["HELP", "NAME", "add_arguments", "main"]

NAME = "bench"
HELP = "time stock fastai against fastload on your data and pipeline, and compare their pixels"

_EPILOG = """\
example:
  fastload bench data/pets --recipe imagenet --size 224
  fastload bench train.py:get_dls --rounds 5 --json

python twin:
  fastload.bench.bench(fastload.recipes.Target("data/pets"))

exit status: 3 where the two gave different batches.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """TARGET, --rounds, --seconds, --part, --threads, --executor, --batch, --decode, --json."""
    parser.formatter_class, parser.epilog = argparse.RawDescriptionHelpFormatter, _EPILOG
    add_target_arguments(parser)
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds (default: 3)")
    parser.add_argument("--seconds", type=float, default=4.0, help="seconds for each measurement, whole epochs (default: 4)")
    parser.add_argument(
        "--part", choices=("both", "uint8", "whole"), default="both", help="up to the uint8 batch, or the whole loader"
    )
    parser.add_argument(
        "--threads", type=int, default=None, help="fastload's threads (default: every CPU this process may use)"
    )
    parser.add_argument("--executor", default="auto", help="fastload's executor: auto, native, threads, serial (default: auto)")
    parser.add_argument(
        "--batch", choices=("stock", "fused"), default="stock", help="batch transforms: fastai's own, or fused on the CPU"
    )
    parser.add_argument(
        "--decode", choices=("exact", "scaled"), default="exact", help="large JPEG photos: exactly, or at a part of their size"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def main(args: argparse.Namespace) -> int:
    """Print the table; 3 where pixels differ."""
    from fastload.bench import PARTS, bench

    parts = PARTS if args.part == "both" else (args.part,)
    report = bench(
        target_of(args),
        args.rounds,
        args.seconds,
        parts,
        args.threads,
        args.executor,
        args.batch,
        args.decode,
        progress=_progress(),
    )
    print(report.to_json() if args.json else report)
    return 0 if all(report.equal.values()) else 3


def _progress() -> Callable[[int, int, str], None]:
    live = sys.stderr.isatty()

    def show(done: int, total: int, what: str) -> None:
        bar = "#" * (20 * done // total) + "." * (20 - 20 * done // total)
        start, end = ("\r", "" if done < total else "\n") if live else ("", "\n")
        print(f"{start}[{bar}] {done} of {total}: {what:<20}", end=end, file=sys.stderr, flush=True)

    return show
