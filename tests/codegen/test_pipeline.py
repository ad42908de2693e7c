"""Passes run in an order that satisfies their requirements, and loop annotations survive a schedule."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from support.models import Apply
from support.operators import matmul

from felixlike import _tvm
from felixlike.codegen import annotations as loop_annotations
from felixlike.codegen.annotations import (
    Blocks,
    Columns,
    Guard,
    LoopAnnotation,
    Narrow,
    Pairs,
    Peel,
    Prefetch,
    Row,
    Skip,
    Softmax,
    Steps,
    TensorCores,
    Tile,
    Transpose,
)
from felixlike.codegen.passes import unaligned_parameters
from felixlike.codegen.pipeline import CPU_PASSES, GPU_PASSES, Invariant, Pass, lower, out_of_order
from felixlike.frontend import import_model
from felixlike.runtime import compile_model

BY_NAME = {each_pass.name: each_pass for each_pass in CPU_PASSES}


def _moved(name: str, *, before: str) -> list[Pass]:
    remaining = [each_pass for each_pass in CPU_PASSES if each_pass.name != name]
    position = next(i for i, each_pass in enumerate(remaining) if each_pass.name == before)
    return [*remaining[:position], BY_NAME[name], *remaining[position:]]


def test_the_order_of_passes_is_valid() -> None:
    assert list(out_of_order(CPU_PASSES)) == []


@pytest.mark.parametrize(
    ("name", "before", "why"),
    [
        ("guard", "first_and_last", "first_and_last adds Guard after guard, which reads it"),
        ("tile_rows", "first_and_last", "first_and_last adds Tile after tile_rows, which reads it"),
        ("prefetch", "tile_rows", "prefetch removes Prefetch, which tile_rows reads later"),
        ("prefetch", "tile_rows", f"prefetch requires that {Invariant.ROWS.value}"),
        ("tile_rows", "guard", f"guard requires that {Invariant.WHOLE_TILES.value}"),
        ("guard", "skip_padding", f"skip_padding requires that {Invariant.PADDING.value}"),
        ("transpose", "skip_hidden_keys", f"skip_hidden_keys requires that {Invariant.BLOCKS.value}"),
        ("peel_tails", "skip_padding", f"skip_padding requires that {Invariant.DIMENSIONS.value}"),
        ("peel_columns", "prefetch", f"prefetch requires that {Invariant.DIMENSIONS.value}"),
        ("vectorise_math", "write_out_halves", f"write_out_halves requires that {Invariant.NAMELESS.value}"),
        ("vectorise_math", "keep_nan", f"keep_nan requires that {Invariant.EXTREMES.value}"),
        ("keep_nan", "from_infinity", f"from_infinity requires that {Invariant.EXTREMES.value}"),
        ("keep_nan", "write_out_halves", f"write_out_halves requires that {Invariant.NAMELESS.value}"),
        ("vectorise_math", "share_reciprocals", f"share_reciprocals requires that {Invariant.DIVISIONS.value}"),
    ],
)
def test_violations_of_the_order_are_reported(name: str, before: str, why: str) -> None:
    assert why in list(out_of_order(_moved(name, before=before)))


def test_every_annotation_has_a_pass_and_a_unique_key() -> None:
    kinds = [
        kind
        for kind in vars(loop_annotations).values()
        if isinstance(kind, type) and issubclass(kind, LoopAnnotation) and kind is not LoopAnnotation
    ]
    assert {annotation for each_pass in (*CPU_PASSES, *GPU_PASSES) for annotation in each_pass.marks} == set(kinds)
    assert len({kind.key for kind in kinds}) == len(kinds) == 17
    assert all(kind.key == f"felixlike.{kind.__name__.lower()}" for kind in kinds)


@pytest.mark.parametrize(
    ("mark", "value"),
    [
        (Guard(), True),
        (Blocks(), True),
        (Skip(), True),
        (Steps(), True),
        (Prefetch(), True),
        (Tile(), True),
        (Row(16), 16),
        (Transpose(16), 16),
        (TensorCores(2), 2),
        (Narrow(3), 3),
        (Pairs(3), 3),
        (Softmax(3), 3),
        (Columns(113, 16), [113, 16]),
        (Peel(197, 16), [197, 16]),
        (Peel(197, 16, (32, 96)), [197, 16, 32, 96]),
    ],
)
def test_annotations_survive_a_schedule(mark: LoopAnnotation, value: object) -> None:
    """The values in traces equal those of existing records."""
    schedule = _tvm.Schedule(matmul(8, 8, 8))
    loop = schedule.get_loops(schedule.get_sblock("C"))[0]
    assert not type(mark).on(schedule.get(loop))
    mark.put(schedule, loop)
    assert mark.value == value
    assert type(mark).on(schedule.get(loop))
    assert type(mark).of(schedule.get(loop)) == mark


def test_unannotated_functions_keep_their_loops() -> None:
    module = _tvm.IRModule({"main": matmul(8, 8, 8)})
    assert _tvm.structural_equal(lower(module, _tvm.Target("llvm")), unaligned_parameters(module))


def test_names_of_passes_are_unique() -> None:
    assert all(each_pass.name != other.name for each_pass, other in pairwise(CPU_PASSES))
    assert len(BY_NAME) == len(CPU_PASSES)


def test_tvm_prints_nothing_about_its_own_kernels(capfd: pytest.CaptureFixture[str]) -> None:
    """TVM's scatters contain brackets about which its compiler prints a line."""
    indices = torch.zeros(3, 4, dtype=torch.int64)
    model = import_model(Apply(lambda x: x.scatter_add(0, indices, x[:3])), (10, 4))
    compiled = compile_model(model)
    x = torch.randn(10, 4)
    torch.testing.assert_close(compiled(x), x.scatter_add(0, indices, x[:3]))
    assert capfd.readouterr() == ("", "")
