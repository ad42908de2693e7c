"""The TVM module: versions checked before anything else, and no 20 seconds for intrinsics."""

from __future__ import annotations

import sys

import pytest
import workloads

from felixlike import tvmlib
from felixlike.errors import VersionMismatch
from felixlike.hardware import host_device, resolve_target
from felixlike.symbolic import sketches


def test_the_versions_installed_are_right() -> None:
    tvmlib.check_versions()
    tvmlib.check_versions({"apache-tvm": "0.27.0.post1", "apache-tvm-ffi": "0.1.14.post1"})


@pytest.mark.parametrize(
    ("versions", "words"),
    [
        (
            {"apache-tvm": "0.27.0.post1", "apache-tvm-ffi": "0.1.15"},
            r"apache-tvm-ffi is 0.1.15, but 0.1.14.\* is needed",
        ),
        ({"apache-tvm": "0.20.0", "apache-tvm-ffi": "0.1.14"}, "apache-tvm is 0.20.0"),
        ({"apache-tvm": "0.27.0"}, "apache-tvm-ffi is none"),
    ],
)
def test_other_versions_are_refused(versions: dict[str, str], words: str) -> None:
    with pytest.raises(VersionMismatch, match=words):
        tvmlib.check_versions(versions)


def test_contexts_do_not_import_the_intrinsics() -> None:
    module = tvmlib.IRModule({"main": workloads.matmul()})
    context = tvmlib.tune_context(module, resolve_target("cpu"))
    assert len(context.generate_design_space()) == 3
    assert "tvm.s_tir.tensor_intrin" not in sys.modules


def test_the_host_is_described() -> None:
    device = host_device()
    assert device.kind == "cpu"
    assert device.cores >= 1
    assert device.vector_bits in (128, 256, 512)
    assert 8 * 2**10 <= device.l1_bytes <= device.l2_bytes


def test_the_same_kernel_compiled_again_has_the_same_digest() -> None:
    target = resolve_target("cpu")
    sketch = sketches(workloads.matmul(), target, space="own")[0]
    first, second = sketch.sample(2, seed=0).tolist()

    def digest(point: list[int]) -> str:
        return tvmlib.code_digest(tvmlib.compile_primfuncs(sketch.schedule(point).mod, target))

    assert digest(first) == digest(first)  # though LLVM names vectors in memory by where they happen to lie
    assert digest(first) != digest(second)
