"""keep_memory: large buffers are not faulted in again; other C libraries are told so."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

import fastload
from fastload.errors import SettingsError

FAULTS = """
import resource, sys
import numpy as np
import fastload
if sys.argv[1] == "keep":
    fastload.keep_memory()
def touch():
    np.empty(48 << 20, np.uint8)[:] = 1
touch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    touch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"), reason="the C library is not glibc")
def test_kept_memory_is_not_faulted_in_again() -> None:
    def faults(how: str) -> int:
        run = [sys.executable, "-c", FAULTS, how]
        return int(subprocess.run(run, capture_output=True, text=True, check=True).stdout)

    assert faults("keep") < 100
    assert faults("stock") > 3 * (48 << 20) // (2 << 20)  # at least once for each of the largest pages there are


def test_other_c_libraries_are_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    with pytest.raises(SettingsError, match="glibc"):
        fastload.keep_memory()
