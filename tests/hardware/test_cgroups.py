"""Limits of control groups are read from made-up /proc and /sys trees that look like those in containers."""

from __future__ import annotations

from pathlib import Path

import pytest

from felixlike.cli import doctor
from felixlike.hardware import cgroups, placement, probe
from felixlike.hardware.cgroups import Allowance, allowance
from felixlike.measure.limits import Limits

V2 = "29 23 0:26 {root} /sys/fs/cgroup ro,nosuid,nodev,noexec,relatime - cgroup2 cgroup rw,nsdelegate"
V1 = "{number} 23 0:{number} {root} /sys/fs/cgroup/{name} rw,relatime shared:9 - cgroup cgroup rw,{name}"
GIB = 2**30


def tree(root: Path, group: str, mounts: list[str], files: dict[str, str]) -> Path:
    """Write a file tree of a system with these groups, these mounts and these files below /sys/fs/cgroup."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(group)
    other = ["22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw", "23 22 0:21 / /sys rw - sysfs sysfs rw", "nonsense"]
    (root / "proc/self/mountinfo").write_text("\n".join([*other, *mounts]) + "\n")
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def v1(root: str = "/") -> list[str]:
    return [V1.format(number=30 + i, root=root, name=name) for i, name in enumerate(("cpu", "memory", "pids"))]


def test_version_2_with_a_namespace(tmp_path: Path) -> None:
    files = {
        "cpu.max": "200000 100000",
        "memory.max": str(8 * GIB),
        "memory.high": "max",
        "memory.current": str(3 * GIB),
        "memory.stat": f"anon 5\ninactive_file {GIB}\nactive_file 7",
    }
    limits = allowance(tree(tmp_path, "0::/\n", [V2.format(root="/")], files))
    assert limits == Allowance(cores=2.0, memory_bytes=8 * GIB, free_bytes=6 * GIB)


def test_the_tightest_limit_of_all_parent_groups_applies(tmp_path: Path) -> None:
    files = {
        "pod/cpu.max": "150000 100000",
        "pod/memory.max": str(6 * GIB),
        "pod/memory.current": str(5 * GIB),
        "pod/inner/cpu.max": "max 100000",
        "pod/inner/memory.max": "max",
        "pod/inner/memory.high": str(4 * GIB),
        "pod/inner/memory.current": str(GIB),
        "cpu.stat": "usage_usec 1",
    }
    limits = allowance(tree(tmp_path, "0::/pod/inner\n", [V2.format(root="/")], files))
    assert limits == Allowance(cores=1.5, memory_bytes=4 * GIB, free_bytes=GIB)


def test_version_1_without_a_namespace(tmp_path: Path) -> None:
    """The group has the host's path, and only the part below the group is mounted."""
    group = "11:pids:/docker/abc\n5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc\n0::/x\n"
    files = {
        "cpu/cpu.cfs_quota_us": "400000",
        "cpu/cpu.cfs_period_us": "50000",
        "memory/memory.limit_in_bytes": str(2 * GIB),
        "memory/memory.usage_in_bytes": str(GIB),
        "memory/memory.stat": f"inactive_file 5\ntotal_inactive_file {GIB // 2}",
    }
    limits = allowance(tree(tmp_path, group, v1("/docker/abc"), files))
    assert limits == Allowance(cores=8.0, memory_bytes=2 * GIB, free_bytes=3 * GIB // 2)


def test_versions_1_and_2_can_be_mixed(tmp_path: Path) -> None:
    group = "4:cpu,cpuacct:/a\n0::/b\n"
    mounts = [*v1(), V2.format(root="/").replace("/sys/fs/cgroup", "/sys/fs/cgroup/unified")]
    files = {
        "cpu/a/cpu.cfs_quota_us": "300000",
        "cpu/a/cpu.cfs_period_us": "100000",
        "unified/b/memory.max": str(GIB),
    }
    limits = allowance(tree(tmp_path, group, mounts, files))
    assert limits == Allowance(cores=3.0, memory_bytes=GIB, free_bytes=None)


@pytest.mark.parametrize("path", ["/../../outside", "/elsewhere"])
def test_a_process_outside_the_mounted_groups(tmp_path: Path, path: str) -> None:
    limits = allowance(tree(tmp_path, f"0::{path}\n", [V2.format(root="/kubepods/x")], {"cpu.max": "50000 100000"}))
    assert limits == Allowance(cores=0.5)


@pytest.mark.parametrize(
    ("group", "mounts", "files"),
    [
        ("", [], {}),
        ("0::/\n", [V2.format(root="/")], {"cpu.max": "max 100000", "memory.max": "max"}),
        ("0::/\n", [V2.format(root="/")], {"cpu.max": "", "memory.max": "lots"}),
        (
            "5:memory:/\n4:cpu:/\n",
            v1(),
            {
                "cpu/cpu.cfs_quota_us": "-1",
                "cpu/cpu.cfs_period_us": "100000",
                "memory/memory.limit_in_bytes": "9223372036854771712",
            },
        ),
        ("4:cpu:/\n", v1(), {"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "0"}),
        ("0::/\n", [V2.format(root="/")[:30]], {"cpu.max": "100000 100000"}),
    ],
)
def test_missing_or_invalid_files_mean_no_limits(
    tmp_path: Path, group: str, mounts: list[str], files: dict[str, str]
) -> None:
    assert allowance(tree(tmp_path, group, mounts, files)) == Allowance()


def test_systems_other_than_linux_have_no_limits(tmp_path: Path) -> None:
    assert allowance(tmp_path) == Allowance()


@pytest.mark.parametrize(("quota", "cores"), [(None, 8), (0.5, 1), (1.0, 1), (1.5, 1), (2.0, 2), (3.99, 3), (64.0, 8)])
def test_threads_and_memory_respect_the_limits_of_the_container(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, cores: int
) -> None:
    physical = probe.memory_bytes()
    monkeypatch.setattr(probe, "usable_processors", lambda: tuple(frozenset({number}) for number in range(8)))
    monkeypatch.setattr(probe, "allowance", lambda: Allowance(quota, GIB))
    for name in placement.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert (probe.usable_cores(), placement.threads()) == (cores, cores)
    assert probe.memory_bytes() == min(GIB, physical)
    assert Limits().memory_bytes == GIB // 2
    monkeypatch.setenv("TVM_NUM_THREADS", "5")  # an explicit number has precedence
    assert placement.threads() == 5


def test_free_memory_is_limited_by_the_container(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = probe.free_memory_bytes()
    assert machine is not None
    assert 2**20 < machine <= probe.memory_bytes()
    monkeypatch.setattr(cgroups, "allowance", lambda: Allowance(None, GIB, 1000))
    assert probe.free_memory_bytes() == 1000


@pytest.mark.parametrize(
    ("found", "value", "problem"),
    [
        (Allowance(), "no limits", ""),
        (Allowance(2.0, 8 * GIB), "2 cores of processor time, 8.0 GiB of memory", ""),
        (Allowance(0.5), "0.5 cores of processor time", "with less than one core, calls are throttled"),
    ],
)
def test_doctor_shows_the_container(
    monkeypatch: pytest.MonkeyPatch, found: Allowance, value: str, problem: str
) -> None:
    monkeypatch.setattr(cgroups, "allowance", lambda: found)
    check = doctor._allowance()
    assert (check.name, check.value, check.fatal) == ("container", value, False)
    assert check.problem.startswith(problem)
    assert bool(check.problem) == bool(problem)
