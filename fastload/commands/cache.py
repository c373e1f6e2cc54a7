"""`fastload cache`: what a cache holds, whether every byte of it is as it was built, and building anew what is not."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["HELP", "NAME", "add_arguments", "main"]

NAME = "cache"
HELP = "what a cache of `fastload precompute` holds, whether it is whole, and repair of what is not"

_EPILOG = """\
example:
  fastload cache info pets.cache
  fastload cache verify pets.cache
  fastload cache repair pets.cache --root data/pets
  fastload cache gc pets.cache          # earlier generations, and builds that were given up

exit status of verify:
  0  every byte is as it was built
  3  something is damaged; its shard and image are named
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to do, and the cache."""
    parser.formatter_class, parser.epilog = argparse.RawDescriptionHelpFormatter, _EPILOG
    parser.add_argument("what", choices=("info", "verify", "repair", "gc"))
    parser.add_argument("cache", metavar="CACHE", help="folder of the cache")
    parser.add_argument("--root", help="repair: the folder of the data, as precompute had it")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def main(args: argparse.Namespace) -> int:
    """Print it; 3 where verify finds damage. Raises CacheError where there is no cache."""
    folder = Path(args.cache).resolve()
    if args.what == "repair":
        return _repair(folder, args.root, args.json)
    return {"info": _info, "verify": _verify, "gc": _collect}[args.what](folder, args.json)


def _info(folder: Path, as_json: bool) -> int:
    from fastload.cache._format import FORMAT
    from fastload.cache.read import open_cache

    kept = open_cache(folder)
    parts = []
    for part in kept.parts:
        size = sum(s.commit["bytes"] + s.commit["index_bytes"] for s in part.shards)
        facts = part.meaning() | {"records": sum(len(s.rows) for s in part.shards), "files": len(part.where), "bytes": size}
        parts.append(facts | {"shards": len(part.shards), "bad": part.bad})
    found = {"cache": str(folder), "format": FORMAT, "generation": kept.generation.number, "parts": parts}
    found["files"] = {split: len(kept.held(split)) for split in kept.splits}
    print(json.dumps(found) if as_json else "\n".join(_told(found)))
    return 0


def _told(found: dict[str, Any]) -> Iterator[str]:
    counts = ", ".join(f"{count} {split}" for split, count in found["files"].items())
    yield f"{found['cache']}: {counts} images, generation {found['generation']}, {found['format']}"
    for part in found["parts"]:
        drawn = f", {part['variants']} versions of each from seed {part['seed']}" if part["variants"] else ""
        yield (
            f"  {' and '.join(part['splits'])}: {part['files']} files as {part['records']} {part['kind']} records in "
            f"{part['shards']} shards, {part['bytes'] / 1e6:,.1f} MB{drawn}"
        )
        yield from (f"    made with {name} {value}" for name, value in part["fingerprint"].items())
        yield from (f"    not kept: {name}: {reason}" for name, reason in part["bad"].items())


def _verify(folder: Path, as_json: bool) -> int:
    from fastload.cache.verify import verify

    damaged = verify(folder)
    if as_json:
        print(json.dumps({"cache": str(folder), "damaged": damaged}))
    else:
        print("\n".join(damaged) if damaged else f"{folder}: every byte is as it was built")
    return 3 if damaged else 0


def _collect(folder: Path, as_json: bool) -> int:
    from fastload.cache.generations import collect

    removed = collect(folder)
    if as_json:
        print(json.dumps({"cache": str(folder), "removed": removed}))
    else:
        print("\n".join(f"removed {name}" for name in removed) or f"{folder}: there is nothing to remove")
    return 0


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
