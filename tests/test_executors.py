"""Contract of every executor found in fastload.executors, with plans written by hand: no fastai here."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fastload import ops
from fastload.draws import Drawer
from fastload.executors import Batch, Options, executors
from fastload.plan import Element, Plan
from fastload.source import Files, Record, Ref

EXECUTORS = executors()
NAMES = sorted(EXECUTORS)
PLANS = {
    "none": (),
    "resize": (ops.Resize((24, 16), random=True),),
    "squish": (ops.Resize((20, 20), "squish"),),
    "pad": (ops.Resize((20, 28), "pad", random=True),),
    "crop": (ops.Flip(), ops.RandomResizedCrop((18, 18), random=True)),
    "centre": (ops.RandomResizedCrop((18, 18)),),
    "window": (ops.RandomCrop((30, 26), random=True), ops.Flip()),
    "turn": (ops.Dihedral(), ops.CropPad((40, 34), "border"), ops.Resize((16, 16))),
    "ratio": (ops.RatioResize(24),),
}


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Thirteen small pictures: JPEG in every layout, gray, progressive, PNG with and without alpha."""
    folder, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(3)
    made = []
    for k in range(13):
        shape = (33 + 5 * k, 71 - 3 * k, 3)
        smooth = np.cumsum(rng.integers(-6, 7, shape), axis=1)
        image = Image.fromarray(((smooth + rng.integers(0, 256)) % 256).astype(np.uint8))
        path = folder / f"{k:02d}.{'png' if k % 5 == 4 else 'jpg'}"
        if path.suffix == ".png":
            image.convert("RGBA" if k == 4 else "RGB").save(path)
        else:
            image.convert("L" if k == 6 else "RGB").save(path, quality=88, subsampling=k % 3, progressive=k == 7)
        made.append(str(path))
    return made


def batches(paths: list[str], bs: int = 4, elements: int = 1) -> Iterator[Batch]:
    refs = [tuple(Ref(k, p) for _ in range(elements)) for k, p in enumerate(paths)]
    return iter([Batch(n, tuple(refs[i : i + bs])) for n, i in enumerate(range(0, len(refs), bs))])


def run(name: str, plan: Plan, paths: list[str], workers: int = 2, source: Any = None, **options: Any) -> list[Any]:
    sources = [Files() if source is None else source] * len(plan.elements)
    executor = EXECUTORS[name].open_executor(plan, sources, Options(**{"threads": 3, **options}))
    try:
        random.seed(5)
        return list(executor.run(batches(paths, elements=len(sources)), Drawer(plan, workers, 99)))
    finally:
        executor.close()


def pixels(finished: list[Any]) -> list[Any]:
    return [[np.asarray(part) for part in element] for batch in finished for element in batch.images]


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", NAMES)
def test_every_executor_gives_the_serial_pixels(name: str, plan: str, mode: str, paths: list[str]) -> None:
    whole = (
        Plan((Element(0, mode), Element(1, "L", mask=True)), PLANS[plan])
        if plan != "turn"
        else Plan((Element(0, mode),), PLANS[plan])
    )
    for workers in (0, 2):
        expected, actual = run("serial", whole, paths, workers), run(name, whole, paths, workers)
        for a, b in zip(pixels(expected), pixels(actual), strict=True):
            assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_global_generator_ends_where_the_serial_executor_leaves_it(name: str, paths: list[str]) -> None:
    plan = Plan((Element(0),), PLANS["crop"])
    run("serial", plan, paths, 0)
    expected = random.getstate()
    run(name, plan, paths, 0)
    assert expected == random.getstate()


@pytest.mark.parametrize("name", NAMES)
def test_batches_come_in_order_and_hold_their_own_items(name: str, paths: list[str]) -> None:
    finished = run(name, Plan((Element(0),), PLANS["squish"]), paths, threads=4)
    assert [0, 1, 2, 3] == [f.batch.number for f in finished]
    assert [4, 4, 4, 1] == [len(f.images[0]) for f in finished]
    assert [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3], [0]] == [f.kept for f in finished]


@pytest.mark.parametrize("name", NAMES)
def test_a_slow_first_image_does_not_change_the_order(name: str, paths: list[str]) -> None:
    class Waits(Files):
        others = threading.Semaphore(0)

        def read(self, ref: Ref, window: Any = None) -> Record:
            if ref.index == 0 and name != "serial":
                self.others.acquire(timeout=5)  # until another image has been read
            self.others.release()
            return super().read(ref, window)

    finished = run(name, Plan((Element(0),), PLANS["squish"]), paths, source=Waits())
    assert [0, 1, 2, 3] == [f.batch.number for f in finished]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt, SystemExit, StopIteration, OSError])
