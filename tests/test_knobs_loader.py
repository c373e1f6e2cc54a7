"""Keywords as a whole loader obeys them: what runs ahead, which threads live how long, what a consumer may do to a batch."""

from __future__ import annotations

import gc
import itertools
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fastai.vision import all as fv
from pictures import Pictures
from sidebyside import SERIAL, THREE_THREADS, assert_same_run, built, fast_run, stock_run, watch

import fastload
from fastload.errors import LoaderTimeout
from fastload.source import Files, Record, Ref
from fastload.testing import assert_same_batch


class Asked:
    """A label function that keeps which files it was asked for."""

    def __init__(self) -> None:
        self.files: list[Path] = []

    def __call__(self, file: Path) -> float:
        self.files.append(file)
        return float(file.stem[-2:])


def loader(p: Pictures, label: Any = None, workers: int = 2, **kw: Any) -> Any:
    """Sixteen items in order, in batches of two."""
    dblock = fv.DataBlock(
        (fv.ImageBlock, fv.RegressionBlock),
        get_y=label or Asked(),
        splitter=fv.IndexSplitter([16]),
        item_tfms=[fv.RandomResizedCrop(24), fv.FlipItem()],
    )
    options = {"bs": 2, "num_workers": workers, "device": "cpu", "shuffle": False} | kw
    return dblock.dataloaders(p.files, **options).train


def ours() -> set[threading.Thread]:
    return {t for t in threading.enumerate() if t.name.startswith("fastload")}


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = ours()
    yield
    gc.collect()
    assert set() == ours() - before


