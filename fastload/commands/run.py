"""`fastload run`: run a training script that may not be touched, with every fastai loader in it run by fastload."""

from __future__ import annotations

import argparse
import importlib.util
import os
import runpy
import sys
from pathlib import Path

__all__ = ["HELP", "NAME", "add_arguments", "main"]

NAME = "run"
HELP = "run an unchanged training script with fastload under its loaders"

_EPILOG = """\
example:
  fastload run train.py --epochs 3
  fastload run -m package.train --epochs 3

python twin:
  with fastload.enable(): ...
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """SCRIPT, or -m MODULE, and whatever follows it."""
    parser.formatter_class, parser.epilog = argparse.RawDescriptionHelpFormatter, _EPILOG
    parser.add_argument("--threads", type=int, default=None, help="decoding threads (default: every CPU this process may use)")
    parser.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module's name, as for python -m")
    parser.add_argument("script", metavar="SCRIPT", help="the script, run as __main__")
    parser.add_argument("args", nargs=argparse.REMAINDER, metavar="ARGS", help="its own arguments, if it takes any")


def main(args: argparse.Namespace) -> int:
    """Run the script as __main__; its exit status is this command's."""
    from fastload.front import enable

    script = Path(args.script)
    if args.module:
        sys.path.insert(0, os.getcwd())  # as python -m does
        if not _found(args.script):
            print(f"fastload run: there is no module {args.script!r} that can be run from here", file=sys.stderr)
            return 1
    elif not script.is_file():
        print(f"fastload run: there is no script {args.script!r}", file=sys.stderr)
        return 1
    else:
        sys.path.insert(0, str(script.resolve().parent))
    sys.argv = [args.script, *args.args]
    with enable(threads=args.threads):
        if args.module:
            runpy.run_module(args.script, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(args.script, run_name="__main__")
    return 0


def _found(module: str) -> bool:
    """Whether `python -m` would find a module, or the __main__ of a package, of this name."""
    try:
        spec = importlib.util.find_spec(module)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{module}.__main__")
    except (ImportError, ValueError):  # a parent that is no package, or no name at all
        return False
    return spec is not None
