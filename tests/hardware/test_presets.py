"""Hardware presets: they agree with LLVM, and take no values of the host."""

from __future__ import annotations

from dataclasses import replace

import pytest

from felixlike import _tvm
from felixlike.errors import UnknownTarget
from felixlike.hardware import (
    Device,
    described,
    described_target,
    gpus,
    has_pairs,
    has_tiles,
    host_cpu,
    host_device,
    host_target,
    imitated_target,
    machines,
    resolve_target,
    target_device,
)
from felixlike.hardware.presets import IMITATED
from felixlike.hardware.probe import host_cores
from felixlike.hardware.vectors import VectorUnit, vector_unit

_UNUSUAL = Device("cpu", "a strange processor", "strange", 3, 1024, 4096, 7, 77, 777, 7777)


@pytest.fixture
def strange_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("felixlike.hardware.target.host_device", lambda: _UNUSUAL)


@pytest.mark.parametrize("name", machines())
@pytest.mark.usefixtures("strange_host")
def test_a_described_target_has_the_device_of_its_preset(name: str) -> None:
    device, target = described(name), described_target(name)
    assert vector_unit(_tvm.cpu_features(target)) == device.unit
    assert target_device(target) == replace(device, has_pairs=has_pairs(target), has_tiles=has_tiles(target))
    assert described(name, cores=64) == replace(device, cores=64)
    assert target_device(described_target(name, cores=64)) == replace(target_device(target), cores=64)
    named = _tvm.Target({"kind": "llvm", "mcpu": device.mcpu, "mtriple": device.triple, "num-cores": 5})
    assert target_device(named) == replace(device, cores=5, has_pairs=has_pairs(named), has_tiles=has_tiles(named))


def test_presets_differ_in_vectors_and_caches() -> None:
    units = [device.unit for device in machines().values()]
    assert set(units) == {VectorUnit(512, 32), VectorUnit(256, 16), VectorUnit(128, 32)}
    assert len({(d.l1_bytes, d.l2_bytes, d.unit) for d in machines().values()}) == len(machines())
    for device in machines().values():
        assert 32 * 2**10 <= device.l1_bytes < device.l2_bytes < device.l3_bytes < device.memory_bytes


_TERAFLOPS = {
    "a100": 19.5,
    "h100": 67,
    "h200": 67,
    "a10g": 35,
    "rtx-a5000": 27.8,
    "rtx-3090": 35.6,
    "rtx-4090": 82.6,
    "v100": 15.7,
    "xavier-nx": 0.845,
}
"""Operations a second in single precision, from NVIDIA's data sheets."""


@pytest.mark.parametrize("name", gpus())
def test_a_gpu_is_a_target_by_its_name_and_by_its_architecture(name: str) -> None:
    device, target = described(name), resolve_target(name)
    assert target_device(target) == target_device(described_target(name)) == device
    assert device.flops == pytest.approx(_TERAFLOPS[name] * 1e12, rel=0.02)
    first = next(gpu for gpu in gpus().values() if gpu.mcpu == device.mcpu)
    assert target_device(resolve_target(device.mcpu)) == first


def test_gpus_of_one_architecture_are_told_apart() -> None:
    larger, smaller = target_device(resolve_target("a10g")), target_device(resolve_target("rtx-a5000"))
    assert (larger.mcpu, larger.cores, smaller.mcpu, smaller.cores) == ("sm_86", 80, "sm_86", 64)
    unlisted = target_device(_tvm.Target({**resolve_target("sm_90").export(), "arch": "sm_100"}))
    assert unlisted == replace(described("a100"), mcpu="sm_100")


def test_a_cpu_imitates_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownTarget, match=r"a10g is a GPU"):
        imitated_target("a10g")
    monkeypatch.setenv(IMITATED, "a10g")
    with pytest.raises(UnknownTarget, match=r"FELIXLIKE_DEVICE: .*'a10g'"):
        host_device()


@pytest.mark.parametrize(
    ("changed", "unit"), [({}, VectorUnit(512, 32)), ({"mattr": ["-avx512f"]}, VectorUnit(256, 16))]
)
@pytest.mark.usefixtures("strange_host")
def test_other_processors_take_no_values_of_the_host(changed: dict[str, list[str]], unit: VectorUnit) -> None:
    device = target_device(_tvm.Target({"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 4, **changed}))
    assert (device.mcpu, device.cores, device.unit) == ("skylake-avx512", 4, unit)
    assert (device.l1_bytes, device.l2_bytes) == (32 * 2**10, 512 * 2**10)


def test_the_host_target_has_the_host_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(IMITATED, raising=False)
    target = host_target()
    assert target_device(target) == replace(host_device(), has_pairs=has_pairs(target), has_tiles=has_tiles(target))


@pytest.mark.usefixtures("strange_host")
def test_a_target_without_a_processor_has_the_caches_of_the_host() -> None:
    device = target_device(_tvm.Target({"kind": "llvm", "num-cores": 4}))
    assert (device.l1_bytes, device.l2_bytes, device.cores) == (7, 77, 4)


@pytest.mark.parametrize("name", machines())
def test_an_imitated_target_has_another_device_and_the_same_instructions(name: str) -> None:
    target = imitated_target(name, cores=8)
    assert target_device(target) == replace(
        described(name, cores=8), has_pairs=has_pairs(target), has_tiles=has_tiles(target)
    )
    host = _tvm.Target({"kind": "llvm", "mcpu": host_cpu()})
    assert _tvm.cpu_features(target) == _tvm.cpu_features(host)
    assert target_device(_tvm.Target(str(target))) == target_device(target)


@pytest.mark.parametrize(("wanted", "cores"), [("graviton2", 2), ("zen5:8", 8)])
def test_the_variable_sets_the_imitated_machine(wanted: str, cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(IMITATED, raising=False)
    host = host_device()
    monkeypatch.setenv(IMITATED, wanted)
    device = host_device()
    assert device == replace(described(wanted.split(":")[0], cores=cores), name=host.name, mcpu=host.mcpu, triple="")
    assert str(host_target()) == str(imitated_target(wanted.split(":")[0], cores=cores))
    assert target_device(host_target()).unit == device.unit
    assert host_cores() == cores


def test_unknown_machines_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownTarget, match=r"machine: .*'zen9'.* zen3, zen4"):
        described_target("zen9")
    monkeypatch.setenv(IMITATED, "zen9")
    with pytest.raises(UnknownTarget, match=r"FELIXLIKE_DEVICE: .*'zen9'"):
        host_device()
    monkeypatch.setenv(IMITATED, "zen4:none")
    with pytest.raises(UnknownTarget, match=r"FELIXLIKE_DEVICE: .*cores.*'none'"):
        host_device()
