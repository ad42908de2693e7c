"""Tests for padding convolutions to full vectors and tiles, which does not change their outputs."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn

from felixlike import _tvm
from felixlike.frontend import import_model
from felixlike.frontend.rewrites.pad_channels_to_vectors import Convolution, with_room
from felixlike.hardware.vectors import VectorUnit
from felixlike.runtime import compile_model, max_relative_error

_AVX512 = VectorUnit(512, 32)

PADDED: dict[str, tuple[Any, tuple[int, ...], int]] = {
    "channels": (nn.Conv2d(3, 113, 3), (1, 3, 8, 8), 128),
    "columns": (nn.Conv2d(8, 16, (7, 1), padding=(3, 0)), (1, 8, 9, 17), 16),
    "both": (nn.Conv2d(5, 53, 3, padding=2, dilation=2, bias=False), (1, 5, 13, 19), 64),
    "one_dimension": (nn.Conv1d(4, 13, 5, stride=2, padding=1), (2, 4, 45), 16),
    "three_dimensions": (nn.Conv3d(2, 12, 2), (1, 2, 3, 4, 5), 16),
    "depthwise": (nn.Conv2d(12, 12, 3, padding=1, groups=12), (1, 12, 7, 29), 12),
    "groups": (nn.Conv2d(12, 8, 3, padding=1, groups=4), (1, 12, 5, 29), 8),
    "one_column": (nn.Conv2d(3, 13, (1, 5)), (1, 3, 17, 5), 16),
    "what_follows": (nn.Sequential(nn.Conv2d(3, 13, 3), nn.BatchNorm2d(13), nn.SiLU()), (2, 3, 8, 8), 16),
}
"""Model, shape of its input, and output channels of its padded weights on AVX-512."""

NOT_PADDED: dict[str, tuple[Any, tuple[int, ...]]] = {
    "full_vectors": (nn.Conv2d(3, 32, 3), (1, 3, 14, 14)),
    "no_window": (nn.Conv2d(3, 13, 1), (1, 3, 17, 17)),
    "far_too_few": (nn.Conv2d(3, 3, 3, padding=1), (1, 3, 16, 16)),
    "strided_depthwise": (nn.Conv2d(12, 12, 3, stride=2, groups=12), (1, 12, 29, 29)),
}


def _task(model: Any, shape: tuple[int, ...], mcpu: str = "skylake-avx512") -> Any:
    target = _tvm.Target({"kind": "llvm", "num-cores": 2, "mcpu": mcpu})
    (task,) = import_model(model.eval(), (shape,), target).tasks
    return task


@pytest.mark.parametrize("name", PADDED)
def test_padded_outputs_are_sliced_in_the_same_kernel(name: str) -> None:
    model, shape, channels = PADDED[name]
    task = _task(model, shape)
    assert "strided_slice" in task.name
    assert int(task.module["main"].params[1].shape[0]) == channels


@pytest.mark.parametrize("name", [*PADDED, *NOT_PADDED])
def test_outputs_are_unchanged(name: str) -> None:
    model, shape = PADDED[name][:2] if name in PADDED else NOT_PADDED[name]
    x = torch.randn(shape)
    imported = import_model(model.eval(), (x,))
    assert max_relative_error(compile_model(imported), model, (x,)).error < 1e-5


@pytest.mark.parametrize("name", NOT_PADDED)
def test_convolutions_that_gain_nothing_are_not_padded(name: str) -> None:
    assert "strided_slice" not in _task(*NOT_PADDED[name]).name


def test_columns_are_not_padded_to_a_number_that_no_vector_divides() -> None:
    """13 columns are few enough for an estimate without vectors to be less than that of 12."""
    model = nn.Conv2d(240, 240, 5, padding=2, groups=240)
    assert "strided_slice" not in _task(model, (1, 240, 12, 12), "znver3").name


def test_a_chain_with_channels_last_is_padded() -> None:
    layers = [nn.Conv2d(13, 13, 3, padding=1) for _ in range(6)]
    x = torch.randn(1, 13, 12, 12)
    model = nn.Sequential(*layers).eval()
    target = _tvm.Target({"kind": "llvm", "num-cores": 2, "mcpu": "skylake-avx512"})
    imported = import_model(model, (x,), target)
    scripts = [str(task.module["main"]) for task in imported.tasks if "conv" in task.name]
    assert scripts
    assert all("strided_slice" in text for text in scripts)
    assert max_relative_error(compile_model(import_model(model, (x,))), model, (x,)).error < 1e-5


@pytest.mark.parametrize("columns", range(1, 40))
def test_the_estimated_time_of_full_tiles_is_that_of_their_arithmetic(columns: int) -> None:
    """The lowest time per column, that of full vectors and enough accumulators, is reached by some padding."""
    times = [
        Convolution(64, 1, False, columns + more, False, 1, 3).time(_AVX512, 16) / (columns + more)
        for more in range(16)
    ]
    assert min(times) == 64 / 16
    assert all(time >= 64 / 16 for time in times)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float8_e4m3fn"])
def test_lanes_are_counted_by_the_bits_of_a_type(dtype: str) -> None:
    """The number of lanes depends on the bits of the type, and a float8_e4m3fn has 8."""
    builder = _tvm.relax.BlockBuilder()
    x = _tvm.relax.Var("x", _tvm.relax.TensorType((1, 3, 17, 17), dtype))
    weight = _tvm.relax.const(np.zeros((13, 3, 3, 3), dtype=getattr(ml_dtypes, dtype, dtype)), dtype)
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(_tvm.relax.op.nn.conv2d(x, weight)))
    script = with_room(builder.get(), _AVX512)["main"].script()
    assert f'R.Tensor((1, 13, 15, 16), dtype="{dtype}") = R.nn.conv2d' in script
