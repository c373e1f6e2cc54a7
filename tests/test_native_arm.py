"""The NEON kernels equal the portable ones, run by an emulator: `apt-get install qemu-user g++-aarch64-linux-gnu`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
NATIVE = HERE.parent / "fastload" / "native"
GXX, QEMU = "aarch64-linux-gnu-g++", "qemu-aarch64"

pytestmark = pytest.mark.skipif(
    shutil.which(GXX) is None or shutil.which(QEMU) is None, reason=f"{GXX} or {QEMU} is not installed"
)


def test_neon_kernels_equal_the_portable_ones(tmp_path: Path) -> None:
    sources = [str(NATIVE / f"{name}.cpp") for name in ("resize", "taps", "kernels", "kernels_neon")]
    program = tmp_path / "kernels"
    build = [GXX, "-O2", "-std=c++17", "-static", *sources, str(HERE / "native" / "kernels.cpp"), "-o", str(program)]
    subprocess.run(build, check=True, timeout=300)
    done = subprocess.run([QEMU, str(program), "3000"], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip() == "3000 cases: neon portable"


def test_the_fused_transforms_run_there_too(tmp_path: Path) -> None:
    sources = [str(NATIVE / f"{name}.cpp") for name in ("augment", "augment_portable")]
    program = tmp_path / "batches"
    build = [GXX, "-O2", "-std=c++17", "-static", *sources, str(HERE / "native" / "batches.cpp"), "-o", str(program)]
    subprocess.run(build, check=True, timeout=300)
    done = subprocess.run([QEMU, str(program), "200"], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip() == "200 cases: portable portable portable"  # there are no others for ARM
