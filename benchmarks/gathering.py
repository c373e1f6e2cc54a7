"""Finished images of a cache read through its index by two threads, or as many rows gathered from RAM; one JSON line."""

from __future__ import annotations

import json
import random
import resource
import sys
import threading
import time
from pathlib import Path

import numpy as np

BATCH, THREADS = 64, 2


def main() -> None:
    import torch

    from fastload.cache.read import CacheSource, open_cache
    from fastload.source import Ref

    job = json.loads(sys.argv[1])
    held = open_cache(Path(job["cache"]) / "final").held("train")
    source, names = CacheSource(held, Path("/")), list(held.where)
    refs = [Ref(k, f"/{name}") for k, name in enumerate(names)]
    ram = None if job["index"] else torch.from_numpy(np.stack([source.read(ref).image for ref in refs]))
    torch.set_num_threads(1)
    for ref in refs:
        source.read(ref)  # checksums are compared once
    done, end = [0] * THREADS, time.monotonic() + job["seconds"]

    def work(number: int) -> None:
        rng = random.Random(number)
        while time.monotonic() < end:
            slot = torch.empty((BATCH, 3, 224, 224), dtype=torch.uint8)
            chosen = rng.choices(range(len(refs)), k=BATCH)
            if ram is None:
                source.gather([refs[k] for k in chosen], list(slot.numpy()))
            else:
                torch.index_select(ram, 0, torch.tensor(chosen), out=slot)
            done[number] += BATCH

    before, start = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
    threads = [threading.Thread(target=work, args=(k,)) for k in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spent, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    facts = {"images_per_s": sum(done) / spent, "cpu_ms_per_image": 1000 * cpu / sum(done), "first_batch_s": 0.0}
    print(json.dumps({**facts, "peak_mib": after.ru_maxrss / 1024}))


if __name__ == "__main__":
    main()
