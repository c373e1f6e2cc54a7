"""What a process of its own does in the tests of processes and memory; each function runs in a fresh child and returns facts.

Nothing heavier than fastai's loaders is imported here: the server that the children are forked from loads this module once.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from fastai.data.all import CategoryBlock, DataBlock, Datasets, GrandparentSplitter, get_image_files, parent_label
from fastai.data.core import TfmdDL
from fastai.vision.augment import RandomResizedCrop, Resize
from fastai.vision.core import PILImage, ToTensor
from fastai.vision.data import ImageBlock
from PIL import Image

import fastload

FORK_LIMIT_S = 10.0


def block_loaders(path: Path, get_y: Callable[[Path], str] = parent_label, item_tfms: Any = None, **settings: Any) -> Any:
    """The tree T by a DataBlock, two virtual workers, run by fastload."""
    keywords = {"bs": 4, "num_workers": 2, "device": "cpu"}
    keywords |= {k: settings.pop(k) for k in ("pin_memory", "persistent_workers", "num_workers") if k in settings}
    block = DataBlock(
        blocks=(ImageBlock, CategoryBlock),
        get_items=get_image_files,
        get_y=get_y,
        splitter=GrandparentSplitter(),
        item_tfms=item_tfms or Resize(16),
    )
    return fastload.accelerate(block.dataloaders(path, **keywords), **settings)


def targets(dl: Any) -> list[int]:
    """The labels of an epoch in order."""
    return [int(y) for _, ys in dl for y in ys]


def own_threads() -> list[str]:
    """Names of fastload's threads that are alive."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("fastload-")]


# Forks.


def in_fork(work: Callable[[], str]) -> str:
    """What `work` returns in a forked child; 'hangs' if it does not within the limit."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            text = work()
        except Exception as err:  # noqa: BLE001  # the parent compares its name
            text = type(err).__name__
        os.write(send, text.encode())
        os._exit(0)
    os.close(send)
    try:
        return _read_within(receive, FORK_LIMIT_S)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(receive)


def _read_within(receive: int, limit_s: float) -> str:
    import select

    ready, _, _ = select.select([receive], [], [], limit_s)
    return os.read(receive, 1 << 16).decode() if ready else "hangs"


def forks(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Take a batch, then use the loader in a fork: a new iterator, one begun before, and as often as threads are busy."""
    dls = block_loaders(path, **settings)
    expected = str(targets(dls.valid))
    begun = iter(dls.train)
    next(begun)
    facts = {"new": in_fork(lambda: str(targets(dls.valid))) == expected, "begun": in_fork(partial(_rest, begun))}
    facts["busy"] = sorted({in_fork(partial(_rest, one)) for one in _busy(dls)})
    facts["parent"] = len(list(begun))
    return facts


def _rest(begun: Iterator[Any]) -> str:
    return str(len(list(begun)))


def _busy(dls: Any) -> Iterator[Any]:
    """Iterators just started, whose threads are at work as the process is forked."""
    for _ in range(12):
        one = iter(dls.train)
        next(one)
        yield one


class Inside(torch.utils.data.Dataset):
    """Each item is an epoch of a loader."""

    def __init__(self, dl: Any) -> None:
        self.dl = dl

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(targets(self.dl))


def torch_workers(path: Path, settings: dict[str, Any]) -> tuple[list[int], list[list[int]]]:
    """Take a batch, then run whole epochs inside the workers of a torch DataLoader."""
    valid = block_loaders(path, **settings).valid
    expected = targets(valid)
    how = {"num_workers": 2, "timeout": FORK_LIMIT_S, "multiprocessing_context": "fork"}
    loader = torch.utils.data.DataLoader(Inside(valid), batch_size=None, **how)
    return expected, [epoch.tolist() for epoch in loader]


# Interrupts and kills.


def interrupts(path: Path) -> list[str]:
    """For several settings: epochs interrupted after three batches, batches of the next one, threads left in the end."""
    facts = []
    for executor in ("serial", "threads"):
        for more in ({}, {"pin_memory": True}, {"persistent_workers": True}, {"num_workers": 0}):
            dls = block_loaders(path, executor=executor, threads=2, **more)
            interrupted, after = sum(_interrupted(dls.train, wait) for wait in (False, True)), len(list(dls.train))
            del dls
            gc.collect()  # persistent threads end with their loader
            facts.append(f"{interrupted} interrupted, {after} batches after, threads {own_threads()}")
    return facts


