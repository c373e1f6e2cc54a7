"""The samples room: the sets are made small, in a temporary folder."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fastload import samples
from fastload.commands import sample as command
from fastload.errors import DataError, MissingPackage, SettingsError
from fastload.samples import SampleReport, make_samples

IMAGES = 12


def small(dest: Path, *, images: int = IMAGES, seed: int = 0) -> SampleReport:
    return make_samples(dest, images=images, classes=2, seed=seed)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> SampleReport:
    return make_samples(tmp_path_factory.mktemp("made") / "set", images=60, classes=4)


@pytest.fixture(scope="module")
def files(made: SampleReport) -> list[Path]:
    return sorted(made.path.rglob("*.jpg"))


# What is made.


def test_every_image_lies_in_its_split_and_class(made: SampleReport, files: list[Path]) -> None:
    counts: dict[str, int] = {}
    for file in files:
        folder = file.parent.relative_to(made.path).as_posix()
        counts[folder] = counts.get(folder, 0) + 1
    names = ["china-000", "china-180", "flower-000", "flower-180"]
    assert {f"train/{name}": 12 for name in names} | {f"valid/{name}": 3 for name in names} == counts


def test_the_report_adds_up_to_the_files(made: SampleReport, files: list[Path]) -> None:
    sizes = [Image.open(file).size for file in files]
    width, height = (round(float(np.mean(column)), 1) for column in zip(*sizes, strict=True))
    total = sum(file.stat().st_size for file in files)
    assert SampleReport(made.path, 48, 12, total, width, height, reused=False) == made


def test_every_image_decodes_with_pillow(files: list[Path]) -> None:
    for file in files:
        with Image.open(file) as image:
            image.load()
            assert ("JPEG", True) == (image.format, image.mode in ("RGB", "L"))


def test_sizes_are_like_imagenets(made: SampleReport, files: list[Path]) -> None:
    shapes = [Image.open(file).size for file in files]
    assert 440 <= made.mean_width <= 500
    assert 370 <= made.mean_height <= 430
    assert {True, False} == {width > height for width, height in shapes}
    assert len(set(shapes)) > 10


def test_bits_per_pixel_are_like_imagenets(made: SampleReport, files: list[Path]) -> None:
    pixels = [width * height for width, height in (Image.open(file).size for file in files)]
    bits = [8 * file.stat().st_size / count for file, count in zip(files, pixels, strict=True)]
    assert 4.5 <= float(np.mean(bits)) <= 5.5
    assert 3.0 <= min(bits) <= max(bits) <= 6.5
    assert 100_000 <= made.bytes / len(files) <= 120_000


def test_most_are_444_some_420_and_none_progressive(files: list[Path]) -> None:
    kinds = []
    for file in files:
        with Image.open(file) as image:
            assert "progressive" not in image.info
            kinds.append((image.mode, image.layer[0][1:3]))  # type: ignore[attr-defined]  # JpegImageFile's own
    full, half = kinds.count(("RGB", (1, 1))), kinds.count(("RGB", (2, 2)))
    assert 0.6 <= full / len(kinds) <= 0.9
    assert 0.08 <= half / len(kinds) <= 0.35
    assert len(kinds) == full + half + kinds.count(("L", (1, 1)))


def test_a_few_in_a_hundred_are_gray() -> None:
    picture = Image.new("RGB", (32, 32), "teal")
    encoded = [samples._encoded(picture, np.random.default_rng(seed)) for seed in range(1000)]
    gray = sum(b"\xff\xc0\x00\x0b" in data for data in encoded)  # a baseline frame header of one component
    assert 15 <= gray <= 50


def test_classes_are_told_apart_by_mean_colour_most_of_the_time(made: SampleReport) -> None:
    def means(split: str) -> tuple[list[str], np.ndarray]:
        found = sorted((made.path / split).rglob("*.jpg"))
        pixels = [np.asarray(Image.open(file).convert("RGB").resize((4, 4)), np.float32).ravel() for file in found]
        return [file.parent.name for file in found], np.stack(pixels)

    (labels, train), (expected, valid) = means("train"), means("valid")
    nearest = ((valid[:, None] - train[None]) ** 2).sum(-1).argmin(1)
    right = sum(labels[near] == label for near, label in zip(nearest, expected, strict=True))
    assert right / len(expected) >= 0.6  # chance is 0.25


def test_the_same_seed_gives_the_same_bytes_on_any_number_of_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(tmp_path / "a")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1000")  # one thread
    small(tmp_path / "b")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_another_seed_gives_other_images(tmp_path: Path) -> None:
    small(tmp_path / "a")
    small(tmp_path / "b", seed=1)
    first, second = contents(tmp_path / "a"), contents(tmp_path / "b")
    assert first.keys() == second.keys()
    assert not [name for name in first if first[name] == second[name]]


def test_every_class_has_an_image_in_both_splits(tmp_path: Path) -> None:
    report = make_samples(tmp_path / "set", images=6, classes=3, valid_share=0.01)
    assert (3, 3) == (report.train, report.valid)
    assert 6 == len({file.parent for file in (tmp_path / "set").rglob("*.jpg")})


# Where it is made.


def test_the_same_set_is_reused_and_said_so(tmp_path: Path) -> None:
    first = small(tmp_path / "set")
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "set").rglob("*")}
    second = small(tmp_path / "set")
    assert (False, True) == (first.reused, second.reused)
    assert SampleReport(**{**vars(first), "reused": True}) == second
    assert before == {file: file.stat().st_mtime_ns for file in (tmp_path / "set").rglob("*")}


def test_an_empty_folder_and_missing_parents_are_filled(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "empty", tmp_path / "new" / "deep"):
        report = small(folder)
        assert (folder, IMAGES) == (report.path, len(list(folder.rglob("*.jpg"))))
    assert ["empty", "new"] == sorted(path.name for path in tmp_path.iterdir())


def test_a_set_made_otherwise_is_refused_and_kept(tmp_path: Path) -> None:
    small(tmp_path / "set")
    before = contents(tmp_path / "set")
    with pytest.raises(DataError, match="asked for samples with .*'seed': 1.* found .*'seed': 0"):
        small(tmp_path / "set", seed=1)
    assert before == contents(tmp_path / "set")


@pytest.mark.parametrize("name", ["notes.txt", ".hidden", "samples.json"])
def test_a_foreign_folder_is_refused_and_kept(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("[]")
    with pytest.raises(DataError, match="found other files in .*give another folder"):
        small(tmp_path)
    assert {name: b"[]"} == contents(tmp_path)


def test_a_file_in_the_folders_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "set").write_text("mine")
    with pytest.raises(DataError, match="found a file at"):
        small(tmp_path / "set")
    assert "mine" == (tmp_path / "set").read_text()


@pytest.mark.parametrize("split", ["train", "valid"])
def test_a_set_with_a_lost_image_is_not_reused(tmp_path: Path, split: str) -> None:
    small(tmp_path / "set")
    next((tmp_path / "set" / split).rglob("*.jpg")).unlink()
    with pytest.raises(DataError, match="samples in .* should be .* found"):
        small(tmp_path / "set")


def test_a_set_with_a_changed_image_is_not_reused(tmp_path: Path) -> None:
    small(tmp_path / "set")
    next((tmp_path / "set").rglob("*.jpg")).write_bytes(b"")
    with pytest.raises(DataError, match="samples in .* should be"):
        small(tmp_path / "set")


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_half_built_set_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    def stop(done: int, total: int) -> None:
        if done == 3:
            raise error

    with pytest.raises(error):
        make_samples(tmp_path / "set", images=IMAGES, classes=2, progress=stop)
    assert [] == list(tmp_path.iterdir())


def test_a_set_that_another_process_finished_first_is_reused(tmp_path: Path) -> None:
    def overtake(done: int, total: int) -> None:
        if done == total:
            small(tmp_path / "set")

    report = make_samples(tmp_path / "set", images=IMAGES, classes=2, progress=overtake)
    assert report.reused
    assert ["set"] == [path.name for path in tmp_path.iterdir()]


def test_a_folder_that_can_not_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"file/set' failed with FileExistsError.*give a new folder"):
        small(tmp_path / "file" / "set")


# What is asked.


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"classes": 1}, "classes must be 2 to 20, found 1"),
        ({"classes": 21}, "classes must be 2 to 20, found 21"),
        ({"images": 7}, "found images=7; ask for at least 8"),
        ({"valid_share": 0.0}, "valid_share must lie between 0 and 1, found 0.0"),
        ({"valid_share": float("nan")}, "valid_share must lie between 0 and 1, found nan"),
        ({"seed": -1}, "seed must not be negative, found -1"),
    ],
)
def test_impossible_numbers_are_refused_before_anything_is_made(tmp_path: Path, asked: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        make_samples(tmp_path / "set", **asked)
    assert [] == list(tmp_path.iterdir())


def test_without_scikit_learn_the_error_carries_its_pip_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingPackage, match=r'pip install "fastai-fastload\[sample\]"'):
        small(tmp_path / "set")
    assert [] == list(tmp_path.iterdir())


def test_progress_counts_every_image_once(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    make_samples(tmp_path / "set", images=IMAGES, classes=2, progress=lambda done, total: seen.append((done, total)))
    assert [(done, IMAGES) for done in range(1, IMAGES + 1)] == seen


# The command.


def run(*argv: str) -> int:
    parser = argparse.ArgumentParser(prog=f"fastload {command.NAME}")
    command.add_arguments(parser)
    return command.main(parser.parse_args(argv))


def test_the_command_prints_its_result_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = [str(tmp_path / "set"), "--images", str(IMAGES), "--classes", "2", "--seed", "0", "--json"]
    assert 0 == run(*argv)
    out, err = capsys.readouterr()
    expected = vars(small(tmp_path / "set")) | {"path": str(tmp_path / "set"), "reused": False}
    assert expected == json.loads(out)
    assert f"{IMAGES} of {IMAGES} images made\n" == err


def test_the_command_says_made_then_reused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = [str(tmp_path / "set"), "--images", str(IMAGES)]
    assert [0, 0] == [run(*argv), run(*argv)]
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"made {tmp_path / 'set'}: 8 images to train, 4 to validate, ")
    assert first.replace("made", "reused", 1) == second


def test_progress_is_redrawn_on_a_terminal_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    run(str(tmp_path / "set"), "--images", str(IMAGES))
    err = capsys.readouterr().err
    assert IMAGES == err.count("\r")
    assert err.endswith(f"\r{IMAGES} of {IMAGES} images made\n")
