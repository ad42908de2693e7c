"""Recurrent layers are one product and one kernel a layer, for any length, and compute what PyTorch computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.models import Apply
from torch import Tensor, nn

import felixlike as fx
from felixlike.errors import ExportFailed
from felixlike.frontend import Imported, import_model
from felixlike.frontend.importers.recurrent import recurrent_converters
from felixlike.frontend.importers.recurrent_kernel import CELLS, Layer
from felixlike.hardware import resolve_target, target_device
from felixlike.runtime import compile_model, max_relative_error


def _layers(imported: Imported) -> float:
    return sum(task.weight for task in imported.tasks if task.name.endswith("_layer"))


def _states(cell: type, *shape: int) -> Any:
    return (torch.randn(shape), torch.randn(shape)) if cell is nn.LSTM else torch.randn(shape)


@pytest.mark.parametrize(
    ("cell", "options", "shape", "states"),
    [
        # The last tile of 20 units is not full. Directions are computed by a core each.
        (nn.LSTM, {"num_layers": 2, "bidirectional": True, "batch_first": True}, (3, 7, 12), (4, 3, 20)),
        (nn.GRU, {"num_layers": 2, "bidirectional": True, "bias": False}, (5, 3, 12), (4, 3, 20)),
        # The rows of the batch are divided into tiles of different heights.
        (nn.LSTM, {"bias": False}, (2, 16, 12), (1, 16, 17)),
        (nn.GRU, {"batch_first": True}, (16, 1, 12), (1, 16, 17)),
        # Cores share each step.
        (nn.LSTM, {}, (4, 1, 12), (1, 1, 100)),
        (nn.GRU, {"num_layers": 2}, (4, 1, 12), (2, 1, 128)),
        # One sequence without a dimension for the batch.
        (nn.GRU, {"bidirectional": True}, (6, 12), (2, 5)),
        (nn.RNN, {"bidirectional": True}, (6, 2, 12), (2, 2, 9)),
        (nn.RNN, {"nonlinearity": "relu", "num_layers": 2, "dropout": 0.5}, (6, 2, 12), (2, 2, 70)),
    ],
)
def test_layers_compute_what_pytorch_computes(
    cell: Any, options: dict[str, Any], shape: tuple[int, ...], states: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    model = cell(12, states[-1], **options).eval()
    inputs = (torch.randn(shape), _states(cell, *states))
    imported = import_model(model, inputs)
    assert _layers(imported) == options.get("num_layers", 1)
    with torch.no_grad():
        torch.testing.assert_close(compile_model(imported)(*inputs), model(*inputs))


def test_missing_states_are_zeros() -> None:
    torch.manual_seed(0)
    model, x = nn.LSTM(12, 20, 2).eval(), torch.randn(5, 2, 12)
    imported = import_model(model, (x,))
    assert _layers(imported) == 2
    assert max_relative_error(compile_model(imported), model, (x,)).error < 1e-5


def test_the_kernels_do_not_grow_with_the_length() -> None:
    model = nn.GRU(8, 16, 2).eval()
    few, many = (import_model(model, (torch.randn(length, 1, 8),)) for length in (3, 300))
    assert [(task.name, task.weight) for task in few.tasks] == [(task.name, task.weight) for task in many.tasks]
    lines = [[len(task.module.script().splitlines()) for task in imported.tasks] for imported in (few, many)]
    assert lines[0] == lines[1]


def test_nan_reaches_the_steps_after_it() -> None:
    torch.manual_seed(0)
    model, x = nn.RNN(4, 6, nonlinearity="relu").eval(), torch.randn(5, 2, 4)
    x[2, 1, 0] = torch.nan
    y, _ = compile_model(import_model(model, (x,)))(x)
    torch.testing.assert_close(y, model(x)[0], equal_nan=True)


@pytest.mark.parametrize(
    ("model", "dtype"), [(nn.LSTM(6, 8, proj_size=3), torch.float32), (nn.GRU(6, 8), torch.float64)]
)
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported")
def test_other_layers_are_unrolled(model: nn.Module, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model, x = model.to(dtype).eval(), torch.randn(3, 2, 6, dtype=dtype)
    imported = import_model(model, (x,))
    assert _layers(imported) == 0
    assert max_relative_error(compile_model(imported), model, (x,)).error < 1e-5


@pytest.mark.filterwarnings("ignore:The tensor attributes")  # of torch.export, about the layer's list of weights
def test_layers_for_gpus_are_unrolled() -> None:
    program = torch.export.export(nn.LSTM(6, 8).eval(), (torch.randn(3, 2, 6),))
    assert recurrent_converters(program, resolve_target("cpu"))
    assert not recurrent_converters(program, resolve_target("sm_80"))
    assert not recurrent_converters(program, None)


class _Cells(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(6, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = c = x.new_zeros(x.shape[1], 8)
        for step in x:
            h, c = self.cell(step, (h, c))
        return h


def test_cells_in_a_loop_stay_as_they_are() -> None:
    model, x = _Cells().eval(), torch.randn(3, 2, 6)
    imported = import_model(model, (x,))
    assert _layers(imported) == 0
    assert max_relative_error(compile_model(imported), model, (x,)).error < 1e-5


def test_packed_sequences_are_refused() -> None:
    layer = nn.LSTM(6, 8).eval()

    def run(x: Tensor, lengths: Tensor) -> Tensor:
        h: Tensor = layer(nn.utils.rnn.pack_padded_sequence(x, lengths))[1][0]
        return h

    with pytest.raises(ExportFailed, match="packed sequences have sizes that depend on values"):
        import_model(Apply(run), (torch.randn(4, 2, 6), torch.tensor([4, 2])))


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    torch.manual_seed(0)
    model, x = nn.LSTM(16, 128).eval(), torch.randn(20, 1, 16)
    fast = compile_model(import_model(model, (x,)))
    results = []
    for threads in (1, 2):
        fast.threads = threads
        results.append([fast(x)[0] for _ in range(50)])
    assert all(torch.equal(y, results[0][0]) for y in (*results[0], *results[1]))


def test_the_kernel_is_compared_with_float64_and_has_the_name_of_the_layer() -> None:
    torch.manual_seed(0)
    model, x = nn.GRU(8, 64).eval(), torch.randn(30, 1, 8)
    fast = fx.optimize(model, x, trials=2, progress=False)  # a warning is an error here
    (layer,) = [task for task in fast.report.tasks if task.name == "gru_layer"]
    assert layer.layers == ("gru",)
    assert layer.error is not None
    assert layer.error < 1e-4
    torch.testing.assert_close(fast(x)[0], model(x)[0])


@pytest.mark.parametrize("cell", sorted(CELLS))
@pytest.mark.parametrize("batch", [1, 3, 16])
@pytest.mark.parametrize("hidden", [1, 20, 256])
def test_tiles_cover_the_batch_and_the_units(cell: str, batch: int, hidden: int) -> None:
    layer = Layer(CELLS[cell], 1, 5, batch, hidden, False, target_device(resolve_target("cpu")))
    assert sum(height * count for height, count in layer.rows) == batch
    assert hidden <= layer.tiles * layer.width < hidden + layer.width
    sums = layer.rows[0][0] * layer.cell.gates * layer.vectors
    assert layer.rows[0][0] == 1 or sums + layer.rows[0][0] < layer.device.unit.registers
