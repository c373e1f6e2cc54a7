"""A cache holds the files' bytes or Pillow's pixels, the same however it was built, never stale or damaged unnoticed."""

from __future__ import annotations

import errno
import gc
import json
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from pictures import Pictures, make_pictures
from PIL import Image

from fastload import cache as room
from fastload import pixels
from fastload.cache import _items as what
from fastload.cache._format import canonical, checked_json, digest_of, read_json, write_json
from fastload.cache._make import kept_ops
from fastload.cache._mounts import remote
from fastload.cache._part import read_manifest
from fastload.cache.build import How, build_part
from fastload.cache.generations import publish
from fastload.cache.read import Cache, CacheSource, Held, open_cache, read_generation
from fastload.cache.repair import repair
from fastload.cache.verify import verify
from fastload.errors import CacheError
from fastload.ops import Flip, RandomResizedCrop, Resize, Stored
from fastload.plan import Element, Plan
from fastload.source import Files, Ref

SMALL = 9_000  # bytes a shard, so that there are several
KINDS = ("source", "decoded", "final")
OPS = {"final": (Resize((20, 24)),), "variants": (Flip(), RandomResizedCrop((24, 20), random=True))}


def blueprint(made: Pictures, kind: str, mode: str = "RGB", most: int = SMALL) -> what.Blueprint:
    items = what.listed([str(p) for p in made.files], made.images)
    variants, ops = (3, OPS[kind]) if kind == "variants" else (0, OPS.get(kind, ()))
    kind = "final" if variants else kind
    sizes = [what.expected_bytes(item, kind, mode, made.images, 2000 if ops else 0) for item in items]
    shards = what.sharded(sizes, most)
    return what.Blueprint(kind, mode, what.fingerprint(kind, ops), shards, items, variants=variants, seed=7)


@pytest.fixture
def made(tmp_path: Path) -> Pictures:
    return make_pictures(tmp_path / "data")


def finish(plan: what.Blueprint, root: Path, out: Path, **how: Any) -> bool:
    """Build a cache of one part."""
    whole = build_part(plan, root, out / "parts" / plan.name, How(**how))
    if whole:
        publish(out, ((plan.name, read_manifest(out / "parts" / plan.name)["digest"]),), {})
    return whole


def opened(out: Path) -> Held:
    """A cache opened anew."""
    return Cache(out, read_generation(out)).held("train")


def built(made: Pictures, out: Path, kind: str, **how: Any) -> Held:
    assert finish(blueprint(made, kind), made.images, out, **how)
    return opened(out)


def shards(kept: Held) -> list[Any]:
    return [shard for part in kept.parts for shard in part.shards]


def content(out: Path) -> dict[str, bytes]:
    """Every file of a cache by its name."""
    return {str(p.relative_to(out)): p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file() and p.name != "lock"}


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


@pytest.mark.parametrize("kind", [*KINDS, "variants"])
def test_builds_are_equal_byte_for_byte(made: Pictures, tmp_path: Path, kind: str) -> None:
    plan = blueprint(made, kind)
    assert finish(plan, made.images, tmp_path / "one", threads=1)
    assert not finish(plan, made.images, tmp_path / "shared", share=(1, 2), threads=3)
    assert not (tmp_path / "shared" / "manifest.json").exists()
    assert finish(plan, made.images, tmp_path / "shared", share=(0, 2))
    assert finish(plan, made.images, tmp_path / "shared", share=(2, 3))
    assert content(tmp_path / "one") == content(tmp_path / "shared")


KILLED = """
import os, signal, sys, random
from pathlib import Path
from test_cache import blueprint, finish
from pictures import Pictures
from fastload.cache import build as room, _format, generations
dice = random.Random(int(sys.argv[3]))
def maybe(name, real):
    def call(*args, **how):
        if dice.random() < float(sys.argv[5]):
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **how)
    return call
rooms = {room: ("_write", "_put", "_located", "_commit", "kept", "_finish")}
rooms[_format] = ("write_index", "write_bytes", "sync_folder")
rooms[generations] = ("read_generation", "numbered")
for module, names in rooms.items():
    for name in names:
        setattr(module, name, maybe(name, getattr(module, name)))
for name in ("replace", "link", "fsync"):
    setattr(os, name, maybe(name, getattr(os, name)))
made = Pictures(Path(sys.argv[1]))
print(finish(blueprint(made, sys.argv[4]), made.images, Path(sys.argv[2]), threads=2))
"""


