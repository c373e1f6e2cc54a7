"""Keywords do what they say: speed and bounds never change a batch."""

from __future__ import annotations

import gc
import random
import threading
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from pictures import Pictures

import fastload
from fastload.draws import Drawer
from fastload.errors import LoaderTimeout, SettingsError
from fastload.executors import Batch, Options
from fastload.executors.threads import Threads
from fastload.ops import Resize
from fastload.plan import Element, Plan
from fastload.source import Files, Record, Ref
from fastload.testing import assert_same_batches


def loaders(pictures: Pictures, swap: bool = True, seed: int = 4, **kw: Any) -> Any:
    from fastai.vision.all import ImageDataLoaders as Stock
    from fastai.vision.all import RandomResizedCrop, get_image_files, set_seed

    from fastload.vision import ImageDataLoaders as Fast

    set_seed(seed)
    files = sorted(get_image_files(pictures.images))
    options = {"item_tfms": RandomResizedCrop(16), "bs": 3, "num_workers": 2, "device": torch.device("cpu"), **kw}
    labels = [f.parent.name for f in files]
    return (Fast if swap else Stock).from_lists(pictures.path, files, labels, valid_pct=0.3, seed=1, **options)


def epoch(dls: Any) -> list[Any]:
    from fastai.vision.all import set_seed

    set_seed(9)
    dls.train.rng.seed(9)
    return [tuple(part.clone() for part in batch) for batch in dls.train]


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("kw", [{}, {"prefetch_factor": 1}, {"prefetch_factor": 9}, {"ram_bytes": 1}, {"pin_memory": True}])
def test_speed_keywords_never_change_a_batch(pictures: Pictures, threads: int, kw: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that pinned memory needs a GPU
        expected = epoch(loaders(pictures, swap=False))
        assert len(expected) == assert_same_batches(expected, epoch(loaders(pictures, threads=threads, **kw)))


@pytest.mark.parametrize("ahead", [1, 3])
def test_no_more_batches_are_read_than_may_wait(pictures: Pictures, ahead: int) -> None:
    seen: list[int] = []

    class Recording(Files):
        def read(self, ref: Ref, window: Any = None) -> Record:
            seen.append(ref.index)
            return super().read(ref, window)

    path = str(pictures.files[0])
    batches = iter([Batch(n, ((Ref(n, path),),)) for n in range(12)])
    plan = Plan((Element(0),), (Resize((8, 8), "squish"),))
    executor = Threads(plan, [Recording()], Options(threads=2, ahead=ahead))
    running = executor.run(batches, Drawer(plan, 1, 0))
    for number in range(4):
        next(running)
        assert max(seen) <= number + ahead
    running.close()


def test_a_byte_bound_of_nothing_still_gives_every_batch_one_at_a_time(pictures: Pictures) -> None:
    seen: list[int] = []

    class Recording(Files):
        def read(self, ref: Ref, window: Any = None) -> Record:
            seen.append(ref.index)
            return super().read(ref, window)

    path = str(pictures.files[0])
    batches = iter([Batch(n, ((Ref(n, path),),)) for n in range(5)])
    plan = Plan((Element(0),), (Resize((8, 8), "squish"),))
    running = Threads(plan, [Recording()], Options(threads=2, ahead=4, ram_bytes=1)).run(batches, Drawer(plan, 1, 0))
    for number, _ in enumerate(running):
        assert max(seen) == number


def test_persistent_workers_keep_their_threads_and_end_with_the_loader(pictures: Pictures) -> None:
    before = set(threading.enumerate())
    dls = loaders(pictures, persistent_workers=True, threads=2)
    epoch(dls)
    first = set(threading.enumerate()) - before
    epoch(dls)
    assert first == set(threading.enumerate()) - before
    assert 2 == len(first)
    del dls
    gc.collect()
    assert before == set(threading.enumerate())


def test_without_it_no_thread_outlives_the_epoch(pictures: Pictures) -> None:
    before = set(threading.enumerate())
    dls = loaders(pictures)
    epoch(dls)
    assert before == set(threading.enumerate())
    for _ in dls.train:
        break
    assert before == set(threading.enumerate())
    with pytest.raises(ZeroDivisionError):
        for _ in dls.train:
            raise ZeroDivisionError
    gc.collect()
    assert before == set(threading.enumerate())


def test_a_batch_that_is_late_raises_instead_of_hanging(pictures: Pictures) -> None:
    held = threading.Event()

    class Stuck(Files):
        def read(self, ref: Ref, window: Any = None) -> Record:
            held.wait(20)
            return super().read(ref, window)

    plan = Plan((Element(0),), (Resize((8, 8), "squish"),))
    running = Threads(plan, [Stuck()], Options(threads=1, timeout_s=0.2)).run(
        iter([Batch(0, ((Ref(0, str(pictures.files[0])),),))]), Drawer(plan, 1, 0)
    )
    releaser = threading.Timer(0.6, held.set)  # the thread ends once its read does
    releaser.start()
    with pytest.raises(LoaderTimeout, match="batch 0 was not ready within timeout=0.2 s"):
        next(running)
    releaser.join()


def test_timeout_does_not_break_one_batch_as_it_does_in_stock(pictures: Pictures) -> None:
    dls = loaders(pictures, timeout=30)
    assert 3 == len(dls.one_batch()[0])


def test_worker_init_fn_runs_once_on_each_thread_and_leaves_the_generators_alone(pictures: Pictures) -> None:
    calls: list[tuple[int, str]] = []

    def init(number: int) -> None:
        calls.append((number, threading.current_thread().name))
        random.seed(number), np.random.seed(number), torch.manual_seed(number)

    expected = epoch(loaders(pictures, swap=False))
    state = random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state().tolist()
    dls = loaders(pictures, threads=2, worker_init_fn=init)
    assert_same_batches(expected, epoch(dls))
    assert state == (random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state().tolist())
    assert {0, 1} == {number for number, _ in calls}
    assert len(calls) == len(set(calls))


def test_an_error_in_worker_init_fn_is_raised(pictures: Pictures) -> None:
    def init(number: int) -> None:
        raise LookupError(f"no device for thread {number}")

    with pytest.raises(LookupError, match="no device for thread"):
        epoch(loaders(pictures, worker_init_fn=init))


def test_wif_sends_the_loader_to_stock(pictures: Pictures) -> None:
    dls = loaders(pictures, wif=lambda: None)
    assert "the loader was given its own wif" in fastload.explain(dls).sections[0].data["reasons"]
    assert_same_batches(epoch(loaders(pictures, swap=False, wif=lambda: None)), epoch(dls))


def test_an_unknown_keyword_warns_and_names_the_nearest(pictures: Pictures) -> None:
    with pytest.warns(UserWarning, match=r"thread= is not a keyword .* \(did you mean threads=\?\)"):
        loaders(pictures, thread=2)
    with pytest.warns(UserWarning, match="sampler= is ignored by fastai's loaders"):
        loaders(pictures, sampler=None)


def test_known_keywords_do_not_warn(pictures: Pictures) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        dls = loaders(pictures, threads=2, val_bs=4, drop_last=False, shuffle=True, prefetch_factor=3)
        dls.test_dl(pictures.files[:2])
        dls.train.new(shuffle=False)


@pytest.mark.parametrize("kw", [{"exact": False}, {"settings": "f.toml"}])
def test_a_reserved_keyword_is_refused_by_name(pictures: Pictures, kw: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=f"{next(iter(kw))}=.* is not available in this version"):
        loaders(pictures, **kw)


@pytest.mark.parametrize(
    "kw",
    [
        {"threads": 0},
        {"threads": 1.5},
        {"prefetch_factor": 0},
        {"executor": "gpu"},
        {"bad_images": "ignore"},
        {"worker_init_fn": 3},
    ],
)
def test_impossible_values_are_refused_with_what_was_found(pictures: Pictures, kw: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=repr(next(iter(kw.values())))):
        loaders(pictures, **kw)


def test_num_workers_stays_what_stock_resolves(pictures: Pictures) -> None:
    for asked in (None, 0, 3):
        kw = {} if asked is None else {"num_workers": asked}
        stock, fast = loaders(pictures, swap=False, **kw), loaders(pictures, **kw)
        assert stock.train.fake_l.num_workers == fast.train.fake_l.num_workers
        assert stock.train.num_workers == fast.train.num_workers


def test_settings_go_along_to_loaders_made_by_new_and_test_dl(pictures: Pictures) -> None:
    dls = loaders(pictures, threads=3, bad_images="skip")
    for made in (dls.valid, dls.train.new(), dls.test_dl(pictures.files[:2])):
        assert 3 == made._fl.settings.threads
        assert "skip" == made._fl.settings.bad_images


def test_a_loader_without_a_full_batch_says_so_once(pictures: Pictures, caplog: pytest.LogCaptureFixture) -> None:
    dls = loaders(pictures, bs=64)
    assert [] == list(dls.train) + list(dls.train)
    assert 1 == sum("gives no batch: it drops a last batch below bs=64" in r.getMessage() for r in caplog.records)


def test_a_hooks_own_mistake_is_raised_and_no_image_is_blamed(pictures: Pictures) -> None:
    def hook(stage: str, *event: Any) -> None:
        if stage == "decode":
            raise LookupError("bug in the hook")

    for executor in ("serial", "threads"):
        dls = loaders(pictures, hook=hook, bad_images="skip", executor=executor)
        with pytest.raises(LookupError, match="bug in the hook"):
            epoch(dls)
        assert [{}, {}] == [c["skipped"] for c in fastload.counters(dls)]


def test_a_buffer_that_cannot_be_had_ends_the_run_instead_of_hanging(
    pictures: Pictures, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fastload.executors import _work

    def fails(*_: Any) -> None:
        raise RuntimeError("no page-locked memory")

    monkeypatch.setattr(_work, "Slot", fails)
    with pytest.raises(RuntimeError, match="no page-locked memory"):
        epoch(loaders(pictures, bad_images="skip"))


def test_counters_tell_stages_and_skipped_images(pictures: Pictures) -> None:
    dls = loaders(pictures)
    epoch(dls)
    train, valid = fastload.counters(dls)
    done = {stage: n for stage, (n, _) in train["stages"].items()}
    assert len(dls.train) * 3 <= done["read"] == done["decode"] + done.get("native", 0)
    assert ({}, {}) == (valid["stages"], valid["skipped"])
    assert [{}] == fastload.counters(loaders(pictures, swap=False).train)


def test_accelerate_takes_fastais_own_keywords_too(pictures: Pictures) -> None:
    dls = fastload.accelerate(loaders(pictures, swap=False), num_workers=1, timeout=9, threads=2)
    assert (1, 9) == (dls.train.fake_l.num_workers, dls.train.timeout)
    assert_same_batches(epoch(loaders(pictures, swap=False, num_workers=1)), epoch(dls))
    with pytest.raises(SettingsError, match="there is no setting 'thread' .*did you mean threads"):
        fastload.accelerate(dls, thread=2)


def test_enable_without_with_stays_on(pictures: Pictures) -> None:
    from fastload import intercept

    before = list(intercept._EVERYWHERE.stack)
    fastload.enable(threads=2)
    try:
        assert len(before) + 1 == len(intercept._EVERYWHERE.stack)
        assert intercept.attached_to(loaders(pictures, swap=False).train) is not None
        with fastload.enable():
            pass
        assert len(before) + 1 == len(intercept._EVERYWHERE.stack)
    finally:
        intercept._EVERYWHERE.stack[:] = before


def test_a_pipe_named_like_an_image_raises_instead_of_waiting(pictures: Pictures, tmp_path: Any) -> None:
    import os

    from PIL import UnidentifiedImageError

    os.mkfifo(tmp_path / "pipe.jpg")
    plan = Plan((Element(0),), (Resize((8, 8), "squish"),))
    running = Threads(plan, [Files()], Options()).run(
        iter([Batch(0, ((Ref(0, str(tmp_path / "pipe.jpg")),),))]), Drawer(plan, 1, 0)
    )
    with pytest.raises(UnidentifiedImageError, match="is not a regular file"):
        next(running)


def test_a_fault_that_is_no_images_own_is_raised_where_bad_images_are_skipped(
    pictures: Pictures, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fastload.executors import _work

    def fails(*_: Any) -> None:
        raise ValueError("a mistake in a transform")

    monkeypatch.setattr(_work.pixels, "steps", fails)
    for executor in ("serial", "threads", "auto"):
        with pytest.raises(ValueError, match="a mistake in a transform"):
            epoch(loaders(pictures, bad_images="skip", executor=executor))
