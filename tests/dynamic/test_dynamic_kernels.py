"""Test that kernels are correct at every size, primes included, and do not write outside their buffers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support import dynamic_operators as operators
from support.assembly import count, innermost_loops, spilled

import felixlike as fx
from felixlike import _tvm, codegen, dynamic
from felixlike.dynamic.bounds import fits_registers
from felixlike.dynamic.dispatch import Branch, Leaf, Tree, highest_of, statements
from felixlike.dynamic.emit import Pool, computed_columns, emit, narrow_widths
from felixlike.dynamic.operator import read_operator
from felixlike.dynamic.plan import needed
from felixlike.dynamic.program import Program
from felixlike.dynamic.selection import TILES
from felixlike.errors import (
    InputMismatch,
    InvalidDevice,
    InvalidDim,
    InvalidModel,
    InvalidOption,
    NoGradientWarning,
    UnknownTarget,
)
from felixlike.hardware import Device, host_device, resolve_target, target_device

_GUARD = 256
"""Elements after the output that must stay as they are."""

Run = Callable[..., torch.Tensor]


def _tree(vectors: int, highest: int) -> Tree[Program]:
    """Return a tree with all kinds of programs, including programs that cannot cover every size that selects them."""
    pair = Program(highest, max(1, highest - 2), vectors)
    return Branch(0, 9, Leaf(Program(highest, 0, vectors)), Branch(0, 30, Leaf(pair), Leaf(Program(2, 2, vectors))))


def _compiled(
    func: Any,
    tiles: list[tuple[int, int]],
    lanes: int,
    tree: Tree[Program],
    *,
    pairs: bool = False,
    device: Device | None = None,
) -> Run:
    """Compile a function of the inputs and the output's shape that checks that no memory after the output changes."""
    operator = read_operator(func)
    assert operator is not None
    assert operator.has_pairs or not pairs
    pool = Pool(tuple(tiles), lanes, pairs)
    kernel, packings = emit(
        operator,
        pool,
        lambda rows: statements(tree, operator.symbols, rows, highest_of(pool)),
        device=device or host_device(),
    )
    functions = {"main": kernel.with_attr("global_symbol", "main")}
    for packing in packings:
        functions["pack"] = packing.function.with_attr("global_symbol", "pack")
    library = codegen.compile_primfuncs(_tvm.IRModule(functions), resolve_target("cpu"), checks_arguments=False).jit()
    main = library["main"]

    def call(*inputs: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        arguments = list(inputs)
        for packing in packings:
            arguments[packing.parameter] = torch.full(packing.shape, torch.nan, dtype=getattr(torch, packing.dtype))
            library["pack"](inputs[packing.parameter], arguments[packing.parameter])
        size = torch.Size(shape).numel()
        memory = torch.full((size + _GUARD,), 7.5, dtype=getattr(torch, operator.dtype))
        output = memory[:size].view(shape)
        # TVM takes no empty tensor of PyTorch's, whose strides are at least 1.
        main(*arguments, output if size else _tvm.runtime.empty(shape, operator.dtype))
        assert bool((memory[size:] == 7.5).all()), "it wrote behind its output"
        return output

    return call


def _close(result: torch.Tensor, expected: torch.Tensor) -> bool:
    return bool((result - expected).abs().max() <= 1e-5 * max(1.0, float(expected.abs().max())))


def _factor(x: torch.Tensor, *, pairs: bool) -> torch.Tensor:
    """Return a factor in float64, rounded to bfloat16 for products in pairs."""
    return x.bfloat16().double() if pairs else x.double()


FORMS = pytest.mark.parametrize("pairs", [False, True], ids=["float32", "pairs"])
"""How products are computed. Pairs round both factors first, sums are the same."""


@FORMS
@pytest.mark.parametrize(("n", "k", "vectors"), [(48, 24, 1), (50, 24, 2), (64, 23, 2), (7, 2, 1)])
def test_dense_layers_are_correct_at_every_size(n: int, k: int, vectors: int, *, pairs: bool) -> None:
    func = operators.dense(k, n, activation=_tvm.topi.nn.relu)
    call = _compiled(func, [(rows, vectors) for rows in range(1, 8)], 16, _tree(vectors, 7), pairs=pairs)
    generator = torch.Generator().manual_seed(0)
    w, b = torch.randn(n, k, generator=generator), torch.randn(n, generator=generator)
    right = _factor(w, pairs=pairs).T
    for t in range(1, 129):
        x = torch.randn(t, k, generator=generator)
        assert _close(call(x, w, b, shape=(t, n)), torch.relu(_factor(x, pairs=pairs) @ right + b)), t


@FORMS
@pytest.mark.parametrize("k", [16, 11])
def test_attention_scores_are_correct_at_every_size(k: int, *, pairs: bool) -> None:
    """Columns are dynamic as well, and the second operand is transposed, both with and without whole square tiles."""
    tiles = [(rows, vectors) for vectors in (1, 2) for rows in range(1, 6)]
    tree = Branch(0, 20, _tree(1, 5), _tree(2, 5))
    call = _compiled(operators.scores(3, k), sorted(tiles), 16, tree, pairs=pairs)
    generator = torch.Generator().manual_seed(0)
    for t in range(1, 129):
        a, b = torch.randn(3, t, k, generator=generator), torch.randn(3, t, k, generator=generator)
        expected = _factor(a, pairs=pairs) @ _factor(b, pairs=pairs).transpose(1, 2)
        assert _close(call(a, b, shape=(3, t, t)), expected), t


def test_narrow_tiles_compute_the_last_columns() -> None:
    tiles = ((1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (3, 1))
    assert narrow_widths(tiles) == [1, 2]
    assert narrow_widths(tiles[:-1]) == [1, 2]
    assert narrow_widths(((1, 1), (1, 2), (2, 2))) == []  # there is no narrow tile of two rows
    pool = Pool(tiles, 16)
    computed = [computed_columns(columns, 4, pool) for columns in (1, 16, 17, 33, 64, 65, 128, 150)]
    assert computed == [16, 16, 32, 64, 64, 80, 128, 160]
    assert [computed_columns(columns, 2, pool) for columns in (1, 17, 33)] == [16, 32, 48]
    assert computed_columns(17, 1, pool) == 32
    assert computed_columns(33, 2, Pool(((1, 2),), 16)) == 64


def test_trees_keep_narrow_tiles_for_dynamic_columns() -> None:
    pool = Pool(tuple(sorted((rows, vectors) for vectors in (1, 2) for rows in range(1, 6))), 16)
    tree = Leaf(Program(3, 3, 2))
    assert needed(pool, tree, ragged=False).tiles == ((1, 2), (2, 2), (3, 2))
    assert needed(pool, tree, ragged=True).tiles == ((1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (3, 2))
    narrow = Leaf(Program(4, 4, 1))
    assert needed(pool, narrow, ragged=True).tiles == ((1, 1), (2, 1), (3, 1), (4, 1))


@FORMS
@pytest.mark.parametrize("n", [32, 20])
def test_sums_over_a_dynamic_axis_are_correct_at_every_size(n: int, *, pairs: bool) -> None:
    call = _compiled(operators.mixed(3, n), [(rows, 2) for rows in range(1, 6)], 16, _tree(2, 5), pairs=pairs)
    generator = torch.Generator().manual_seed(0)
    for t in range(1, 129):
        a, b = torch.randn(3, t, t, generator=generator), torch.randn(3, t, n, generator=generator)
        assert _close(call(a, b, shape=(3, t, n)), _factor(a, pairs=pairs) @ _factor(b, pairs=pairs)), t


@FORMS
def test_products_with_three_dynamic_axes_are_correct(*, pairs: bool) -> None:
    call = _compiled(operators.product(), [(rows, 1) for rows in range(1, 5)], 16, _tree(1, 4), pairs=pairs)
    generator = torch.Generator().manual_seed(0)
    for m, n, k in [(1, 1, 1), (2, 3, 5), (17, 33, 7), (53, 16, 1), (5, 31, 64), (128, 1, 2)]:
        a, b = torch.randn(m, k, generator=generator), torch.randn(k, n, generator=generator)
        assert _close(call(a, b, shape=(m, n)), _factor(a, pairs=pairs) @ _factor(b, pairs=pairs)), (m, n, k)


def test_infinities_and_nan_of_pairs_are_those_of_pytorch() -> None:
    """Finite numbers above the largest one of bfloat16 become infinite, as they do in PyTorch."""
    call = _compiled(operators.dense(9, 16), [(rows, 1) for rows in range(1, 4)], 16, _tree(1, 3), pairs=True)
    x, w, b = torch.randn(7, 9), torch.randn(16, 9), torch.zeros(16)
    x[0, 1], x[1, 2], x[2, 3], x[3, 4], x[4, 0], x[4, 1] = (
        torch.nan,
        torch.inf,
        -torch.inf,
        3.4e38,
        torch.inf,
        -torch.inf,
    )
    x[5, 8] = torch.tensor(0x7F800001, dtype=torch.int32).view(torch.float32)  # rounding must not make it infinite
    w[:, :2] = w[:, :2].abs()
    expected = (_factor(x, pairs=True) @ _factor(w, pairs=True).T).float()
    got = call(x, w, b, shape=(7, 16))
    assert torch.isnan(expected[[0, 4, 5]]).all()
    assert torch.isinf(expected[1:4]).all()
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("vectors", [2, 3, 4])
def test_sums_stay_in_registers(vectors: int) -> None:
    """LLVM kept some on the stack where the columns are whole panels, and kernels took up to 3.5 times as long."""
    target = _tvm.Target({"kind": "llvm", "num-cores": 2, "mcpu": "icelake-server"})
    operator = read_operator(operators.dense(1024, 4096))
    assert operator is not None
    heights = [rows for rows in range(1, 15) if fits_registers(rows, vectors, 32)]
    pool = Pool(tuple((rows, vectors) for rows in heights), 16)
    cover = partial(statements, _tree(vectors, heights[-1]), operator.symbols, highest=highest_of(pool))
    kernel, _ = emit(operator, pool, cover, device=target_device(target))
    module = _tvm.IRModule({"main": kernel.with_attr("global_symbol", "main")})
    assembly = str(codegen.compile_primfuncs(module, target).mod.inspect_source("asm"))
    loops = [(count(loop, r"vfmadd\S*\s.*%zmm"), loop) for loop in innermost_loops(assembly)]
    for rows in heights:
        tiles = [loop for products, loop in loops if products and products % (rows * vectors) == 0]
        assert tiles, rows
        assert not any(map(spilled, tiles)), rows


@FORMS
def test_the_next_panel_is_prefetched_where_it_pays(pairs: bool) -> None:
    """Two panels have to fit the L2 cache, and all five not. Tiles of 1, 2 and 3 rows take 4, 2 and 1 steps at once."""
    func = operators.dense(24, 130)
    operator = read_operator(func)
    assert operator is not None
    pool, panel = Pool(((1, 2), (2, 2), (3, 2)), 16, pairs), 24 * 32 * (2 if pairs else 4)
    cover = partial(statements, _tree(2, 3), operator.symbols, highest=highest_of(pool))
    for near, fetches in ((2 * panel - 1, 0), (2 * panel, 2 * (4 + 2 + 1)), (5 * panel, 0)):
        device = replace(host_device(), l2_bytes=near)
        kernel, _ = emit(operator, pool, cover, device=device)
        assert str(kernel).count("prefetch(") == fetches, near
    call = _compiled(func, list(pool.tiles), 16, _tree(2, 3), pairs=pairs, device=replace(device, l2_bytes=2 * panel))
    w, b = torch.randn(130, 24), torch.randn(130)
    for t in (1, 2, 3, 13, 40):
        x = torch.randn(t, 24)
        expected = _factor(x, pairs=pairs).double() @ _factor(w, pairs=pairs).double().T + b
        assert _close(call(x, w, b, shape=(t, 130)), expected), t


def test_factors_in_bfloat16_are_read_in_place() -> None:
    """Nothing is copied before the product if pairs of the first factor are neighbours."""
    for k, copies in ((24, 0), (23, 1)):
        operator = read_operator(operators.dense(k, 32, dtype="bfloat16", sums="float32"))
        assert operator is not None
        assert operator.has_half_factors
        pool = Pool(((1, 1), (2, 1)), 16, pairs=True)
        cover = partial(statements, _tree(1, 2), operator.symbols, highest=highest_of(pool))
        kernel, _ = emit(operator, pool, cover, device=host_device())
        allocated = [a.buffer for a in _tvm.found(kernel.body, _tvm.tirx.AllocBuffer)]
        assert sum(buffer.name == "rounded" for buffer in allocated) == copies
        w, b = torch.randn(32, k).bfloat16(), torch.randn(32).bfloat16()
        call = _compiled(
            operators.dense(k, 32, dtype="bfloat16", sums="float32"), [(1, 1), (2, 1)], 16, _tree(1, 2), pairs=True
        )
        for t in (1, 2, 13, 40):
            x = torch.randn(t, k).bfloat16()
            assert _close(call(x, w, b, shape=(t, 32)), x.double() @ w.double().T + b), t


def test_float64_products_with_half_the_lanes_are_correct() -> None:
    call = _compiled(operators.dense(24, 24, dtype="float64"), [(rows, 1) for rows in range(1, 4)], 8, _tree(1, 3))
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(24, 24, generator=generator, dtype=torch.float64)
    for t in (1, 13, 53):
        x, b = torch.randn(t, 24, generator=generator, dtype=torch.float64), torch.zeros(24, dtype=torch.float64)
        assert torch.allclose(call(x, w, b, shape=(t, 24)), x @ w.T, atol=1e-12)


def test_read_operator_returns_none_without_a_contraction() -> None:
    assert read_operator(operators.row_sums(8)) is None


def _cut(k: int) -> Any:
    """X[B, T, k] without its first row · W[T, k]ᵀ without its first row: rows and columns T - 1, a batch of B - 1."""
    te, batch, t = _tvm.te, operators.symbol("B"), operators.symbol()
    x, w = te.placeholder((batch, t, k), name="X"), te.placeholder((t, k), name="W")
    r = te.reduce_axis((0, k), name="r")
    y = te.compute(
        (batch - 1, t - 1, t - 1), lambda b, i, j: te.sum(x[b + 1, i + 1, r] * w[j + 1, r], axis=r), name="Y"
    )
    return te.create_prim_func([x, w, y])


@FORMS
def test_axes_may_be_empty(*, pairs: bool) -> None:
    call = _compiled(_cut(16), [(rows, 1) for rows in range(1, 5)], 16, _tree(1, 4), pairs=pairs)
    generator = torch.Generator().manual_seed(0)
    for batch, t in ((1, 1), (1, 5), (3, 1), (2, 2), (3, 40)):
        x, w = torch.randn(batch, t, 16, generator=generator), torch.randn(t, 16, generator=generator)
        result = call(x, w, shape=(batch - 1, t - 1, t - 1))
        expected = _factor(x[1:, 1:], pairs=pairs) @ _factor(w[1:], pairs=pairs).T
        assert torch.allclose(result.double(), expected, atol=1e-5)


def _with_epilogue(rows: Callable[[Any], Any], columns: int, element: Callable[..., Any]) -> Any:
    """Return a function of element(i, j, X[T, 8] · W[24, 8]ᵀ, T) for all rows and columns."""
    te, t = _tvm.te, operators.symbol()
    x, w = te.placeholder((t, 8), name="X"), te.placeholder((24, 8), name="W")
    r = te.reduce_axis((0, 8), name="r")
    y = te.compute((t, 24), lambda i, j: te.sum(x[i, r] * w[j, r], axis=r), name="Y")
    z = te.compute((rows(t), columns), lambda i, j: element(i, j, y, t), name="Z")
    return te.create_prim_func([x, w, z])


@pytest.mark.parametrize(
    ("rows", "columns", "element"),
    [
        (lambda t: t + 1, 24, lambda i, j, y, t: _tvm.tirx.if_then_else(i < t, y[i, j], 0.0)),
        (lambda t: t, 30, lambda i, j, y, t: _tvm.tirx.if_then_else(j < 24, y[i, j], 0.0)),
        (lambda t: t, 20, lambda i, j, y, t: y[i, j] + 1.0),
        (lambda t: t - 1, 24, lambda i, j, y, t: y[i, j] + 1.0),
        (lambda t: t, 12, lambda i, j, y, t: y[i, j] * y[i, j + 12]),
    ],
    ids=["more rows", "more columns", "fewer columns", "fewer rows", "two elements"],
)
def test_epilogues_of_other_sizes_are_no_part_of_an_operator(
    rows: Callable[[Any], Any], columns: int, element: Callable[..., Any]
) -> None:
    """Its loops are those of the sums, so that elements would be missing or beyond the end."""
    assert read_operator(_with_epilogue(rows, columns, element)) is None


def test_a_factor_without_the_reduced_axis_is_not_read_in_vectors() -> None:
    te, t = _tvm.te, operators.symbol()
    x, v, r = te.placeholder((t, 8), name="X"), te.placeholder((7,), name="V"), te.reduce_axis((0, 8), name="r")
    y = te.compute((t, 7), lambda i, j: te.sum(x[i, r] * v[j], axis=r), name="Y")
    kernel = dynamic.compile(te.create_prim_func([x, v, y]), fx.Dim("T", range(1, 20)), measure=False)
    for size in (1, 5, 19):
        a, b = torch.randn(size, 8), torch.randn(7)
        assert _close(kernel(a, b), a.double().sum(1, keepdim=True) * b)


def test_buffers_whose_sizes_are_expressions_raise() -> None:
    te, t = _tvm.te, operators.symbol()
    x, w, r = te.placeholder((t, 8), name="X"), te.placeholder((24, 8), name="W"), te.reduce_axis((0, 8), name="r")
    y = te.compute((t - 1, 24), lambda i, j: te.sum(x[i + 1, r] * w[j, r], axis=r), name="Y")
    with pytest.raises(InvalidModel, match=r"numbers or symbols, got Y of shape .* - 1, 24"):
        dynamic.compile(te.create_prim_func([x, w, y]), fx.Dim("T", range(1, 20)), measure=False)


@pytest.fixture(scope="module")
def kernel() -> dynamic.DynamicKernel:
    """Compile a batched dense layer: two dynamic sizes, an input used after the product, and a packed weight."""
    dims = [fx.Dim("B", [1, 2, 4]), fx.Dim("T", range(1, 65))]
    return dynamic.compile(operators.dense_of_batch(16, 40), dims)


def test_a_kernel_accepts_listed_sizes_and_sizes_between_them(kernel: dynamic.DynamicKernel) -> None:
    w = torch.randn(40, 16)
    for b, t in [(1, 1), (2, 53), (3, 17), (4, 64)]:
        x, r = torch.randn(b, t, 16), torch.randn(b, t, 40)
        assert _close(kernel(x, w, r), x.double() @ w.double().T + r)
    assert kernel.program(B=3, T=17).vectors in TILES.widths
    assert "v" in kernel.explain()
    assert kernel.report.measured > 0
    assert kernel.report.stages[0].name == "HardwareAlign"


def test_weights_are_repacked_only_when_they_change(kernel: dynamic.DynamicKernel) -> None:
    x, r, w = torch.randn(1, 5, 16), torch.zeros(1, 5, 40), torch.randn(40, 16)
    first = kernel(x, w, r)
    packed = kernel._pack(w)
    assert kernel._pack(w) is packed
    w.mul_(2)
    assert kernel._pack(w) is not packed
    assert _close(kernel(x, w, r), 2 * first.double())


def test_weights_of_inference_mode_are_packed_in_every_call(kernel: dynamic.DynamicKernel) -> None:
    with torch.inference_mode():
        x, r, w = torch.randn(1, 5, 16), torch.zeros(1, 5, 40), torch.randn(40, 16)
        first = kernel(x, w, r)
        w.mul_(2)
        assert _close(kernel(x, w, r), 2 * first.double())


def test_inputs_with_the_negative_bit(kernel: dynamic.DynamicKernel) -> None:
    x, r, w = torch.randn(1, 5, 16), torch.zeros(1, 5, 40), torch.randn(40, 16)
    expected = kernel(x, w, r).double()
    assert _close(kernel(torch._neg_view(x), w, r), -expected)
    assert _close(kernel(x, torch._neg_view(w), r), -expected)


def test_inputs_that_need_a_gradient_warn_once(kernel: dynamic.DynamicKernel) -> None:
    x, r, w = torch.randn(1, 5, 16, requires_grad=True), torch.zeros(1, 5, 40), torch.randn(40, 16)
    with pytest.warns(NoGradientWarning, match=r"requires a gradient.*torch\.no_grad\(\)"):
        assert not kernel(x, w, r).requires_grad
    kernel(x, w, r)  # a second warning is an error


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        (((1, 65, 16), (40, 16), (1, 65, 40)), "T is 65, .*1 to 64"),
        (((1, 0, 16), (40, 16), (1, 0, 40)), "T is 0, .*1 to 64"),
        (((5, 3, 16), (40, 16), (5, 3, 40)), "B is 5, .*1 to 4"),
        (((1, 3, 16), (40, 16), (1, 4, 40)), "T is 3 in input 'X' and 4 in input 'R'"),
        (((1, 3, 17), (40, 16), (1, 3, 40)), r"input 'X' has shape \(1, 3, 17\)"),
        (((3, 16), (40, 16), (1, 3, 40)), r"input 'X' has shape \(3, 16\)"),
        (((1, 3, 16), (40, 16)), "expected 3 inputs, got 2"),
    ],
)
def test_inputs_of_invalid_shapes_raise(kernel: dynamic.DynamicKernel, shapes: Any, words: str) -> None:
    with pytest.raises(InputMismatch, match=words):
        kernel(*(torch.zeros(shape) for shape in shapes))


def test_inputs_of_invalid_types_raise(kernel: dynamic.DynamicKernel) -> None:
    good = [torch.zeros(1, 3, 16), torch.zeros(40, 16), torch.zeros(1, 3, 40)]
    with pytest.raises(InputMismatch, match=r"input 'X' is torch\.float64"):
        kernel(good[0].double(), *good[1:])
    with pytest.raises(InputMismatch, match="input 'X' is a list"):
        kernel([0.0], *good[1:])  # type: ignore[arg-type]
    with pytest.raises(InputMismatch, match="input 'X' is sparse or nested"):
        kernel(good[0].to_sparse(), *good[1:])


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"task": 3}, InvalidModel, "task: .*got 3"),
        ({"task": operators.row_sums}, InvalidModel, "contraction"),
        ({"dims": fx.Dim("B", [1])}, InvalidDim, "'T'"),
        ({"device": "zen99"}, UnknownTarget, "'zen99'"),
        ({"device": 7}, InvalidDevice, "device: .*got 7"),
        ({"sia": (1, 2)}, InvalidOption, r"sia: .*got \(1, 2\)"),
    ],
)
def test_invalid_arguments_of_compile_raise(changes: dict[str, Any], error: type[Exception], words: str) -> None:
    arguments: dict[str, Any] = {"task": operators.dense_of_batch(16, 40), "dims": [fx.Dim("B", [1]), fx.Dim("T", [1])]}
    arguments |= changes
    if inspect.isfunction(arguments["task"]):
        arguments |= {"task": arguments["task"](8), "dims": fx.Dim("T", [1, 2])}
    with pytest.raises(error, match=words):
        dynamic.compile(**arguments)


def test_a_static_operator_raises() -> None:
    te = _tvm.te
    x = te.placeholder((4, 8), name="X")
    with pytest.raises(InvalidDim, match="no symbolic sizes"):
        dynamic.compile(te.create_prim_func([x, te.compute((4, 8), lambda i, j: x[i, j] + 1)]), fx.Dim("T", [1]))


def test_compiling_for_a_described_device_without_measuring(tmp_path: Path) -> None:
    text = Path(fx.hardware.presets.__file__).with_name("machines.toml").read_text()
    entry = text[text.index("[graviton2]") :].partition("\n\n")[0]
    path = tmp_path / "mine.toml"
    path.write_text(entry)
    kernel = dynamic.compile(operators.dense(16, 32), fx.Dim("T", range(1, 20)), path, measure=False)
    x, w, b = torch.randn(7, 16), torch.randn(32, 16), torch.randn(32)
    assert _close(kernel(x, w, b), x.double() @ w.double().T + b)
    assert kernel.report.measured == 0