@pytest.mark.parametrize(
    ("kind", "kills"),
    [
        ("source", 6),
        ("variants", 6),
        *(pytest.param(k, 30, marks=pytest.mark.slow) for k in (*KINDS, "variants")),
    ],
)
def test_a_build_that_is_killed_goes_on_and_ends_the_same(made: Pictures, tmp_path: Path, kind: str, kills: int) -> None:
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    assert finish(blueprint(made, kind), made.images, whole)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    died, committed = 0, set[str]()
    for seed in range(20 * kills):
        command = [sys.executable, "-W", "ignore", "-c", KILLED, str(made.path), str(torn), str(seed), kind, "0.12"]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100, check=False)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        died += done.returncode != 0
        now = {p.name for p in torn.glob("parts/*/commits/*.json")} if torn.exists() else set()
        assert committed <= now  # nothing committed is lost
        committed = now
        if done.returncode == 0:
            assert content(whole) == {k: v for k, v in content(torn).items() if not k.endswith(".tmp")}, seed
            if died >= kills:
                return
            for path in sorted(torn.rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
            committed = set()
    pytest.fail(f"only {died} attempts were killed")


@pytest.mark.parametrize("host", ["here", "node-1.cluster.example"])
def test_files_of_dead_builders_of_this_host_are_removed(
    made: Pictures, tmp_path: Path, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: host)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    tmp = tmp_path / "cache" / "parts" / blueprint(made, "source").name / "tmp"
    tmp.mkdir(parents=True)
    names = [
        f"00001-{host}-{dead.pid}.lmdb",
        f"00001-{host}-{dead.pid}.lmdb-lock",
        "00001-elsewhere-1.lmdb",
        f"00002-{host}-1.idx",
    ]
    for name in names:
        (tmp / name).write_bytes(b"half")
    built(made, tmp_path / "cache", "source")
    assert sorted(p.name for p in tmp.iterdir()) == sorted(names[2:])  # process 1 is alive


def test_two_builders_at_once_make_one_cache(made: Pictures, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-W", "ignore", "-c", KILLED, str(made.path), str(tmp_path / "both"), "0", "decoded", "0"]
    builders = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [b.communicate(timeout=100)[0].strip() for b in builders] == ["True"] * 3
    assert [b.returncode for b in builders] == [0, 0, 0]
    assert finish(blueprint(made, "decoded"), made.images, tmp_path / "one")
    assert content(tmp_path / "one") == content(tmp_path / "both")


@pytest.mark.parametrize("kind", [*KINDS, "variants"])
def test_any_damage_is_noticed(made: Pictures, tmp_path: Path, kind: str) -> None:
    rng = random.Random(3)
    out = tmp_path / "cache"
    built(made, out, kind)
    wanted = everything(out, made)
    noticed = harmless = 0
    for path in [p for p in sorted(out.rglob("*")) if p.is_file() and p.name not in ("lock", "plan.json")]:
        data = path.read_bytes()
        for how in ("flip", "flip", "flip", "cut", "empty", "gone"):
            damaged = bytearray(data)
            at = rng.randrange(len(data))
            if how == "flip":
                damaged[at] ^= 1 << rng.randrange(8)
            path.write_bytes(damaged if how == "flip" else data[:at] if how == "cut" else b"")
            if how == "gone":
                path.unlink()
            try:
                assert everything(out, made) == wanted  # a bit that no reader looks at
                harmless += 1
            except CacheError as err:
                assert str(out) in str(err)
                noticed += 1
            path.write_bytes(data)
    assert noticed > harmless  # commit records and the numbered manifest are for builders
    assert everything(out, made) == wanted


@pytest.mark.parametrize("kind", [*KINDS, "variants"])
def test_repair_gives_back_the_same_bytes(made: Pictures, tmp_path: Path, kind: str) -> None:
    rng, out = random.Random(5), tmp_path / "cache"
    built(made, out, kind)
    wanted = content(out)
    for name in wanted:
        if Path(name).name in ("plan.json", "items.jsonl"):
            continue
        for how in ("flip", "cut", "gone"):
            damaged = bytearray(wanted[name])
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
            (out / name).write_bytes(damaged if how == "flip" else wanted[name][:7])
            if how == "gone":
                (out / name).unlink()
            heard: list[str] = []
            rebuilt = repair(out, made.images, said=heard.append)
            assert len(rebuilt) == len(heard) == (0 if Path(name).name.startswith("manifest.") else 1)
            assert content(out) == wanted
    assert verify(out) == []


def test_repair_refuses_what_it_can_not_make_equal(made: Pictures, tmp_path: Path) -> None:
    out = tmp_path / "cache"
    built(made, out, "decoded")
    (part,) = (out / "parts").iterdir()
    for commit in (part / "commits").iterdir():
        commit.unlink()
    kept = made.files[0].read_bytes()
    made.files[0].write_bytes(kept + b"more")
    with pytest.raises(CacheError, match="changed"):
        repair(out, made.images)
    (part / "plan.json").write_text("{}")
    with pytest.raises(CacheError, match="build the cache anew"):
        repair(out, made.images)


def everything(out: Path, made: Pictures) -> list[bytes]:
    """Every record of a cache, opened anew."""
    source = CacheSource(opened(out), made.images)
    versions = range(max(1, source.held.variants))
    records = [source.read(Ref(k, str(p), v)) for k, p in enumerate(made.files) for v in versions]
    return [r.data if r.data is not None else r.image.tobytes() for r in records]


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
    assert kept.changed(made.images) == []
    os.utime(made.files[0])
    assert kept.changed(made.images) == []
    made.files[1].unlink()
    assert kept.changed(made.images) == []
    Image.new("RGB", (9, 9)).save(made.files[2])
    assert kept.changed(made.images) == [str(made.files[2].relative_to(made.images))]


def test_files_that_can_not_be_kept_are_listed_within_a_budget(made: Pictures, tmp_path: Path) -> None:
    made.files[4].write_bytes(b"no picture")
    plan = blueprint(made, "decoded")
    with pytest.raises(CacheError, match=r"1 items can't be kept.*max_bad"):
        finish(plan, made.images, tmp_path / "cache")
    assert finish(plan, made.images, tmp_path / "cache", max_bad=0.5)
    source = CacheSource(opened(tmp_path / "cache"), made.images)
    name = str(made.files[4].relative_to(made.images))
    assert list(source.held.bad) == [name]
    assert source.size(Ref(4, str(made.files[4]))) is None
    assert source.read(Ref(4, str(made.files[4]))) == Files().read(Ref(4, str(made.files[4])))  # its fault is stock's


def test_a_file_that_changes_while_it_is_read_stops_the_build(made: Pictures, tmp_path: Path) -> None:
    plan = blueprint(made, "source")
    made.files[3].write_bytes(made.files[3].read_bytes() + b"more")
    with pytest.raises(CacheError, match=r"changed while the cache was built \(size"):
        finish(plan, made.images, tmp_path / "cache")


def test_an_unfinished_cache_is_none(tmp_path: Path) -> None:
    with pytest.raises(CacheError, match="no finished cache"):
        open_cache(tmp_path)


def test_a_source_may_be_pickled_and_read_in_a_child(made: Pictures, tmp_path: Path) -> None:
    built(made, tmp_path / "cache", "decoded")
    source = CacheSource(open_cache(tmp_path / "cache").held("train"), made.images)
    again = pickle.loads(pickle.dumps(source))
    assert again.held is source.held  # one mapping a process
    wanted = source.read(Ref(0, str(made.files[0]))).image
    if (child := os.fork()) == 0:
        os._exit(0 if np.array_equal(source.read(Ref(0, str(made.files[0]))).image, wanted) else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("kind", [*KINDS, "variants"])
def test_the_manifests_are_as_their_schemas_say(made: Pictures, tmp_path: Path, kind: str) -> None:
    kept = built(made, tmp_path / "cache", kind)
    for name, file in (("manifest", tmp_path / "cache" / "manifest.json"), ("part", kept.parts[0].path / "manifest.json")):
        manifest = read_json(file)
        schema = json.loads((Path(room.__file__).parent / f"{name}.schema.json").read_text())
        jsonschema.Draft202012Validator.check_schema(schema)
        jsonschema.validate(manifest, schema)
        for spoilt in (
            {**manifest, "format": "fastload-cache/2"},
            {**manifest, "more": 1},
            {k: v for k, v in manifest.items() if k not in ("plan", "parts")},
        ):
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate(spoilt, schema)
    assert [s["shard"] for s in checked_json(file)["shards"]] == list(range(len(shards(kept))))


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


def test_records_far_larger_than_the_first_find_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Pictures(tmp_path / "data")
    (made.images / "a").mkdir(parents=True)
    noise = np.random.default_rng(1).integers(0, 256, (500, 400, 3)).astype(np.uint8)
    for k in range(40):
        Image.fromarray(noise[: 8 if k == 0 else 500]).save(made.images / "a" / f"{k:03d}.png", compress_level=0)
    monkeypatch.setattr("fastload.cache.build._MAP", 1 << 20)  # the map grows, and each transaction is whole
    source = CacheSource(built(made, tmp_path / "cache", "source"), made.images)
    for number, path in enumerate(made.files):
        assert source.read(Ref(number, str(path))).data == path.read_bytes()


def test_a_disk_that_fills_up_stops_the_build_and_it_goes_on(
    made: Pictures, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, real, calls = blueprint(made, "decoded"), os.fsync, [0]

    def full(file: int) -> None:
        calls[0] += 1
        if calls[0] == 14:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(file)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CacheError, match=r"No space left on device; free the disk and run this again"):
        finish(plan, made.images, tmp_path / "cache")
    committed = set((tmp_path / "cache").glob("parts/*/commits/*.json"))
    assert committed
    assert list((tmp_path / "cache").glob("parts/*/tmp/*")) == []
    monkeypatch.setattr(os, "fsync", real)
    before = {p: p.stat().st_mtime_ns for p in committed}
    assert finish(plan, made.images, tmp_path / "cache")
    assert before == {p: p.stat().st_mtime_ns for p in committed}  # nothing is done twice
    assert finish(plan, made.images, tmp_path / "other")
    assert content(tmp_path / "cache") == content(tmp_path / "other")


@pytest.mark.skipif(os.geteuid() != 0, reason="a small disk has to be mounted")
def test_a_small_disk_ends_in_one_clear_error(made: Pictures, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96k", "tmpfs", str(small)], check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        with pytest.raises(CacheError, match="could not be written .* free the disk and run this again"):
            finish(blueprint(made, "decoded", most=1 << 20), made.images, small / "cache")
        assert not (small / "cache" / "manifest.json").exists()
    finally:
        subprocess.run(["umount", str(small)], check=True)


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
from test_cache import opened, everything
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
            source.ahead(refs)
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
