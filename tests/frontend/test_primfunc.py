"""Tests for PrimFuncs as models, which have one task."""

from typing import Any

import pytest

from felixlike import _tvm
from felixlike.errors import EmptyModel, InvalidModel, InvalidShape
from felixlike.frontend import import_model, make_task

te, tirx = _tvm.te, _tvm.tirx


def dense_relu(rows: Any = 4) -> Any:
    a = te.placeholder((rows, 8), name="a")
    w = te.placeholder((8, 6), name="w")
    return te.create_prim_func([a, w, _tvm.topi.nn.relu(_tvm.topi.nn.matmul(a, w))])


def test_the_last_buffer_is_the_output() -> None:
    imported = import_model(dense_relu())
    assert [str(spec) for spec in imported.inputs] == ["a: float32[4, 8]", "w: float32[8, 6]"]
    assert len(imported.tasks) == 1
    assert imported.tasks[0].weight == 1


def test_a_function_named_main_gets_the_names_of_its_blocks() -> None:
    assert import_model(dense_relu()).tasks[0].name == "matmul_NN_compute"


def test_the_function_s_name_is_kept_and_not_part_of_the_key() -> None:
    func = dense_relu()
    named = import_model(func.with_attr("global_symbol", "layer")).tasks[0]
    assert named.name == "layer"
    assert named.key == import_model(func).tasks[0].key


def test_layouts_of_inputs_are_not_free() -> None:
    func = dense_relu()
    assert list(func.attrs["layout_free_buffers"]) == [1]
    (task,) = import_model(func).tasks
    assert "layout_free_buffers" not in task.module["main"].attrs
    assert task.key == make_task(func.without_attr("layout_free_buffers"), task.target, name="").key


def test_shapes_must_agree() -> None:
    import_model(dense_relu(), {"a": (4, 8), "w": (8, 6)})
    with pytest.raises(InvalidShape, match=r"^matmul_NN_compute: input 'a' .*\(4, 8\).*\(5, 8\)"):
        import_model(dense_relu(), ((5, 8), (8, 6)))


def test_a_symbolic_size_is_refused() -> None:
    with pytest.raises(InvalidShape, match=r"^matmul_NN_compute: buffer a .*\(n, 8\).*felixlike\.dynamic\.compile"):
        import_model(dense_relu(tirx.Var("n", "int64")))


def test_a_scalar_parameter_is_refused() -> None:
    func = dense_relu()
    with pytest.raises(InvalidModel, match=r"^matmul_NN_compute: parameter k .*T\.Buffer"):
        import_model(_tvm.PrimFunc([tirx.Var("k", "int32"), *func.params], func.body))


def test_a_function_without_buffers_is_refused() -> None:
    with pytest.raises(EmptyModel, match=r"^primfunc: .*no buffers"):
        import_model(_tvm.PrimFunc([], tirx.Evaluate(0)))
