"""`fastload sample`: make a small data set of photo-like images, without a network."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastload.samples import SampleReport

__all__ = ["HELP", "NAME", "add_arguments", "main"]

NAME = "sample"
HELP = "make a small class-folder data set of photo-like JPEG files, offline"

_EPILOG = """\
example:
  fastload sample sample-data --images 600 --classes 4

python twin:
  fastload.samples.make_samples("sample-data", images=600, classes=4)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add DIR and the options; needs no extra package."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument("dir", metavar="DIR", help="new or empty folder; a set made the same way before is reused")
    parser.add_argument("--images", type=int, default=600, help="images in all, a fifth to validate (default: 600)")
    parser.add_argument("--classes", type=int, default=4, help="classes, 2 to 20 (default: 4)")
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same bytes (default: 0)")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")


def main(args: argparse.Namespace) -> int:
    """Make or reuse the set, print what it holds, return 0; raises what `make_samples` raises."""
    from fastload.samples import make_samples

    report = make_samples(args.dir, args.images, args.classes, args.seed, progress=_progress())
    print(_json(report) if args.json else _text(report))
    return 0


def _progress() -> Callable[[int, int], None]:
    """Return a callback that redraws one line of stderr where that is a terminal, and otherwise only says the end."""
    live = sys.stderr.isatty()

    def show(done: int, total: int) -> None:
        if live or done == total:
            start, end = ("\r", "" if done < total else "\n") if live else ("", "\n")
            print(f"{start}{done} of {total} images made", end=end, file=sys.stderr, flush=True)

    return show


def _text(report: SampleReport) -> str:
    verb = "reused" if report.reused else "made"
    return (
        f"{verb} {report.path}: {report.train} images to train, {report.valid} to validate, "
        f"{report.bytes / 1e6:.1f} MB, {report.mean_width:.0f}x{report.mean_height:.0f} pixels on average"
    )


def _json(report: SampleReport) -> str:
    import json
    from dataclasses import asdict

    fields: dict[str, Any] = asdict(report)
    return json.dumps({**fields, "path": str(report.path)})
