"""The native path under AddressSanitizer and UBSan, over seeds, mutations of them and the awkward files."""

from __future__ import annotations

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fastload import native

HERE = Path(__file__).resolve().parent
NATIVE = HERE.parent / "fastload" / "native"
FILES = HERE.parents[1] / "shared" / "cases" / "files"
FLAGS = ["-O1", "-g", "-std=c++17", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
AVX512 = ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma"]
ISA = {
    "kernels_sse41": ["-msse4.1"],
    "kernels_avx2": ["-mavx2"],
    "kernels_avx512": ["-mavx512bw", "-mavx512vl"],
    "kernels_vbmi": ["-mavx512bw", "-mavx512vl", "-mavx512vbmi", "-mavx512vnni"],
    "augment_avx2": ["-mavx2", "-mfma"],
    "augment_avx512": AVX512,
}
HOT_PATH = [
    "decode",
    "nearest",
    "resize",
    "taps",
    "scan",
    "huffman",
    "jpeg_api",
    "kernels",
    *(n for n in ISA if n.startswith("kernels")),
]
RESIZE = ["resize", "taps", *(n for n in HOT_PATH if n.startswith("kernels"))]
BATCH = ["augment", "augment_portable", "augment_avx2", "augment_avx512"]

pytestmark = [
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="the kernels built here are x86's"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++ to build with"),
]


def built(folder: Path, sources: list[str], main: str, *flags: str) -> Path:
    """A program of the extension's own sources and one of this folder's, with both sanitizers in it."""
    units = [(NATIVE / f"{name}.cpp", ISA.get(name, [])) for name in sources] + [(HERE / "native" / main, [])]

    def compiled(unit: tuple[Path, list[str]]) -> str:
        source, own = unit
        made = str(folder / f"{source.parent.parent.name}_{source.stem}.o")
        subprocess.run(["g++", *FLAGS, *flags, *own, "-w", "-c", str(source), "-o", made], check=True, timeout=300)
        return made

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compiled, units))
    program = folder / "program"
    subprocess.run(["g++", *FLAGS, *objects, "-ldl", "-lpthread", "-o", str(program)], check=True, timeout=300)
    return program


@pytest.fixture(scope="module")
def replay(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fuzz target as a program that runs files."""
    return built(tmp_path_factory.mktemp("hot_path"), HOT_PATH, "fuzz.cpp", "-DREPLAY")


@pytest.mark.parametrize("count", [200, pytest.param(3000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("extra", [False, True], ids=["seeds", "awkward files"])
def test_no_input_reads_or_writes_out_of_bounds(replay: Path, extra: bool, count: int, tmp_path: Path) -> None:
    from native.replay import write

    if extra and not FILES.is_dir():
        pytest.skip(f"the shared cases are not at {FILES}")
    written = write(tmp_path / "inputs", count, sorted(FILES.glob("*.jpg")) if extra else [])
    inputs = [str(p) for p in sorted((tmp_path / "inputs").iterdir())]
    environment = {
        **os.environ,
        "FUZZ_JPEG": _pillows_libjpeg(),
        "ASAN_OPTIONS": "detect_leaks=0",
    }  # Python's own library leaks
    done = subprocess.run([str(replay), *inputs], capture_output=True, text=True, timeout=900, env=environment, check=False)
    assert 0 == done.returncode, done.stderr[-2000:]
    assert f"{written} files" in done.stdout


@pytest.mark.parametrize("cases", [200, pytest.param(20000, marks=pytest.mark.slow)])
def test_no_batch_transform_reads_or_writes_out_of_bounds(cases: int, tmp_path: Path) -> None:
    program = built(tmp_path, BATCH, "batches.cpp")
    done = subprocess.run([str(program), str(cases)], capture_output=True, text=True, timeout=900, check=False)
    assert 0 == done.returncode, done.stdout[-500:] + done.stderr[-2000:]
    usable = native.extension().usable_kernels() if native.extension() is not None else []
    expected = " ".join(name if name in usable else "" for name in ("portable", "avx2", "avx512"))
    assert done.stdout.strip() == f"{cases} cases: {expected}"


@pytest.mark.parametrize("cases", [300, pytest.param(30000, marks=pytest.mark.slow)])
def test_all_kernels_give_equal_resizes_and_stay_in_bounds(cases: int, tmp_path: Path) -> None:
    program = built(tmp_path, RESIZE, "kernels.cpp")
    done = subprocess.run([str(program), str(cases)], capture_output=True, text=True, timeout=900, check=False)
    assert 0 == done.returncode, done.stdout[-500:] + done.stderr[-2000:]
    expected = " ".join(native.extension().usable_kernels() if native.extension() is not None else ["portable"])
    assert done.stdout.strip() == f"{cases} cases: {expected}"


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fuzz target with clang's fuzzer in it, which follows coverage."""
    if shutil.which("clang++") is None:
        pytest.skip("there is no clang++; apt-get install clang")
    folder = tmp_path_factory.mktemp("fuzzer")
    flags, objects = ["-fsanitize=fuzzer-no-link,address,undefined", *FLAGS[:3], FLAGS[-1], "-w"], []
    for source in [NATIVE / f"{name}.cpp" for name in HOT_PATH] + [HERE / "native" / "fuzz.cpp"]:
        objects.append(str(folder / f"{source.stem}.o"))
        run = ["clang++", *flags, *ISA.get(source.stem, []), "-c", str(source), "-o", objects[-1]]
        subprocess.run(run, check=True, timeout=100)
    program = folder / "fuzz"
    link = ["clang++", "-fsanitize=fuzzer,address,undefined", *objects, "-ldl", "-o", str(program)]
    subprocess.run(link, check=True, timeout=100)
    return program


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_minutes_of_coverage_guided_fuzzing_find_nothing(fuzzer: Path, seed: int, tmp_path: Path) -> None:
    from native.replay import write

    write(tmp_path / "corpus", 200, sorted(FILES.glob("*.jpg")) if FILES.is_dir() else [])
    limits = ["-max_total_time=75", "-timeout=20", "-rss_limit_mb=4096", f"-seed={seed}", f"-artifact_prefix={tmp_path}/"]
    environment = {**os.environ, "FUZZ_JPEG": _pillows_libjpeg(), "ASAN_OPTIONS": "detect_leaks=0"}
    done = subprocess.run(
        [str(fuzzer), *limits, str(tmp_path / "corpus")],
        capture_output=True,
        text=True,
        timeout=110,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Done" in done.stderr


def _pillows_libjpeg() -> str:
    """The library that Pillow has loaded into this process."""
    from PIL import Image  # noqa: F401  loads it

    maps = Path("/proc/self/maps").read_text().splitlines()
    found = [line.split()[-1] for line in maps if "libjpeg" in line]
    return found[0] if found else "libjpeg.so.62"
