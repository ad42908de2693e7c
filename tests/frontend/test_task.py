"""Tests for tasks: their key depends on the computation and the target only."""

import subprocess
import sys
from typing import Any

from felixlike import _tvm
from felixlike.frontend import make_task
from felixlike.hardware import resolve_target

SCRIPT = """
from felixlike import _tvm
from felixlike.frontend import make_task
te = _tvm.te
a, w = te.placeholder((4, 8), name="a"), te.placeholder((8, 6), name="w")
target = _tvm.Target({"kind": "llvm", "mcpu": "x86-64", "num-cores": 2})
print(make_task(te.create_prim_func([a, w, _tvm.topi.nn.matmul(a, w)]), target, name="m").key)
"""


def matmul(rows: int = 4) -> Any:
    te = _tvm.te
    a, w = te.placeholder((rows, 8), name="a"), te.placeholder((8, 6), name="w")
    return te.create_prim_func([a, w, _tvm.topi.nn.matmul(a, w)])


def test_the_key_depends_on_sizes_and_target_but_not_on_names() -> None:
    target = resolve_target("cpu")
    task = make_task(matmul(), target, name="one", weight=3)
    renamed = make_task(matmul().with_attr("global_symbol", "other").with_attr("op_pattern", 4), target, name="two")
    assert task.key == renamed.key
    assert task.key != make_task(matmul(5), target, name="one").key
    other = _tvm.Target({"kind": "llvm", "mcpu": "x86-64", "num-cores": 3})
    assert task.key != make_task(matmul(), other, name="one").key


def test_the_key_is_the_same_in_every_process() -> None:
    target = _tvm.Target({"kind": "llvm", "mcpu": "x86-64", "num-cores": 2})
    process = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == make_task(matmul(), target, name="m").key


def test_flops_weight_and_text() -> None:
    task = make_task(matmul(), resolve_target("cpu"), name="m", weight=3)
    assert task.flops == 2 * 4 * 8 * 6
    assert (task.name, task.weight) == ("m", 3.0)
    assert str(task) == "m (×3, 0.0 MFLOP)"


def test_layouts_of_inputs_are_not_free() -> None:
    """TVM's operators mark the layout of weights as free. For inputs, every call would have to change the layout."""
    from support.operators import OPERATORS

    func = OPERATORS["batch_matmul"](small_size=True)
    assert "layout_free_buffers" in func.script()
    task = make_task(func, resolve_target("cpu"), name="product")
    assert "layout_free_buffers" not in task.module.script()
