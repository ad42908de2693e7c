"""Recurrent layers with factors in bfloat16 on CPUs: offered where they are faster, rounded correctly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from felixlike import _tvm, codegen
from felixlike.codegen.annotations import Narrow, Pairs
from felixlike.errors import InvalidSchedule
from felixlike.frontend import Imported, Task, import_model
from felixlike.frontend.importers.recurrent_kernel import CELLS, LAYER, Layer
from felixlike.hardware import Form, described_target, imitated_target, resolve_target, target_device, with_precision
from felixlike.measure.packing import cut
from felixlike.runtime import compile_model
from felixlike.spaces.cpu import recurrent_forms
from felixlike.spaces.cpu.recurrent_forms import faster_form
from felixlike.symbolic import Sketch, sketches

RUNS = with_precision(imitated_target("zen5", cores=2), "bfloat16")
"""Schedules for a processor with the instruction, and code that runs on any."""

AVX2 = with_precision(_tvm.Target({"kind": "llvm", "mcpu": "znver3", "num-cores": 2}), "bfloat16")


def _imported(model: nn.Module, *inputs: Any, target: Any = RUNS) -> tuple[Imported, Task]:
    imported = import_model(model, inputs, target)
    return imported, next(task for task in imported.tasks if task.name.endswith("_layer"))


def _sketches(task: Task) -> dict[str, Sketch]:
    return {sketch.precision: sketch for sketch in sketches(task, space="own")}


def _half(x: Tensor) -> Tensor:
    return x.bfloat16().double()


def _expected(model: Any, x: Tensor, form: Form) -> Tensor:
    """Compute a layer of one direction in float64 with rounded factors of the products of h."""
    w, u = model.weight_ih_l0.double(), _half(model.weight_hh_l0)
    b, d = model.bias_ih_l0.double(), model.bias_hh_l0.double()
    h = c = torch.zeros(x.shape[1], u.shape[1], dtype=torch.float64)
    steps = []
    for step in x.double():
        of_x, of_h = step @ w.T + b, (_half(h.float()) if form is Form.PAIRS else h) @ u.T + d
        if isinstance(model, nn.LSTM):
            i, f, g, o = (of_x + of_h).chunk(4, -1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        elif isinstance(model, nn.GRU):
            (r, z, n), (r_h, z_h, n_h) = of_x.chunk(3, -1), of_h.chunk(3, -1)
            z = (z + z_h).sigmoid()
            h = (1 - z) * (n + (r + r_h).sigmoid() * n_h).tanh() + z * h
        else:
            h = (of_x + of_h).tanh()
        steps.append(h)
    return torch.stack(steps)


@pytest.mark.parametrize("form", list(Form))
@pytest.mark.parametrize(
    ("cell", "batch", "hidden", "mcpu"),
    [
        (nn.LSTM, 1, 100, None),  # cores share each step
        (nn.LSTM, 16, 17, None),  # pairs, tiles and the batch are not whole
        (nn.LSTM, 16, 17, "x86-64-v3"),
        (nn.GRU, 2, 33, None),
        (nn.RNN, 1, 20, None),
    ],
)
@torch.no_grad()
def test_only_factors_of_h_are_rounded(
    form: Form, cell: Any, batch: int, hidden: int, mcpu: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is the float64 answer for factors that PyTorch rounds, with the instruction and without.

    A unit of h that is near the middle of two numbers may be rounded to the other one.
    """
    monkeypatch.setattr(recurrent_forms, "faster_form", lambda _: form)
    torch.manual_seed(0)
    model, x = cell(12, hidden).eval(), torch.randn(5, batch, 12)
    target = RUNS if mcpu is None else _tvm.Target({**RUNS.export(), "mcpu": mcpu})
    imported, task = _imported(model, x, target=target)
    of = _sketches(task)
    expected = _expected(model, x, form)
    errors = {}
    for precision, sketch in of.items():
        answer, *_ = compile_model(imported, {task.key: sketch.schedule(())})(x)
        errors[precision] = (answer - expected).abs().max() / expected.abs().max()
    assert errors["bfloat16"] <= (1e-5 if form is Form.WEIGHTS else 2e-4)
    assert errors["bfloat16"] < errors["float32"] / 3
    assert of["bfloat16"].rounded == ("weights" if form is Form.WEIGHTS else "factors")
    assert of["float32"].rounded == ""


