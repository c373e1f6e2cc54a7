"""Threads that take the most urgent task first; they may serve several runs and outlive epochs."""

from __future__ import annotations

import heapq
import itertools
import os
import threading
import time
from collections.abc import Callable, Sequence

__all__ = ["Pool"]

PATIENCE_S = 2.0  # for the images under way when a pool is closed; an ordinary one takes milliseconds


class Pool:
    """Daemon threads that take the most urgent task first; may serve several runs and outlive epochs."""

    def __init__(self, threads: int, init: Callable[[int], None] | None = None) -> None:
        self.pid, self.closed, self.threads = os.getpid(), False, threads
        self.failed: BaseException | None = None
        self._tasks: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._ready = threading.Condition()
        self._init, self._begun = init, threading.Semaphore(0)
        self._threads = [
            threading.Thread(target=self._work, args=(k,), name=f"fastload-{k}", daemon=True) for k in range(threads)
        ]
        try:
            for thread in self._threads:
                thread.start()
            for _ in self._threads if init is not None else ():
                self._begun.acquire()  # init puts the global generators back: not while the consumer draws from them
        except BaseException:  # an interrupt: nobody else knows of these threads
            self.close(wait=False)
            raise

    @property
    def alive(self) -> bool:
        """Whether the threads exist in this process and take work."""
        return not self.closed and self.pid == os.getpid()

    def put(self, urgency: int, tasks: Sequence[Callable[[], None]]) -> None:
        """Queue tasks; a lower `urgency` is done first. Tasks must not raise."""
        with self._ready:
            for task in tasks:
                heapq.heappush(self._tasks, (urgency, next(self._order), task))
            self._ready.notify(len(tasks))

    def close(self, wait: bool = True) -> None:
        """Drop queued tasks, end the threads once their present image is done; twice is harmless.

        A thread that hangs in its image (a dead network disk) is left alone, at once with `wait` False: it is a daemon, and
        ends if ever it comes back.
        """
        if not self.alive:
            return
        with self._ready:
            self.closed = True
            self._tasks.clear()
            self._ready.notify_all()
        end = time.monotonic() + PATIENCE_S
        for thread in self._threads if wait else ():
            if thread is not threading.current_thread() and thread.ident is not None:
                thread.join(max(0.0, end - time.monotonic()))

    def _work(self, number: int) -> None:
        try:
            if self._init is not None:
                self._init(number)
        except BaseException as err:  # raised by the consumer at its next batch
            self.failed = err
        finally:
            self._begun.release()
        while (task := self._next()) is not None:
            task()
            del task  # it holds the job and its run: not while waiting for the next one

    def _next(self) -> Callable[[], None] | None:
        with self._ready:
            while not self._tasks and not self.closed:
                self._ready.wait()
            return None if self.closed else heapq.heappop(self._tasks)[2]
