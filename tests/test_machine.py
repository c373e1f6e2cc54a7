"""The machine room: limits are read from fake file systems, environments and affinities."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fastload.errors import SettingsError
from fastload.machine import Cpus, describe, switched_off, usable_cpus, usable_memory

GIB = 1 << 30
V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"


def fake(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def cpus(root: Path, affinity: int = 16, **environ: str) -> Cpus:
    return usable_cpus(root=root, environ=environ, affinity=affinity)


# Affinity.


def test_one_cpu_of_affinity_is_one_cpu(tmp_path: Path) -> None:
    assert Cpus(1, "scheduling affinity 1 CPU", (("scheduling affinity 1 CPU", 1.0),)) == cpus(tmp_path, affinity=1)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="only Linux can pin a process")
def test_a_process_pinned_to_one_cpu_really_finds_one() -> None:
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
        "from fastload.machine import usable_cpus; print(usable_cpus(environ={}).count)"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert "1" == done.stdout.strip()


def test_fewer_than_one_cpu_can_not_be_stated() -> None:
    with pytest.raises(SettingsError, match="at least 1, found 0"):
        Cpus(0, "none", ())


# Cgroup quotas.


def test_cgroup_v2_quota_of_one_cpu_binds(tmp_path: Path) -> None:
    fake(tmp_path, {"proc/self/cgroup": "0::/x\n", "sys/fs/cgroup/x/cpu.max": "100000 100000\n"})
    found = cpus(tmp_path)
    assert (1, "cgroup quota 1.0 CPU (/sys/fs/cgroup/x/cpu.max)") == (found.count, found.reason)


def test_a_tighter_ancestor_binds_over_its_children(tmp_path: Path) -> None:
    folder = "sys/fs/cgroup/a"
    quotas = {f"{folder}/cpu.max": "200000 100000", f"{folder}/b/cpu.max": "max 100000"}
    fake(tmp_path, {"proc/self/cgroup": "0::/a/b/c\n", f"{folder}/b/c/cpu.max": "800000 100000", **quotas})
    found = cpus(tmp_path)
    assert (2, "cgroup quota 2.0 CPU (/sys/fs/cgroup/a/cpu.max)") == (found.count, found.reason)
    assert [16.0, 8.0, 2.0] == [amount for _, amount in found.limits]


def test_a_sibling_cgroup_never_binds(tmp_path: Path) -> None:
    fake(tmp_path, {"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/b/cpu.max": "100000 100000"})
    assert 16 == cpus(tmp_path).count


def test_a_container_whose_own_path_is_not_mounted_still_finds_its_quota(tmp_path: Path) -> None:
    fake(tmp_path, {"proc/self/cgroup": "0::/docker/abc\n", "sys/fs/cgroup/cpu.max": "300000 100000"})
    assert 3 == cpus(tmp_path).count


def test_a_mounted_subtree_is_entered_below_its_own_root(tmp_path: Path) -> None:
    mounts = r"30 23 0:26 /a\134x2db /sys/fs/cgroup rw - cgroup2 cgroup2 rw"
    files = {"proc/self/mountinfo": mounts, "sys/fs/cgroup/job/cpu.max": "500000 100000"}
    fake(tmp_path, {"proc/self/cgroup": "0::/a\\x2db/job\n", **files})
    assert 5 == cpus(tmp_path).count


def test_a_process_outside_its_cgroup_namespace_stays_within_the_mount(tmp_path: Path) -> None:
    files = {"proc/self/mountinfo": V2_MOUNT, "sys/fs/cgroup/cpu.max": "400000 100000", "sys/cpu.max": "100000 100000"}
    fake(tmp_path, {"proc/self/cgroup": "0::/../..\n", **files})
    assert 4 == cpus(tmp_path).count


def test_max_is_no_limit(tmp_path: Path) -> None:
    fake(tmp_path, {"proc/self/cgroup": "0::/x\n", "sys/fs/cgroup/x/cpu.max": "max 100000\n"})
    assert (("scheduling affinity 16 CPU", 16.0),) == cpus(tmp_path).limits


def test_cgroup_v1_quota_binds_at_the_place_mountinfo_names(tmp_path: Path) -> None:
    mounts = "32 31 0:29 / /cg/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    files = {"cg/cpu,cpuacct/j/cpu.cfs_quota_us": "250000\n", "cg/cpu,cpuacct/j/cpu.cfs_period_us": "100000\n"}
    fake(tmp_path, {"proc/self/cgroup": "4:cpu,cpuacct:/j\n0::/\n", "proc/self/mountinfo": mounts, **files})
    found = cpus(tmp_path)
    assert (2, "cgroup quota 2.5 CPU (/cg/cpu,cpuacct/j/cpu.cfs_quota_us)") == (found.count, found.reason)


@pytest.mark.parametrize("place", ["cpu", "cpu,cpuacct"])
def test_cgroup_v1_quota_is_found_in_the_usual_places_without_mountinfo(tmp_path: Path, place: str) -> None:
    folder = f"sys/fs/cgroup/{place}"
    fake(tmp_path, {f"{folder}/cpu.cfs_quota_us": "100000", f"{folder}/cpu.cfs_period_us": "50000"})
    assert 2 == cpus(tmp_path).count


def test_cgroup_v1_minus_one_is_no_limit(tmp_path: Path) -> None:
    folder = "sys/fs/cgroup/cpu"
    fake(tmp_path, {f"{folder}/cpu.cfs_quota_us": "-1", f"{folder}/cpu.cfs_period_us": "100000"})
    assert 16 == cpus(tmp_path).count


@pytest.mark.parametrize(("quota", "count"), [("350000", 3), ("50000", 1), ("1000", 1)])
def test_fractions_are_rounded_down_but_never_below_one(tmp_path: Path, quota: str, count: int) -> None:
    fake(tmp_path, {"sys/fs/cgroup/cpu.max": f"{quota} 100000"})
    assert count == cpus(tmp_path).count


@pytest.mark.parametrize("text", ["", "banana", "1 2 3", "100000", "100000 0", "-5 100000", "1e5 100000", "9" * 400 + " 1"])
def test_a_malformed_quota_never_binds_and_is_recorded(tmp_path: Path, text: str) -> None:
    fake(tmp_path, {"sys/fs/cgroup/cpu.max": text})
    found = cpus(tmp_path)
    assert (16, "scheduling affinity 16 CPU") == (found.count, found.reason)
    assert (f"cgroup quota {text!r} is not understood, ignored (/sys/fs/cgroup/cpu.max)", math.inf) in found.limits


def test_bytes_that_are_not_text_never_crash(tmp_path: Path) -> None:
    fake(tmp_path, {"proc/self/cgroup": "nonsense\n\n::\n", "proc/self/mountinfo": "a b - c\n\n-\n"})
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cpu.max").write_bytes(b"\xff\xfe\x00")
    assert 16 == cpus(tmp_path).count


def test_a_folder_in_a_quota_files_place_is_no_limit(tmp_path: Path) -> None:
    (tmp_path / "sys/fs/cgroup/cpu.max").mkdir(parents=True)
    assert 16 == cpus(tmp_path).count


# Ranks on one machine.


def test_local_ranks_divide_the_affinity(tmp_path: Path) -> None:
    found = cpus(tmp_path, LOCAL_WORLD_SIZE="4")
    assert (4, "scheduling affinity 16 CPU divided by 4 local ranks") == (found.count, found.reason)


def test_local_ranks_divide_a_quota(tmp_path: Path) -> None:
    fake(tmp_path, {"proc/self/cgroup": "0::/x\n", "sys/fs/cgroup/x/cpu.max": "100000 100000\n"})
    found = cpus(tmp_path, LOCAL_WORLD_SIZE="2")
    expected = "cgroup quota 1.0 CPU (/sys/fs/cgroup/x/cpu.max) divided by 2 local ranks"
    assert (1, expected) == (found.count, found.reason)


def test_local_world_size_wins_over_slurm_tasks_per_node(tmp_path: Path) -> None:
    assert 8 == cpus(tmp_path, LOCAL_WORLD_SIZE="2", SLURM_NTASKS_PER_NODE="4").count


@pytest.mark.parametrize("value", ["two", "0", "-1", "1.5"])
def test_a_malformed_rank_count_divides_nothing_and_is_recorded(tmp_path: Path, value: str) -> None:
    found = cpus(tmp_path, LOCAL_WORLD_SIZE=value)
    assert 16 == found.count
    assert (f"LOCAL_WORLD_SIZE={value!r} is not a positive whole number, ignored", math.inf) in found.limits


# Slurm.


def test_slurm_cpus_per_task_bind(tmp_path: Path) -> None:
    found = cpus(tmp_path, SLURM_CPUS_PER_TASK="6", SLURM_CPUS_ON_NODE="3")
    assert (6, "SLURM_CPUS_PER_TASK=6") == (found.count, found.reason)


def test_slurm_cpus_per_task_are_not_divided_by_its_tasks(tmp_path: Path) -> None:
    environ = {"SLURM_CPUS_PER_TASK": "8", "SLURM_NTASKS_PER_NODE": "8"}
    assert 8 == cpus(tmp_path, affinity=64, **environ).count


def test_a_task_bound_to_its_own_cpus_is_not_divided_again(tmp_path: Path) -> None:
    environ = {"SLURM_CPUS_PER_TASK": "7", "SLURM_NTASKS_PER_NODE": "8"}
    assert 7 == cpus(tmp_path, affinity=8, **environ).count


def test_torchrun_as_the_only_slurm_task_shares_that_tasks_cpus(tmp_path: Path) -> None:
    environ = {"SLURM_CPUS_PER_TASK": "64", "SLURM_TASKS_PER_NODE": "1(x2)", "LOCAL_WORLD_SIZE": "8"}
    assert 8 == cpus(tmp_path, affinity=128, **environ).count


def test_slurm_cpus_on_node_bind_where_nothing_is_said_per_task(tmp_path: Path) -> None:
    found = cpus(tmp_path, SLURM_CPUS_ON_NODE="4")
    assert (4, "SLURM_CPUS_ON_NODE=4") == (found.count, found.reason)


def test_slurm_cpus_on_node_are_divided_by_its_tasks(tmp_path: Path) -> None:
    found = cpus(tmp_path, SLURM_CPUS_ON_NODE="8", SLURM_NTASKS_PER_NODE="4")
    assert (2, "SLURM_CPUS_ON_NODE=8 divided by 4 local ranks") == (found.count, found.reason)


# Memory.


def meminfo(available_kib: int) -> dict[str, str]:
    return {"proc/meminfo": f"MemTotal:  99999999 kB\nMemFree: 1 kB\nMemAvailable:   {available_kib} kB\n"}


def test_memory_is_what_the_kernel_says_is_available(tmp_path: Path) -> None:
    found = usable_memory(root=fake(tmp_path, meminfo(4 << 20)), environ={})
    assert (4 * GIB, "available RAM 4.0 GiB (/proc/meminfo)") == (found.bytes, found.reason)


def test_memory_of_a_tighter_cgroup_ancestor_binds(tmp_path: Path) -> None:
    folder = "sys/fs/cgroup/a"
    own = {f"{folder}/b/memory.max": "max", f"{folder}/b/memory.current": str(GIB)}
    parent = {f"{folder}/memory.max": str(3 * GIB), f"{folder}/memory.current": str(GIB)}
    fake(tmp_path, {"proc/self/cgroup": "0::/a/b\n", **meminfo(64 << 20), **own, **parent})
    found = usable_memory(root=tmp_path, environ={})
    expected = "cgroup memory 3.0 GiB, 2.0 GiB of it free (/sys/fs/cgroup/a/memory.max)"
    assert (2 * GIB, expected) == (found.bytes, found.reason)


def test_page_cache_that_can_be_dropped_is_not_counted_as_used(tmp_path: Path) -> None:
    folder = "sys/fs/cgroup"
    stat = f"anon {GIB}\ninactive_file {2 * GIB}\nactive_file 5\n"
    files = {f"{folder}/memory.max": str(4 * GIB), f"{folder}/memory.current": str(3 * GIB)}
    fake(tmp_path, {**meminfo(64 << 20), **files, f"{folder}/memory.stat": stat})
    assert 3 * GIB == usable_memory(root=tmp_path, environ={}).bytes


def test_memory_high_binds_like_a_limit(tmp_path: Path) -> None:
    folder = "sys/fs/cgroup"
    files = {f"{folder}/memory.max": "max", f"{folder}/memory.high": str(2 * GIB), f"{folder}/memory.current": str(GIB)}
    assert GIB == usable_memory(root=fake(tmp_path, {**meminfo(64 << 20), **files}), environ={}).bytes


def test_cgroup_v1_memory_binds(tmp_path: Path) -> None:
    folder = "sys/fs/cgroup/memory/j"
    files = {f"{folder}/memory.limit_in_bytes": str(2 * GIB), f"{folder}/memory.usage_in_bytes": str(GIB)}
    fake(tmp_path, {"proc/self/cgroup": "4:memory:/j\n", **meminfo(64 << 20), **files})
    assert GIB == usable_memory(root=tmp_path, environ={}).bytes


def test_cgroup_v1_largest_number_is_no_limit(tmp_path: Path) -> None:
    folder = "sys/fs/cgroup/memory"
    files = {f"{folder}/memory.limit_in_bytes": "9223372036854771712", f"{folder}/memory.usage_in_bytes": "1"}
    assert 64 * GIB == usable_memory(root=fake(tmp_path, {**meminfo(64 << 20), **files}), environ={}).bytes


def test_a_cgroup_over_its_limit_leaves_no_memory(tmp_path: Path) -> None:
    folder = "sys/fs/cgroup"
    files = {f"{folder}/memory.max": str(GIB), f"{folder}/memory.current": str(2 * GIB)}
    assert 0 == usable_memory(root=fake(tmp_path, {**meminfo(64 << 20), **files}), environ={}).bytes


@pytest.mark.parametrize("text", ["", "lots", "-1", "9" * 5000])
def test_a_malformed_memory_limit_never_binds(tmp_path: Path, text: str) -> None:
    folder = "sys/fs/cgroup"
    files = {f"{folder}/memory.max": text, f"{folder}/memory.current": "1"}
    assert 64 * GIB == usable_memory(root=fake(tmp_path, {**meminfo(64 << 20), **files}), environ={}).bytes


def test_local_ranks_divide_memory(tmp_path: Path) -> None:
    found = usable_memory(root=fake(tmp_path, meminfo(4 << 20)), environ={"LOCAL_WORLD_SIZE": "2"})
    assert (2 * GIB, "available RAM 4.0 GiB (/proc/meminfo) divided by 2 local ranks") == (found.bytes, found.reason)


def test_unknown_memory_is_assumed_small_and_said(tmp_path: Path) -> None:
    found = usable_memory(root=tmp_path, environ={})
    assert (GIB, "free memory is unknown on this system, 1 GiB is assumed") == (found.bytes, found.reason)


# The switch.


@pytest.mark.parametrize("value", ["off", "0", "no", "false", "OFF", " False "])
def test_fastload_off_switches_off(value: str) -> None:
    assert switched_off({"FASTLOAD": value})


@pytest.mark.parametrize("environ", [{}, *({"FASTLOAD": value} for value in ("on", "1", "yes", "true", "TRUE", ""))])
def test_fastload_on_or_unset_stays_on(environ: dict[str, str]) -> None:
    assert not switched_off(environ)


def test_the_real_environment_is_read_when_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTLOAD", "off")
    assert switched_off()


@pytest.mark.parametrize("value", ["2", "maybe", "offf"])
def test_any_other_fastload_value_is_an_error_that_says_what_to_do(value: str) -> None:
    with pytest.raises(SettingsError, match=f"FASTLOAD .* found '{value}'; set it to one of on, "):
        switched_off({"FASTLOAD": value})


# The description.


def test_describe_names_the_machine_and_every_version(tmp_path: Path) -> None:
    fake(tmp_path, {"proc/cpuinfo": "processor\t: 0\nmodel name\t: Fast CPU @ 3GHz\n", **meminfo(4 << 20)})
    found = describe(root=tmp_path)
    system = ["cpu", "usable_cpus", "ram", "python", "os"]
    packages = ["fastai", "torch", "torchvision", "pillow", "pillow-simd", "numpy", "fastai-fastload"]
    assert system + packages == list(found)
    assert "Fast CPU @ 3GHz" == found["cpu"]
    assert all(found.values())


def test_an_absent_package_is_described_as_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastload.machine._PACKAGES", ("no-such-distribution",))
    assert "not installed" == describe()["no-such-distribution"]


def test_machine_needs_nothing_but_the_standard_library() -> None:
    code = (
        "import sys, fastload.machine as m; m.describe();"
        "print([n for n in ('torch', 'numpy', 'PIL', 'fastai') if n in sys.modules])"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert "[]" == done.stdout.strip()
