"""Stands in for the iterator of a fastai loader: order, randomness, labels and types as stock; pixels by an executor.

`iterate` is what fastai's `for b in _loaders[...](fake_l)` loops over. It yields tuples of fastai tensors before
`after_batch`, which fastai then applies itself. All user code (getters, samplers, batch transforms) runs on the consumer's
thread. What fastload cannot hold goes to stock's own iterator, from the first batch on or, where an item shows it late, from
the batch it shows in; the batches are stock's either way.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from fastload import machine
from fastload.attached import Attached, Progress
from fastload.batch import fused
from fastload.bridge import Compiled, Refused, compile_loader
from fastload.collate import assemble
from fastload.draws import Drawer
from fastload.errors import EmptyBatch, StateError, with_path
from fastload.executors import Batch, Finished, Options, automatic, exact_only, executors
from fastload.feeding import fed, stock_fed, vouched_by
from fastload.generators import Generators, base_seed, cpu_state, preserved, seeded
from fastload.order import Whole, virtual_batches
from fastload.source import Record, Ref, Source, open_lazily
from fastload.targets import Unplanned, label_reader, path_reader, pure

__all__ = ["inner_loader", "iterate"]

log = logging.getLogger("fastload")
Stock = Callable[[Any], Any]
RANK_STRIDE = 1_000_003  # more than any number of workers, so that the ranks' worker seeds never meet


def iterate(fake_l: Any, attached: Attached, stock: Stock) -> Iterator[Any]:
    """The batches of one epoch of `fake_l.d`, before after_batch."""
    inner = inner_loader(fake_l.d)
    compiled = _compiled(inner, attached, fake_l)
    if inner.n is not None and inner.bs and inner.drop_last and inner.n < inner.bs:
        attached.say(f"this loader gives no batch: it drops a last batch below bs={inner.bs}, and has {inner.n} items")
    epoch = _Epoch(fake_l, inner, attached, stock)
    try:
        if isinstance(compiled, Refused):
            if attached.settings.executor != "stock":
                attached.tell("; ".join(compiled.reasons))
            yield from epoch.by_stock(0)
        elif epoch.resume is not None and epoch.resume.words is None:
            yield from epoch.by_stock(0)  # stock made the epoch so far: what its workers have drawn is not known
        else:
            yield from epoch.by_plan(compiled)
    finally:
        epoch.close()


def inner_loader(dl: Any) -> Any:
    """The loader that makes the batches: the one inside a DistributedDL, else `dl` itself."""
    return dl.dl if any(cls.__name__ == "DistributedDL" for cls in type(dl).__mro__) else dl


def _compiled(inner: Any, attached: Attached, fake_l: Any) -> Compiled | Refused:
    if attached.settings.executor == "stock":
        return Refused(("executor='stock' was asked for",))
    indices = getattr(fake_l.d, "_DataLoader__idxs", None)
    if isinstance(indices, Iterator) and not isinstance(indices, _ENDLESS):
        return Refused(("get_idxs gives an iterator, which could not be read again where stock has to take over",))
    return compile_loader(inner, vouched_by(attached.settings.cache))


_ENDLESS = (itertools.count, itertools.cycle, itertools.repeat)  # fastai's own indices of a loader without a length


class _Epoch:
    """One pass over one loader. Owned by the consumer's thread; `close` ends the executor."""

    def __init__(self, fake_l: Any, inner: Any, attached: Attached, stock: Stock) -> None:
        self.fake_l, self.outer, self.inner, self.stock = fake_l, fake_l.d, inner, stock
        self.attached, self.settings, self.workers = attached, attached.settings, fake_l.num_workers
        self.single = attached.only_one(fake_l)
        self.executor: Any = None
        self.fusing = ExitStack()
        self.progress = Progress(indices=getattr(self.outer, "_DataLoader__idxs", None))
        self.resume = None if self.single else attached.progress.resume
        if not self.single:  # a single batch in between leaves the place of the running epoch alone
            attached.progress = self.progress
        if self.resume is not None and self.resume.indices != self.progress.digest():
            raise StateError("the saved state goes with other items or another order; was the data set changed in between?")
        if self.resume is not None:
            inner.rng.setstate(self.resume.rng)  # only now: the indices have been drawn

    def close(self) -> None:
        """End what the epoch started."""
        self.fusing.close()
        if self.executor is not None:
            self.executor.close()

    # stock -------------------------------------------------------------------------------------------------------------

    def by_stock(self, skip: int) -> Iterator[Any]:
        """Stock's own batches; with `skip`, or after a resume, those from that batch on."""
        with stock_fed(self.inner, self.settings.cache, self.attached.say):
            yield from self._by_stock(skip)

    def _by_stock(self, skip: int) -> Iterator[Any]:
        progress = self.progress
        if self.resume is not None:
            progress.seed_state, progress.samples, skip = self.resume.seed_state, self.resume.samples, self.resume.done
        if progress.seed_state is None:
            progress.seed_state = cpu_state()
            base_seed()
        batches = self._inline(progress.samples) if self.workers == 0 else self._processes(skip, progress.seed_state)
        if self.resume is not None:
            self.resume.generators.restore()
        progress.done = skip
        for batch in batches:
            progress.done += 1
            yield batch
        progress.ended = True

    def _inline(self, samples: int) -> Iterator[Any]:
        """What stock's single-process iterator does, from the index after `samples` on."""
        for batch in Whole(self.outer, samples, self._taken):
            yield _pinned(batch) if self.fake_l.pin_memory else batch

    def _taken(self) -> None:
        self.progress.samples += 1

    def _processes(self, skip: int, seed_state: bytes) -> Iterator[Any]:
        """Stock's worker processes with the base seed of this epoch; the first `skip` batches are made and dropped."""
        self.fake_l.generator, self.fake_l.dataset = seeded(seed_state), Whole(self.outer)
        try:
            batches = iter(self.stock(self.fake_l))
        finally:
            del self.fake_l.generator
            self.fake_l.dataset = self.fake_l
        return itertools.islice(batches, skip, None)

    # plan --------------------------------------------------------------------------------------------------------------

    def by_plan(self, compiled: Compiled) -> Iterator[Any]:
        """The same batches by an executor; goes over to stock at the batch where an item turns out not to fit the Plan."""
        try:
            yield from self._planned(compiled)
        except Unplanned as why:
            self.attached.tell(str(why))
            self.attached.stays = str(why)
            self.close()
            self.executor = self.resume = self.progress.drawer = None  # what was saved has been taken up
        else:
            return
        yield from self.by_stock(self.progress.done)

    def _planned(self, compiled: Compiled) -> Iterator[Any]:
        if (reason := self.fusing.enter_context(fused.during(self.inner, self.settings))) is not None:
            self.attached.say(f"batch='fused' is left out: {reason}")
        progress, resume = self.progress, self.resume
        progress.seed_state = resume.seed_state if resume else cpu_state()
        seed = base_seed(progress.seed_state if resume else None)
        if resume is not None:
            resume.generators.restore()
            progress.done, progress.samples = resume.done, resume.samples
        compiled, sources = fed(self.inner, compiled, self.settings.cache, self.attached.say)
        drawer = progress.drawer = self._drawer(compiled, seed)
        if resume is not None and resume.words:
            drawer.forward(resume.words)
        self.executor = self._executor(compiled, sources)
        progress.counts = self.executor.counts
        watch = _Unchanged(self.inner) if self.workers == 0 else None  # stock's worker processes have a copy of their own
        finished_ones = self.executor.run(self._items(compiled), drawer)
        while True:
            if watch is not None and not watch:
                raise Unplanned("its item transforms were changed in the middle of an epoch")
            if (finished := next(finished_ones, None)) is None:
                break
            if finished.batch.carry.dropped:
                continue  # a short last batch: stock makes its items too, then drops them
            batch = self._assembled(compiled, finished)
            progress.done, progress.samples = progress.done + 1, finished.batch.carry.samples
            yield batch
        progress.ended = True

    def _drawer(self, compiled: Compiled, seed: int) -> Drawer:
        rank = getattr(self.outer, "rank", 0) if self.settings.rank_seeds and self.outer is not self.inner else 0
        workers = max(1, self.workers) if rank else self.workers
        return Drawer(compiled.plan, workers, seed + RANK_STRIDE * rank, ahead=not self.single)

    def _items(self, compiled: Compiled) -> Iterator[Batch]:
        reader, resume = _Reader(compiled, self.inner.dataset), self.resume
        used = resume.samples if resume and self.workers == 0 else 0
        done = resume.done if resume else 0
        indices = itertools.islice(self.outer.sample(), used, None)
        batches = virtual_batches(indices, self.workers, self.inner.bs, self.inner.drop_last, reader.item)
        for number, worker, items, samples, dropped in _watched(_after(batches, 0 if used else done), reader.pure):
            carry = _Carry([item.targets for item in items], used + samples, dropped)
            yield Batch(number + (done if used else 0), tuple(item.refs for item in items), carry, worker)

    def _executor(self, compiled: Compiled, sources: list[Source]) -> Any:
        found, name = executors(), self.settings.executor
        if name == "auto":
            name, why = automatic(compiled.plan, Options())
            if why:
                self.attached.say(why)
            name = "serial" if self.single and self.inner.n == 1 else name
        options = self._options(compiled, persistent=self.fake_l.persistent_workers and name != "serial")
        reason = found[name].refuses(compiled.plan, options)
        if reason is not None:
            raise Unplanned(f"executor {name} refuses: {reason}")
        if options.slack and (reason := exact_only(name)) is not None:
            self.attached.say(f"decode='scaled' is left out: {reason}")
        return found[name].open_executor(compiled.plan, sources, options)

    def _options(self, compiled: Compiled, persistent: bool) -> Options:
        settings, fake_l = self.settings, self.fake_l
        threads = settings.threads or machine.usable_cpus().count
        init = None if settings.worker_init_fn is None else partial(_init_thread, settings.worker_init_fn)
        return Options(
            threads=threads,
            ahead=0 if self.single else settings.prefetch_factor or 2,
            ram_bytes=settings.ram_bytes,
            timeout_s=fake_l.timeout,
            pin=bool(fake_l.pin_memory),
            skip_bad=settings.bad_images == "skip" and not compiled.split_idx,
            hook=settings.hook,
            init=init,
            channels_last=settings.channels_last,
            slack=settings.slack if settings.decode == "scaled" else 0,
            pool=self.attached.kept_pool(threads, init) if persistent and not self.single else None,
        )

    def _assembled(self, compiled: Compiled, finished: Finished) -> Any:
        for path, err in finished.skipped:
            self.attached.skipped[path] = f"{type(err).__name__}: {err}"
            self.attached.say(f"skipped an unreadable image: {err}")
        if not finished.kept:
            raise EmptyBatch(f"every image of batch {finished.batch.number} is unreadable; the last: {finished.skipped[-1]}")
        batch = assemble(self.inner, compiled, finished)
        return _pinned(batch) if self.fake_l.pin_memory else batch


