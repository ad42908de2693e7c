"""Attention in pairs or matrices of bfloat16 numbers: factors are rounded, right for odd sizes and masks, exact.

Schedules for Zen 5 multiply pairs, those for Emerald Rapids matrices.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from schedules import equal_counts
from support import kernels
from support.models import Apply
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from felixlike import _tvm
from felixlike.codegen.annotations import Keys, Pairs
from felixlike.codegen.passes import skip_hidden_keys
from felixlike.frontend import Imported, import_model
from felixlike.hardware import TILES, described_target, has_instruction, host_target, imitated_target, with_precision
from felixlike.measure.local.reference_data import unverified
from felixlike.runtime import compile_model
from felixlike.spaces.cpu import query_tiles
from felixlike.symbolic import Sketch, sketches
from felixlike.symbolic.expr.evaluation import evaluate

MACHINES = ("zen5", "emerald-rapids")
ZEN5, EMERALD = (with_precision(described_target(name, cores=2), "bfloat16") for name in MACHINES)
RUNS, RUNS_MATRICES = (with_precision(imitated_target(name, cores=2), "bfloat16") for name in MACHINES)
"""Schedules for a processor with the instruction, and code that runs on any."""

on_both = pytest.mark.parametrize("target", [RUNS, RUNS_MATRICES], ids=MACHINES)

CASES: dict[str, tuple[int, int, Callable[[Tensor], Tensor] | None]] = {
    "whole": (32, 32, None),
    "odd": (47, 33, None),
    "causal": (96, 96, lambda d: d <= 0),
    "sliding window": (128, 128, lambda d: (d <= 0) & (d > -9)),
    "odd limits": (95, 123, lambda d: d <= 28),
    "rows without keys": (72, 39, lambda d: (d <= -5) & (d > -20)),
}
"""Queries, keys, and which distances are visible."""


def _mask(name: str) -> Tensor | None:
    queries, keys, visible = CASES[name]
    return None if visible is None else visible(torch.arange(keys) - torch.arange(queries)[:, None])


def _inputs(name: str) -> list[Tensor]:
    torch.manual_seed(0)
    queries, keys, _ = CASES[name]
    return [torch.randn(2, rows, 8) for rows in (queries, keys, keys)]


def _imported(name: str, target: Any = RUNS) -> tuple[Imported, tuple[Sketch, ...]]:
    mask = _mask(name)

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return scaled_dot_product_attention(q, k, v, attn_mask=mask)

    imported = import_model(Apply(attention), tuple(_inputs(name)), target)
    (task,) = imported.tasks
    return imported, sketches(task, space="own")


def _half(x: Tensor) -> Tensor:
    return x.float().bfloat16().double()


def _expected(name: str) -> Tensor:
    """Compute attention in float64 with rounded factors of both products."""
    q, k, v = _inputs(name)
    scores = _half(q * torch.tensor(8**-0.5, dtype=torch.float32)) @ _half(k).mT
    if (mask := _mask(name)) is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    largest = scores.amax(-1, keepdim=True)
    powers = (scores - largest.nan_to_num(neginf=0.0)).exp()
    return _half(powers) @ _half(v) / powers.sum(-1, keepdim=True).clamp(min=1e-30)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offer pairs for small sizes too."""
    monkeypatch.setattr(query_tiles, "_pairs_are_faster", lambda *_: True)


@pytest.mark.usefixtures("always")
@on_both
@pytest.mark.parametrize(
    ("name", "mcpu"), [*((name, None) for name in CASES), ("odd", "x86-64-v3"), ("rows without keys", "x86-64-v3")]
)
def test_factors_of_both_products_are_rounded_and_nothing_else_is(name: str, mcpu: str | None, target: Any) -> None:
    """An exponential that is near the middle of two numbers may be rounded to the other one, as it has 5 digits."""
    target = target if mcpu is None else _tvm.Target({**target.export(), "mcpu": mcpu})
    imported, own = _imported(name, target)
    expected, (task,) = _expected(name), imported.tasks
    assert sorted(sketch.precision for sketch in own) == ["bfloat16", "bfloat16", "float32", "float32"]
    for sketch in own:
        error = 5e-4 if sketch.precision == "bfloat16" else 2e-2
        count = 2 if name.startswith("odd") and sketch.precision == "bfloat16" else 1
        for point in sketch.sample(count, seed=1).tolist():
            answer = compile_model(imported, {task.key: sketch.schedule(point)})(*_inputs(name))
            assert (answer - expected).abs().max() <= error * expected.abs().max()