def _interrupted(dl: Any, waiting: bool) -> bool:
    """Whether SIGINT, in the loop's body or while it waits for a batch, comes out as KeyboardInterrupt after three batches."""
    from fastload.source import Files

    read, count, once = Files.read, 0, threading.Lock()

    def signalled(self: Any, ref: Any, window: Any = None) -> Any:
        if once.acquire(blocking=False):  # a second thread's signal would come when the first has been dealt with
            os.kill(os.getpid(), signal.SIGINT)
        return read(self, ref, window)

    try:
        for count, _ in enumerate(dl, 1):
            if count == 3 and waiting:
                Files.read = signalled  # type: ignore[method-assign]
            elif count == 3:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(1)
    except KeyboardInterrupt:
        return count >= 3
    finally:
        Files.read = read  # type: ignore[method-assign]
    return False


def endless(path: Path, settings: dict[str, Any], tell: Callable[[str], None]) -> None:
    """Epoch after epoch, until killed; says when the first batch is there."""
    dls = block_loaders(path, **settings)
    next(iter(dls.train))
    tell("first batch")
    while True:
        targets(dls.train)


def whole_epoch(path: Path, settings: dict[str, Any]) -> int:
    """Batches of one epoch."""
    return len(list(block_loaders(path, **settings).train))


# Memory.


def _status_kb(name: str) -> int:
    for file in ("/proc/self/smaps_rollup", "/proc/self/status"):
        for line in Path(file).read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1])
    raise KeyError(name)


def many_items(folder: Path, count: int, workers: int) -> list[int]:
    """PSS in kB after each of three epochs over `count` Path objects; threads are no processes, so it is all there is."""
    Image.new("RGB", (4, 4)).save(folder / "0.png")
    items = [folder / "0.png" if k == 0 else Path(f"{folder}/./0.png") for k in range(count)]
    sets = Datasets(items, [[PILImage.create], [parent_label]], splits=[range(count), [0]])
    dl = TfmdDL(sets.train, bs=64, num_workers=workers, shuffle=True, after_item=[ToTensor()])
    fastload.accelerate(dl, executor="threads" if workers else "serial", threads=max(1, workers))
    pss = []
    for _ in range(3):
        for _ in dl:
            pass
        pss.append(_status_kb("Pss"))
    return pss


def mixed_sizes(folder: Path, small: int, large: int, size: tuple[int, int], epochs: int, threads: int) -> dict[str, Any]:
    """RSS in kB before, after each epoch and at its peak, over `small` pictures of 300x300 and `large` of `size`."""
    items = [folder / f"{k}.jpg" for k in range(small + large)]
    for k, item in enumerate(items):
        Image.linear_gradient("L").resize(size if k < large else (300, 300)).convert("RGB").save(item)
    sets = Datasets(items, [[PILImage.create], [parent_label]], splits=[range(len(items)), [0]])
    dl = TfmdDL(sets.train, bs=16, num_workers=2, shuffle=True, after_item=[RandomResizedCrop(64), ToTensor()])
    fastload.accelerate(dl, executor="threads", threads=threads)
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    base, after = _status_kb("VmRSS"), []
    for _ in range(epochs):
        for _ in dl:
            pass
        after.append(_status_kb("VmRSS"))
    return {"base": base, "after": after, "peak": _status_kb("VmHWM")}


# Spawn.


def spawn_with_a_lambda(path: Path) -> dict[str, Any]:
    """Under the spawn start method, a label function that no pickle holds: run by threads, and left to stock."""
    multiprocessing.set_start_method("spawn", force=True)
    dls = block_loaders(path, get_y=lambda file: file.parent.name, executor="threads")
    facts: dict[str, Any] = {"threads": targets(dls.valid) == targets(block_loaders(path, num_workers=0).valid)}
    left = block_loaders(path, get_y=lambda file: file.parent.name, item_tfms=[Resize(16), lambda x: x])
    try:
        next(iter(left.train))
    except Exception as err:  # noqa: BLE001  # the parent compares it
        facts["stock"] = f"{type(err).__name__}: {err}"
    return facts
