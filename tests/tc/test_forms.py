"""Test that programs become functions that the schedule rules recognize and that have the sketches of model
operators.
"""

from __future__ import annotations

import torch
from support import operators as op

import felixlike as fx
from felixlike.frontend import Task
from felixlike.hardware import resolve_target
from felixlike.symbolic import sketches
from felixlike.tc.call import Given
from felixlike.tc.entry import read
from felixlike.tc.instance import imported, instance


def _tasks(source: str, *shapes: tuple[int, ...]) -> tuple[Task, ...]:
    program_instance = instance(read(source), [Given(shape, "float32") for shape in shapes])
    return imported(program_instance, resolve_target("cpu")).tasks


def _variables(task: Task) -> list[list[tuple[str, int, tuple[int, ...]]]]:
    """Return the variables of each sketch of felixlike's own space, without their names."""
    own_sketches = sketches(task, space="own")
    return [[(str(v.kind), v.extent, v.choices) for v in sketch.variables] for sketch in own_sketches]


def test_a_product_has_the_sketches_of_a_matmul() -> None:
    (task,) = _tasks(
        "def f(float(M,K) A, float(K,N) B) -> (C) { C(m, n) +=! A(m, k) * B(k, n) }", (128, 256), (256, 512)
    )
    (other,) = fx.extract_tasks(op.matmul(128, 256, 512))
    assert _variables(task)
    assert _variables(task) == _variables(other)
    assert task.flops == other.flops


def test_factors_signs_and_accumulation_become_an_epilogue() -> None:
    source = """def f(float s, float(M,K) A, float(K,N) B, float(N) b) -> (C) {
        C(m, n) = b(n) where m in 0:M
        C(m, n) += -s * A(m, k) * B(k, n) / 2.0
        C(m, n) = fmax(C(m, n), 0.0)
    }"""
    shapes = ((), (128, 256), (256, 512), (512,))
    (task,) = _tasks(source, *shapes)
    (plain,) = _tasks(
        "def f(float(M,K) A, float(K,N) B) -> (C) { C(m, n) +=! A(m, k) * B(k, n) }", (128, 256), (256, 512)
    )
    assert _variables(task) == _variables(plain)
    assert str(task.module.script()).count("T.sblock(") == 5  # the root, b, the sum, the accumulation, the maximum


def test_a_convolution_is_tiled_in_registers() -> None:
    source = """def f(float(N,C,H,W) I, float(F,C,KH,KW) K) -> (O) {
        O(n, f, h, w) +=! I(n, c, h + kh, w + kw) * K(f, c, kh, kw)
    }"""
    (task,) = _tasks(source, (1, 64, 58, 58), (64, 64, 3, 3))
    own_sketches = sketches(task, space="own")
    assert own_sketches
    assert all(sketch.is_symbolic for sketch in own_sketches)


def test_softmax_is_one_function_of_rows() -> None:
    source = """def softmax(float(N,D) I) -> (mx, den, O) {
        mx(n) max=! I(n, d)
        den(n) +=! exp(I(n, d) - mx(n))
        O(n, d) = exp(I(n, d) - mx(n)) / den(n)
    }"""
    (task,) = _tasks(source, (512, 1024))
    own_sketches, default_sketches = sketches(task, space="own"), sketches(task, space="default")
    assert len(own_sketches) == 2
    assert len(default_sketches) > 2
    x = torch.randn(512, 1024)
    largest, total, result = fx.tc.define(source)(x)
    torch.testing.assert_close(result, torch.softmax(x, 1), rtol=1e-5, atol=1e-6)
    assert torch.equal(largest, x.amax(1))
    torch.testing.assert_close(total, torch.exp(x - x.amax(1, keepdim=True)).sum(1), rtol=1e-5, atol=1e-6)


def test_a_layer_norm_is_one_function_of_rows() -> None:
    source = """def norm(float(T,C) I, float(C) g, float(C) b) -> (mean, var, O) {
        mean(t) +=! I(t, c) / C
        var(t) +=! (I(t, c) - mean(t)) * (I(t, c) - mean(t)) / C
        O(t, c) = g(c) * (I(t, c) - mean(t)) * rsqrt(var(t) + 1e-5) + b(c)
    }"""
    (task,) = _tasks(source, (128, 768), (768,), (768,))
    assert sketches(task, space="own")


def test_layers_become_separate_functions() -> None:
    source = """def f(float(B,N) I, float(M,N) W, float(M) b, float(P,M) V) -> (H, O) {
        H(i, m) +=! I(i, n) * W(m, n)
        H(i, m) = fmax(H(i, m) + b(m), 0.0)
        O(i, p) +=! H(i, m) * V(p, m)
    }"""
    tasks = _tasks(source, (64, 128), (96, 128), (96,), (32, 96))
    assert sorted(task.name for task in tasks) == ["f_H_2", "f_O_3"]
    assert all(sketches(task, space="own") for task in tasks)
