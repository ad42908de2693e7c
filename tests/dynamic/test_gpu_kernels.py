"""Test GPU kernels: outputs at every size with serialized threads, and what the CUDA compiler reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from schedules import QUICK, without_threads
from support import dynamic_operators as operators

import felixlike as fx
from felixlike import _tvm, codegen, dynamic
from felixlike.codegen import nvrtc
from felixlike.dynamic.dispatch import Branch, Leaf, Tree, programs_of
from felixlike.dynamic.gpu.emit import emit_blocks
from felixlike.dynamic.gpu.operand import operands_of
from felixlike.dynamic.gpu.throughput import covers
from felixlike.dynamic.gpu.tile import BlockProgram, BlockTile
from felixlike.dynamic.operator import read_operator
from felixlike.errors import InputMismatch, InvalidDevice, NoGPU
from felixlike.frontend import make_task
from felixlike.hardware import resolve_target
from felixlike.hardware.gpu import gpu_at_hand

_SIZES = (1, 17, 64, 100, 128)
_GUARD = 256
"""Elements after the output that must stay as they are."""


def _tree(stages: int) -> Tree[BlockProgram]:
    """Return a tree with programs that cover sizes exactly and programs that pad the last block."""
    single = BlockProgram(BlockTile(8, 16, 8, 2, 4, stages))
    pair = BlockProgram(BlockTile(16, 16, 8, 4, 4, stages), BlockTile(4, 16, 16, 1, 4, 2))
    odd = BlockProgram(BlockTile(24, 16, 8, 6, 4, stages), BlockTile(12, 16, 8, 3, 4, 1))
    return Branch(0, 20, Leaf(single), Branch(0, 64, Leaf(pair), Leaf(odd)))


def _compiled(func: Any, tree: Tree[BlockProgram], *, twice: bool = False) -> Callable[..., torch.Tensor]:
    """Compile a function of the inputs and the output's shape that checks that no memory after the output changes.

    `twice` is passed to `without_threads`.
    """
    operator = read_operator(func)
    assert operator is not None
    module = _tvm.IRModule({"main": emit_blocks(operator, tree).with_attr("global_symbol", "main")})
    serial = without_threads(module, twice=twice)
    run = codegen.compile_primfuncs(serial, QUICK, checks_arguments=False).jit()["main"]

    def call(*inputs: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        size = torch.Size(shape).numel()
        memory = torch.full((size + _GUARD,), 7.5, dtype=inputs[0].dtype)
        run(*inputs, memory[:size].view(shape))
        assert bool((memory[size:] == 7.5).all()), "it wrote behind its output"
        return memory[:size].view(shape)

    return call


def _close(result: torch.Tensor, expected: torch.Tensor) -> bool:
    return bool((result - expected).abs().max() <= 1e-5 * max(1.0, float(expected.abs().max())))


@pytest.mark.parametrize(("k", "n", "stages"), [(24, 48, 1), (24, 48, 2), (24, 50, 3), (22, 7, 3), (16, 2, 2)])
def test_dense_layers_are_correct_at_every_size(k: int, n: int, stages: int) -> None:
    """Cases: columns in whole vectors, in partial vectors, fewer than a tile; reductions that end inside a step."""
    call = _compiled(operators.dense(k, n, activation=_tvm.topi.nn.relu), _tree(stages))
    generator = torch.Generator().manual_seed(0)
    w, b = torch.randn(n, k, generator=generator), torch.randn(n, generator=generator)
    for t in _SIZES:
        x = torch.randn(t, k, generator=generator)
        assert _close(call(x, w, b, shape=(t, n)), torch.relu(x.double() @ w.double().T + b)), t


def test_dynamic_columns_sums_and_batches_are_correct() -> None:
    generator = torch.Generator().manual_seed(0)
    scores, mixed = (_compiled(func, _tree(3)) for func in (operators.scores(3, 11), operators.mixed(3, 20)))
    whole, batch = _compiled(operators.product(), _tree(2)), _compiled(operators.dense_of_batch(16, 40), _tree(2))
    for t in _SIZES:
        a, b = torch.randn(3, t, 11, generator=generator), torch.randn(3, t, 11, generator=generator)
        assert _close(scores(a, b, shape=(3, t, t)), a.double() @ b.double().transpose(1, 2)), t
        a, b = torch.randn(3, t, t, generator=generator), torch.randn(3, t, 20, generator=generator)
        assert _close(mixed(a, b, shape=(3, t, 20)), a.double() @ b.double()), t
        a, b = torch.randn(t, 9, generator=generator), torch.randn(9, 33, generator=generator)
        assert _close(whole(a, b, shape=(t, 33)), a.double() @ b.double()), t
        x, r = torch.randn(2, t, 16, generator=generator), torch.randn(2, t, 40, generator=generator)
        w = torch.randn(40, 16, generator=generator)
        assert _close(batch(x, w, r, shape=(2, t, 40)), x.double() @ w.double().T + r), t


def test_outputs_summed_by_several_threads_are_correct() -> None:
    """Each thread sums its share of every step, and the first thread adds the partial sums in shared memory."""
    single = BlockProgram(BlockTile(8, 16, 16, 4, 4, 2, 4))
    pair = BlockProgram(BlockTile(16, 16, 16, 4, 4, 3, 2), BlockTile(8, 16, 8, 4, 4, 1, 4))
    assert single.threads == 32
    assert pair.threads == 32
    call = _compiled(operators.dense(22, 40), Branch(0, 20, Leaf(single), Leaf(pair)), twice=True)
    generator = torch.Generator().manual_seed(0)
    w, b = torch.randn(40, 22, generator=generator), torch.randn(40, generator=generator)
    for t in (1, 17, 40):
        x = torch.randn(t, 22, generator=generator)
        assert _close(call(x, w, b, shape=(t, 40)), x.double() @ w.double().T + b), t


def test_float64_elements_are_copied_two_at_a_time() -> None:
    func = operators.mixed(2, 8)
    float64_func = te_mixed("float64")
    operator, narrow = read_operator(float64_func), read_operator(func)
    assert operator is not None
    assert narrow is not None
    assert [o.lanes for o in operands_of(operator)] == [1, 2]
    assert [o.lanes for o in operands_of(narrow)] == [1, 4]
    call = _compiled(float64_func, _tree(2))
    for t in (1, 17, 33):
        a, b = torch.randn(2, t, t, dtype=torch.float64), torch.randn(2, t, 8, dtype=torch.float64)
        torch.testing.assert_close(call(a, b, shape=(2, t, 8)), a @ b)


def te_mixed(dtype: str) -> Any:
    te, t = _tvm.te, operators.symbol()
    a, b = te.placeholder((2, t, t), dtype, name="A"), te.placeholder((2, t, 8), dtype, name="B")
    r = te.reduce_axis((0, t), name="r")
    return te.create_prim_func([a, b, te.compute((2, t, 8), lambda m, i, j: te.sum(a[m, i, r] * b[m, r, j], axis=r))])


def test_vectors_are_aligned_after_tiles_of_any_height() -> None:
    """The row operand is contiguous along rows, where a vector of four after 6 rows, or at the end, is not aligned."""
    te, t = _tvm.te, operators.symbol()
    a, b = te.placeholder((10, 24), name="A"), te.placeholder((10, t), name="B")
    r = te.reduce_axis((0, 10), name="r")
    func = te.create_prim_func([a, b, te.compute((24, t), lambda i, j: te.sum(a[r, i] * b[r, j], axis=r), name="C")])
    for large, small in ((6, 12), (12, 8), (16, 8)):
        low, high = sorted((large, small))
        tiles = [BlockTile(rows, 16, 8, rows // 2, 8, 2) for rows in (high, low)]
        call = _compiled(func, Leaf(BlockProgram(*tiles)))
        for size in (1, 17, 40):
            x, y = torch.randn(10, 24), torch.randn(10, size)
            assert _close(call(x, y, shape=(24, size)), x.double().T @ y.double()), (large, small, size)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 400))
def test_programs_cover_all_rows(first: int, second: int, size: int) -> None:
    large, small = max(first, second), min(first, second)
    one = BlockProgram(BlockTile(large, 8, 8, large, 1))
    assert 0 <= one.at(size).size - size < large
    if large == small:
        return
    two = BlockProgram(BlockTile(large, 8, 8, large, 1), BlockTile(small, 8, 8, small, 1))
    combination = two.at(size)
    assert 0 <= combination.size - size < small
    many, few = covers([two], [size])
    assert (many.item(), few.item()) == (combination.many, combination.few)


def test_threads_sums_and_shared_bytes_of_a_block() -> None:
    tile = BlockTile(64, 32, 16, 4, 4, 3)
    assert tile.threads == 128
    assert tile.sums == 16
    assert tile.shared_bytes(4) == 3 * 16 * (68 + 36) * 4
    other = BlockTile(16, 32, 32, 1, 4, 3)
    assert BlockProgram(tile, other).shared_bytes(4) == (3 * 16 * 68 + 3 * 32 * 36) * 4


@pytest.fixture
def compiler() -> None:
    if nvrtc.library() is None:
        pytest.skip('NVRTC is not on this machine: pip install "felixlike[cuda]"')


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_threads_synchronize_twice_a_step(stages: int) -> None:
    """Threads of both uKernels wait until a tile is copied, and again until all have read the tile that is
    overwritten next.
    """
    target = resolve_target("sm_90")
    pair = BlockProgram(BlockTile(32, 32, 16, 4, 4, stages), BlockTile(16, 32, 16, 2, 4, stages))
    module = _tvm.IRModule({"main": _emitted(operators.dense(64, 96), Leaf(pair)).with_attr("global_symbol", "main")})
    source = codegen.cuda_source(codegen.compile_primfuncs(module, target))
    first, second = source.partition("main_kernel(")[2].split("for (int step")[1:]
    for loop in (first, second):
        assert loop.partition("for (int i_")[0].count("__syncthreads()") >= 2
    kernel = source.rpartition("main_kernel(")[2]
    assert kernel.count("cp_async_wait") == (2 if stages > 1 else 0)
    assert ("cp_async_legacy" in kernel) == (stages > 1)


@pytest.mark.parametrize(
    ("name", "arch"), [("dense", "sm_90"), ("scores", "sm_80"), ("scores", "sm_90"), ("mixed", "sm_90")]
)
@pytest.mark.usefixtures("compiler")
def test_chosen_kernels_do_not_spill(name: str, arch: str) -> None:
    func = {"dense": operators.dense(768, 768), "scores": operators.scores(12, 64), "mixed": operators.mixed(12, 64)}
    target = resolve_target(arch)
    kernel = dynamic.compile(make_task(func[name], target, name=name), fx.Dim("T", range(1, 129)), measure=False)
    module = _tvm.IRModule({"main": _emitted(func[name], kernel.tree).with_attr("global_symbol", "main")})
    kernels = codegen.kernels_of(codegen.cuda_binary(module, target), arch)
    assert len(kernels) == len(programs_of(kernel.tree)) <= 6
    for compiled in kernels:
        assert compiled.local_bytes == 0, compiled
        assert compiled.shared_bytes <= 48 * 2**10
    assert {compiled.threads for compiled in kernels} == {program.threads for program in programs_of(kernel.tree)}


def _emitted(func: Any, tree: Tree[BlockProgram]) -> Any:
    operator = read_operator(func)
    assert operator is not None
    return emit_blocks(operator, tree)


def test_a_kernel_can_be_inspected_without_a_gpu() -> None:
    task = make_task(operators.dense(64, 96), resolve_target("sm_90"), name="dense")
    dim = fx.Dim("T", range(1, 65))
    kernel = dynamic.compile(task, dim, measure=False)
    assert kernel.report.measured == 0
    assert kernel.report.stages[0].name == "HardwareAlign"
    assert "threads" in kernel.explain()
    assert kernel.program(T=33).at(33).size >= 33
    with pytest.raises(InputMismatch, match=r"'X'.* torch\.float32 on cpu.*float32 on cuda"):
        kernel(torch.zeros(5, 64), torch.zeros(96, 64), torch.zeros(96))
    if gpu_at_hand() is None:
        with pytest.raises(NoGPU, match="target: "):
            dynamic.compile(task, dim)
    with pytest.raises(InvalidDevice, match=r"device: .*cpu.*cuda"):
        dynamic.compile(task, dim, "zen4", measure=False)
