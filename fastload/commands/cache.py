"""`fastload cache`: what a cache holds, whether every byte of it is as it was built, and building anew what is not."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

__all__ = ["HELP", "NAME", "add_arguments", "main"]

NAME = "cache"
HELP = "what a cache of `fastload precompute` holds, whether it is whole, and repair of what is not"

_EPILOG = """\
example:
  fastload cache info pets.cache
  fastload cache verify pets.cache
  fastload cache repair pets.cache --root data/pets

exit status of verify:
  0  every byte is as it was built
  3  something is damaged; its shard and image are named
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to do, and the cache."""
    parser.formatter_class, parser.epilog = argparse.RawDescriptionHelpFormatter, _EPILOG
    parser.add_argument("what", choices=("info", "verify", "repair"))
    parser.add_argument("cache", metavar="CACHE", help="folder of the cache")
    parser.add_argument("--root", help="repair: the folder of the data, as precompute had it")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def main(args: argparse.Namespace) -> int:
    """Print it; 3 where verify finds damage. Raises CacheError where there is no cache."""
    folder = Path(args.cache).resolve()
    if args.what == "repair":
        return _repair(folder, args.root, args.json)
    return _info(folder, args.json) if args.what == "info" else _verify(folder, args.json)


def _info(folder: Path, as_json: bool) -> int:
    from fastload.cache.read import open_cache

    kept = open_cache(folder)
    plan = kept.manifest["plan"]
    size = sum(s.commit["bytes"] + s.commit["index_bytes"] for s in kept.shards)
    facts = {"cache": str(folder), "format": kept.manifest["format"], "kind": kept.kind, "records": len(kept), "bytes": size}
    facts |= {"shards": len(kept.shards), "fingerprint": plan["fingerprint"], "bad": kept.bad}
    if kept.kind == "decoded":
        facts["mode"] = kept.mode
    if as_json:
        print(json.dumps(facts))
        return 0
    print(f"{folder}: {len(kept)} {kept.kind} records in {len(kept.shards)} shards, {size / 1e6:,.1f} MB, {facts['format']}")
    for name, value in plan["fingerprint"].items():
        print(f"  made with {name} {value}")
    for name, reason in kept.bad.items():
        print(f"  not kept: {name}: {reason}")
    return 0


def _verify(folder: Path, as_json: bool) -> int:
    from fastload.cache.verify import verify

    damaged = verify(folder)
    if as_json:
        print(json.dumps({"cache": str(folder), "damaged": damaged}))
    else:
        print("\n".join(damaged) if damaged else f"{folder}: every byte is as it was built")
    return 3 if damaged else 0


def _repair(folder: Path, root: str | None, as_json: bool) -> int:
    from fastload.cache.repair import repair
    from fastload.errors import CacheError

    if root is None or not Path(root).is_dir():
        raise CacheError(f"repair needs the folder of the data as --root, and found {root!r}")
    rebuilt = repair(folder, Path(root).resolve(), said=lambda line: print(line, file=sys.stderr))
    if as_json:
        print(json.dumps({"cache": str(folder), "rebuilt": rebuilt}))
    else:
        print(f"{folder}: {len(rebuilt)} shard{'s' if len(rebuilt) != 1 else ''} built anew; every byte is as it was built")
    return 0
