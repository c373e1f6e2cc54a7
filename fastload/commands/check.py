"""`fastload check`: open every file before training, and say which ones stock fastai fails on or misreads."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable

from fastload.recipes import add_target_arguments, target_of

__all__ = ["HELP", "NAME", "add_arguments", "main"]

NAME = "check"
HELP = "open every file of every loader before training: what is broken, what stock fastai would misread"

_EPILOG = """\
example:
  fastload check data/pets --recipe presize --size 224
  fastload check train.py:get_dls --json > found.json

exit status:
  0  nothing is broken (files may still be suspicious)
  3  something is broken: stock fastai would raise

python twin:
  fastload.checking.check(dls)
"""
_REDRAW_S = 0.1
_WIDTH = 60  # characters: what is left of a longer line is painted over


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """TARGET and --json."""
    parser.formatter_class, parser.epilog = argparse.RawDescriptionHelpFormatter, _EPILOG
    add_target_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object, with every file")


def main(args: argparse.Namespace) -> int:
    """Print what was found; 3 where something is broken, else 0. Raises what `check` raises."""
    from fastload.checking import check

    with contextlib.redirect_stdout(sys.stderr):  # a target's own prints are no part of the result
        report = check(target_of(args), progress=_progress())
    _print(report.to_json() if args.json else str(report))
    return 3 if report.broken else 0


def _print(text: str) -> None:
    """Print what the terminal can't show as escapes, where printing it would fail."""
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding))


def _progress() -> Callable[[int, int], None]:
    """Return a callback that redraws one line of stderr where that is a terminal, and otherwise only says the end."""
    live, start, last = sys.stderr.isatty(), 0.0, 0.0

    def show(done: int, total: int) -> None:
        nonlocal start, last
        now = time.monotonic()
        if done == 0:
            start = now
        if done == total or (live and now - last >= _REDRAW_S):
            last, line = now, _line(done, total, now - start)
            text = f"\r{line:<{_WIDTH}}" if live else line
            print(text, end="\n" if done == total else "", file=sys.stderr, flush=True)

    return show


def _line(done: int, total: int, seconds: float) -> str:
    """Count, rate, and the time left, in seconds.

    >>> _line(200, 1000, 4.0), _line(1000, 1000, 20.0)
    ('200 of 1000 files, 50 files/s, 16 s left', '1000 of 1000 files, 50 files/s, 20 s')
    """
    rate = done / max(seconds, 1e-9)
    left = f"{(total - done) / rate:.0f} s left" if 0 < done < total else f"{seconds:.0f} s"
    return f"{done} of {total} files, {rate:.0f} files/s, {left}"
