"""`fastload run`: run a training script that may not be touched, with every fastai loader in it run by fastload."""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path

__all__ = ["HELP", "NAME", "add_arguments", "main"]

NAME = "run"
HELP = "run an unchanged training script with fastload under its loaders"

_EPILOG = """\
example:
  fastload run train.py --epochs 3

python twin:
  with fastload.enable(): ...
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """SCRIPT and whatever follows it."""
    parser.formatter_class, parser.epilog = argparse.RawDescriptionHelpFormatter, _EPILOG
    parser.add_argument("--threads", type=int, default=None, help="decoding threads (default: every CPU this process may use)")
    parser.add_argument("script", metavar="SCRIPT", help="the script, run as __main__")
    parser.add_argument("args", nargs=argparse.REMAINDER, metavar="ARGS", help="its own arguments, if it takes any")


def main(args: argparse.Namespace) -> int:
    """Run the script as __main__; its exit status is this command's."""
    from fastload.front import enable

    script = Path(args.script)
    if not script.is_file():
        print(f"fastload run: there is no script {args.script!r}", file=sys.stderr)
        return 1
    sys.argv = [args.script, *args.args]
    sys.path.insert(0, str(script.resolve().parent))
    with enable(threads=args.threads):
        runpy.run_path(args.script, run_name="__main__")
    return 0
