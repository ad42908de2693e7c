"""CUDA source compiles without a GPU, and the machine code states the resources of its kernels."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
from support.operators import OPERATORS

from felixlike import _tvm, codegen
from felixlike.codegen import nvrtc
from felixlike.codegen.cuda import cuda_compiler
from felixlike.errors import CompilationFailed, InvalidSchedule, MissingCompiler
from felixlike.frontend import make_task
from felixlike.hardware import resolve_target
from felixlike.hardware.occupancy import Kernel
from felixlike.symbolic import sketches

NVRTC = pytest.mark.skipif(nvrtc.library() is None, reason="NVRTC is not installed: felixlike[cuda]")
HEADERS = pytest.mark.skipif(nvrtc.header_folder() is None, reason="cuda_fp16.h is not installed: felixlike[cuda]")

KERNEL = """
extern "C" __global__ void __launch_bounds__(96) sums(const float* x, float* y) {
  __shared__ float tile[300];
  float own[64];
  for (int i = 0; i < 64; ++i) own[i] = x[i * 96 + threadIdx.x];
  for (int i = 0; i < 64; ++i) own[(int)x[i] & 63] *= own[(int)y[i] & 63];
  tile[threadIdx.x] = own[(int)y[0] & 63];
  __syncthreads();
  y[threadIdx.x] = tile[95 - threadIdx.x];
}
"""


def source_of(func: object, *, seed: int = 5, longest: int = 60_000) -> list[str]:
    """Return the CUDA source for one point of each sketch for sm_90 that has short source."""
    sources = []
    for sketch in sketches(func, "sm_90"):
        for point in sketch.sample(6, seed=seed).tolist():
            try:
                module = sketch.schedule(point).mod
            except InvalidSchedule:
                continue
            source = codegen.compile_primfuncs(module, sketch.task.target).mod.imports[0].inspect_source()
            if len(source) < longest:
                sources.append(source)
                break
    return sources


@NVRTC
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_machine_code_states_the_resources_of_kernels(arch: str) -> None:
    binary = codegen.compile_source(KERNEL, arch)
    (kernel,) = codegen.kernels_of(binary, arch)
    assert (kernel.name, kernel.threads, kernel.shared_bytes) == ("sums", 96, 1200)
    assert kernel.local_bytes == 256
    assert 8 <= kernel.registers <= 168


@NVRTC
def test_invalid_machine_code_gives_no_kernels() -> None:
    binary = codegen.compile_source(KERNEL, "sm_90")
    assert codegen.kernels_of(b"// ptx", "sm_90") == ()
    for end in (10, 60, len(binary) // 2):
        assert codegen.kernels_of(binary[:end], "sm_90") == ()


@NVRTC
@pytest.mark.parametrize("name", ["matmul", "softmax", "conv2d_grouped", "int8_matmul"])
def test_generated_source_compiles_without_headers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "header_folder", lambda: None)
    sources = source_of(OPERATORS[name](small_size=name != "int8_matmul"))
    assert sources
    for source in sources:
        assert "#include <cuda/std/cstdint>" in source
        (kernel, *_) = codegen.kernels_of(codegen.compile_source(source, "sm_90"), "sm_90")
        assert kernel.threads == int(re.findall(r"__launch_bounds__\((\d+)\)", source)[0])


@NVRTC
@HEADERS
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_float16_and_bfloat16_compile(dtype: str) -> None:
    te, topi = _tvm.te, _tvm.topi
    a, b = (te.placeholder((32, 32), name=name, dtype=dtype) for name in "AB")
    k = te.reduce_axis((0, 32), name="k")
    product = te.compute((32, 32), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    sources = source_of(te.create_prim_func([a, b, topi.tanh(topi.exp(product))]))
    assert sources
    for source in sources:
        assert codegen.kernels_of(codegen.compile_source(source, "sm_80"), "sm_80")


@NVRTC
def test_float16_without_headers_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "header_folder", lambda: None)
    with pytest.raises(MissingCompiler, match=r"cuda_fp16\.h") as caught:
        codegen.compile_source("#include <cuda_fp16.h>\n" + KERNEL, "sm_90")
    assert "felixlike[cuda]" in caught.value.remedy


@NVRTC
def test_refused_source_quotes_the_error_and_not_the_warnings() -> None:
    wrong = KERNEL.replace("float own[64];", "float own[64]; int unused; nonsense;")
    with pytest.raises(CompilationFailed, match=r'NVRTC .*identifier "nonsense" is undefined'):
        codegen.compile_source(wrong, "sm_90")


@NVRTC
def test_forked_processes_compile_with_the_library_of_their_server() -> None:
    """Processes that compile candidates are forked like this."""
    assert nvrtc.library() is not None
    process = os.fork()
    if process == 0:
        try:
            os._exit(0 if codegen.kernels_of(codegen.compile_source(KERNEL, "sm_90"), "sm_90") else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0


@NVRTC
def test_tvms_callback_is_replaced_and_restored() -> None:
    name = "tvm_callback_cuda_compile"
    target = resolve_target("sm_90")
    kernels: list[Kernel] = []
    with cuda_compiler(target, kernels):
        binary = _tvm.tvm_ffi.get_global_func(name)(KERNEL)
    assert bytes(binary).startswith(b"\x7fELF")
    assert [kernel.name for kernel in kernels] == ["sums"]
    with cuda_compiler(target), pytest.raises(CompilationFailed, match=r"NVRTC .*nonsense|NVRTC .*error"):
        _tvm.tvm_ffi.get_global_func(name)("nonsense")
    with target, pytest.raises(RuntimeError):  # TVM's own compiler needs headers, a package, or nvcc
        _tvm.tvm_ffi.get_global_func(name)(KERNEL)
    assert len(kernels) == 1


def test_a_missing_compiler_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "library", lambda: None)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert codegen.cuda_toolchain() == ""
    with pytest.raises(MissingCompiler, match=r"NVRTC .*nvcc") as caught:
        codegen.compile_source(KERNEL, "sm_90")
    assert 'pip install "felixlike[cuda]"' in caught.value.remedy
    monkeypatch.setenv("TVM_CUDA_COMPILE_MODE", "nvcc")
    with pytest.raises(MissingCompiler, match="TVM_CUDA_COMPILE_MODE=nvcc"):
        codegen.require_toolchain()


def test_nvcc_is_used_without_nvrtc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A stand-in for nvcc that writes its arguments is called, and the errors of one that fails are reported."""
    nvcc = tmp_path / "nvcc"
    nvcc.write_text('#!/bin/sh\nwhile [ "$1" != "-o" ]; do said="$said $1"; shift; done\necho "$said" > "$2"\n')
    nvcc.chmod(0o755)
    monkeypatch.setattr(nvrtc, "library", lambda: None)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert codegen.cuda_toolchain() == "nvcc"
    assert codegen.compile_source(KERNEL, "sm_80").split() == [b"-cubin", b"-O3", b"-arch", b"sm_80"]
    nvcc.write_text('#!/bin/sh\necho "kernels.cu(3): error: no such thing" >&2\nexit 1\n')
    with pytest.raises(CompilationFailed, match=r"nvcc .*no such thing"):
        codegen.compile_source(KERNEL, "sm_80")


def test_int8_vectors_avoid_wrong_code_of_tvm() -> None:
    """TVM would generate wrong code for vectors of eight bytes across rows of four, with shifts by 32 bits and more."""
    checked = 0
    for sketch in sketches(OPERATORS["int8_matmul"](), "sm_90"):
        for point in sketch.sample(12, seed=3).tolist():
            module = sketch.schedule(point).mod
            source = codegen.compile_primfuncs(module, sketch.task.target).mod.imports[0].inspect_source()
            assert "<< 32)" not in source, point
            checked += 1
    assert checked == 36


@pytest.mark.parametrize("name", ["matmul", "softmax"])
def test_default_schedules_do_not_change_their_input(name: str) -> None:
    """TVM changes a function in place if only a module holds it, as in a task."""
    target = resolve_target("sm_90")
    task = make_task(OPERATORS[name](small_size=True), target, name=name)
    before = task.module.script()
    scheduled = codegen.default_schedules(task.module, target)
    assert task.module.script() == before
    assert "threadIdx.x" in scheduled.script()
    assert "threadIdx.x" not in before
