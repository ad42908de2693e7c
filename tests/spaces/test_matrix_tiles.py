"""Products of matrices of bfloat16 numbers on CPUs: where they are offered, what they round, exact formulas, code.

Schedules are made for a processor with the instruction (Emerald Rapids). Where the processor that runs them has none,
they multiply pairs instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from schedules import equal_counts, equal_nests
from support import kernels
from support import operators as op

import felixlike as fx
from felixlike import _tvm, codegen
from felixlike.codegen.annotations import Matrix, Pairs
from felixlike.codegen.matrix_functions import start, with_matrix_functions
from felixlike.errors import CompilationFailed
from felixlike.features import formulas
from felixlike.features.table import NAMES
from felixlike.frontend import make_task
from felixlike.hardware import (
    PAIRS,
    TILES,
    Form,
    described_target,
    has_instruction,
    host_target,
    imitated_target,
    with_precision,
)
from felixlike.measure.packing import cut
from felixlike.spaces.cpu import narrow_weights
from felixlike.symbolic import Sketch, sketches

RUNS = imitated_target("emerald-rapids", cores=2)
"""Schedules for a processor with the instruction, and code that runs on any."""

CONSTANT: dict[str, Callable[[], Any]] = {
    "rows": lambda: op.matmul(64, 64, 96),
    "weights as PyTorch has them": lambda: op.dense(32, 64, 48),
    "rows that are padded": lambda: op.matmul(37, 96, 64),
    "columns that are padded": lambda: op.dense(32, 64, 44),
    "steps that are padded": lambda: op.matmul(32, 62, 32),
    "matrices of fewer pairs": lambda: op.matmul(16, 72, 32),
    "one matrix of rows": lambda: op.matmul(14, 64, 64),
    "rows that outgrow the cache": lambda: op.matmul(80, 4096, 32),
    "convolution": lambda: op.conv2d_nhwc(32, 14, 64),
    "convolution with strides": lambda: op.conv2d_nhwc(32, 16, 32, stride=2),
    "convolution of groups": lambda: op.grouped_nhwc(64, 14, 64, 2),
}

BOTH: dict[str, Callable[[], Any]] = {
    "inputs": lambda: op.matmul(32, 64, 32),
    "inputs in blocks of the reduction": lambda: op.matmul(32, 2048, 32),
    "inputs, the second transposed": lambda: op.batch_matmul(2, 32, 64, 32),
    "inputs that are padded": lambda: op.batch_matmul(2, 37, 62, 44),
}
"""Products without constants, whose second factor is copied into panels."""

ALL = CONSTANT | BOTH

_LONG = ("inputs in blocks of the reduction", "rows that outgrow the cache")
"""Products of too many steps to count one by one."""


def _offered(func: Any, target: Any = RUNS, *, constant: bool = True) -> dict[str, Sketch]:
    task = make_task(func, with_precision(target, "bfloat16"), name="main", constants=[1] if constant else [])
    return {sketch.precision: sketch for sketch in sketches(task, space="own")}


def _small(name: str, monkeypatch: pytest.MonkeyPatch) -> Sketch:
    """Return the sketch of a small operator that rounds, although float32 may be estimated to be as fast."""
    monkeypatch.setattr(narrow_weights, "faster_form", lambda *_: Form.PAIRS)
    sketch = _offered(ALL[name](), constant=name in CONSTANT)["bfloat16"]
    assert Matrix.key in sketch.trace_json()
    return sketch


@pytest.mark.parametrize("name", ALL)
def test_programs_and_formulas_are_exact(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sketch = _small(name, monkeypatch)
    points = sketch.sample(3, seed=3)
    if name not in _LONG:
        assert equal_counts(sketch, points) > 0
    equal_nests(sketch, points)


@pytest.mark.parametrize("name", ALL)
def test_both_factors_are_rounded_to_nearest_and_sums_are_not(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    func, sketch = ALL[name](), _small(name, monkeypatch)
    left, right, *others = arrays = kernels.arrays(func)
    rounded = [kernels.halves(left), kernels.halves(right), *others]
    expected = kernels.run(_tvm.IRModule({"main": func}), rounded, RUNS)
    for point in sketch.sample(2, seed=5).tolist():
        answer = kernels.answer(sketch, point, arrays)
        assert np.abs(answer - expected).max() <= 1e-5 * np.abs(expected).max(), point


def test_matrices_are_offered_where_they_are_faster() -> None:
    """They are for rows that fill registers, and for no processor that multiplies pairs faster than float32."""
    assert Matrix.key in _offered(op.dense(128, 768, 768))["bfloat16"].trace_json()
    assert Matrix.key in _offered(op.conv2d_nhwc(64, 14, 64))["bfloat16"].trace_json()
    one_row = _offered(op.dense(1, 1024, 4096))
    assert all(Matrix.key not in sketch.trace_json() for sketch in one_row.values())
    assert all(Pairs.key not in sketch.trace_json() for sketch in one_row.values())
    others = _offered(op.dense(128, 768, 768), described_target("zen5"))
    assert Matrix.key not in others["bfloat16"].trace_json()
    assert Pairs.key in others["bfloat16"].trace_json()


def test_blocks_of_the_reduction_are_around_panels_if_rows_outgrow_the_cache() -> None:
    """All rows of a block then stay in the L2 cache while the panels are read."""

    def order(rows: int) -> list[int]:
        sketch = _offered(op.matmul(rows, 4096, 2048))["bfloat16"]
        names, points = [v.name for v in sketch.variables], sketch.sample(64, seed=0)
        places = [names.index(f"j.{part}") for part in range(3)]
        point = next(p for p in points.tolist() if [p[place] for place in places] == [2, 16, 4])
        loops = _tvm.found(sketch.schedule(point).mod["main"].body, _tvm.tirx.For)[::-1]
        return [int(loop.extent) for loop in loops if any(map(Matrix.on, _tvm.found(loop.body, _tvm.tirx.For)))]

    blocks, panels, steps = 4, 16, 128
    assert order(80)[:5] == [2, blocks, panels, 80 // 16, steps // blocks]
    assert order(32)[:4] == [2, panels, 32 // 16, steps]


def test_features_are_those_of_a_row() -> None:
    """The instruction takes as many cycles for 16 rows as products of one row of pairs in float32 take."""
    of = _offered(op.matmul(128, 768, 768))
    values = {name: formulas(of[name]).evaluate(of[name].sample(1, seed=0))[0].max(axis=0) for name in of}
    rows = {name: dict(zip(NAMES, values[name], strict=True)) for name in of}
    assert rows["bfloat16"]["float_mul"] == rows["float32"]["float_mul"] / 32
    assert rows["bfloat16"]["vector_extent"] == rows["float32"]["vector_extent"]


@pytest.mark.parametrize(
    ("func", "constant"),
    [(op.matmul(64, 512, 512), True), (op.matmul(80, 4096, 512), True), (op.matmul(256, 2048, 512), False)],
)
def test_sums_stay_in_tile_registers(func: Any, constant: bool) -> None:
    """So they do in each block of a reduction."""
    if not has_instruction(TILES, host_target()):
        pytest.skip("this processor has no AMX, for which LLVM would have to be told that it has")
    sketch = _offered(func, constant=constant)["bfloat16"]
    text = kernels.assembly(sketch)
    assert "tdpbf16ps" in text
    assert "vdpbf16ps" not in text
    assert "felixlike_tile_load" not in text  # all calls are inlined
    assert text.count("tileloadd") < 2 * text.count("tdpbf16ps")  # sums are not loaded in each step


def test_registers_have_the_sizes_of_the_instruction() -> None:
    """The text has one byte for the palette, then widths in bytes and rows, of sums, of second and of first factors."""
    func = op.matmul(1, 1, 1)
    module = with_matrix_functions(
        _tvm.IRModule({"main": func.with_body(_tvm.tirx.stmt_seq(start(14, 12, 4, 2), func.body))})
    )
    texts = [str(a.value.value) for a in _tvm.found(module["main"].body, _tvm.tirx.AttrStmt) if "import" in a.attr_key]
    assert len(texts) == 1
    content = bytes.fromhex(texts[0].split('c"')[1].split('"')[0].replace("\\", ""))
    assert content[:2] == bytes([1, 0])
    widths = np.frombuffer(content[16:48], dtype="<u2")
    assert widths.tolist() == [64] * 6 + [48] * 2 + [0] * 8
    assert list(content[48:]) == [14] * 4 + [12] * 2 + [14] * 2 + [0] * 8


def test_loops_of_another_form_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other code would not compute in the time that was estimated."""
    if not has_instruction(TILES, host_target()):
        pytest.skip("this processor has no AMX: loops over pairs remain")
    sketch = _small("rows", monkeypatch)
    kernel, _ = cut(sketch.schedule(sketch.sample(1, seed=0)[0].tolist()).mod["main"])

    def narrower(loop: Any) -> Any:
        wide = loop.kind == _tvm.tirx.ForKind.VECTORIZED and any(map(Pairs.on, _tvm.found(loop.body, _tvm.tirx.For)))
        return _tvm.tirx.For(loop.loop_var, loop.min, 8, loop.kind, loop.body) if wide else loop

    changed = _tvm.structural_map(kernel, (_tvm.tirx.For, narrower)).with_attr("global_symbol", "main")
    with pytest.raises(CompilationFailed, match="product of two matrices"):
        codegen.compile_primfuncs(_tvm.IRModule({"main": changed}), sketch.task.target)


def test_a_model_says_what_it_rounds() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()).eval()
    x = torch.randn(64, 64)
    tuned = fx.optimize(model, x, trials=0, precision="bfloat16")
    assert has_instruction(PAIRS, host_target()) == ("bfloat16 factors" in str(tuned.report))
    expected = model.double()(x.double())
    assert (tuned(x) - expected).abs().max() <= 2e-2 * expected.abs().max()
