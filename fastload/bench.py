"""Stock against fastload on a user's own data and pipeline, interleaved in fresh processes, with a check of the pixels.

Each measurement is a process of its own (`fastload.benching`), started in turn so both see the same machine: round 1 stock,
round 1 fastload, round 2 fastload, round 2 stock, and so on. Rates are medians over the rounds; their spread is printed beside
them, because these numbers are only worth as much as the machine is quiet.
"""

from __future__ import annotations

import json
import math
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from fastload import machine
from fastload.errors import DataError, FastloadError
from fastload.recipes import Target, require
from fastload.report import table
from fastload.settings import Settings

__all__ = ["BenchReport", "Row", "bench"]

ENGINES = ("stock", "fastload")
PARTS = ("uint8", "whole")
NOISY = 1.3  # highest over lowest rate of one loader from which the report speaks of a busy machine


@dataclass(frozen=True)
class Row:
    """One engine on one part of the work, over all rounds. Rates in images/s, times in seconds or milliseconds as named."""

    engine: str
    part: str
    images_per_s: float
    spread: tuple[float, float]
    cpu_ms_per_image: float
    first_batch_s: float
    peak_mib: float | None
    digest: str
    note: str = ""
    errors: dict[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class BenchReport:
    """Rows of both engines; `equal` per part says whether both gave the same pixels, labels and types.

    That is checked before approximations that were asked for; their `errors` (mean and largest difference to stock on a batch,
    of values in [0, 1]) stand in fastload's row.
    """

    target: dict[str, Any]
    rounds: int
    rows: tuple[Row, ...]
    machine: dict[str, str] = field(default_factory=machine.describe)

    @property
    def equal(self) -> dict[str, bool]:
        """Per part: whether the digests of the seeded batches of both engines are the same."""
        return {part: len({r.digest for r in self.rows if r.part == part}) == 1 for part in _parts(self.rows)}

    @property
    def ratios(self) -> dict[str, float]:
        """Per part: fastload's images/s over stock's."""
        rate = {(r.engine, r.part): r.images_per_s for r in self.rows}
        return {part: rate["fastload", part] / rate["stock", part] for part in _parts(self.rows)}

    def to_json(self) -> str:
        """Everything as one JSON object."""
        return json.dumps({**asdict(self), "equal": self.equal, "ratios": self.ratios}, indent=2)

    def __str__(self) -> str:
        lines = []
        for part in _parts(self.rows):
            lines += [_TITLE[part], *(f"  {line}" for line in table([_HEAD, *map(_cells, self._of(part))]))]
            same = "the same pixels, labels and types" if self.equal[part] else "DIFFERENT batches: please report this"
            lines += [f"  {self.ratios[part]:.2f} times stock; both gave {same}", *self._errors(part), ""]
        lines += [r.note for r in self.rows if r.note][:1]
        if any(r.spread[1] > NOISY * r.spread[0] for r in self.rows):
            lines.append(
                "the rates of one loader differ much between rounds: the machine was busy, measure again when it is quiet"
            )
        return "\n".join([*lines, f"on {self.machine.get('cpu', 'an unknown CPU')}, {self.rounds} interleaved rounds"])

    def _errors(self, part: str) -> list[str]:
        text = "  before {}, which is off by {:.1e} on average, {:.1e} at most, of values in [0, 1]"
        return [text.format(name, *error) for r in self._of(part) for name, error in r.errors.items()]

    def _of(self, part: str) -> list[Row]:
        return [r for r in self.rows if r.part == part]


_TITLE = {
    "uint8": "path to uint8 batch (item transforms; after_batch left out)",
    "whole": "whole loader (batch transforms included)",
}
_HEAD = ("", "images/s", "(spread)", "CPU ms/image", "first batch s", "peak MiB")


def _cells(r: Row) -> tuple[str, ...]:
    spread = f"({r.spread[0]:.0f}-{r.spread[1]:.0f})"
    peak = "?" if r.peak_mib is None else f"{r.peak_mib:.0f}"
    return (r.engine, f"{r.images_per_s:.0f}", spread, f"{r.cpu_ms_per_image:.2f}", f"{r.first_batch_s:.3f}", peak)


def _parts(rows: Sequence[Row]) -> list[str]:
    return [part for part in PARTS if any(r.part == part for r in rows)]


def bench(
    target: Target,
    rounds: int = 3,
    seconds: float = 4.0,
    parts: Sequence[str] = PARTS,
    threads: int | None = None,
    executor: str = "auto",
    batch: str = "stock",
    decode: str = "exact",
    progress: Callable[[int, int, str], None] | None = None,
) -> BenchReport:
    """Measure both engines on `target`, each for about `seconds` a round. `progress(done, total, what)` is called in between.

    Raises FastloadError with the process's own words where a measurement fails.
    """
    if rounds < 1 or not 0 < seconds < math.inf:
        raise DataError(f"rounds must be at least 1 and seconds above 0, found rounds={rounds} seconds={seconds}")
    require(target)
    Settings(
        threads=threads, executor=executor, batch=batch, decode=decode
    )  # raises for values that fastload would refuse minutes later
    jobs = list(_jobs(rounds, parts))
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for done, (engine, part) in enumerate(jobs):
        if progress is not None:
            progress(done, len(jobs), f"{engine}, {part}")
        job = {"target": asdict(target), "engine": engine, "part": part, "seconds": seconds, "threads": threads}
        job |= {"executor": executor, "batch": batch, "decode": decode}
        found.setdefault((engine, part), []).append(measure(job))
    if progress is not None:
        progress(len(jobs), len(jobs), "done")
    rows = tuple(
        _row(*key, runs) for key, runs in sorted(found.items(), key=lambda kv: (PARTS.index(kv[0][1]), kv[0][0] != "stock"))
    )
    return BenchReport(asdict(target), rounds, rows)


def _jobs(rounds: int, parts: Sequence[str]) -> Iterator[tuple[str, str]]:
    for k in range(rounds):
        for part in parts:
            for engine in ENGINES if k % 2 == 0 else ENGINES[::-1]:
                yield engine, part


def _row(engine: str, part: str, runs: list[dict[str, Any]]) -> Row:
    rates = [r["images_per_s"] for r in runs]
    digests = {r["digest"] for r in runs}
    peaks = [r["peak_mib"] for r in runs if r["peak_mib"] is not None]
    return Row(
        engine,
        part,
        statistics.median(rates),
        (min(rates), max(rates)),
        statistics.median(r["cpu_ms_per_image"] for r in runs),
        statistics.median(r["first_batch_s"] for r in runs),
        max(peaks) if peaks else None,
        digests.pop() if len(digests) == 1 else f"differs between rounds: {sorted(digests)}",
        next((r["note"] for r in runs if r["note"]), ""),
        next((r["errors"] for r in runs if r["errors"]), {}),
    )


_OWN = re.compile(r"^fastload\.errors\.\w+: ")


def measure(job: dict[str, Any]) -> dict[str, Any]:
    """One measurement in a fresh process."""
    command = [sys.executable, "-W", "ignore", "-m", "fastload.benching", json.dumps(job)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise FastloadError(f"measuring {job['engine']} ({job['part']}) failed: {_OWN.sub('', said)}")
    result: dict[str, Any] = json.loads(lines[-1])
    return result
