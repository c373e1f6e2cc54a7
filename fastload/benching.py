"""One measurement of one loader, in this process: `python -m fastload.benching JOB` prints one JSON line."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from fastload.recipes import Target, open_target

__all__ = ["Peak", "digest", "run", "timed"]

SEED = 1234
CHECKED_BATCHES = 4  # enough to meet every virtual worker of the usual num_workers twice
SAMPLE_EVERY_S = 1.0  # one sample takes 12 ms of CPU time a GiB, and what allocates memory waits for it


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Open the target, check its first batches, then iterate the training loader for about `seconds`."""
    with redirect_stdout(sys.stderr):  # stdout is for the result, whatever the target prints
        dls = _loaders(job)
        checked = _checked(dls)
        errors = _errors(dls, job)
        with (peak := Peak()):
            found = timed(dls.train, float(job["seconds"]), peak.start)
    return {**found, "digest": checked, "peak_mib": peak.mib, "note": _note(dls, job), "errors": errors}


def _loaders(job: dict[str, Any]) -> Any:
    from fastload.front import accelerate

    made = open_target(Target(**job["target"]), seed=SEED)
    dls = getattr(made, "dls", made)
    if job["engine"] == "fastload":
        accelerate(dls, threads=job["threads"], executor=job["executor"])
    if job["part"] == "uint8":
        for dl in dls.loaders:
            dl.after_batch.fs.clear()
    return dls


def _errors(dls: Any, job: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Go over to the approximations that were asked for; mean and largest error of each on the first training batch.

    One that can't be had here has none: the note says why.
    """
    from fastload.batch import fused
    from fastload.front import accelerate

    found: dict[str, tuple[float, float]] = {}
    chosen = _chosen(job)
    if not chosen:
        return found
    pipe = dls.train.after_batch
    fs = list(pipe.fs)
    pipe.fs.clear()
    exact = _first(dls)
    accelerate(dls, threads=job["threads"], executor=job["executor"], **chosen)
    left_out = _left_out(dls)
    if _stays(dls):
        chosen = {}
    if chosen.get("decode") == "scaled" and "decode" not in left_out:
        apart = (_first(dls).double() - exact.double()).abs()
        found["decode='scaled'"] = float(apart.mean()) / 255, float(apart.max()) / 255
    pipe.fs.extend(fs)
    if chosen.get("batch") == "fused" and fs and "batch" not in left_out:
        found["batch='fused'"] = fused.measured_error(pipe, exact)
    return found


def _chosen(job: dict[str, Any]) -> dict[str, str]:
    """The approximations that were asked for."""
    asked = {key: job.get(key, exact) for key, exact in (("batch", "stock"), ("decode", "exact"))}
    return {} if job["engine"] == "stock" else {key: value for key, value in asked.items() if value in ("fused", "scaled")}


def _stays(dls: Any) -> list[str]:
    """Why loaders stay with stock, as `explain` says."""
    from fastload.front import explain

    return [f"{s.title}: {r}" for s in explain(dls).sections for r in s.data["reasons"]]


def _left_out(dls: Any) -> dict[str, str]:
    """Which of the chosen approximations the training loader goes without, and why, as `explain` says."""
    from fastload.front import explain

    lines = [line for section in explain(dls).sections for line in section.lines if " is left out: " in line]
    return {key: line for key in ("batch", "decode") for line in lines if line.startswith(f"{key}=")}


def _first(dls: Any) -> Any:
    from fastai.torch_core import set_seed

    set_seed(SEED)
    dls.train.rng.seed(SEED)
    return dls.train.one_batch()[0]


def _checked(dls: Any) -> str:
    """Digest of the first seeded batches of every loader."""
    from itertools import islice

    from fastai.torch_core import set_seed

    found = hashlib.blake2b(digest_size=16)
    for dl in dls.loaders:
        set_seed(SEED)
        dl.rng.seed(SEED)
        for batch in islice(dl, CHECKED_BATCHES):
            digest(batch, found)
    return found.hexdigest()


def digest(batch: Any, into: Any) -> None:
    """Feed types, dtypes, shapes and bytes of a batch into a hashlib object."""
    import torch

    if isinstance(batch, list | tuple):
        for part in batch:
            digest(part, into)
    elif isinstance(batch, torch.Tensor):
        plain = batch.detach().cpu().as_subclass(torch.Tensor).contiguous()
        into.update(f"{type(batch).__name__} {plain.dtype} {tuple(plain.shape)}".encode())
        into.update(plain.numpy().tobytes())
    else:
        into.update(repr(batch).encode())


def timed(dl: Any, seconds: float, begun: Callable[[], None] = lambda: None) -> dict[str, float]:
    """Whole epochs, start-up included, until `seconds` have passed; the first epoch's first batch is timed apart.

    `begun` is called once that batch is there: what would disturb it can start now.
    """
    cpu, start = _cpu_s(), time.perf_counter()
    images, first = 0, 0.0
    while True:
        before = images
        for batch in dl:
            _synchronize()
            if not first:
                first = time.perf_counter() - start
                begun()
            images += len(batch[0]) if isinstance(batch, list | tuple) else len(batch)
        if images == before:
            sys.exit(
                "the training loader gave no batch: it holds fewer images than one batch; choose a smaller batch size (--bs)"
            )
        if time.perf_counter() - start >= seconds:
            break
    _synchronize()
    wall = time.perf_counter() - start
    cpu = _cpu_s() - cpu
    return {"images_per_s": images / wall, "cpu_ms_per_image": 1e3 * cpu / images, "first_batch_s": first}


def _synchronize() -> None:
    """Wait for the GPU, where there is one: batch transforms there return before they are done."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _cpu_s() -> float:
    """CPU seconds of this process and of the workers that it has waited for."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(u.ru_utime + u.ru_stime for u in usages)


class Peak:
    """Highest memory of this process and its children, pages shared among them counted once (PSS).

    Sampled by a thread from `start` on, and at the end.
    """

    def __init__(self) -> None:
        self.mib: float | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Peak:
        return self

    def start(self) -> None:
        """Begin to sample."""
        self._thread.start()

    def __exit__(self, *exc: Any) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._look()

    def _sample(self) -> None:
        while True:
            self._look()
            if self._stop.wait(SAMPLE_EVERY_S):
                return

    def _look(self) -> None:
        now = _pss_mib(_family(os.getpid()))
        if now is not None:
            self.mib = max(self.mib or 0.0, now)


def _family(pid: int) -> list[int]:
    """This process and its descendants."""
    found = [pid]
    for one in found:
        try:
            found += [int(c) for c in Path(f"/proc/{one}/task/{one}/children").read_text().split()]
        except OSError:
            continue  # it has ended, or this is not Linux
    return found


def _pss_mib(pids: Iterable[int]) -> float | None:
    total, seen = 0, False
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue  # it has ended, or this is not Linux
        seen = True
        total += next((int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")), 0)
    return total / 1024 if seen else None


def _note(dls: Any, job: dict[str, Any]) -> str:
    if job["engine"] == "stock":
        return ""
    reasons = _stays(dls)
    stays = [f"stays with stock fastai: {'; '.join(reasons)}"] if reasons else []
    return "; ".join([*stays, *(_left_out(dls).values() if _chosen(job) else ())])


if __name__ == "__main__":
    print(json.dumps(run(json.loads(sys.argv[1]))))
