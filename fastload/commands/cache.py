"""`fastload cache`: what a cache holds, and whether every byte of it is as it was built."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

__all__ = ["HELP", "NAME", "add_arguments", "main"]

NAME = "cache"
HELP = "what a cache of `fastload precompute` holds, and whether it is whole"

_EPILOG = """\
example:
  fastload cache info pets.cache
  fastload cache verify pets.cache

exit status of verify:
  0  every byte is as it was built
  3  something is damaged; its shard and image are named
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """info or verify, and the cache."""
    parser.formatter_class, parser.epilog = argparse.RawDescriptionHelpFormatter, _EPILOG
    parser.add_argument("what", choices=("info", "verify"))
    parser.add_argument("cache", metavar="CACHE", help="folder of the cache")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def main(args: argparse.Namespace) -> int:
    """Print it; 3 where verify finds damage. Raises CacheError where there is no cache."""
    folder = Path(args.cache).resolve()
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
