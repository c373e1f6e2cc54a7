"""`fastload explain`: what runs where for a target's loaders, and why anything stays with stock."""

from __future__ import annotations

import argparse

from fastload.recipes import add_target_arguments, open_target, target_of

__all__ = ["HELP", "NAME", "add_arguments", "main"]

NAME = "explain"
HELP = "print what runs where, transform by transform, and why anything stays with stock fastai"

_EPILOG = """\
example:
  fastload explain data/pets --recipe presize --size 224
  fastload explain train.py:get_dls

python twin:
  fastload.explain(dls)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """TARGET and --json."""
    parser.formatter_class, parser.epilog = argparse.RawDescriptionHelpFormatter, _EPILOG
    add_target_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def main(args: argparse.Namespace) -> int:
    """Print the plan; 0 also where everything stays with stock."""
    from fastload.front import accelerate, explain

    report = explain(accelerate(open_target(target_of(args))))
    print(report.to_json() if args.json else report)
    return 0