class _Reader:
    """One item number to references of its images and values of its targets, its parts in stock's order."""

    def __init__(self, compiled: Compiled, dataset: Any) -> None:
        tls = list(dataset.tls)
        self.pure = all(pure(tl) for tl in tls)
        images = {e.position for e in compiled.plan.elements}
        self._parts = [(k in images, path_reader(tl) if k in images else label_reader(tl)) for k, tl in enumerate(tls)]

    def item(self, index: Any) -> _Item | None:
        """None where a getter asks to skip the item, as in stock."""
        from fastai.data.load import SkipItemException

        item = _Item((), [])
        try:
            for is_image, read in self._parts:
                if is_image:
                    item.refs = (*item.refs, Ref(index or 0, read(index or 0)))
                else:
                    item.targets.append(read(index or 0))
        except SkipItemException:
            _open_all(item.refs)
            return None
        return item


def _open_all(refs: Iterable[Ref]) -> None:
    """Stock has opened the images before a later part asks to skip the item: what they raise comes first."""
    for ref in refs:
        try:
            open_lazily(Record("other", None, str(ref.path))).load()
        except Exception as err:  # noqa: BLE001  Pillow raises anything; it is raised again, with its path
            raise with_path(err, ref.path) from err.__cause__


@dataclass
class _Item:
    refs: tuple[Ref, ...]
    targets: list[Any]


