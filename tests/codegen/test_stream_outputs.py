"""Large outputs are stored past the caches, with the same results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from felixlike import _tvm, codegen
from felixlike.codegen import compile as compilation
from felixlike.codegen.stream_outputs import most_bytes, stream_outputs
from felixlike.hardware import described_target, has_instruction, host_target, target_device

_ROWS, _COLUMNS = 6, 48


def _schedule(columns: int, *, lanes: int = 16, parallel: bool = True, in_place: bool = False) -> Any:
    """Return the schedule of y = 2x, or of y += 2x in two stages, with rows in parallel."""
    x = _tvm.te.placeholder((_ROWS, columns), "float32", name="x")
    y = _tvm.te.compute((_ROWS, columns), lambda i, j: x[i, j] * _tvm.tirx.const(2, "float32"), name="y")
    if in_place:
        step = _tvm.te.reduce_axis((0, 2), name="step")
        y = _tvm.te.compute((_ROWS, columns), lambda i, j: _tvm.te.sum(x[i, j], axis=step), name="y")
    schedule = _tvm.Schedule(_tvm.IRModule({"main": _tvm.te.create_prim_func([x, y])}))
    row, column, *_ = schedule.get_loops(schedule.get_sblock("y"))
    if parallel:
        schedule.parallel(row)
    if not in_place:
        schedule.vectorize(schedule.split(column, [None, lanes])[1])
    return schedule


def _source(schedule: Any, monkeypatch: pytest.MonkeyPatch, most: int | None) -> tuple[Any, str]:
    """Return the compiled function and LLVM's text of it."""
    monkeypatch.setattr(compilation, "most_bytes", lambda target: most)
    executable = codegen.compile_primfuncs(schedule.mod, host_target(), checks_arguments=False)
    return executable, executable.mod.inspect_source("ll")


@pytest.fixture(autouse=True)
def _lines() -> None:
    if not has_instruction("avx512f", host_target()):
        pytest.skip("the processor has no vectors as long as a line")


@pytest.mark.parametrize("offset", [0, 16, 1, 5])
def test_outputs_are_right_wherever_they_begin(offset: int, monkeypatch: pytest.MonkeyPatch) -> None:
    executable, text = _source(_schedule(_COLUMNS), monkeypatch, 16)
    assert "!nontemporal" in text
    assert "llvm.x86.sse.sfence" in text
    x = np.random.default_rng(0).normal(size=(_ROWS, _COLUMNS)).astype("float32")
    room = np.zeros(_ROWS * _COLUMNS + 64, "float32")
    start = (-room.ctypes.data // 4) % 16 + offset
    y = room[start : start + x.size].reshape(x.shape)
    executable.jit()["main"](_tvm.runtime.tensor(x), _view(y))
    np.testing.assert_array_equal(y, 2 * x)
    assert not room[:start].any()
    assert not room[start + x.size :].any()


def _view(array: Any) -> Any:
    """Return a TVM tensor on the memory of an array."""
    import torch

    return _tvm.tvm_ffi.from_dlpack(torch.from_numpy(array))


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({}, None),
        ({}, _ROWS * _COLUMNS * 4),
        ({"lanes": 8}, 16),
        ({"parallel": False}, 16),
        ({"in_place": True}, 16),
    ],
)
def test_other_outputs_stay_in_the_caches(
    options: dict[str, Any], most: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None without a cache; of the size of the limit; of other vectors; not in parallel; and loaded again."""
    _, text = _source(_schedule(_COLUMNS, **options), monkeypatch, most)
    assert "!nontemporal" not in text


def test_modules_without_large_outputs_are_unchanged() -> None:
    module = _schedule(_COLUMNS).mod
    assert _tvm.structural_equal(stream_outputs(module, 1 << 30), module)


def test_the_limit_is_half_of_the_last_cache_of_processors_with_long_vectors() -> None:
    zen5, zen3 = described_target("zen5"), _tvm.Target({"kind": "llvm", "mcpu": "znver3"})
    assert most_bytes(zen5) == target_device(zen5).l3_bytes // 2
    assert most_bytes(zen3) is None
