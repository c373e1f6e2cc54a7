"""What every executor promises, with Plans and Sources made by hand; serial.py is the truth the others are compared with."""

from __future__ import annotations

import io
import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from pictures import SIZES, pixels
from PIL import Image

from fastload import ops
from fastload.draws import Drawer
from fastload.errors import LoaderTimeout
from fastload.executors import Batch, Executor, Finished, Options, executors
from fastload.pixels import apply, decode, load, steps
from fastload.plan import Element, Plan
from fastload.source import Record, Ref

PAIR = (Element(0), Element(1, "L", mask=True))
PLANS = {
    "resize": Plan((Element(0),), (ops.Resize((24, 20), random=True),)),
    "pad": Plan((Element(0),), (ops.Resize((24, 20), "pad", "border", random=True), ops.Flip())),
    "squish": Plan((Element(0),), (ops.Resize((24, 24), "squish"),)),
    "resized_crop": Plan((Element(0),), (ops.Flip(0.5), ops.RandomResizedCrop((24, 24), random=True))),
    "valid_resized_crop": Plan((Element(0),), (ops.RandomResizedCrop((24, 24)),)),
    "random_crop": Plan((Element(0, "L"),), (ops.RandomCrop((30, 26), random=True),)),
    "crop_pad": Plan((Element(0),), (ops.CropPad((40, 25), "reflection"), ops.Dihedral(0.5), ops.Resize((16, 16)))),
    "flip_only": Plan((Element(0),), (ops.Flip(),)),
    "ratio": Plan((Element(0),), (ops.RatioResize(30), ops.RandomCrop((20, 20), random=True))),
    "not_applied": Plan((Element(0),), (ops.Flip(applies=False), ops.Resize((24, 24)))),
    "nothing": Plan((Element(0),), ()),
    "masked": Plan(PAIR, (ops.RandomResizedCrop((24, 24), random=True), ops.Flip())),
    "masked_without_size": Plan(PAIR, (ops.Flip(),)),
}
COUNT, BS = 22, 4


class Memory:
    """A Source of noise images held as encoded bytes; `log` names every read; `faults` are raised for an item number."""

    windows = False

    def __init__(self, mask: bool = False, faults: dict[int, Exception] | None = None, knows_sizes: bool = False) -> None:
        self.faults, self.knows_sizes, self.lock = faults or {}, knows_sizes, threading.Lock()
        self.log: list[int] = []
        rng = np.random.default_rng(int(mask))
        self.sizes = [SIZES[k % len(SIZES)] for k in range(COUNT)]
        self.data = [_encoded(size, rng, mask, k) for k, size in enumerate(self.sizes)]

    def __len__(self) -> int:
        return COUNT

    def read(self, ref: Ref, window: Any = None) -> Record:
        with self.lock:
            self.log.append(ref.index)
        if ref.index in self.faults:
            raise self.faults[ref.index]
        png = self.data[ref.index][:4] == b"\x89PNG"
        return Record("png" if png else "jpeg", self.data[ref.index], f"item-{ref.index}")

    def size(self, ref: Ref) -> Any:
        return self.sizes[ref.index] if self.knows_sizes else None

    def files(self, refs: Any) -> None:
        return None

    def places(self, refs: Any) -> None:
        return None

    def ahead(self, places: Any) -> None:
        pass

    def pixels(self, place: Any, window: Any) -> None:
        return None

    def fingerprint(self) -> str:
        return ""


def _encoded(size: tuple[int, int], rng: np.random.Generator, mask: bool, k: int) -> bytes:
    array = rng.integers(0, 4, size[::-1], dtype=np.uint8) if mask else pixels(size, rng, gray=k % 7 == 3)
    file = io.BytesIO()
    Image.fromarray(array).save(file, "PNG" if mask or k % 3 == 1 else "JPEG")
    return file.getvalue()


class Stuck(Memory):
    """A Source whose read of one item comes back only once `free` is set, unless the main thread reads."""

    def __init__(self, item: int) -> None:
        super().__init__()
        self.item, self.free = item, threading.Event()

    def read(self, ref: Ref, window: Any = None) -> Record:
        if ref.index == self.item and threading.current_thread() is not threading.main_thread():
            self.free.wait(60)
        return super().read(ref, window)


