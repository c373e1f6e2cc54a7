"""`fastload precompute`: a data set's images into a cache, which a training script uses by one argument."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable

from fastload.errors import SettingsError
from fastload.recipes import add_target_arguments, open_target, target_of

__all__ = ["HELP", "NAME", "add_arguments", "main"]

NAME = "precompute"
HELP = "pack a data set's images into a cache: the files' bytes or Pillow's pixels, exact, checked, resumable"

_EPILOG = """\
example:
  fastload precompute data/pets --out pets.cache --dry-run
  fastload precompute train.py:get_dls --out pets.cache --keep train=decoded,valid=final

then, in the training script:
  dls = ImageDataLoaders.from_folder(path, ..., cache="pets.cache")

Killed or interrupted, the same command goes on where it was. On a finished cache it adds
what is new or changed in the data; `fastload cache gc` removes what that replaced.

python twin:
  fastload.precompute(dls, out="pets.cache")
"""
_REDRAW_S = 0.2
_WIDTH = 78  # characters: what is left of a longer line is painted over


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """TARGET, --out and how to build."""
    parser.formatter_class, parser.epilog = argparse.RawDescriptionHelpFormatter, _EPILOG
    add_target_arguments(parser)
    parser.add_argument("--out", required=True, metavar="CACHE", help="folder of the cache")
    parser.add_argument(
        "--keep", default="source", help="source, decoded, final or master; or one for each split: train=decoded,valid=final"
    )
    parser.add_argument(
        "--variants", type=int, default=0, metavar="K", help="with final: drawn versions of each training image"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the drawn versions")
    parser.add_argument("--freeze-augmentation", action="store_true", help="allow --variants 1")
    parser.add_argument(
        "--deterministic", action="append", default=[], metavar="NAME", help="an item transform of yours that draws nothing"
    )
    parser.add_argument("--root", help="a folder above all files (default: the lowest one)")
    parser.add_argument("--threads", type=int, help="default: every CPU that this process may use")
    parser.add_argument("--shard", default="0/1", metavar="I/N", help="only every N-th shard, from the I-th on, counted from 0")
    parser.add_argument("--max-bad", type=float, default=0.01, metavar="SHARE", help="of files that may be unreadable")
    parser.add_argument("--dry-run", action="store_true", help="say what would be built, and build nothing")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line: progress, then what was built")


def main(args: argparse.Namespace) -> int:
    """Build, or say what would be built. Raises what `precompute` raises."""
    from fastload.forecasting import forecast
    from fastload.precomputing import precompute

    share = _share(args.shard)
    if args.threads is not None and args.threads < 1:
        raise SettingsError(f"--threads {args.threads} must be at least 1")
    what = {"keep": args.keep, "root": args.root, "variants": args.variants, "seed": args.seed}
    what |= {"freeze_augmentation": args.freeze_augmentation, "deterministic": args.deterministic}
    with contextlib.redirect_stdout(sys.stderr):  # a target's own prints are no part of the result
        made = open_target(target_of(args), seed=0)
        planned = forecast(made, out=args.out, **what)
    if args.dry_run:
        facts = {"files": planned.files, "bytes": planned.payload_bytes, "root": str(planned.root)}
        print(json.dumps({**facts, "keep": args.keep, "exact": planned.exact}) if args.json else planned)
        return 0
    show = _lines(planned.files) if args.json else _progress(planned.files)
    how = {"threads": args.threads, "share": share, "max_bad": args.max_bad}
    found = precompute(made, args.out, **what, **how, progress=show, planned=planned)
    facts = {"cache": str(found.path), "keep": found.kind, "whole": found.whole, "records": found.records, "built": found.built}
    facts |= {"generation": found.generation, "bytes": found.shard_bytes, "bad": found.bad, "exact": planned.exact}
    print(json.dumps({"event": "done", **facts}) if args.json else found)
    return 0


def _share(text: str) -> tuple[int, int]:
    first, _, count = text.partition("/")
    if not (first.isdigit() and count.isdigit() and int(first) < int(count)):
        raise SettingsError(f"--shard {text!r} is not I/N with I from 0 to N - 1, as in 0/4")
    return int(first), int(count)


def _progress(total: int) -> Callable[[int, int, int], None]:
    """Return a callback that redraws one line of stderr where that is a terminal, and otherwise says the end alone."""
    live, start = sys.stderr.isatty(), time.monotonic()
    last = 0.0

    def show(done: int, size: int, bad: int) -> None:
        nonlocal last
        now = time.monotonic()
        if (live and now - last >= _REDRAW_S) or done == total:
            last, line = now, _line(done, total, size, bad, now - start)
            print(f"\r{line:<{_WIDTH}}" if live else line, end="" if live else "\n", file=sys.stderr, flush=True)

    return show


def _lines(total: int) -> Callable[[int, int, int], None]:
    """Return a callback that prints a JSON line once a second, and at the end."""
    start = time.monotonic()
    last = start

    def show(done: int, size: int, bad: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= 1 or done == total:
            last, rate = now, done / max(now - start, 1e-9)
            facts = {"event": "progress", "done": done, "total": total, "bytes": size, "bad": bad}
            left = (total - done) / rate if rate else None
            print(json.dumps({**facts, "images_per_s": round(rate, 1), "eta_s": left and round(left, 1)}), flush=True)

    return show


def _line(done: int, total: int, size: int, bad: int, seconds: float) -> str:
    """Count, rate, bytes, and the time left.

    >>> _line(200, 1000, 30_000_000, 1, 4.0)
    '200 of 1000 images, 50 images/s, 30 MB, 1 bad, 16 s left'
    """
    rate = done / max(seconds, 1e-9)
    left = f"{(total - done) / rate:.0f} s left" if 0 < done < total else f"{seconds:.0f} s"
    return f"{done} of {total} images, {rate:.0f} images/s, {size / 1e6:.0f} MB, {bad} bad, {left}"
