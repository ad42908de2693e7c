"""Hardware descriptions: derived rates, and descriptions that are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from felixlike.errors import InvalidDevice
from felixlike.hardware import (
    check_device,
    described,
    gpus,
    host_device,
    machines,
    read_description,
    resolve_target,
    target_device,
)
from felixlike.hardware.probe import measured_bandwidth

_ENTRY = {
    "processor": '"mine"',
    "mcpu": '"znver4"',
    "triple": '"x86_64-linux-gnu"',
    "vector_bits": "512",
    "vector_registers": "32",
    "l1_kib": "32",
    "l2_kib": "1024",
    "l3_mib": "32",
    "cores": "4",
    "memory_gib": "8",
    "clock_mhz": "3000",
    "memory_gb_s": "25",
}


def _written(path: Path, **changes: str | None) -> Path:
    entry = {name: value for name, value in {**_ENTRY, **changes}.items() if value is not None}
    path.write_text("\n".join(f"{name} = {value}" for name, value in entry.items()))
    return path


def test_rates_are_derived_from_clock_and_vector_width() -> None:
    device = replace(described("zen4"), cores=2, clock_hz=3e9)
    assert device.flops == 2 * 2 * 16 * 3e9 * 2
    assert device.near_bandwidth == 2 * 64 * 3e9 * 2
    assert (device.core_registers, device.active_blocks) == (32, 1)
    gpu = target_device(resolve_target("sm_80"))
    assert gpu.flops == pytest.approx(19.5e12, rel=0.01)  # NVIDIA's A100 white paper
    assert (gpu.core_registers, gpu.active_blocks) == (65536, 2)


def test_all_known_devices_pass_the_checks() -> None:
    for device in (*machines().values(), *gpus().values(), host_device()):
        check_device(device)
    assert measured_bandwidth() > 1e8


def test_a_description_file_is_read(tmp_path: Path) -> None:
    device = read_description(_written(tmp_path / "mine.toml"))
    assert (device.cores, device.clock_hz, device.memory_bandwidth, device.l2_bytes) == (4, 3e9, 25e9, 2**20)


_GPU = {
    "processor": '"my GPU"',
    "arch": '"sm_86"',
    "multiprocessors": "46",
    "l1_kib": "128",
    "l2_kib": "4096",
    "memory_gib": "8",
    "clock_mhz": "1725",
    "memory_gb_s": "448",
}


def test_a_description_file_may_be_of_a_gpu(tmp_path: Path) -> None:
    path = tmp_path / "gpu.toml"
    path.write_text("\n".join(f"{name} = {value}" for name, value in _GPU.items()))
    device = read_description(path)
    assert (device.kind, device.mcpu, device.cores, device.l3_bytes) == ("cuda", "sm_86", 46, 0)
    assert device.flops == pytest.approx(20.3e12, rel=0.01)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"arch": '"ampere"'}, "arch .*'ampere'"),
        ({"multiprocessors": None}, "multiprocessors is missing"),
        ({"multiprocessors": "0"}, r"\bcores\b.* 0\."),
        ({"l2_kib": '"many"'}, r"\bl2_kib\b.* 'many'\."),
    ],
)
def test_impossible_gpus_are_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    path = tmp_path / "gpu.toml"
    entry = {name: value for name, value in {**_GPU, **changes}.items() if value is not None}
    path.write_text("\n".join(f"{name} = {value}" for name, value in entry.items()))
    with pytest.raises(InvalidDevice, match=words):
        read_description(path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"clock_mhz": None}, "clock_mhz .*missing"),
        ({"cores": "0"}, r"\bcores\b.* 0\."),
        ({"cores": "-3"}, r"\bcores\b.* -3\."),
        ({"cores": '"two"'}, r"\bcores\b.* 'two'\."),
        ({"memory_gb_s": "0"}, r"\bmemory_bandwidth\b.* 0\.0\."),
        ({"vector_bits": "0"}, r"\bvector_bits\b.* 0\."),
        ({"vector_bits": "384"}, r"\bvector_bits\b.* 384\."),
        ({"vector_registers": "2"}, "register_bytes is .*four vectors"),
        ({"l2_kib": "nan"}, r"\bl2_bytes\b.* nan\."),
        ({"processor": "= ="}, r"mine\.toml: .*\(at line 1, "),
    ],
)
def test_impossible_descriptions_are_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidDevice, match=words):
        read_description(_written(tmp_path / "mine.toml", **changes))


def test_a_missing_description_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidDevice, match=r"none\.toml: .*No such file"):
        read_description(tmp_path / "none.toml")


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(InvalidDevice, match=r"kind .*'tpu'"):
        check_device(replace(described("zen4"), kind="tpu"))