@pytest.mark.usefixtures("always")
@on_both
def test_nan_among_large_scores(target: Any) -> None:
    """Maxima may lose a NaN, and are then smaller than scores before it. It still reaches all elements of the query."""
    imported, own = _imported("odd", target)
    (task,) = imported.tasks
    q, k, v = (100 * x for x in _inputs("odd"))
    q[0, 2, 1] = k[1, 20, 3] = math.nan
    nan = torch.zeros(q.shape, dtype=torch.bool)
    nan[0, 2] = nan[1] = True
    for sketch in own:
        answer = compile_model(imported, {task.key: sketch.schedule(sketch.sample(1, seed=1)[0].tolist())})(q, k, v)
        assert torch.equal(answer.isnan(), nan)


@pytest.mark.usefixtures("always")
def test_heads_that_share_an_odd_number_of_keys_stay_float32() -> None:
    """TVM cannot pad the sum over the keys there."""
    for keys, precisions in ((41, {"float32"}), (40, {"float32", "bfloat16"})):
        inputs = torch.randn(1, 4, 48, 16), *torch.randn(2, 1, 2, keys, 16).unbind()
        model = Apply(lambda q, k, v: scaled_dot_product_attention(q, k, v, enable_gqa=True))
        (task,) = import_model(model, inputs, ZEN5).tasks
        assert {sketch.precision for sketch in sketches(task, space="own")} == precisions


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("target", [ZEN5, EMERALD], ids=MACHINES)
@pytest.mark.parametrize("name", ["whole", "odd", "causal"])
def test_programs_and_formulas_are_exact(name: str, target: Any) -> None:
    for sketch in _imported(name, target)[1]:
        assert sketch.is_symbolic, sketch.reason
        assert equal_counts(sketch, sketch.sample(2, seed=5)) > 0
        halves = sum(buffer.item_bytes == 2 for buffer in sketch.program.buffers)
        assert halves == (4 if sketch.precision == "bfloat16" else 0)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("target", [ZEN5, EMERALD], ids=MACHINES)
@pytest.mark.parametrize("name", ["causal", "sliding window", "odd limits"])
def test_hidden_keys_are_skipped(name: str, target: Any) -> None:
    """Loops over pairs have the pairs with a visible key, others the keys of these pairs. So it is with matrices."""
    for sketch in _imported(name, target)[1]:
        point = max(sketch.sample(64, seed=1).tolist(), key=lambda point: point[0])
        module = sketch.schedule(point).mod
        loops = [loop for loop in _tvm.found(module["main"].body, _tvm.tirx.For) if Keys.on(loop)]
        assert len(loops) >= 4
        after = _tvm.found(skip_hidden_keys(module)["main"].body, _tvm.tirx.For)
        assert not any(map(Keys.on, after))
        assert sum(not isinstance(loop.extent, _tvm.tirx.IntImm) for loop in after) >= 2


@pytest.mark.usefixtures("always")
@on_both
@pytest.mark.parametrize("keys", [40, 41])
def test_keys_and_values_are_read_from_rows_of_all_heads(keys: int, target: Any) -> None:
    """An element of a head is then at a place in a row that depends on the head."""
    torch.manual_seed(0)
    inputs = torch.randn(48, 2 * 16), torch.randn(keys, 2 * 16), torch.randn(keys, 2 * 16)

    def heads(x: Tensor) -> Tensor:
        return x.view(len(x), 2, 16).transpose(0, 1)

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return scaled_dot_product_attention(heads(q * 1.5), heads(k * 0.5), heads(v)).transpose(0, 1)

    imported = import_model(Apply(attention), inputs, target)
    (task,) = imported.tasks
    own = sketches(task, space="own")
    assert sorted(sketch.precision for sketch in own) == ["bfloat16", "bfloat16", "float32", "float32"]
    expected = attention(*(x.double() for x in inputs))
    for sketch in own:
        schedule = sketch.schedule(sketch.sample(1, seed=1)[0].tolist())
        answer = compile_model(imported, {task.key: schedule})(*inputs)
        assert (answer - expected).abs().max() <= 1e-2 * expected.abs().max()
        assert equal_counts(sketch, sketch.sample(2, seed=5)) > 0


