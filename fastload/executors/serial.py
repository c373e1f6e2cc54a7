"""Pillow, one thread, stock's own steps in stock's own order: the truth that other executors are compared with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fastload.draws import Drawer
from fastload.errors import SettingsError
from fastload.executors import Batch, Finished, Options, refuses_needing
from fastload.executors._work import Job, Stages
from fastload.plan import Plan
from fastload.source import Source

__all__ = ["NAME", "Serial", "open_executor", "refuses"]

NAME = "serial"


def refuses(plan: Plan, options: Options) -> str | None:
    """Nothing is refused: Pillow does every operation of a Plan."""
    return None


def open_executor(plan: Plan, sources: Sequence[Source], options: Options) -> Serial:
    """An executor that works in the consumer's thread and never reads ahead."""
    return Serial(plan, sources, options)


class Serial:
    """Works in the consumer's thread, one image after the other; owns nothing that must be closed."""

    def __init__(self, plan: Plan, sources: Sequence[Source], options: Options) -> None:
        if reason := refuses_needing(plan, len(sources)):
            raise SettingsError(reason)
        self.plan, self.sources, self.options = plan, sources, options
        self._stages = Stages(options.hook)
        self._fresh = True

    def run(self, batches: Iterator[Batch], drawer: Drawer) -> Iterator[Finished]:
        """Yield every batch in order; see `Executor.run`."""
        if self.options.init is not None and self._fresh:
            self.options.init(0)
        self._fresh = False
        for batch in batches:
            yield self._one(Job(self.plan, self.sources, batch, self.options, self._stages), drawer)

    def _one(self, job: Job, drawer: Drawer) -> Finished:
        if self.plan.needs_size:
            for pos in range(len(job.batch.refs)):
                job.probe(pos)
                self._check(job, drawer)
        drawn = job.draw(drawer)
        job.open_rows()
        if not drawn or self.plan.draws:
            job.settle(drawer)
        for pos in job.positions:
            job.render(pos)
            self._check(job, drawer)
        if self._stages.failed is not None:
            raise self._stages.failed
        return job.finish()

    def _check(self, job: Job, drawer: Drawer) -> None:
        bad = job.fatal()
        if bad is not None:
            raise job.give_up(drawer, bad)

    def counts(self) -> dict[str, tuple[int, int]]:
        """Per stage: (images, nanoseconds)."""
        return self._stages.counts()

    def close(self) -> None:
        """Nothing to end."""
