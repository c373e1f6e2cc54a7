"""Whether glibc gives large buffers back to the system each time they are freed, or keeps them for the next batch.

By default every batch-sized tensor is mapped anew, and each of its pages costs a fault when first touched: about half of the
time of fastai's batch transforms on a CPU (benchmarks/bench_batch.py). `keep_memory` ends that for the whole process, which
then never shrinks again.
"""

from __future__ import annotations

import ctypes
from typing import Any

from fastload.errors import SettingsError

__all__ = ["keep_memory"]

# glibc's malloc.h
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
_NEVER = -1  # read as the largest size


def keep_memory() -> None:
    """Let glibc keep freed memory and take no large buffer from the system apart. Process-wide, and can't be taken back.

    Worth it where batch transforms run on the CPU; memory that was needed once stays with the process. Call it before the
    first batch. Raises SettingsError where the C library is not glibc.
    """
    try:
        library: Any = ctypes.CDLL(None)
    except TypeError:  # Windows
        library = None
    if not (hasattr(library, "gnu_get_libc_version") and hasattr(library, "mallopt")):
        raise SettingsError("keep_memory() is for glibc's malloc, and this system's C library is another; leave the call out")
    if not (library.mallopt(_M_MMAP_MAX, 0) and library.mallopt(_M_TRIM_THRESHOLD, _NEVER)):
        raise SettingsError("keep_memory() was refused by glibc's mallopt; leave the call out")
