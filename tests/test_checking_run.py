"""The checker at work and its command: unknown data, progress, interrupts, output, exit codes."""

from __future__ import annotations

import io
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checked import CASES, SIZE, checked, one, picture, save, tree, turned

from fastload import checking, inspecting
from fastload.checking import CheckReport, Finding, check
from fastload.commands import check as command
from fastload.commands import main
from fastload.errors import DataError
from fastload.inspecting import Seen, Use, inspect
from fastload.machine import Cpus
from fastload.recipes import Target

# Loaders that fastload doesn't recognise.


def test_files_are_checked_where_an_item_transform_is_not_known(tmp_path: Path) -> None:
    from fastai.vision.all import ImageDataLoaders, Resize, Transform

    class Own(Transform):
        def encodes(self, x):  # type: ignore[no-untyped-def]  # fasttransform would resolve the names as types
            return x

    root = tree(tmp_path)
    (root / "valid" / "dog" / "bad.jpg").write_bytes(b"bad")
    report = check(ImageDataLoaders.from_folder(root, item_tfms=[Own(), Resize(SIZE)], bs=2, num_workers=0))
    assert (13, 1) == (report.files, len(report.broken))
    assert {"cat": 3, "dog": 3} == report.classes["train"]
    assert any("item transform Own" in note for note in report.notes)


def test_files_are_checked_where_users_open_them(tmp_path: Path) -> None:
    from fastai.vision.all import DataLoader, DataLoaders, L

    paths = sorted(tree(tmp_path).rglob("*.png"))
    paths[3].write_bytes(b"bad")
    dls = DataLoaders(*(DataLoader(L(some), bs=2, num_workers=0) for some in (paths[:6], paths[6:])))
    report = check(dls)
    assert [str(paths[3])] == [f.path for f in report.broken]
    assert any("items that are paths" in note for note in report.notes)


def test_data_without_paths_is_said_to_be_unchecked() -> None:
    from fastai.vision.all import DataLoader, DataLoaders

    report = check(DataLoaders(*(DataLoader(list(range(4)), bs=2, num_workers=0) for _ in range(2))))
    assert (0, ()) == (report.files, report.findings)
    assert any("no file was checked" in note for note in report.notes)


def test_images_in_memory_are_said_to_be_unchecked(tmp_path: Path) -> None:
    from fastai.vision.all import DataBlock, ImageBlock, IndexSplitter, Resize

    block = DataBlock(ImageBlock, splitter=IndexSplitter([1]), item_tfms=Resize(SIZE))
    report = check(block.dataloaders([np.zeros((20, 20, 3), np.uint8)] * 3, bs=1, num_workers=0))
    assert "train: 2 images not checked: an image is given as ndarray, not as a path" in report.notes


def test_a_getter_that_raises_is_broken(tmp_path: Path) -> None:
    from fastai.vision.all import CategoryBlock, DataBlock, ImageBlock, IndexSplitter, Resize

    paths = [save(tmp_path / f"{k}.png", picture(k)) for k in range(4)]
    table = {"0.png": "a", "1.png": "a", "2.png": "b"}
    block = DataBlock(
        (ImageBlock, CategoryBlock), get_y=lambda p: table[p.name], splitter=IndexSplitter([3]), item_tfms=Resize(SIZE)
    )
    finding = one(check(block.dataloaders(paths, bs=1, num_workers=0)), "no label")
    assert ("broken", "the label of item 0 can't be had: KeyError: '3.png'") == (finding.severity, finding.what)


def test_what_is_no_loader_is_an_error() -> None:
    with pytest.raises(DataError, match="found int"):
        check(3)


# How the work is done.


def test_no_more_files_are_open_than_there_are_cpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, now, most = threading.Lock(), 0, 0

    def counted(path: str, uses: Any) -> Seen:
        nonlocal now, most
        with lock:
            now, most = now + 1, max(most, now + 1)
        seen = inspect(path, uses)
        with lock:
            now -= 1
        return seen

    monkeypatch.setattr(checking, "inspect", counted)
    monkeypatch.setattr(checking, "usable_cpus", lambda: Cpus(3, "asked", ()))
    assert 60 == checked(tree(tmp_path, count=15)).files
    assert 1 <= most <= 3


