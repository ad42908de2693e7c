"""Tests for transposed convolutions by phases, which match PyTorch with s^d times fewer operations."""

from typing import Any

import pytest
import torch
from support.models import Apply
from torch import nn

from felixlike import _tvm
from felixlike.frontend import import_model
from felixlike.frontend.rewrites import channels_last
from felixlike.runtime import compile_model, max_relative_error

T = torch.nn

CASES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "dcgan": (lambda: T.ConvTranspose2d(8, 6, 4, stride=2, padding=1), (1, 8, 5, 7)),
    "stride_one": (lambda: T.ConvTranspose2d(4, 6, 3, padding=1), (2, 4, 5, 5)),
    "one_place": (lambda: T.ConvTranspose2d(6, 4, 4), (1, 6, 1, 1)),
    "taps_left_over": (lambda: T.ConvTranspose2d(4, 5, 3, stride=2, padding=1, output_padding=1), (1, 4, 5, 4)),
    "odd_output": (lambda: T.ConvTranspose2d(4, 5, 3, stride=2, padding=1), (1, 4, 5, 4)),
    "fewer_taps_than_phases": (lambda: T.ConvTranspose2d(4, 5, 2, stride=3), (1, 4, 5, 4)),
    "single_tap": (lambda: T.ConvTranspose2d(4, 5, 1, stride=2), (1, 4, 3, 3)),
    "three_phases": (lambda: T.ConvTranspose2d(4, 5, 5, stride=3, padding=2, output_padding=1), (1, 4, 4, 4)),
    "four_phases": (lambda: T.ConvTranspose2d(4, 5, 7, stride=4, padding=3), (1, 4, 4, 4)),
    "much_padding": (lambda: T.ConvTranspose2d(4, 5, 3, stride=2, padding=4, output_padding=1), (1, 4, 8, 9)),
    "uneven": (
        lambda: T.ConvTranspose2d(4, 5, (3, 4), stride=(1, 2), padding=(0, 1), output_padding=(0, 1)),
        (2, 4, 5, 4),
    ),
    "groups": (lambda: T.ConvTranspose2d(8, 12, 4, stride=2, padding=1, groups=4), (2, 8, 4, 3)),
    "groups_stride_one": (lambda: T.ConvTranspose2d(8, 4, 3, groups=2, bias=False), (1, 8, 4, 3)),
    "depthwise": (lambda: T.ConvTranspose2d(6, 6, 3, stride=2, groups=6), (1, 6, 4, 3)),
    "dilated": (lambda: T.ConvTranspose2d(4, 5, 3, stride=2, dilation=2), (1, 4, 5, 4)),
    "one_dimension": (lambda: T.ConvTranspose1d(6, 4, 8, stride=4, padding=2), (2, 6, 9)),
    "three_dimensions": (lambda: T.ConvTranspose3d(4, 3, 4, stride=2, padding=1), (1, 4, 2, 3, 3)),
    "three_dimensions_groups": (
        lambda: T.ConvTranspose3d(4, 6, 3, stride=(1, 2, 3), padding=(1, 0, 1), groups=2),
        (1, 4, 2, 3, 3),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_outputs_match_pytorch_s(case: str) -> None:
    make, shape = CASES[case]
    torch.manual_seed(0)
    model, x = nn.Sequential(make(), nn.ReLU()).eval(), torch.randn(shape)
    imported = import_model(model, (x,))
    assert max_relative_error(compile_model(imported), model, (x,)).error < 1e-5
    assert len(imported.tasks) == 1


@pytest.mark.parametrize("case", CASES)
def test_outputs_with_channels_last_match_pytorch_s(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels_last, "MOST_MOVED", 1e9)  # also where permutations cost more than they save
    monkeypatch.setattr(channels_last, "SHORTEST", 1)
    make, shape = CASES[case]
    torch.manual_seed(0)
    model, x = nn.Sequential(make(), nn.ReLU()).eval(), torch.randn(shape)
    imported = import_model(model, (x,))
    assert max_relative_error(compile_model(imported), model, (x,)).error < 1e-5
    if case != "dilated" and len(shape) == 4:
        y = model(x)
        assert block_shapes(imported.tasks[0])["compute"] == (y.shape[0], y.shape[2], y.shape[3], y.shape[1])


def test_images_of_a_generator_are_written_with_channels_first() -> None:
    """Only the last layer's input is permuted: 3 channels do not fill a vector."""
    torch.manual_seed(0)
    layers = [T.ConvTranspose2d(c, k, 4, stride=2, padding=1) for c, k in ((16, 32), (32, 16), (16, 3))]
    model, x = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2], nn.Tanh()), torch.randn(1, 16, 4, 4)
    imported = import_model(model.eval(), (x,))
    outputs = [[int(n) for n in t.module["main"].params[-1].shape] for t in imported.tasks if "conv" in t.name]
    assert sorted(outputs) == [[1, 3, 32, 32], [1, 8, 8, 32], [1, 16, 16, 16]]
    assert [t.name for t in imported.tasks if "conv" not in t.name] == ["transpose", "transpose1"]
    assert max_relative_error(compile_model(imported), model, (x,)).error < 1e-5


def test_a_layer_is_one_task_with_weights_by_phase() -> None:
    """4 × 4 taps with stride 2 give four phases of 2 × 2 taps, and a border of one element for the windows."""
    model = nn.Sequential(nn.ConvTranspose2d(16, 32, 4, stride=2, padding=1), nn.ReLU())
    (task,) = import_model(model, (1, 16, 8, 8)).tasks
    assert [[int(n) for n in p.shape] for p in task.module["main"].params[:2]] == [[1, 16, 8, 8], [2, 2, 32, 16, 2, 2]]
    assert block_shapes(task) == {
        "padded": (1, 16, 10, 10),
        "phases": (1, 2, 2, 32, 8, 8, 16, 2, 2),
        "interleaved": (1, 32, 16, 16),
        "T_add": (1, 32, 16, 16),
        "compute": (1, 32, 16, 16),
    }


def test_operations_exclude_inserted_zeros() -> None:
    """Each output element takes 2 operations per input channel and (k / s)² taps. TVM's operator has k² taps."""
    (task,) = import_model(nn.ConvTranspose2d(16, 32, 4, stride=2, padding=1, bias=False), (1, 16, 8, 8)).tasks
    assert task.flops == 2 * (32 * 16 * 16) * 16 * 2 * 2


def test_weights_that_are_inputs_are_rearranged_at_runtime() -> None:
    model = Apply(lambda x, w: torch.nn.functional.conv_transpose2d(x, w, stride=2, padding=1))
    x, w = torch.randn(1, 4, 5, 5), torch.randn(4, 6, 4, 4)
    imported = import_model(model, (x, w))
    assert [task.name for task in imported.tasks] == ["conv2d_transpose", "conv2d_phase_weights"]
    assert max_relative_error(compile_model(imported), model, (x, w)).error < 1e-5


def test_dilated_weights_are_left_to_tvm() -> None:
    make, shape = CASES["dilated"]
    (task,) = import_model(make(), shape).tasks
    assert "phases" not in block_shapes(task)


def block_shapes(task: Any) -> dict[str, tuple[int, ...]]:
    """Return the extents of each block's axes by the block's name."""
    blocks: list[Any] = []
    _tvm.structural_walk(task.module["main"].body, (_tvm.s_tir.SBlock, blocks.append))
    return {str(b.name_hint): tuple(int(v.dom.extent) for v in b.iter_vars) for b in blocks if b.iter_vars}
