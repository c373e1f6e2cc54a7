"""The `fastload` command: each module of this folder is one command. Add a file to add one.

A module offers NAME, HELP, `add_arguments(parser)` and `main(args) -> exit status`, and imports nothing heavy at its top, so
that `--help` needs no extra package. Exit status: 0 ok, 1 an expected error, 2 usage, 3 a check failed, 4 impossible.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import sys
from collections.abc import Sequence
from types import ModuleType

from fastload import __version__
from fastload.errors import FastloadError

__all__ = ["commands", "main"]


def commands() -> dict[str, ModuleType]:
    """Every command module by its NAME."""
    names = sorted(info.name for info in pkgutil.iter_modules(__path__) if not info.name.startswith("_"))
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
    return {module.NAME: module for module in modules}


def parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    top = argparse.ArgumentParser(prog="fastload", description="a data loading accelerator for fastai: same batches, sooner")
    top.add_argument("--version", action="version", version=f"fastload {__version__}")
    sub = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, module in commands().items():
        one = sub.add_parser(name, help=module.HELP, description=module.HELP)
        module.add_arguments(one)
        one.set_defaults(run=module.main)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; an expected error is one line on stderr and status 1."""
    args = parser().parse_args(argv)
    if args.command == "run":
        return int(args.run(args))  # the script's own errors stay as they are
    try:
        return int(args.run(args))
    except FastloadError as err:
        return complain(args.command, err)
    except KeyboardInterrupt:
        print(f"fastload {args.command}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever read the result has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def complain(command: str, err: FastloadError) -> int:
    """One line on stderr, and exit status 1."""
    print(f"fastload {command}: {err}", file=sys.stderr)
    return 1
