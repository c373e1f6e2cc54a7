"""What a cache gives back is what was kept, from any process and file system, with no more than is needed."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from caches import KINDS, OPS, blueprint, built, everything, finish, opened, shards
from pictures import Pictures, make_pictures
from PIL import Image

from fastload import pixels
from fastload.cache._format import canonical, digest_of, read_json, write_json
from fastload.cache._make import kept_ops
from fastload.cache._mounts import remote
from fastload.cache.read import CacheSource, open_cache
from fastload.errors import CacheError
from fastload.ops import Flip, Stored
from fastload.plan import Element, Plan
from fastload.source import Files, Ref


@pytest.fixture
def made(tmp_path: Path) -> Pictures:
    return make_pictures(tmp_path / "data")


@pytest.mark.parametrize("kind", ["source", "decoded"])
def test_every_file_comes_back(made: Pictures, tmp_path: Path, kind: str) -> None:
    source = CacheSource(built(made, tmp_path / "cache", kind), made.images)
    assert len(shards(source.held)) > 2
    assert len(source) == len(made.files)
    for number, path in enumerate(made.files):
        record, image = source.read(Ref(number, str(path))), Image.open(path)
        assert source.size(Ref(number, str(path))) == image.size
        if kind == "source":
            assert record.data == path.read_bytes()
            assert record.codec == Files().read(Ref(number, str(path))).codec
        else:
            assert record.codec == "raw"
            assert np.array_equal(record.image, np.asarray(image.convert("RGB")))
            assert not record.image.flags.writeable


def test_gray_pixels_have_one_channel(made: Pictures, tmp_path: Path) -> None:
    assert finish(blueprint(made, "decoded", "L"), made.images, tmp_path / "cache")
    source = CacheSource(opened(tmp_path / "cache"), made.images)
    for number, path in enumerate(made.files):
        wanted = np.asarray(pixels.load(Files().read(Ref(number, str(path))), "L"))
        assert np.array_equal(source.read(Ref(number, str(path))).image[..., 0], wanted)


def test_a_crop_needs_only_its_own_rows_whole(tmp_path: Path) -> None:
    made = Pictures(tmp_path / "data")
    (made.images / "a").mkdir(parents=True)
    noise = np.random.default_rng(1).integers(0, 256, (400, 300, 3)).astype(np.uint8)
    Image.fromarray(noise).save(made.images / "a" / "large.png")
    kept = built(made, tmp_path / "cache", "decoded")
    path = shards(kept)[0].path
    data = bytearray(path.read_bytes())
    data[int(shards(kept)[0].rows["offset"][0]) + 390 * 900] ^= 1
    path.write_bytes(data)
    source, ref = CacheSource(opened(tmp_path / "cache"), made.images), Ref(0, str(made.files[0]))
    found = source.read(ref, (0, 100, 300, 200)).image
    assert np.array_equal(found[100:200], noise[100:200])
    with pytest.raises(CacheError, match="another checksum"):
        source.read(ref, (0, 200, 300, 400))
    with pytest.raises(CacheError, match="another checksum"):
        source.read(ref)
    assert CacheSource(opened(tmp_path / "cache"), made.images, "off").read(ref).image.shape == (400, 300, 3)


def test_what_changed_is_stale_and_what_was_touched_is_not(made: Pictures, tmp_path: Path) -> None:
    kept = built(made, tmp_path / "cache", "decoded")
    names = [str(p.relative_to(made.images)) for p in made.files]

    def changed() -> list[str]:
        return [name for name in names if kept.changed(name, made.images)]

    assert changed() == []
    os.utime(made.files[0])
    assert changed() == []
    made.files[1].unlink()
    assert changed() == []
    Image.new("RGB", (9, 9)).save(made.files[2])
    assert changed() == [names[3]]
    os.utime(made.files[2])
    assert changed() == [names[3]]


def test_a_source_may_be_pickled_and_read_in_a_child(made: Pictures, tmp_path: Path) -> None:
    built(made, tmp_path / "cache", "decoded")
    source = CacheSource(open_cache(tmp_path / "cache").held("train"), made.images)
    again = pickle.loads(pickle.dumps(source))
    assert again.held is source.held  # one mapping a process
    wanted = source.read(Ref(0, str(made.files[0]))).image
    if (child := os.fork()) == 0:
        os._exit(0 if np.array_equal(source.read(Ref(0, str(made.files[0]))).image, wanted) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_finished_images_are_what_the_steps_make(made: Pictures, tmp_path: Path) -> None:
    source = CacheSource(built(made, tmp_path / "cache", "final"), made.images)
    plan = Plan((Element(0),), OPS["final"])
    assert source.held.applied(plan).ops == (Stored((20, 24)),)
    for number, path in enumerate(made.files):
        record, image = source.read(Ref(number, str(path))), Image.open(path).convert("RGB")
        todo = pixels.steps(plan, plan.elements[0], ((0.5, 0.5),), image.size, image.size)
        assert record.codec == "planes"
        assert np.array_equal(record.image, pixels.decode(pixels.apply(image, todo), plan.elements[0]))


def test_drawn_versions_differ_and_are_drawn_as_in_training(made: Pictures, tmp_path: Path) -> None:
    source = CacheSource(built(made, tmp_path / "cache", "variants"), made.images)
    plan = Plan((Element(0),), OPS["variants"])
    assert source.held.applied(plan).ops == (Stored((24, 20), 3), Flip())
    found = [source.read(Ref(0, str(path), k)).image.tobytes() for path in made.files for k in range(3)]
    assert len(set(found)) > 2.5 * len(made.files)


@pytest.mark.parametrize("kind", KINDS)
def test_on_a_network_file_system_nothing_is_mapped(
    made: Pictures, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    built(made, tmp_path / "cache", kind)
    wanted = everything(tmp_path / "cache", made)
    monkeypatch.setattr("fastload.cache._part.remote", lambda path: True)
    monkeypatch.setattr("fastload.cache._part.Shard.mapped", lambda self: pytest.fail("it was mapped"))
    assert everything(tmp_path / "cache", made) == wanted
    source = CacheSource(opened(tmp_path / "cache"), made.images)
    if kind == "final":
        rows = np.empty((2, 3, 24, 20), np.uint8)
        refs = [Ref(k, str(made.files[k])) for k in range(2)]
        assert source.gather(refs, list(rows))
        assert [r.tobytes() for r in rows] == wanted[:2]
    elif kind == "decoded":
        whole = source.read(Ref(0, str(made.files[0]))).image
        part = source.read(Ref(0, str(made.files[0])), (0, 10, 5, 20)).image
        assert np.array_equal(part[10:20], whole[10:20])


MOUNTS = """\
/dev/vda / ext4 rw 0 0
server:/home /home nfs4 rw 0 0
bucket /mnt/my\\040data fuse.s3fs rw 0 0
overlay /merged fuse.overlayfs rw 0 0
/dev/vdb /home/fast xfs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/home/me/x", True),
        ("/home/fast/x", False),
        ("/homely/x", False),
        ("/mnt/my data/x", True),
        ("/merged/x", False),
        ("/x", False),
    ],
)
def test_network_file_systems_are_known_by_the_mount_table(tmp_path: Path, path: str, expected: bool) -> None:
    table = tmp_path / "mounts"
    table.write_text(MOUNTS)
    assert remote(Path(path), table) is expected