@torch.no_grad()
def test_both_directions_and_nan() -> None:
    torch.manual_seed(0)
    model, x = nn.GRU(12, 64, bidirectional=True, batch_first=True).eval(), torch.randn(8, 6, 12)
    imported, task = _imported(model, x)
    fast = compile_model(imported, {task.key: _sketches(task)["bfloat16"].schedule(())})
    expected = model(x)[0]
    assert (fast(x)[0] - expected).abs().max() < 1e-2 * expected.abs().max()
    x[2, 3, 0] = torch.nan
    torch.testing.assert_close(fast(x)[0].isnan(), model(x)[0].isnan())


def test_float32_schedules_are_those_of_float32_targets() -> None:
    model, x = nn.LSTM(12, 256).eval(), torch.randn(5, 1, 12)
    _, task = _imported(model, x)
    _, plain = _imported(model, x, target=imitated_target("zen5", cores=2))
    assert LAYER not in plain.module["main"].attrs
    assert _sketches(plain) == {}
    exact = _sketches(task)["float32"].schedule(()).mod["main"]
    assert _tvm.structural_equal(exact.body, plain.module["main"].body, map_free_vars=True)
    assert cut(exact) == (exact, ())


def test_the_form_depends_on_the_rows_that_share_weights() -> None:
    """Loading takes the time of one row, the arithmetic that of many."""
    device = target_device(with_precision(described_target("zen5", cores=2), "bfloat16"))
    avx2 = target_device(with_precision(AVX2, "bfloat16"))

    def form(batch: int, hidden: int = 256, on: Any = device) -> Form | None:
        return faster_form(Layer(CELLS["lstm"], 1, 32, batch, hidden, False, on))

    assert [form(batch) for batch in (1, 2, 16)] == [Form.WEIGHTS, Form.PAIRS, Form.PAIRS]
    without = replace(device, multiplies_pairs=False)
    assert [form(batch, on=without) for batch in (1, 16)] == [Form.WEIGHTS, None]
    assert form(1, on=avx2) is Form.WEIGHTS
    assert form(1, hidden=1) is None  # rounding h takes as long as the products
    assert form(1, hidden=32, on=avx2) is None  # the weights are in the L1 cache


def test_a_layer_for_another_device_or_without_constant_weights_has_one_form() -> None:
    model, x = nn.LSTM(12, 256).eval(), torch.randn(5, 1, 12)
    _, task = _imported(model, x)
    func = task.module["main"]
    note = [*func.attrs[LAYER][:4], 128, 0]
    assert recurrent_forms._layer(func, target_device(RUNS)) is not None
    assert recurrent_forms._layer(func.with_attr(LAYER, note), target_device(RUNS)) is None
    assert recurrent_forms._layer(_tvm.without_attributes(func, "felixlike.constants"), target_device(RUNS)) is None


def test_weights_that_become_infinite_are_refused() -> None:
    model, x = nn.RNN(12, 256).eval(), torch.randn(5, 1, 12)
    with torch.no_grad():
        model.all_weights[0][1][3, 4] = 3.4e38
    imported, task = _imported(model, x)
    with pytest.raises(InvalidSchedule, match="bfloat16 has no number near"):
        compile_model(imported, {task.key: _sketches(task)["bfloat16"].schedule(())})


@pytest.mark.parametrize(("batch", "key", "instruction"), [(1, Narrow.key, "vpmovzxwd"), (8, Pairs.key, "vdpbf16ps")])
def test_instructions(batch: int, key: str, instruction: str) -> None:
    target = with_precision(described_target("zen5", cores=2), "bfloat16")
    _, task = _imported(nn.LSTM(12, 256).eval(), torch.randn(5, batch, 12), target=target)
    sketch = _sketches(task)["bfloat16"]
    assert key in sketch.trace_json()
    kernel, (packing,) = cut(sketch.schedule(()).mod["main"])
    assert packing.dtype == "bfloat16"
    module = _tvm.IRModule({"main": kernel.with_attr("global_symbol", "main")})
    lines = str(codegen.compile_primfuncs(module, task.target).mod.inspect_source("asm")).splitlines()
    assert sum(instruction in line and "zmm" in line for line in lines) >= 4
    assert not any("felixlike_pairs" in line for line in lines)


def test_a_host_without_precision_imports_no_description() -> None:
    _, task = _imported(nn.LSTM(12, 256).eval(), torch.randn(5, 1, 12), target=resolve_target("cpu"))
    assert LAYER not in task.module["main"].attrs
