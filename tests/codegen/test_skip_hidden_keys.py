"""`skip_hidden_keys` skips the keys of attention that a mask hides, and answers stay the same to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from expressions import number
from support.models import Apply
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from felixlike import _tvm, codegen
from felixlike.codegen.annotations import Keys
from felixlike.codegen.passes import skip_hidden_keys
from felixlike.frontend import import_model
from felixlike.symbolic import Sketch, sketches

_AVX2 = _tvm.Target({"kind": "llvm", "mcpu": "core-avx2", "num-cores": 2})


def _distances(queries: int, keys: int) -> Tensor:
    return torch.arange(keys) - torch.arange(queries)[:, None]


_MASKS: dict[str, tuple[int, int, Callable[[Tensor], Tensor]]] = {
    "causal": (48, 48, lambda d: d <= 0),
    "sliding window": (64, 64, lambda d: (d <= 0) & (d > -9)),
    "cached keys": (40, 75, lambda d: d <= 35),
    "rows without keys": (72, 40, lambda d: (d <= -5) & (d > -20)),
    "later keys": (40, 40, lambda d: d >= 3),
}


def _attention(mask: Tensor, *, safe: bool = True) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax((q @ k.mT).masked_fill(~mask, -torch.inf), -1) @ v

    return (lambda q, k, v: scaled_dot_product_attention(q, k, v, attn_mask=mask)) if safe else plain


def _inputs(queries: int, keys: int) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, rows, 8) for rows in (queries, keys, keys)]


def _sketches(name: str, *, safe: bool = True) -> tuple[Sketch, ...]:
    queries, keys, visible = _MASKS[name]
    function = _attention(visible(_distances(queries, keys)), safe=safe)
    (task,) = import_model(Apply(function), tuple(_inputs(queries, keys)), target=_AVX2).tasks
    return sketches(task, space="own")


def _annotated(module: Any) -> list[Any]:
    return [loop for loop in _tvm.found(module["main"].body, _tvm.tirx.For) if Keys.on(loop)]


def _unannotated(loop: Any) -> Any:
    others = {key: value for key, value in loop.annotations.items() if key != Keys.key}
    return _tvm.tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, loop.body, annotations=others)


def _result(module: Any, inputs: list[Tensor], shape: tuple[int, ...]) -> Tensor:
    output = _tvm.runtime.tensor(np.full(shape, 7, "float32"))
    function = codegen.compile_primfuncs(module, _AVX2, checks_arguments=False).jit()["main"]
    function(*(_tvm.runtime.tensor(x.numpy()) for x in inputs), output)
    return torch.from_numpy(output.numpy())


@pytest.mark.parametrize(
    ("name", "safe"), [*((name, True) for name in _MASKS), ("causal", False), ("rows without keys", False)]
)
def test_values_are_the_same(name: str, safe: bool) -> None:
    queries, keys, visible = _MASKS[name]
    inputs = _inputs(queries, keys)
    expected = _attention(visible(_distances(queries, keys)), safe=safe)(*inputs)
    for sketch in _sketches(name, safe=safe):
        for point in sketch.sample(2 if name == "causal" else 1, seed=1):
            module = sketch.schedule(point).mod
            whole = _tvm.map_functions(module, lambda func: _tvm.structural_map(func, (_tvm.tirx.For, _unannotated)))
            out = _result(module, inputs, expected.shape)
            torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5, equal_nan=True)
            assert out.numpy().tobytes() == _result(whole, inputs, expected.shape).numpy().tobytes()


@pytest.mark.parametrize("name", _MASKS)
def test_only_iterations_with_a_visible_key_remain(name: str) -> None:
    """The loop that finds the largest score has exactly the keys that some query of the tile can see."""
    _, keys, visible = _MASKS[name]
    mask = visible(_distances(1024, keys)).numpy()
    checked = 0
    for sketch in _sketches(name):
        module = sketch.schedule(sketch.sample(1, seed=1)[0]).mod
        after = skip_hidden_keys(module)["main"]
        assert not _annotated({"main": after})
        for parallel in _tvm.found(after.body, _tvm.tirx.For):
            stores = [s for s in _tvm.found(parallel.body, _tvm.tirx.BufferStore) if s.buffer.name == "largest"]
            if parallel.kind != _tvm.tirx.ForKind.PARALLEL or not stores:
                continue
            (loop,) = [
                one
                for one in _tvm.found(parallel.body, _tvm.tirx.For)
                if one.kind == _tvm.tirx.ForKind.SERIAL
                and isinstance(getattr(_stores(one)[0], "value", None), _tvm.tirx.Max)
            ]
            tiles = int(parallel.extent) // 2
            width = _padded(module) // tiles
            for tile in range(int(parallel.extent)):
                first = number(loop.min, {parallel.loop_var.name: tile})
                stop = first + number(loop.extent, {parallel.loop_var.name: tile})
                seen = np.flatnonzero(mask[tile % tiles * width :][:width].any(axis=0))
                assert list(range(first, stop)) == list(range(seen.min(), seen.max() + 1) if seen.size else [])
                checked += 1
    assert checked >= 2 * 2


def _stores(loop: Any) -> list[Any]:
    return _tvm.found(loop.body, _tvm.tirx.BufferStore)


def _padded(module: Any) -> int:
    """Return the number of queries after padding."""
    shapes = [b.shape for block in _tvm.found(module["main"].body, _tvm.s_tir.SBlock) for b in block.alloc_buffers]
    return max(int(shape[-1]) for shape in shapes)


def test_loops_stay_whole_unless_all_are_known() -> None:
    """A sum that is not yet split into its first step and others could lose the first step."""
    (sketch, _) = _sketches("causal")
    schedule = sketch.schedule(sketch.sample(1, seed=1)[0])
    module = schedule.mod
    count = len(_annotated(module))
    assert count > 1
    other = next(
        loop for loop in _tvm.found(module["main"].body, _tvm.tirx.For) if loop.kind == 0 and not Keys.on(loop)
    )
    marked = _tvm.tirx.For(
        other.loop_var, other.min, other.extent, other.kind, other.body, annotations={Keys.key: True}
    )
    change = (_tvm.tirx.For, lambda loop: marked if loop.same_as(other) else loop)
    changed = _tvm.map_functions(module, lambda func: _tvm.structural_map(func, change))
    assert len(_annotated(changed)) == count + 1
    after = skip_hidden_keys(changed)["main"]
    loops = _tvm.found(after.body, _tvm.tirx.For)
    assert all(isinstance(loop.extent, _tvm.tirx.IntImm) and int(loop.min) == 0 for loop in loops)
    assert not any(Keys.on(loop) for loop in loops)


def test_functions_without_annotations_are_unchanged() -> None:
    x = _tvm.te.placeholder((8,), name="x")
    func = _tvm.te.create_prim_func([x, _tvm.te.compute((8,), lambda i: x[i] + 1.0, name="y")])
    module = _tvm.IRModule({"main": func})
    assert skip_hidden_keys(module)["main"].same_as(module["main"])
