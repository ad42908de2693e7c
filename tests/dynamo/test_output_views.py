"""Tests for splitting a graph: outputs that share memory are removed and recreated as views."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from felixlike.dynamo.output_views import SplitGraph
from felixlike.dynamo.writes import changed_inputs
from felixlike.errors import InvalidModel


def _captured(function: Callable[..., Any], *inputs: Tensor) -> fx.GraphModule:
    graphs: list[fx.GraphModule] = []

    def backend(graph: fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(function, backend=backend)(*inputs)
    (graph,) = graphs
    return graph


def test_a_graph_without_views_is_unchanged() -> None:
    graph, x = _captured(lambda x: (x + 1, x * 2), x := torch.randn(3, 4)), x
    split = SplitGraph(graph)
    assert split.computing is graph
    results = [torch.ones(1)]
    assert split.outputs([x], results) is results


def test_views_are_recreated_from_computed_tensors() -> None:
    x = torch.randn(3, 4)
    split = SplitGraph(_captured(lambda x: ((y := x * 2)[0], y, x.t(), x + 1), x))
    computed = split.computing(x)
    assert [tuple(tensor.shape) for tensor in computed] == [(3, 4), (3, 4)]
    row, whole, transposed, other = split.outputs([x], computed)
    assert row.data_ptr() == whole.data_ptr()
    assert transposed.data_ptr() == x.data_ptr()
    assert torch.equal(other, x + 1)
    assert torch.equal(row, 2 * x[0])


def test_shared_outputs_that_are_changed_in_place_have_the_last_value() -> None:
    x = torch.randn(3, 4)
    split = SplitGraph(_captured(lambda x: ((y := x * 2).view(-1), y.relu_()), x))
    flat, changed = split.outputs([x], split.computing(x))
    assert flat.data_ptr() == changed.data_ptr()
    assert torch.equal(flat, (2 * x).relu().view(-1))


@pytest.mark.parametrize(
    "change",
    [
        nn.LeakyReLU(0.1, inplace=True),
        nn.ELU(inplace=True),
        nn.Hardswish(inplace=True),
        nn.SiLU(inplace=True),
        lambda y: functional.celu(y, 0.5, True),
        lambda y: torch.ops.aten.mul_.Scalar(y, 3),
    ],
)
def test_shared_outputs_are_changed_in_place_once(change: Callable[[Tensor], Tensor]) -> None:
    """The argument `inplace` is given by name or by position."""

    def changed(x: Tensor) -> tuple[Tensor, ...]:
        y = x * 2
        return change(y), y.flatten(), y[0]

    x = torch.randn(3, 4)
    split = SplitGraph(_captured(changed, x))
    outputs = split.outputs([x], split.computing(x))
    torch.testing.assert_close(outputs, changed(x))
    assert len({tensor.untyped_storage().data_ptr() for tensor in outputs}) == 1


def test_shifts_and_activations_change_inputs() -> None:
    def changed(x: Tensor, y: Tensor) -> Tensor:
        x <<= 1
        functional.leaky_relu(y, 0.1, True)
        return x + y

    graph = _captured(changed, torch.arange(4), torch.randn(4))
    assert changed_inputs(graph, [node for node in graph.graph.nodes if node.op == "placeholder"]) == {0, 1}


@pytest.mark.parametrize("change", [Tensor.t_, lambda y: y.unsqueeze_(0)])
def test_views_of_a_tensor_whose_shape_changes_in_place_are_refused(change: Callable[[Tensor], Tensor]) -> None:
    def rows(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        return y[0], change(y)

    with pytest.raises(InvalidModel, match="changes in place"):
        SplitGraph(_captured(rows, torch.randn(3, 3)))


def test_views_that_depend_on_values_are_refused() -> None:
    graph = _captured(lambda x: ((y := x * 2), y[0]), torch.randn(3, 4))
    outputs = graph.graph.output_node().args[0]
    assert isinstance(outputs, tuple)
    for node in outputs:
        assert isinstance(node, fx.Node)
    row = outputs[1]
    assert isinstance(row, fx.Node)
    with graph.graph.inserting_before(row):  # as in a graph that computes where its view begins
        value = graph.graph.call_function(torch.zeros, ((),))
        value.meta["example_value"] = torch.zeros(())
    row.args = (row.args[0], value)
    with pytest.raises(InvalidModel) as raised:
        SplitGraph(graph)
    assert raised.value.where == "graph"