def test_each_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []
    stock = inspecting._read
    monkeypatch.setattr(inspecting, "_read", lambda path: (reads.append(path), stock(path))[1])
    checked(tree(tmp_path))
    assert sorted(str(p) for p in tmp_path.rglob("*.png")) == sorted(reads)


def test_progress_goes_from_none_to_all(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    check(Target(str(tree(tmp_path)), size=SIZE), progress=lambda *call: calls.append(call))
    assert [(k, 12) for k in range(13)] == calls


def test_an_interrupt_ends_the_check(tmp_path: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check(Target(str(tree(tmp_path)), size=SIZE), progress=interrupt)
    assert not any(thread.name.startswith("fastload-check") for thread in threading.enumerate())


def test_random_numbers_are_as_before(tmp_path: Path) -> None:
    import random

    import torch
    from fastai.vision.all import ImageDataLoaders, RandomResizedCrop

    dls = ImageDataLoaders.from_folder(tree(tmp_path), item_tfms=RandomResizedCrop(SIZE), bs=2, num_workers=0)
    before = (random.getstate(), torch.get_rng_state().tolist(), dls.train.rng.getstate())
    check(dls)
    assert before == (random.getstate(), torch.get_rng_state().tolist(), dls.train.rng.getstate())


# The report.


def many(count: int) -> CheckReport:
    findings = tuple(Finding("tiny", "suspicious", f"{k}.jpg", "1x1", "enlarges it") for k in range(count))
    return CheckReport(findings, {}, count, 1.0)


def test_text_lists_twenty_files_of_a_kind() -> None:
    text = str(many(33))
    assert "19.jpg" in text and "20.jpg" not in text
    assert "... and 13 more (use --json for all)" in text
    assert "more" not in str(many(20))


def test_json_has_everything() -> None:
    found = json.loads(many(33).to_json())
    assert (33, 33) == (len(found["findings"]), found["counts"]["suspicious"])
    assert {"kind", "severity", "path", "what", "stock_does", "split", "label"} == set(found["findings"][0])


def test_a_finding_has_a_known_severity() -> None:
    with pytest.raises(DataError, match="'bad'"):
        Finding("kind", "bad", None, "", "")


def test_odd_names_are_printed_in_one_line_and_survive_in_json(tmp_path: Path) -> None:
    folder = tree(tmp_path) / "train" / "cat"
    paths = [
        os.fsencode(folder / "new\nline.png"),
        os.fsencode(folder) + b"/latin\xe9.png",
        os.fsencode(folder / "\x1b[31m.png"),
    ]
    for path in paths:
        with open(path, "wb") as file:
            file.write(b"bad")
    report = checked(tmp_path)
    assert sorted(paths) == sorted(os.fsencode(f["path"]) for f in json.loads(report.to_json())["findings"])
    str(report).encode("utf-8")
    assert "new\\nline.png'" in str(report) and "latin\\udce9.png'" in str(report) and "\x1b" not in str(report)


# The command.


def run(*args: str) -> int:
    folder = ["--size", str(SIZE), "--recipe", "squish", "--bs", "2", "--num-workers", "0"]
    return main(["check", *args, *([] if ".py:" in args[0] else folder)])


def test_command_exits_0_where_nothing_is_broken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tree(tmp_path) / "train" / "cat" / "turned.jpg", picture(1), exif=turned(6))
    assert 0 == run(str(tmp_path))
    shown = capsys.readouterr()
    assert "suspicious: orientation (1)" in shown.out
    assert "13 of 13 files" in shown.err and "\r" not in shown.err


def test_command_exits_3_where_something_is_broken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tree(tmp_path) / "train" / "cat" / "bad.jpg").write_bytes(b"bad")
    assert 3 == run(str(tmp_path))
    assert "broken: not an image (1)" in capsys.readouterr().out


def test_command_prints_one_json_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tree(tmp_path) / "train" / "cat" / "bad.jpg"
    path.write_bytes(b"bad")
    assert 3 == run(str(tmp_path), "--json")
    found = json.loads(capsys.readouterr().out)
    assert [str(path)] == [f["path"] for f in found["findings"]]
    assert (13, 1) == (found["files"], found["counts"]["broken"])