@pytest.mark.parametrize("item", [0, 6, 12])
def test_whatever_a_source_raises_reaches_the_consumer(name: str, error: type, item: int, paths: list[str]) -> None:
    class Breaks(Files):
        def read(self, ref: Ref, window: Any = None) -> Record:
            if ref.index == item:
                raise error("on purpose")
            return super().read(ref, window)

    wanted = RuntimeError if error is StopIteration else error  # a generator may not let StopIteration out
    with pytest.raises(wanted) as caught:
        run(name, Plan((Element(0),), PLANS["crop"]), paths, source=Breaks())
    cause = caught.value.__cause__ if error is StopIteration else caught.value
    assert "on purpose" in str(cause)
    assert Path(paths[item]).name in str(cause)


@pytest.mark.parametrize("name", NAMES)
def test_unreadable_images_are_left_out_and_named_where_that_is_asked(name: str, paths: list[str], tmp_path: Path) -> None:
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(Path(paths[0]).read_bytes()[:400])
    finished = run(name, Plan((Element(0),), PLANS["crop"]), [*paths[:5], str(bad), *paths[5:7]], skip_bad=True)
    assert [[0, 1, 2, 3], [0, 2, 3]] == [f.kept for f in finished]
    assert [4, 3] == [len(f.images[0]) for f in finished]
    assert [str(bad)] == [path for path, _ in finished[1].skipped]


@pytest.mark.parametrize("name", NAMES)
def test_leaving_early_and_closing_twice_leaves_no_thread(name: str, paths: list[str]) -> None:
    before = set(threading.enumerate())
    plan = Plan((Element(0),), PLANS["crop"])
    executor = EXECUTORS[name].open_executor(plan, [Files()], Options(threads=3))
    running = executor.run(batches(paths, 2), Drawer(plan, 1, 7))
    next(running)
    running.close()
    executor.close()
    executor.close()
    assert before == set(threading.enumerate())


@pytest.mark.parametrize("name", NAMES)
def test_an_executor_can_run_again_and_start_at_a_later_batch(name: str, paths: list[str]) -> None:
    plan = Plan((Element(0),), PLANS["squish"])
    executor = EXECUTORS[name].open_executor(plan, [Files()], Options(threads=2))
    whole = list(executor.run(batches(paths), Drawer(plan, 2, 7)))
    later = list(executor.run(iter(list(batches(paths))[2:]), Drawer(plan, 2, 7)))
    executor.close()
    assert [2, 3] == [f.batch.number for f in later]
    assert all(torch.equal(a.images[0], b.images[0]) for a, b in zip(whole[2:], later, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_every_image_is_counted_and_told_to_the_hook(name: str, paths: list[str]) -> None:
    events: list[tuple[str, int, str, int, int]] = []
    plan = Plan((Element(0),), PLANS["crop"])
    executor = EXECUTORS[name].open_executor(plan, [Files()], Options(threads=2, hook=lambda *e: events.append(e)))
    list(executor.run(batches(paths), Drawer(plan, 2, 7)))
    executor.close()
    counts = executor.counts()
    assert len(paths) == counts["read"][0]
    assert {s: n for s, (n, _) in counts.items()} == {s: sum(e[0] == s for e in events) for s in counts}
    assert set(range(len(paths))) == {item for stage, item, *_ in events if stage == "read"}
    assert all(start <= end for *_, start, end in events)


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_number_of_sources_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="1 images per item, but 2 sources"):
        EXECUTORS[name].open_executor(Plan((Element(0),)), [Files(), Files()], Options())


@pytest.mark.parametrize("name", NAMES)
def test_a_later_batch_never_writes_into_an_earlier_one(name: str, paths: list[str]) -> None:
    plan = Plan((Element(0),), PLANS["crop"])
    executor = EXECUTORS[name].open_executor(plan, [Files()], Options(threads=3, ahead=3))
    kept, copies = [], []
    for finished in executor.run(batches(paths, 2), Drawer(plan, 2, 7)):
        kept.append(finished.images[0])
        copies.append(finished.images[0].clone())
    executor.close()
    assert all(torch.equal(a, b) for a, b in zip(copies, kept, strict=True))