@pytest.mark.usefixtures("always")
@on_both
@pytest.mark.parametrize("name", ["odd", "sliding window"])
def test_keys_and_values_of_many_tiles_are_rounded_once(
    name: str, target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their copies have parallel loops of their own."""

    def schedules(sketch: Sketch) -> list[Any]:
        return [sketch.schedule(point) for point in sketch.sample(2, seed=1).tolist()]

    def parallel(schedule: Any) -> int:
        loops = _tvm.found(schedule.mod["main"].body, _tvm.tirx.For)
        return sum(loop.kind == _tvm.tirx.ForKind.PARALLEL for loop in loops)

    by_tiles = [sketch for sketch in _imported(name, target)[1] if sketch.precision == "bfloat16"]
    monkeypatch.setattr(query_tiles, "_SHARED", 0)
    imported, own = _imported(name, target)
    once, expected, (task,) = [s for s in own if s.precision == "bfloat16"], _expected(name), imported.tasks
    for sketch, other in zip(once, by_tiles, strict=True):
        assert equal_counts(sketch, sketch.sample(2, seed=5)) > 0
        for schedule in schedules(sketch):
            assert parallel(schedule) == parallel(schedules(other)[0]) + 2
            answer = compile_model(imported, {task.key: schedule})(*_inputs(name))
            assert (answer - expected).abs().max() <= 3e-4 * expected.abs().max()


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(("name", "rows"), [("whole", 2), ("causal", 96), ("odd", 36)])
def test_a_pair_of_exponentials_is_summed_and_rounded_at_once(name: str, rows: int) -> None:
    """Others have a loop over all keys for each step. 33 keys are padded to 36 for tiles."""
    own = [sketch for sketch in _imported(name, ZEN5)[1] if sketch.precision == "bfloat16"]
    together = min(own, key=lambda sketch: len(sketch.variables))
    powers = next(buffer for buffer in together.program.buffers if buffer.name == "powers")
    names = [variable.name for variable in together.variables]
    for point in together.sample(2, seed=1).tolist():
        assert evaluate(powers.shape[-2], dict(zip(names, point, strict=True))) == rows


@pytest.mark.parametrize(("cores", "least"), [(2, 2), (64, 1)])
def test_tiles_have_several_vectors_of_queries_if_cores_have_enough_of_them(cores: int, least: int) -> None:
    x = torch.zeros(4, 256, 64)
    target = with_precision(described_target("zen5", cores=cores), "bfloat16")
    (task,) = import_model(Apply(scaled_dot_product_attention), (x, x, x), target).tasks
    for sketch in sketches(task, space="own"):
        points = sketch.sample(64, seed=1)
        assert points[:, 1].min() == least  # the first two numbers are the tiles and their vectors
        wide = points[points[:, 1].argmax()].tolist()
        assert sketch.accepts(wide)
        assert least == 1 or not sketch.accepts([16, 1, *wide[2:]])


@pytest.mark.parametrize(
    ("queries", "keys", "width", "padded"),
    [
        (197, 197, 64, (224, 198, 64)),  # two matrices of queries, and 18 of 11 keys
        (100, 100, 64, (112, 100, 64)),  # an eighth matrix would be 28 % more queries
        (1500, 1500, 64, (1504, 1504, 64)),
        (64, 77, 33, (64, 78, 33)),
        (64, 64, 67, (64, 64, 70)),
    ],
)
def test_sizes_fill_matrices(queries: int, keys: int, width: int, padded: tuple[int, int, int]) -> None:
    inputs = torch.zeros(2, queries, 64), torch.zeros(2, keys, 64), torch.zeros(2, keys, width)
    (task,) = import_model(Apply(scaled_dot_product_attention), inputs, EMERALD).tasks
    buffers = {str(b.name): [int(e) for e in b.shape] for b in task.module["main"].body.block.alloc_buffers}
    (rows, columns), elements = buffers["scores"][-2:], buffers["products"][-2]
    assert (columns, rows, elements) == padded


def test_elements_of_values_are_padded_in_float32_alone() -> None:
    """Tiles of pairs would compute the rows of sums that only pad."""
    inputs = [torch.zeros(1, 512, 64)] * 3
    elements = []
    for target in (ZEN5, described_target("zen5", cores=2)):
        (task,) = import_model(Apply(scaled_dot_product_attention), tuple(inputs), target).tasks
        buffers = task.module["main"].body.block.alloc_buffers
        elements.append(next(int(buffer.shape[-2]) for buffer in buffers if buffer.name == "products"))
    assert elements == [64, 72]


def test_pairs_are_offered_where_they_are_faster() -> None:
    """Rounding takes longer than it saves if keys have few elements."""
    assert {sketch.precision for sketch in _imported("whole", ZEN5)[1]} == {"float32"}


def _attention_of_products(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT / 4, -1) @ v


def _attention_in_float32(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scaled_dot_product_attention(q.float(), k.float(), v.float()).bfloat16()


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(
    ("attention", "pairs"),
    [(scaled_dot_product_attention, True), (_attention_of_products, True), (_attention_in_float32, False)],
)
def test_models_in_bfloat16_have_pairs_unless_they_convert(
    attention: Callable[..., Tensor], pairs: bool, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    inputs = tuple(torch.randn(2, 48, 16).bfloat16() for _ in range(3))
    imported = import_model(Apply(attention), inputs, imitated_target("zen5", cores=2))
    task = next(task for task in imported.tasks if task.name == "attention")
    own = sketches(task, space="own")
    assert {sketch.precision for sketch in own} == ({"bfloat16", "float32"} if pairs else {"float32"})
    expected = attention(*(x.double() for x in inputs)).double()
    assert (unverified(task, tmp_path).products > 0) == pairs
    for sketch in own:
        schedule = sketch.schedule(sketch.sample(1, seed=1)[0].tolist())
        answer = compile_model(imported, {task.key: schedule})(*inputs)
        assert (answer.double() - expected).abs().max() <= 1e-2 * expected.abs().max()


@pytest.mark.parametrize("then", [torch.relu, torch.Tensor.bfloat16])
def test_operators_behind_attention_are_kernels_of_their_own(then: Callable[[Tensor], Tensor]) -> None:
    """The rule knows attention alone."""
    x = torch.zeros(2, 64, 16)
    model = Apply(lambda q, k, v: then(scaled_dot_product_attention(q, k, v)))
    tasks = import_model(model, (x, x, x), ZEN5).tasks
    assert len(tasks) == 2
    assert sketches(next(task for task in tasks if task.name == "attention"), space="own")


def test_both_products_have_registers_of_their_own_sizes() -> None:
    """Sizes are set once for all products of a tile of queries."""
    if not has_instruction(TILES, host_target()):
        pytest.skip("this processor has no AMX, for which LLVM would have to be told that it has")
    x = torch.zeros(2, 197, 64)
    (task,) = import_model(Apply(scaled_dot_product_attention), (x, x, x), EMERALD).tasks
    sketch = next(sketch for sketch in sketches(task, space="own") if sketch.precision == "bfloat16")
    lines = kernels.assembly(sketch).splitlines()
    assert sum("ldtilecfg" in line for line in lines) == 2
    assert sum("tdpbf16ps" in line for line in lines) >= 8


def test_the_instruction_is_used_in_vectors() -> None:
    x = torch.zeros(2, 128, 64)
    (task,) = import_model(Apply(scaled_dot_product_attention), (x, x, x), ZEN5).tasks
    sketch = next(sketch for sketch in sketches(task, space="own") if sketch.precision == "bfloat16")
    assert Pairs.key in sketch.trace_json()
    lines = kernels.assembly(sketch).splitlines()
    assert sum("vdpbf16ps" in line and "zmm" in line for line in lines) >= 8