TROUBLE: dict[str, Callable[[Path], object]] = {
    "no such folder": lambda root: None,
    "no image": lambda root: root.mkdir(),
    "nothing to train on": lambda root: (
        (root / "train").mkdir(parents=True),
        save(root / "valid" / "a" / "1.png", picture(1)),
    ),
}


@pytest.mark.parametrize("trouble", TROUBLE)
def test_command_exits_1_in_one_line_where_there_is_nothing_to_check(
    trouble: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    TROUBLE[trouble](tmp_path / "set")
    assert 1 == run(str(tmp_path / "set"))
    lines = capsys.readouterr().err.splitlines()
    assert (1, True) == (len(lines), lines[-1].startswith("fastload check: "))


def function(root: Path, body: str) -> str:
    (root / "train.py").write_text(f"from fastai.vision.all import *\ndef get_dls():\n    {body}\n")
    return f"{root / 'train.py'}:get_dls"


def test_command_checks_a_function_whose_first_item_is_broken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (tree(tmp_path / "set") / "train").rglob("*.png"):
        path.write_bytes(b"bad")
    body = f"return ImageDataLoaders.from_folder({str(tmp_path / 'set')!r}, item_tfms=Resize(16), bs=2, num_workers=0)"
    assert 3 == run(function(tmp_path, body), "--json")
    assert 6 == json.loads(capsys.readouterr().out)["counts"]["broken"]


def test_what_a_function_prints_is_no_part_of_the_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = f"print('hello'); return ImageDataLoaders.from_folder({str(tree(tmp_path / 'set'))!r}, item_tfms=Resize(16), bs=2)"
    assert 0 == run(function(tmp_path, body), "--json")
    assert 12 == json.loads(capsys.readouterr().out)["files"]


def test_command_exits_1_where_the_function_raises(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 1 == run(function(tmp_path, "raise RuntimeError('of its own\\naccord')"))
    assert "RuntimeError: of its own accord" in capsys.readouterr().err


def test_progress_line_is_redrawn_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal, clock = Terminal(), iter((100.0, 101.0, 101.01, 102.0))
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr(command.time, "monotonic", lambda: next(clock))
    show = command._progress()
    for done in (0, 1, 2, 3):
        show(done, 3)
    lines = [line.rstrip() for line in terminal.getvalue().split("\r")]
    shown = ["0 of 3 files, 0 files/s, 0 s", "1 of 3 files, 1 files/s, 2 s left", "3 of 3 files, 2 files/s, 2 s"]
    assert ["", *shown] == lines


# The awkward files beside the checkout.


def _awkward() -> list[Any]:
    if not (CASES / "files.json").is_file():
        return []
    rows = json.loads((CASES / "files.json").read_text())["cases"]
    return [row for row in rows if row["expected"]["outcome"] in ("decodes", "error")]


@pytest.mark.skipif(not CASES.is_dir(), reason=f"the shared cases are not at {CASES}")
@pytest.mark.parametrize(
    "use", [Use("train"), Use("train", mode="L"), Use("train", mode="L", mask=True)], ids=["RGB", "L", "mask"]
)
def test_awkward_files_are_broken_exactly_where_stock_raises(use: Use) -> None:
    rows = _awkward()
    assert len(rows) > 50
    wrong = []
    for row in rows:
        seen = inspect(str(CASES / row["file"]), (use,))
        broken = any(f.severity == "broken" for f in seen.findings)
        if broken != (row["expected"]["outcome"] == "error") or any(f.kind == "not examined" for f in seen.findings):
            wrong.append((row["id"], [f"{f.kind}: {f.what}" for f in seen.findings]))
    assert [] == wrong


@pytest.mark.skipif(not CASES.is_dir(), reason=f"the shared cases are not at {CASES}")
def test_awkward_files_are_checked_together(tmp_path: Path) -> None:
    root = tree(tmp_path)
    expected = set()
    for row in _awkward():
        link = root / "train" / "dog" / Path(row["file"]).name
        link.symlink_to(CASES / row["file"])
        expected |= {str(link)} if row["expected"]["outcome"] == "error" else set()
    assert expected == {f.path for f in checked(root).broken}