READER = """
import sys
from pathlib import Path
from caches import everything, opened
from pictures import Pictures
made, wanted = Pictures(Path(sys.argv[1])), None
for epoch in range(int(sys.argv[3])):
    found = everything(Path(sys.argv[2]), made)
    assert wanted is None or found == wanted
    wanted = found
print(sum(map(sum, wanted)))
"""


def test_several_processes_read_while_others_are_killed(made: Pictures, tmp_path: Path) -> None:
    built(made, tmp_path / "cache", "decoded")
    wanted = str(sum(map(sum, everything(tmp_path / "cache", made))))
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-W", "ignore", "-c", READER, str(made.path), str(tmp_path / "cache")]
    pipes: dict[str, Any] = {"env": environment, "stdout": subprocess.PIPE, "text": True}
    doomed = [subprocess.Popen([*command, "100000"], **pipes) for _ in range(3)]
    readers = [subprocess.Popen([*command, "20"], **pipes) for _ in range(2)]
    for reader in readers[:1]:
        assert reader.communicate(timeout=100)[0].strip() == wanted
    for child in doomed:
        child.kill()
        child.communicate()
    assert readers[1].communicate(timeout=100)[0].strip() == wanted
    assert str(sum(map(sum, everything(tmp_path / "cache", made)))) == wanted
    context = multiprocessing.get_context("spawn")
    source = CacheSource(open_cache(tmp_path / "cache").held("train"), made.images)
    with context.Pool(2) as pool:
        found = pool.map(partial(_sum_of, source), [str(p) for p in made.files])
    assert str(sum(found)) == wanted


