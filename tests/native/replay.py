"""Seeds for the fuzzer, and mutations of them: `python replay.py DIR [COUNT]` writes files for fuzz.cpp to run."""

from __future__ import annotations

import io
import random
import sys
from pathlib import Path

import numpy as np
from PIL import Image

SEED = 11


def seeds() -> list[bytes]:
    """A JPEG of every layout that the native path takes, small, with and without restart markers."""
    rng, made = np.random.default_rng(SEED), []
    for k in range(16):
        mode = "L" if k % 5 == 4 else "RGB"
        pixels = rng.integers(0, 256, (9 + 5 * k, 70 - 3 * k, 3), np.uint8)
        file = io.BytesIO()
        how = {"subsampling": k % 3} if mode == "RGB" else {}
        if k % 4 == 3:
            how["restart_marker_blocks"] = 2
        Image.fromarray(pixels).convert(mode).save(file, "JPEG", quality=40 + 3 * k, **how)
        made.append(file.getvalue())
    return made


def mutated(data: bytes, rng: random.Random) -> bytes:
    """A few bit flips, cuts, insertions and swaps, most of them in the headers."""
    out = bytearray(data)
    for _ in range(rng.randint(0, 4) if out else 0):
        at = rng.randrange(max(1, len(out) if rng.random() < 0.4 else min(len(out), 650)))
        kind = rng.randrange(4)
        if kind == 0:
            out[at : at + 1] = bytes([rng.randrange(256)])
        elif kind == 1:
            del out[at : at + rng.randint(1, 40)]
        elif kind == 2:
            out[at:at] = bytes(rng.randrange(256) for _ in range(rng.randint(1, 6)))
        else:
            out[at : at + 2] = out[at + 1 : at + 3][::-1]
    return bytes(out)


def write(folder: Path, count: int, extra: list[Path]) -> int:
    """Write `count` inputs made from the seeds and from whole files `extra`; returns how many files there are."""
    rng, pool = random.Random(SEED), [*seeds(), *(p.read_bytes() for p in extra)]
    folder.mkdir(parents=True, exist_ok=True)
    for k in range(count):
        options = bytes(rng.randrange(256) for _ in range(16))
        data = pool[k % len(pool)]
        (folder / f"{k:06d}").write_bytes(options + (data if k < 4 * len(pool) else mutated(data, rng)))
    return count


if __name__ == "__main__":
    print(write(Path(sys.argv[1]), int(sys.argv[2]), [Path(p) for p in sys.argv[3:]]), "inputs")
