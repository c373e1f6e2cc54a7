"""Public fault reports as scenarios, row by row: forks, interrupts, kills, memory, the spawn start method.

Each runs in a process of its own with a time limit; see scenarios.py for what it does there.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import scenarios
from cases import seeded
from fastai.data.core import TfmdDL

from fastload.testing import assert_same_batches

SETTINGS = [
    {"executor": "serial"},
    {"executor": "threads", "threads": 2},
    {"executor": "threads", "threads": 2, "persistent_workers": True},
]


@pytest.fixture(scope="module")
def server() -> Any:
    """Forks children that have fastai loaded, from a process without threads."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["scenarios"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        # The C library gives large buffers back at once, so that what is resident is what is held (glibc's mallopt(3)).
        patch.setenv("MALLOC_MMAP_THRESHOLD_", str(1 << 20))
        run(context, os.getpid, limit_s=60)
    return context


def _send(pipe: Any, scenario: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    pipe.send(scenario(*arguments))


@contextmanager
def started(server: Any, target: Callable[..., Any], *arguments: Any) -> Iterator[tuple[Any, Any]]:
    """A child at work, and the end of the pipe that its last argument's other end writes to; killed on leaving."""
    receiver, sender = server.Pipe(duplex=False)
    child = server.Process(target=target, args=(sender, *arguments))
    child.start()
    sender.close()
    try:
        yield child, receiver
    finally:
        child.kill()
        child.join()


def run(server: Any, scenario: Callable[..., Any], *arguments: Any, limit_s: float = 60) -> Any:
    """What a scenario returns."""
    with started(server, _send, scenario, arguments) as (_, receiver):
        assert receiver.poll(limit_s), f"{scenario.__name__} gave no answer within {limit_s} s"
        return receiver.recv()


@contextmanager
def nothing_left_in_shared_memory() -> Iterator[None]:
    """No file in /dev/shm afterwards that was not there before; those of processes still alive are not counted."""
    before = set(os.listdir("/dev/shm"))
    yield
    left = {name for name in set(os.listdir("/dev/shm")) - before if not _of_the_living(name)}
    assert set() == left


def _of_the_living(name: str) -> bool:
    return any(part.isdigit() and Path(f"/proc/{part}").is_dir() for part in name.replace("-", "_").split("_"))


# Forks.


@pytest.mark.parametrize("settings", SETTINGS)
def test_r23_a_loader_works_or_raises_in_a_forked_process(settings: dict[str, Any], server: Any, small: Path) -> None:
    facts = run(server, scenarios.forks, small, settings)
    begun = "5" if settings["executor"] == "serial" else "ForkedIterator"
    assert {"new": True, "begun": begun, "busy": [begun], "parent": 5} == facts


@pytest.mark.parametrize("settings", SETTINGS)
def test_r23_a_loader_works_inside_a_torch_worker(settings: dict[str, Any], server: Any, small: Path) -> None:
    expected, epochs = run(server, scenarios.torch_workers, small, settings)
    assert [expected] * 4 == epochs


# Interrupts and kills.

INTERRUPTED = """
import os, signal, sys
from pathlib import Path
import scenarios
for fact in scenarios.interrupts(Path(sys.argv[1])):
    print(fact)
print("done", flush=True)
for number, _ in enumerate(scenarios.block_loaders(Path(sys.argv[1]), executor="threads").train):
    os.kill(os.getpid(), signal.SIGINT)
"""


def test_r25_an_interrupted_epoch_leaves_nothing_and_the_next_is_whole(small: Path) -> None:
    with nothing_left_in_shared_memory():
        script = subprocess.Popen(
            [sys.executable, "-c", INTERRUPTED, str(small)],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, err = script.communicate(timeout=90)
            assert [] == members(script.pid)
        finally:
            script.kill()
            script.wait()
    lines = out.splitlines()
    assert ["2 interrupted, 6 batches after, threads []"] * 8 + ["done"] == lines, err
    assert -signal.SIGINT == script.returncode
    assert err.rstrip().endswith("KeyboardInterrupt")


def members(session: int) -> list[int]:
    """Processes of a session that are alive."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, *rest = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(rest[2]) == session and state != "Z":
                found.append(int(entry.name))
    return found


def _endless(pipe: Any, path: Path, settings: dict[str, Any]) -> None:
    scenarios.endless(path, settings, pipe.send)


def test_r27_a_run_starts_as_usual_after_three_that_were_killed(server: Any, small: Path) -> None:
    settings = {"executor": "threads", "threads": 2}
    with nothing_left_in_shared_memory():
        for _ in range(3):
            with started(server, _endless, small, settings) as (child, receiver):
                assert receiver.poll(20), "no batch within 20 s"
                os.kill(child.pid, signal.SIGKILL)
                child.join(5)
                assert -signal.SIGKILL == child.exitcode
        start = time.monotonic()
        assert 6 == run(server, scenarios.whole_epoch, small, settings)
        assert time.monotonic() - start < 20


# Memory.


@pytest.mark.parametrize("count", [2_000, pytest.param(200_000, marks=pytest.mark.slow)])
def test_r29_memory_does_not_grow_with_epochs_or_workers(count: int, server: Any, tmp_path: Path) -> None:
    with_workers = run(server, scenarios.many_items, tmp_path, count, 4, limit_s=900)
    without = run(server, scenarios.many_items, tmp_path, count, 0, limit_s=900)
    assert max(with_workers) < 1.05 * with_workers[0]
    assert max(with_workers) < 2 * max(without)


@pytest.mark.parametrize(
    ("small_count", "large_count", "size", "epochs"),
    [(40, 4, (3000, 2000), 4), pytest.param(400, 8, (6000, 4000), 6, marks=pytest.mark.slow)],
)
def test_r30_memory_is_flat_with_mixed_sizes(
    small_count: int, large_count: int, size: tuple[int, int], epochs: int, server: Any, tmp_path: Path
) -> None:
    threads = 2
    facts = run(server, scenarios.mixed_sizes, tmp_path, small_count, large_count, size, epochs, threads, limit_s=900)
    assert max(facts["after"][2:]) < 1.03 * facts["after"][1], facts
    assert facts["peak"] < facts["base"] + threads * size[0] * size[1] * 3 * 3 / 1024, facts


# Spawn.


def test_r42_a_lambda_as_label_function_needs_no_pickle(server: Any, small: Path) -> None:
    facts = run(server, scenarios.spawn_with_a_lambda, small)
    assert facts["threads"]
    assert "lambda" in facts["stock"]


UNGUARDED = """
import sys
import torch.multiprocessing
torch.multiprocessing.set_start_method("spawn")
from fastload.vision import *
blocks = (ImageBlock, CategoryBlock)
block = DataBlock(blocks, get_items=get_image_files, get_y=lambda file: file.parent.name, item_tfms=Resize(16))
dls = block.dataloaders(sys.argv[1], bs=4, num_workers=2, device="cpu")
print(sum(len(y) for dl in dls for _, y in dl))
"""


@pytest.mark.slow
def test_r42_a_script_without_a_main_guard_runs_under_spawn(small: Path) -> None:
    script = [sys.executable, "-c", UNGUARDED, str(small)]
    done = subprocess.run(script, capture_output=True, text=True, timeout=90, check=True)
    assert "35" == done.stdout.strip()  # 29 for training, of which 28 fill whole batches, and 7 for validation


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_r42_a_pickled_loader_is_stocks_own_and_gives_the_same_batches(protocol: int, small: Path) -> None:
    train = scenarios.block_loaders(small, executor="threads", num_workers=0).train
    twin = pickle.loads(pickle.dumps(train, protocol))
    assert TfmdDL is type(twin)
    assert 6 == assert_same_batches(seeded(twin), seeded(train))
