"""The native path under AddressSanitizer and UBSan, over seeds, mutations of them and the awkward files."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
NATIVE = HERE.parent / "fastload" / "native"
FILES = HERE.parents[1] / "shared" / "cases" / "files"
FLAGS = ["-O1", "-g", "-std=c++17", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
ISA = {"kernels_sse41": ["-msse4.1"], "kernels_avx2": ["-mavx2"], "kernels_avx512": ["-mavx512bw", "-mavx512vl"]}
SOURCES = ["decode", "resize", "taps", "scan", "huffman", "jpeg_api", "kernels", *ISA]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="the kernels built here are x86's"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++ to build with"),
]


@pytest.fixture(scope="module")
def replay(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fuzz target as a program that runs files."""
    folder = tmp_path_factory.mktemp("sanitized")
    units = [(NATIVE / f"{name}.cpp", [*FLAGS, *ISA.get(name, [])]) for name in SOURCES]
    units.append((HERE / "native" / "fuzz.cpp", [*FLAGS, "-DREPLAY"]))
    objects = []
    for source, flags in units:
        objects.append(str(folder / f"{source.stem}.o"))
        subprocess.run(["g++", *flags, "-w", "-c", str(source), "-o", objects[-1]], check=True, timeout=300)
    subprocess.run(["g++", *FLAGS, *objects, "-ldl", "-o", str(folder / "replay")], check=True, timeout=300)
    return folder / "replay"


@pytest.mark.parametrize("extra", [False, True], ids=["seeds", "awkward files"])
def test_no_input_reads_or_writes_out_of_bounds(replay: Path, extra: bool, tmp_path: Path) -> None:
    from native.replay import write

    if extra and not FILES.is_dir():
        pytest.skip(f"the shared cases are not at {FILES}")
    count = write(tmp_path / "inputs", 3000, sorted(FILES.glob("*.jpg")) if extra else [])
    inputs = [str(p) for p in sorted((tmp_path / "inputs").iterdir())]
    environment = {
        **os.environ,
        "FUZZ_JPEG": _pillows_libjpeg(),
        "ASAN_OPTIONS": "detect_leaks=0",
    }  # Python's own library leaks
    done = subprocess.run([str(replay), *inputs], capture_output=True, text=True, timeout=900, env=environment, check=False)
    assert 0 == done.returncode, done.stderr[-2000:]
    assert f"{count} files" in done.stdout


def _pillows_libjpeg() -> str:
    """The library that Pillow has loaded into this process."""
    from PIL import Image  # noqa: F401  loads it

    maps = Path("/proc/self/maps").read_text().splitlines()
    found = [line.split()[-1] for line in maps if "libjpeg" in line]
    return found[0] if found else "libjpeg.so.62"
