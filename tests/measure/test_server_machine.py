"""`unfit` compares the machine of a server with a target."""

from dataclasses import replace

import pytest

from felixlike import _tvm
from felixlike._util.wording import counted
from felixlike.hardware import host_device, host_target, resolve_target
from felixlike.measure.child.server_machine import Machine, unfit

HOST = Machine(
    name=host_device().name,
    mcpu=host_device().mcpu,
    features=_tvm.host_features(),
    threads=host_device().cores,
    processors=host_device().cores,
    arch="",
)
CORES = host_device().cores


def test_a_machine_like_this_one_fits() -> None:
    assert unfit(HOST, host_target()) == ""
    assert unfit(replace(HOST, name="another name", processors=2 * CORES), host_target()) == ""


def test_any_processor_fits_a_target_that_names_none() -> None:
    target = _tvm.Target({"kind": "llvm", "num-cores": CORES})
    assert unfit(replace(HOST, mcpu="another"), target) == ""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mcpu": "pentium", "name": "Pentium"}, f"its processor is pentium (Pentium), the target is {HOST.mcpu}"),
        ({"features": frozenset(["sse2"])}, "its processor lacks "),
        ({"processors": CORES - 1}, f"it has {counted(CORES - 1, 'processor')}, the target {counted(CORES, 'core')}"),
        ({"threads": CORES + 1}, f"start the server with TVM_NUM_THREADS={CORES}"),
    ],
)
def test_differences_of_a_processor_are_named(change: dict[str, object], words: str) -> None:
    assert words in unfit(replace(HOST, **change), host_target())  # type: ignore[arg-type]


def test_a_gpu_fits_if_its_architecture_does() -> None:
    target = resolve_target("sm_90")
    assert unfit(HOST, target) == "TVM finds no GPU there"
    assert unfit(replace(HOST, arch="sm_90"), target) == ""
    another = replace(HOST, name="NVIDIA A100", arch="sm_80")
    assert unfit(another, target) == "its NVIDIA A100 is sm_80, the target is sm_90"