class Counted:
    """Batches without end that count how many were asked for."""

    def __init__(self, plan: Plan) -> None:
        self.taken, self._batches = 0, batches(plan, count=400)

    def __iter__(self) -> Counted:
        return self

    def __next__(self) -> Batch:
        self.taken += 1
        return next(self._batches)


def sources(plan: Plan, **how: Any) -> list[Memory]:
    return [Memory(e.mask, **how) for e in plan.elements]


def batches(plan: Plan, start: int = 0, count: int = COUNT) -> Iterator[Batch]:
    """Batches of `BS` items in an order that is not theirs, from batch `start` on."""
    order = [(7 * k) % COUNT for k in range(count)]
    for number in range(start, -(-count // BS)):
        items = order[BS * number : BS * (number + 1)]
        yield Batch(number, tuple(tuple(Ref(k) for _ in plan.elements) for k in items), carry=f"carry {number}")


def opened(module: ModuleType, plan: Plan, given: list[Any] | None = None, **options: Any) -> Executor:
    """An executor of `module`, or a skipped test where it refuses."""
    chosen = Options(**({"threads": 3} | options))
    reason = module.refuses(plan, chosen)
    if reason is not None:
        pytest.skip(reason)
    return module.open_executor(plan, sources(plan) if given is None else given, chosen)


def run(executor: Executor, plan: Plan, workers: int = 2, **how: Any) -> Iterator[Finished]:
    random.seed(5)
    return executor.run(batches(plan, **how), Drawer(plan, workers, 11))


def serial(plan: Plan, given: list[Any] | None = None) -> Executor:
    return executors()["serial"].open_executor(plan, sources(plan) if given is None else given, Options())


def truth(plan: Plan, workers: int = 2) -> list[Finished]:
    return list(run(serial(plan), plan, workers))


def arrays(finished: Finished) -> list[list[np.ndarray]]:
    """Per element the images of a batch as arrays."""
    return [[np.asarray(row) for row in part] for part in finished.images]


def assert_equal(expected: list[Finished], actual: list[Finished]) -> None:
    assert [f.batch.number for f in expected] == [f.batch.number for f in actual]
    for wanted, found in zip(expected, actual, strict=True):
        assert (wanted.batch, wanted.batch.carry) == (found.batch, found.batch.carry)
        assert (wanted.kept, wanted.drawn, wanted.sizes) == (found.kept, found.drawn, found.sizes)
        for a, b in zip(arrays(wanted), arrays(found), strict=True):
            assert [(x.shape, x.tobytes()) for x in a] == [(x.shape, x.tobytes()) for x in b]


@pytest.fixture(params=sorted(executors()))
def module(request: pytest.FixtureRequest) -> ModuleType:
    """Every executor there is."""
    return executors()[request.param]


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert [] == [t.name for t in threading.enumerate() if t.name.startswith("fastload") and t not in before]


# Pixels, order, draws.


@pytest.mark.parametrize("workers", [0, 3])
@pytest.mark.parametrize("name", PLANS)
def test_batches_are_those_of_the_serial_executor(module: ModuleType, name: str, workers: int) -> None:
    plan = PLANS[name]
    expected, after = truth(plan, workers), random.getstate()
    assert_equal(expected, list(run(opened(module, plan), plan, workers)))
    assert after == random.getstate()


@pytest.mark.parametrize("name", PLANS)
def test_a_source_that_knows_sizes_changes_nothing(module: ModuleType, name: str) -> None:
    plan = PLANS[name]
    given = sources(plan, knows_sizes=True)
    assert_equal(truth(plan), list(run(opened(module, plan, given), plan)))


def test_pixels_are_pillows_own_steps(module: ModuleType) -> None:
    plan = PLANS["masked"]
    given = sources(plan)
    for finished in run(opened(module, plan, given), plan):
        refs = [finished.batch.refs[k] for k in finished.kept]
        for row, (pair, drawn, size) in enumerate(zip(refs, finished.drawn, finished.sizes, strict=True)):
            for k, part in enumerate(plan.elements):
                image = load(given[k].read(pair[k]), part.mode)
                made = decode(apply(image, steps(plan, part, drawn, size[k], size[0])), part)
                assert np.ascontiguousarray(made).tobytes() == np.asarray(finished.images[k][row]).tobytes()


def test_whole_batches_are_contiguous_uint8_tensors(module: ModuleType) -> None:
    plan = PLANS["masked"]
    image, mask = next(run(opened(module, plan), plan)).images
    assert [(BS, 3, 24, 24), (BS, 24, 24)] == [tuple(image.shape), tuple(mask.shape)]
    assert [torch.uint8, torch.uint8] == [image.dtype, mask.dtype]
    assert image.is_contiguous() and mask.is_contiguous()


@pytest.mark.parametrize("threads", [1, 2, 8])
@pytest.mark.parametrize("ahead", [0, 1, 5])
def test_order_is_kept_with_any_number_of_threads_and_batches_ahead(module: ModuleType, threads: int, ahead: int) -> None:
    plan = PLANS["resized_crop"]
    assert_equal(truth(plan), list(run(opened(module, plan, threads=threads, ahead=ahead), plan)))


@pytest.mark.parametrize("name", ["resized_crop", "resize"])
def test_numbers_drawn_by_the_consumer_between_batches_are_respected(module: ModuleType, name: str) -> None:
    plan = PLANS[name]

    def consume(executor: Executor) -> list[Finished]:
        out = []
        for finished in run(executor, plan, workers=0):
            out.append(finished)
            if finished.batch.number % 2:
                random.random()
        return out

    expected, after = consume(serial(plan)), random.getstate()
    assert_equal(expected, consume(opened(module, plan)))
    assert after == random.getstate()


def test_a_batch_may_name_the_worker_that_draws_it(module: ModuleType) -> None:
    plan = PLANS["resize"]
    turns = (2, 2, 0, 1, 2)
    given = (replace(b, worker=w) for b, w in zip(batches(plan), turns, strict=False))
    drawer = Drawer(plan, 3, 1)
    expected = [drawer.draw(k, [None] * BS, w) for k, w in enumerate(turns)]
    assert expected == [f.drawn for f in opened(module, plan).run(given, Drawer(plan, 3, 1))]


def test_a_run_may_start_at_a_later_batch(module: ModuleType) -> None:
    plan = PLANS["resized_crop"]
    before, after = Drawer(plan, 2, 11), Drawer(plan, 2, 11)
    list(itertools.islice(serial(plan).run(batches(plan), before), 3))
    after.forward(before.words())
    assert_equal(truth(plan)[3:], list(opened(module, plan).run(batches(plan, start=3), after)))


def test_an_executor_may_run_again(module: ModuleType) -> None:
    plan = PLANS["resized_crop"]
    executor = opened(module, plan)
    for _ in range(3):
        assert_equal(truth(plan), list(run(executor, plan)))


def test_no_batches_give_no_batches(module: ModuleType) -> None:
    plan = PLANS["resize"]
    assert [] == list(run(opened(module, plan), plan, count=0))


def test_a_batch_of_no_samples_comes_back_empty(module: ModuleType) -> None:
    plan = PLANS["resize"]
    (finished,) = opened(module, plan).run(iter([Batch(0, ())]), Drawer(plan, 2, 1))
    assert ([], [], (0, 3, 20, 24)) == (finished.kept, finished.drawn, tuple(finished.images[0].shape))


def test_batches_are_never_overwritten_later(module: ModuleType) -> None:
    plan = PLANS["resize"]
    kept = [(f.images[0], f.images[0].clone()) for f in run(opened(module, plan), plan)]
    assert all(torch.equal(now, then) for now, then in kept)
    assert len(kept) == len({now.data_ptr() for now, _ in kept})


# Faults.


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", ["resize", "resized_crop"])
def test_a_fault_is_raised_at_its_batch_and_earlier_batches_are_whole(module: ModuleType, name: str, workers: int) -> None:
    plan = PLANS[name]
    bad = next(itertools.islice(batches(plan), 3, None)).refs[2][0].index

    def broken(open_one: Any) -> list[Finished]:
        got = []
        with pytest.raises(PermissionError, match=f"not yours.*item {bad}"):
            for finished in run(open_one(sources(plan, faults={bad: PermissionError("not yours")})), plan, workers):
                got.append(finished)
        return got

    assert_equal(truth(plan, workers)[:3], broken(lambda given: opened(module, plan, given)))
    after = random.getstate()
    broken(lambda given: serial(plan, given))
    assert random.getstate() == after


def test_an_undecodable_image_is_named(module: ModuleType) -> None:
    plan = PLANS["resize"]
    given = sources(plan)
    given[0].data[0] = given[0].data[0][:100]
    with pytest.raises(OSError, match="item-0"):
        list(run(opened(module, plan, given), plan))


def test_a_second_image_that_fails_is_named(module: ModuleType) -> None:
    plan = PLANS["masked"]
    given = sources(plan)
    given[1].faults = {7: OSError("no mask")}
    with pytest.raises(OSError, match="no mask.*item 7"):
        list(run(opened(module, plan, given), plan))


def test_a_fault_of_the_batches_is_raised_after_the_batches_before_it(module: ModuleType) -> None:
    plan = PLANS["resize"]

    def breaking() -> Iterator[Batch]:
        yield from itertools.islice(batches(plan), 3)
        raise KeyError("sampler")

    got = []
    with pytest.raises(KeyError, match="sampler"):
        for finished in opened(module, plan).run(breaking(), Drawer(plan, 2, 11)):
            got.append(finished)
    assert_equal(truth(plan)[:3], got)


@pytest.mark.parametrize("name", ["resize", "resized_crop", "flip_only", "masked"])
def test_skipped_images_are_left_out_and_listed(module: ModuleType, name: str) -> None:
    plan = PLANS[name]
    given = sources(plan, faults={7: OSError("gone"), 0: OSError("gone")})
    found = list(run(opened(module, plan, given, skip_bad=True), plan))
    assert [[2, 3], [0, 1, 2, 3]] == [f.kept for f in found[:2]]
    assert ["item 0", "item 7"] == [path for path, _ in found[0].skipped]
    assert [2, 2, 2] == [len(found[0].images[0]), len(found[0].drawn), len(found[0].sizes)]
    assert [] == found[1].skipped


def test_a_batch_of_unreadable_images_alone_comes_back_empty(module: ModuleType) -> None:
    plan = PLANS["resized_crop"]
    given = sources(plan, faults={k: OSError("gone") for k in range(COUNT)})
    first = next(run(opened(module, plan, given, skip_bad=True), plan))
    assert ([], 4) == (first.kept, len(first.skipped))


@pytest.mark.parametrize("name", ["resize", "resized_crop"])
def test_a_read_that_hangs_in_a_thread_ends_in_a_timeout(module: ModuleType, name: str) -> None:
    plan = PLANS[name]
    stuck = Stuck(next(itertools.islice(batches(plan), 2, None)).refs[1][0].index)
    executor, got, began = opened(module, plan, [stuck], timeout_s=0.5), [], time.monotonic()
    try:
        for finished in run(executor, plan):
            got.append(finished.batch.number)
    except LoaderTimeout as err:
        assert [0, 1] == got
        assert "batch 2 was not ready within timeout=0.5 s" in str(err)
    else:
        assert list(range(6)) == got  # the consumer itself read the item, so nothing hung
    assert time.monotonic() - began < 30
    threads = [t for t in threading.enumerate() if t.name.startswith("fastload")]
    stuck.free.set()
    for thread in threads:
        thread.join()


# Bounds, early stop, close.


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_no_more_batches_are_begun_than_may_wait(module: ModuleType, ahead: int) -> None:
    plan = PLANS["resized_crop"]
    counted = Counted(plan)
    for finished in opened(module, plan, ahead=ahead).run(counted, Drawer(plan, 2, 11)):
        assert counted.taken <= finished.batch.number + 1 + ahead
        if finished.batch.number == 9:
            break


def test_no_more_memory_is_begun_than_the_bound(module: ModuleType) -> None:
    plan = PLANS["resized_crop"]
    counted = Counted(plan)
    for finished in opened(module, plan, ahead=50, ram_bytes=2 * BS * 3 * 24 * 24).run(counted, Drawer(plan, 2, 11)):
        assert counted.taken <= finished.batch.number + 2
        if finished.batch.number == 9:
            break


@pytest.mark.parametrize("taken", [0, 1, 3])
def test_a_run_may_be_left_at_any_point(module: ModuleType, taken: int) -> None:
    plan = PLANS["resized_crop"]
    executor = opened(module, plan)
    left = run(executor, plan, count=400)
    list(itertools.islice(left, taken))
    left.close()
    executor.close()


def test_an_error_of_the_consumer_ends_the_run(module: ModuleType) -> None:
    plan = PLANS["resized_crop"]
    with pytest.raises(ZeroDivisionError):
        for finished in run(opened(module, plan), plan, count=400):
            1 // finished.batch.number


def test_close_twice_is_harmless_and_before_a_run_too(module: ModuleType) -> None:
    plan = PLANS["resize"]
    opened(module, plan).close()
    executor = opened(module, plan)
    list(run(executor, plan))
    executor.close()
    executor.close()


def test_a_wrong_number_of_sources_is_an_error(module: ModuleType) -> None:
    with pytest.raises(ValueError, match="1 images per item, but 2 sources"):
        opened(module, PLANS["resize"], sources(PLANS["masked"]))


def test_an_executor_says_its_name_and_refuses_with_one_sentence_or_none(module: ModuleType) -> None:
    reason = module.refuses(PLANS["resize"], Options())
    assert module.__name__.rpartition(".")[2] == module.NAME
    assert reason is None or (isinstance(reason, str) and reason.strip())


# Counts, hook, threads.


def test_counts_are_one_per_image_and_stage(module: ModuleType) -> None:
    plan = PLANS["masked"]
    executor = opened(module, plan)
    assert {} == executor.counts()
    list(run(executor, plan))
    counts = executor.counts()
    done = {stage: n for stage, (n, _) in counts.items()}
    one_pass = done.pop("native", 0)  # instead of decode and transform
    assert {"read": 2 * COUNT, "decode": 2 * COUNT - one_pass, "transform": 2 * COUNT - one_pass} == done
    assert all(ns >= 0 for _, ns in counts.values())


@pytest.mark.parametrize("name", ["resize", "resized_crop", "flip_only"])
def test_each_image_is_read_once(module: ModuleType, name: str) -> None:
    given = sources(PLANS[name])
    list(run(opened(module, PLANS[name], given), PLANS[name], workers=0))
    assert list(range(COUNT)) == sorted(given[0].log)


def test_the_hook_hears_every_stage_of_every_image(module: ModuleType) -> None:
    events: list[tuple[Any, ...]] = []
    plan = PLANS["resized_crop"]
    executor = opened(module, plan, hook=lambda *event: events.append(event))
    list(run(executor, plan))
    stages = {stage: n for stage, (n, _) in executor.counts().items()}
    assert stages == Counter(stage for stage, *_ in events)
    heard = {k: {stage for stage, item, *_ in events if item == k} for k in range(COUNT)}
    assert all(each in ({"read", "native"}, {"read", "decode", "transform"}) for each in heard.values())
    assert all(start <= end for *_, start, end in events)
    assert {str} == {type(thread) for _, _, thread, _, _ in events}


def test_init_runs_once_on_each_thread_before_the_first_batch(module: ModuleType) -> None:
    seen: list[tuple[int, str]] = []

    def init(number: int) -> None:
        if number:
            threading.Event().wait(0.2)  # the other thread could make the first batch meanwhile
        seen.append((number, threading.current_thread().name))

    plan = PLANS["resize"]
    left = run(opened(module, plan, init=init), plan)
    next(left)
    after_first = sorted(seen)
    list(left)
    assert after_first == sorted(seen)
    assert list(range(len(seen))) == sorted(k for k, _ in seen)
    assert len(seen) == len({name for _, name in seen})


def test_an_init_that_fails_is_raised_to_the_consumer(module: ModuleType) -> None:
    def init(number: int) -> None:
        raise LookupError(f"thread {number}")

    plan = PLANS["resize"]
    with pytest.raises(LookupError, match="thread"):
        list(run(opened(module, plan, init=init), plan))