@dataclass
class _Carry:
    """What comes back with a finished batch: its items' targets, indices used so far, whether it is dropped."""

    targets: list[list[Any]]
    samples: int
    dropped: bool


def _after(batches: Iterator[Any], done: int) -> Iterator[Any]:
    """The batches after the first `done` that were handed over; dropped ones among those are left out too."""
    for batch in batches:
        *_, dropped = batch
        if done == 0:
            yield batch
        elif not dropped:
            done -= 1


def _watched(batches: Iterator[Any], pure: bool) -> Iterator[Any]:
    """The same batches; where a user's getter draws from a global generator, the draw is undone and Unplanned raised."""
    if pure:
        yield from batches
        return
    while True:
        before = Generators.now()
        try:
            batch = next(batches, None)
        except Unplanned:
            before.restore()  # stock makes the item once more
            raise
        if Generators.now() != before:
            before.restore()
            raise Unplanned("get_x or get_y draws random numbers")
        if batch is None:
            return
        yield batch


class _Unchanged:
    """True as long as the item transforms of a loader are those it had, with the values they had."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.before = inner, self._now(inner)

    def __bool__(self) -> bool:
        now = self._now(self.inner)
        return len(now) == len(self.before) and all(map(_same_transform, now, self.before))

    @staticmethod
    def _now(inner: Any) -> list[tuple[Any, dict[str, Any]]]:
        return [(tfm, dict(getattr(tfm, "__dict__", {}))) for tfm in inner.after_item.fs]


def _same_transform(now: tuple[Any, dict[str, Any]], before: tuple[Any, dict[str, Any]]) -> bool:
    return now[0] is before[0] and now[1].keys() == before[1].keys() and all(_same(v, before[1][k]) for k, v in now[1].items())


def _same(now: Any, before: Any) -> bool:
    if now is before:
        return True
    plain = (int, float, str, tuple)
    return type(now) is type(before) and isinstance(now, plain) and now == before


def _pinned(batch: Any) -> Any:
    """Page-locked where CUDA exists and it is not yet; else the batch itself."""
    if not torch.cuda.is_available():
        return batch
    return tuple(t.pin_memory() if isinstance(t, torch.Tensor) and not t.is_pinned() else t for t in batch)


def _init_thread(function: Callable[[int], None], number: int) -> None:
    """Run a user's worker_init_fn with the global generators put back afterwards: threads share them with the main thread."""
    with preserved():
        function(number)