# Ahead.


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("ahead", [1, 3])
def test_prefetch_factor_is_how_many_batches_are_ahead(pictures: Pictures, ahead: int, workers: int) -> None:
    asked = Asked()
    dl = fastload.accelerate(built(lambda: loader(pictures, asked, workers)), prefetch_factor=ahead)
    asked.files.clear()
    begun = [len(asked.files) // 2 for _ in dl]
    assert [min(8, k + 1 + ahead) for k in range(8)] == begun


def test_the_serial_executor_is_never_ahead(pictures: Pictures) -> None:
    asked = Asked()
    dl = fastload.accelerate(built(lambda: loader(pictures, asked)), **SERIAL, prefetch_factor=5)
    asked.files.clear()
    assert list(range(1, 9)) == [len(asked.files) // 2 for _ in dl]


def test_ram_bytes_bounds_what_is_ahead(pictures: Pictures) -> None:
    asked = Asked()
    dl = fastload.accelerate(built(lambda: loader(pictures, asked)), prefetch_factor=8, ram_bytes=1)
    asked.files.clear()
    assert list(range(1, 9)) == [len(asked.files) // 2 for _ in dl]


def test_user_functions_run_on_the_consumers_thread(pictures: Pictures) -> None:
    names: set[str] = set()
    label = lambda f: names.add(threading.current_thread().name) or 1.0  # noqa: E731
    list(fastload.accelerate(built(lambda: loader(pictures, label)), threads=3))
    assert {threading.current_thread().name} == names


# Batches belong to the consumer.


@pytest.mark.parametrize("way", [SERIAL, THREE_THREADS], ids=["serial", "threads"])
def test_a_consumer_may_write_into_its_batch_and_keep_it(pictures: Pictures, way: Any) -> None:
    make = lambda: loader(pictures)  # noqa: E731
    plain = watch(fastload.accelerate(built(make), **way), epochs=1)
    dl = fastload.accelerate(built(make), **way)

    def writing(dl: Any) -> Iterator[Any]:
        for x, y in dl:
            kept = (x.clone(), y.clone())
            x.zero_(), y.fill_(-1)
            written.append((x, y))
            yield kept

    written: list[Any] = []
    assert_same_run(plain, watch(dl, epochs=1, visit=writing))
    assert all(not x.any() and (y == -1).all() for x, y in written)


def test_uint8_batches_before_any_batch_transform_are_the_consumers_too(pictures: Pictures) -> None:
    make = lambda: loader(pictures)  # noqa: E731
    dl = fastload.accelerate(built(make), threads=3)
    dl.after_batch = fv.Pipeline([])
    kept = [(b, tuple(part.clone() for part in b)) for b in itertools.chain(dl, dl)]
    assert torch.uint8 == kept[0][0][0].dtype
    for now, then in kept:
        for a, b in zip(now, then, strict=True):
            assert torch.equal(a, b)
    assert len(kept) == len({now[0].data_ptr() for now, _ in kept})


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true")
@pytest.mark.parametrize("workers", [0, 2])
def test_pin_memory_without_a_gpu_gives_the_same_batches(pictures: Pictures, workers: int) -> None:
    make = lambda: fv.DataLoaders(loader(pictures, workers=workers, pin_memory=True))  # noqa: E731
    expected = stock_run(make, epochs=1)
    for way in (SERIAL, THREE_THREADS):
        assert_same_run(expected, fast_run(make, way=way, epochs=1))


# Threads.


def test_a_dropped_iterator_leaves_no_thread(pictures: Pictures) -> None:
    dl = fastload.accelerate(built(lambda: loader(pictures)), threads=3)
    half = iter(dl)
    next(half)
    assert 3 == len(ours())
    del half
    gc.collect()
    assert set() == ours()


def test_a_dropped_loader_with_a_running_iterator_leaves_no_thread(pictures: Pictures) -> None:
    dl = fastload.accelerate(built(lambda: loader(pictures, persistent_workers=True)), threads=2)
    half = iter(dl)
    next(half)
    del dl, half
    gc.collect()
    assert set() == ours()


def test_an_error_of_a_batch_transform_leaves_no_thread(pictures: Pictures) -> None:
    dl = fastload.accelerate(built(lambda: loader(pictures)), threads=2)
    dl.after_batch.add(fv.Transform(lambda x: 1 // 0))
    with pytest.raises(ZeroDivisionError):
        list(dl)
    gc.collect()
    assert set() == ours()


def test_persistent_threads_outlive_a_break_and_serve_nested_epochs(pictures: Pictures) -> None:
    make = lambda: loader(pictures, persistent_workers=True)  # noqa: E731

    def visit(dl: Any) -> Iterator[Any]:
        yield from itertools.islice(dl, 2)
        for k, batch in enumerate(dl):
            yield batch
            if k == 2:
                yield from dl

    expected = watch(fastload.accelerate(built(make), **SERIAL), visit=visit)
    dl = fastload.accelerate(built(make), threads=2)
    assert_same_run(expected, watch(dl, visit=visit))
    assert 2 == len(ours())


@pytest.mark.parametrize("persistent", [False, True])
def test_worker_init_fn_runs_once_per_thread_that_is_started(pictures: Pictures, persistent: bool) -> None:
    numbers: list[int] = []
    make = lambda: loader(pictures, persistent_workers=persistent)  # noqa: E731
    dl = fastload.accelerate(built(make), threads=3, worker_init_fn=numbers.append)
    list(dl), list(dl)
    assert Counter(dict.fromkeys(range(3), 1 if persistent else 2)) == Counter(numbers)


def test_an_error_in_worker_init_fn_is_raised_with_persistent_threads_too(pictures: Pictures) -> None:
    def init(number: int) -> None:
        raise LookupError(f"thread {number}")

    dl = fastload.accelerate(built(lambda: loader(pictures, persistent_workers=True)), threads=2, worker_init_fn=init)
    with pytest.raises(LookupError, match="thread"):
        list(dl)


@pytest.mark.parametrize("persistent", [False, True])
def test_a_loader_goes_on_after_a_timeout(pictures: Pictures, persistent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    free, read = threading.Event(), Files.read

    def hanging(self: Files, ref: Ref, window: Any = None) -> Record:
        free.wait(60)
        return read(self, ref, window)

    make = lambda: loader(pictures, timeout=0.3, persistent_workers=persistent)  # noqa: E731
    dl, before = fastload.accelerate(built(make), threads=2), ours()
    with monkeypatch.context() as patch:
        patch.setattr(Files, "read", hanging)
        with pytest.raises(LoaderTimeout, match="batch 0 was not ready within timeout=0.3 s; raise timeout"):
            next(iter(dl))
    free.set()
    for thread in ours() - before:
        thread.join(30)
    dl.timeout = dl.fake_l.timeout = 60
    assert 8 == len(list(dl))


# Bad images.


def test_skipped_images_shrink_training_batches_only(pictures: Pictures, tmp_path: Path) -> None:
    files = [tmp_path / f.name for f in pictures.files]
    for source, file in zip(pictures.files, files, strict=True):
        file.write_bytes(source.read_bytes() if file.stem != files[3].stem else b"damaged")
    for way in (SERIAL, THREE_THREADS):
        dl = fastload.accelerate(built(lambda: _of(files)), **way, bad_images="skip")
        batches = watch(dl, epochs=1).batches[0]
        assert [2, 1, 2, 2, 2, 2, 2, 2] == [len(x) for x, _ in batches]
        whole = watch(fastload.accelerate(built(lambda: _of(pictures.files)), **way), epochs=1).batches[0]
        assert_same_batch(whole[0], batches[0])
        assert [str(files[3])] == list(dl._fl.skipped)


def _of(files: list[Path]) -> Any:
    dblock = fv.DataBlock(
        (fv.ImageBlock, fv.RegressionBlock),
        get_y=lambda f: float(f.stem[-2:]),
        splitter=fv.IndexSplitter([16]),
        item_tfms=fv.Resize(24),
    )
    return dblock.dataloaders(files, bs=2, num_workers=2, device="cpu", shuffle=False).train
