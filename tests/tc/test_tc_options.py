"""Test the hints of `Options` and the errors for invalid hints."""

from __future__ import annotations

import pytest
import torch

import felixlike as fx
from felixlike.errors import InvalidOption
from felixlike.hardware import resolve_target
from felixlike.symbolic import Sketch, sketches
from felixlike.tc.call import Given
from felixlike.tc.entry import read
from felixlike.tc.hints import hinted_points
from felixlike.tc.instance import imported, instance


def test_hints_accumulate() -> None:
    options = fx.tc.Options().tile(32, 8).unroll(4).map_to_blocks(16).map_to_threads(8, 8).fuse("Min")
    assert (options.tiles, options.unrolled, options.blocks, options.threads) == ((32, 8), 4, (16,), (8, 8))
    assert options.fusion == "Min"


def test_invalid_hints_raise() -> None:
    with pytest.raises(InvalidOption, match=r"^tile: .* got 0"):
        fx.tc.Options().tile(32, 0)
    with pytest.raises(InvalidOption, match=r"^map_to_threads: .* 1 to 3 .* got 4"):
        fx.tc.Options().map_to_threads(1, 2, 3, 4)
    with pytest.raises(InvalidOption, match=r"^unroll: .* got 2\.5"):
        fx.tc.Options().unroll(2.5)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match=r"^fuse: .*'Most'"):
        fx.tc.Options().fuse("Most")


def _sketch() -> Sketch:
    program = read("def mm(float(M,K) A, float(K,N) B) -> (C) { C(m, n) +=! A(m, k) * B(k, n) }")
    program_instance = instance(program, [Given((64, 128), "float32"), Given((128, 96), "float32")])
    (task,) = imported(program_instance, resolve_target("cpu")).tasks
    return sketches(task, space="default")[0]


def test_hints_fix_the_variables_they_name() -> None:
    sketch = _sketch()
    names = [variable.name for variable in sketch.variables]
    points = hinted_points(sketch, fx.tc.Options().tile(16, 32).unroll(64), seed=0)
    assert points is not None
    assert len(points) > 1
    assert set(64 // points[:, names.index("i0.0")]) == {16}
    assert set(96 // points[:, names.index("i1.0")]) == {32}
    assert set(points[:, names.index("unroll")]) == {64}
    nearest = hinted_points(sketch, fx.tc.Options().map_to_blocks(7), seed=0)
    assert nearest is not None
    assert set(nearest[:, names.index("i0.0")]) == {8}
    assert hinted_points(sketch, fx.tc.Options().map_to_threads(32), seed=0) is None


def test_tuning_follows_hints() -> None:
    options = fx.tc.Options().tile(16, 32)
    program = "def mm(float(M,K) A, float(K,N) B) -> (C) { C(m, n) +=! A(m, k) * B(k, n) }"
    kernel = fx.tc.define(program, options=options)
    a, b = torch.randn(64, 128), torch.randn(128, 96)
    kernel.tune(a, b, trials=3)
    assert kernel.report is not None
    (task,) = kernel.report.tasks
    sizes: dict[str, int] = {}
    for name, value in task.point.items():
        loop, _, place = name.partition(".")
        if place not in ("", "0"):
            sizes[loop] = sizes.get(loop, 1) * value
    assert sizes["i0"] == 16
    assert sizes["i1"] in (2, 4, 8, 32)  # counted in vectors if the vector loop is split off first
    torch.testing.assert_close(kernel(a, b), a @ b, rtol=1e-5, atol=1e-4)


def test_fuse_min_compiles_statements_separately() -> None:
    program = "def f(float(N,D) A) -> (M, O) { M(n) max=! A(n, d) O(n, d) = A(n, d) - M(n) }"
    a = torch.randn(4, 6)
    fused, separate = fx.tc.define(program), fx.tc.define(program, options=fx.tc.Options().fuse("Min"))
    assert fused.explain(a).count("@T.prim_func") == 1
    assert separate.explain(a).count("@T.prim_func") == 2
    for fused_output, separate_output in zip(fused(a), separate(a), strict=True):
        assert torch.equal(fused_output, separate_output)
    with pytest.raises(InvalidOption, match=r"^options: .* a dict"):
        fx.tc.define(program, options={})  # type: ignore[arg-type]