def _sum_of(source: CacheSource, path: str) -> int:
    return int(source.read(Ref(0, path)).image.astype(np.int64).sum())


def test_memory_stays_flat_over_epochs(made: Pictures, tmp_path: Path) -> None:
    built(made, tmp_path / "cache", "decoded")
    source = CacheSource(open_cache(tmp_path / "cache").held("train"), made.images, "always")
    refs = [Ref(k, str(p)) for k, p in enumerate(made.files)]
    for ref in refs:
        source.read(ref)
    gc.collect()
    tracemalloc.start()
    try:
        for _ in range(30):
            source.ahead(source.places(refs))
            for ref in refs:
                source.read(ref)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 20_000  # bytes
    finally:
        tracemalloc.stop()
    files = {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")}
    assert sum(str(tmp_path) in name for name in files) <= len(shards(source.held))  # one open file a shard


def test_formats_that_differ_from_memory_are_not_kept(made: Pictures, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bmp = made.images / "cat" / "x.bmp"
    Image.new("RGB", (5, 4), (1, 2, 3)).save(bmp)
    source = CacheSource(built(made, tmp_path / "one", "source"), made.images)
    bmp.rename(tmp_path / "x.bmp")
    record = source.read(Ref(0, str(bmp)))
    assert record.kept
    assert pixels.load(record, "RGB").getpixel((0, 0)) == (1, 2, 3)
    (tmp_path / "x.bmp").rename(bmp)
    real = Image.open
    monkeypatch.setattr(Image, "open", lambda file, *a: real(file, *a) if isinstance(file, str | Path) else real(made.files[0]))
    kept = built(made, tmp_path / "two", "source", max_bad=0.1)
    assert "differently from memory" in kept.bad["cat/x.bmp"]


def test_a_hostile_cache_runs_nothing(made: Pictures, tmp_path: Path) -> None:
    out = tmp_path / "cache"
    kept = built(made, out, "final")
    part = kept.parts[0].path
    for folder in ("../../etc", "/etc", "parts", "..", ""):
        body = {k: v for k, v in read_json(out / "manifest.json").items() if k != "digest"}
        body["parts"] = [{"folder": folder, "manifest": "0" * 32}]
        write_json(out / "manifest.json", {**body, "digest": digest_of(canonical(body))})
        with pytest.raises((CacheError, FileNotFoundError)):
            opened(out)
    for step in ('{"op":"__import__"}', '{"op":"Resize"}', "[]", '{"op":"Flip","p":{"a":1},"applies":true}'):
        with pytest.raises(CacheError, match="steps are not of this version"):
            kept_ops(replace(blueprint(made, "final"), fingerprint={"step 0": step}))
    for word in (b"pickle", b"eval", b"marshal", b"__reduce__"):
        assert not any(word in path.read_bytes() for path in part.rglob("*") if path.suffix in (".json", ".jsonl", ".idx"))


def test_an_unfinished_cache_is_none(tmp_path: Path) -> None:
    with pytest.raises(CacheError, match="no finished cache"):
        open_cache(tmp_path)
