"""Tests that torch.compile(backend="felixlike") matches backend="eager".

Results, dtypes, strides, aliases, state and random numbers are equal, whether a graph is compiled or left to PyTorch
with one warning.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import _pytree

from felixlike._util.torch_modes import default_dtype
from felixlike.dynamo import backend
from felixlike.errors import NotCompiledWarning

CALLS = 3


@dataclass(frozen=True)
class Way:
    """A model and how it is called.

    Args:
        make: Makes the model, once for each backend.
        inputs: Makes the inputs of a call.
        compiled: Whether the backend compiles the model. Otherwise it is left to PyTorch.
        between: Changes the model after each call.
        warnings: Number of warnings if the model is left to PyTorch.
        context: Makes the context of the calls.
    """

    make: Callable[[], Any]
    inputs: Callable[[], Sequence[Any]]
    compiled: bool = True
    between: Callable[[Any, int], object] = lambda model, call: None
    warnings: int = 1
    context: Callable[[], Any] = torch.no_grad


def net_of(function: Callable[..., Any], train: bool = False) -> Callable[[], nn.Module]:
    """Return a maker of a module with a few layers. Its forward calls `function(module, *inputs)`."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)
            self.conv = nn.Conv2d(3, 4, 3, padding=1)
            self.norm = nn.BatchNorm2d(3)
            self.drop = nn.Dropout(0.5)
            self.register_buffer("count", torch.zeros(()))
            self.register_buffer("ring", torch.zeros(4, 8))
            self.table = nn.Embedding(10, 8)
            self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

        def forward(self, *inputs: Any) -> Any:
            return function(self, *inputs)

    return lambda: Net().train(train)


def rows(*shape: int) -> Callable[[], Sequence[Tensor]]:
    return lambda: (torch.randn(*(shape or (4, 8))),)


def images(last: bool = False) -> Callable[[], Sequence[Tensor]]:
    layout = torch.channels_last if last else torch.contiguous_format
    return lambda: (torch.randn(2, 3, 6, 6).to(memory_format=layout),)


def two(*shape: int) -> Callable[[], Sequence[Tensor]]:
    return lambda: (torch.randn(*(shape or (4, 8))), torch.randn(*(shape or (4, 8))))


def same_twice() -> Sequence[Tensor]:
    x = torch.randn(4, 8)
    return x, x


def views_of_one() -> Sequence[Tensor]:
    x = torch.randn(8, 8)
    return x[:4], x[4:]


def overlapping_views() -> Sequence[Tensor]:
    x = torch.randn(8, 8)
    return x[:5], x[3:]


def increment_counter(net: Any, x: Tensor) -> Any:
    net.count += 1
    return net.linear(x) + net.count


def push_to_ring(net: Any, x: Tensor) -> Any:
    net.ring.copy_(torch.cat([net.ring[1:], x[:1]]))
    return net.ring.sum(0) + x


def write_to_input(x: Tensor) -> Tensor:
    x.add_(1)
    return x * 2


def cache(x: Tensor, cached_rows: Tensor) -> Tensor:
    cached_rows[:, 2] = x.sum(1)
    return cached_rows.sum(1)


def update_moving_average(model: Any, call: int) -> None:
    """Apply an exponential moving average through `.data`, which PyTorch's version counter misses."""
    for parameter in model.parameters():
        parameter.data.mul_(0.9).add_(0.01 * (call + 1))


def exchange_data(model: Any, call: int) -> None:
    for parameter in model.parameters():
        parameter.data = torch.full_like(parameter, 0.1 * (call + 1))


def merge_adapter(model: Any, call: int) -> None:
    """Merge a low-rank adapter into one weight."""
    generator = torch.Generator().manual_seed(call)
    a, b = torch.randn(8, 2, generator=generator), torch.randn(2, 8, generator=generator)
    model.linear.weight.data += a @ b


def replace_parameter(model: Any, call: int) -> None:
    model.linear.weight = nn.Parameter(torch.full((8, 8), 0.1 * (call + 1)))


def swap_parameter(model: Any, call: int) -> None:
    swap: Any = torch.utils.swap_tensors
    swap(model.linear.weight, nn.Parameter(torch.full((8, 8), 0.1 * (call + 1))))


def exchange(net: Any, x: Tensor, y: Tensor) -> Tensor:
    before = x.clone()
    x.copy_(y)
    y.copy_(before)
    result: Tensor = net.linear(x)
    return result


def load_state(model: Any, call: int) -> None:
    model.load_state_dict({key: torch.full_like(value, 0.1 * call) for key, value in model.state_dict().items()})


def scale_weight(model: Any, call: int) -> None:
    with torch.no_grad():
        model.linear.weight.mul_(1.5)


def autocast() -> Any:
    return torch.autocast("cpu", dtype=torch.bfloat16)


@contextlib.contextmanager
def in_double() -> Iterator[None]:
    with torch.no_grad(), default_dtype(torch.float64):
        yield


def linear_in_autocast(net: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return linear(net, x)


def tied_layers(net: Any, x: Tensor) -> Tensor:
    """Apply two layers with one weight."""
    return functional.linear(linear(net, x), net.linear.weight)


def with_other_weights(net: Any, x: Tensor) -> Any:
    weights = {"weight": net.linear.weight * 2, "bias": net.linear.bias}
    return torch.func.functional_call(net.linear, weights, (x,))


def change_one_row(model: Any, call: int) -> None:
    """Change one row. The sampled words that every call compares miss it, and the next checksum detects it."""
    model.linear.weight.data[3] += 1
    time.sleep(0.1)


def linear(net: Any, x: Tensor) -> Tensor:
    output: Tensor = net.linear(x)
    return output


WAYS: dict[str, Way] = {
    # random
    "randn_like": Way(net_of(lambda net, x: net.linear(x) + torch.randn_like(x)), rows()),
    "rand": Way(net_of(lambda net, x: net.linear(x) + torch.rand(8)), rows()),
    "normal": Way(net_of(lambda net, x: torch.normal(net.linear(x), 1.0)), rows()),
    "bernoulli": Way(net_of(lambda net, x: torch.bernoulli(net.linear(x).sigmoid())), rows()),
    "dropout in training": Way(net_of(lambda net, x: net.drop(net.linear(x)), train=True), rows()),
    "dropout in eval mode": Way(net_of(lambda net, x: net.drop(net.linear(x))), rows()),
    "functional dropout": Way(net_of(lambda net, x: functional.dropout(net.linear(x), 0.5, True)), rows()),
    "feature dropout": Way(net_of(lambda net, x: functional.dropout2d(net.conv(x), 0.5, True)), images()),
    "rrelu in training": Way(net_of(lambda net, x: functional.rrelu(x, training=True)), rows(), compiled=False),
    "rrelu": Way(net_of(lambda net, x: functional.rrelu(x)), rows()),
    "gumbel softmax": Way(net_of(lambda net, x: functional.gumbel_softmax(net.linear(x))), rows()),
    "multinomial": Way(net_of(lambda net, x: torch.multinomial(x.softmax(-1), 2)), rows()),
    "uniform_": Way(net_of(lambda net, x: x + torch.empty_like(x).uniform_()), rows()),
    "randint": Way(net_of(lambda net, x: x[torch.randint(0, 4, (3,))]), rows()),
    "attention with dropout": Way(
        net_of(lambda net, x: functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5)),
        rows(1, 4, 8),
        compiled=False,
    ),
    "attention": Way(net_of(lambda net, x: functional.scaled_dot_product_attention(x, x, x)), rows(1, 4, 8)),
    "encoder layer": Way(lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), rows(2, 4, 8)),
    "encoder layer with its norms first": Way(
        lambda: nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", batch_first=True, norm_first=True).eval(),
        lambda: (
            torch.randn(2, 4, 8),
            torch.ones(4, 4).triu(1).bool(),
            torch.tensor([[False] * 4, [False] * 3 + [True]]),
        ),
    ),
    "encoder layer with padding": Way(
        net_of(lambda net, x, padding: net.layer(x, src_key_padding_mask=padding)),
        lambda: (torch.randn(2, 4, 8), torch.tensor([[False] * 4, [False] * 3 + [True]])),
    ),
    # state
    "counter": Way(net_of(increment_counter), rows()),
    "ring buffer": Way(net_of(push_to_ring), rows()),
    "batch norm in training": Way(net_of(lambda net, x: net.norm(x), train=True), images()),
    "batch norm in eval mode": Way(net_of(lambda net, x: net.conv(net.norm(x))), images()),
    "batch norm without statistics": Way(
        net_of(lambda net, x: functional.batch_norm(x, None, None, training=True)), images()
    ),
    "instance norm": Way(net_of(lambda net, x: functional.instance_norm(x)), images()),
    # inputs that are written to
    "an input changed": Way(lambda: write_to_input, rows()),
    "a cache": Way(lambda: cache, lambda: (torch.randn(4, 8), torch.zeros(4, 5))),
    "a slice set": Way(net_of(lambda net, x: x.__setitem__((0,), 1.0) or net.linear(x)), rows()),
    "relu in place": Way(net_of(lambda net, x: functional.relu(x, inplace=True) * 2), rows()),
    "relu in place behind a layer": Way(net_of(lambda net, x: functional.relu(net.linear(x), inplace=True)), rows()),
    "a copy changed": Way(net_of(lambda net, x: x.clone().add_(1).mul_(2)), rows()),
    "a row of an input changed": Way(net_of(lambda net, x: (x[0].add_(1), net.linear(x), x[1])), rows()),
    "inputs exchanged": Way(net_of(exchange), lambda: (torch.randn(4, 8), torch.randn(4, 8))),
    "an old value returned": Way(net_of(lambda net, x: (x.clone(), x.mul_(2))), rows()),
    "an input transposed in place": Way(net_of(lambda net, x: net.linear(x.t_().t())), rows()),
    # aliases
    "a view of an input": Way(net_of(lambda net, x: (x.view(-1), net.linear(x))), rows()),
    "a transposed input": Way(net_of(lambda net, x: (x.t(), net.linear(x))), rows()),
    "a row of an input": Way(net_of(lambda net, x: (x[1], net.linear(x))), rows()),
    "views alone": Way(net_of(lambda net, x: x.t()), rows(), compiled=False, warnings=0),
    "an input itself": Way(net_of(lambda net, x: (x, net.linear(x))), rows()),
    "a result and its view": Way(net_of(lambda net, x: (y := net.linear(x), y.view(-1), y[0])), rows()),
    "parts of a result": Way(net_of(lambda net, x: net.linear(x).chunk(2, -1)), rows()),
    "a part of a result": Way(net_of(lambda net, x: net.linear(x)[:, 2:5].contiguous()), rows()),
    "a result twice": Way(net_of(lambda net, x: (y := net.linear(x), y)), rows()),
    "an expanded result": Way(net_of(lambda net, x: net.linear(x)[:1].expand(3, 8)), rows()),
    "a view of a result changed in place": Way(
        net_of(lambda net, x: (y := net.linear(x), y.view(-1), y.relu_())[:2]), rows()
    ),
    "detached": Way(net_of(lambda net, x: (x.detach(), net.linear(x))), rows()),
    "one tensor for two inputs": Way(net_of(lambda net, x, y: net.linear(x) + y), same_twice),
    "overlapping inputs": Way(net_of(lambda net, x, y: net.linear(x) + y), views_of_one),
    "an input twice, changed": Way(net_of(lambda net, x, y: x.add_(1) + y), same_twice),
    "overlapping inputs, one changed": Way(net_of(lambda net, x, y: x.add_(1) + y), overlapping_views, compiled=False),
    "parts of an input, one changed": Way(net_of(lambda net, x, y: x.add_(1) + y), views_of_one),
    # layouts and types
    "channels last": Way(net_of(lambda net, x: net.conv(x).relu()), images(last=True)),
    "channels first": Way(net_of(lambda net, x: net.conv(x).relu()), images()),
    "a transposed result": Way(net_of(lambda net, x: net.linear(x).t()), rows()),
    "a permuted result": Way(net_of(lambda net, x: net.conv(x).permute(0, 2, 3, 1)), images()),
    "float64": Way(lambda: nn.Linear(8, 8).double().eval(), lambda: (torch.randn(4, 8, dtype=torch.float64),)),
    "bfloat16": Way(lambda: nn.Linear(8, 8).bfloat16().eval(), lambda: (torch.randn(4, 8).bfloat16(),)),
    "integers": Way(net_of(lambda net, x: (x + 1, x > 2)), lambda: (torch.arange(5),)),
    "indices": Way(net_of(lambda net, x: net.table(x)), lambda: (torch.arange(5),)),
    "complex": Way(net_of(lambda net, x: torch.view_as_real(torch.fft.fft(x))), rows(), compiled=False),
    "complex among others": Way(net_of(lambda net, x: net.linear(torch.fft.fft(net.linear(x)).real)), rows()),
    "an inverse": Way(net_of(lambda net, x: torch.linalg.inv(net.linear(x).tanh() + 4 * torch.eye(8)) @ x), rows(8, 8)),
    "autocast": Way(net_of(linear), rows(), compiled=False, context=autocast),
    "autocast in the model": Way(net_of(linear_in_autocast), rows()),
    "a default type": Way(
        lambda: nn.Linear(8, 8).double().eval(),
        lambda: (torch.randn(4, 8, dtype=torch.float64),),
        context=in_double,
    ),
    "inference mode": Way(net_of(linear), rows(), context=torch.inference_mode),
    "gradients": Way(net_of(linear), rows(), compiled=False, context=torch.enable_grad),
    # weights that change
    "a moving average": Way(net_of(linear), rows(), between=update_moving_average),
    "weights exchanged through data": Way(net_of(linear), rows(), between=exchange_data),
    "a merged adapter": Way(net_of(linear), rows(), between=merge_adapter),
    "a replaced parameter": Way(net_of(linear), rows(), between=replace_parameter),
    "a swapped parameter": Way(net_of(linear), rows(), between=swap_parameter),
    "a loaded state": Way(net_of(linear), rows(), between=load_state),
    "weights scaled in place": Way(net_of(linear), rows(), between=scale_weight),
    "a row of a weight": Way(net_of(linear), rows(), between=change_one_row),
    "weights in inference mode": Way(net_of(linear), rows(), between=scale_weight, context=torch.inference_mode),
    "tied weights": Way(net_of(tied_layers), rows(), between=scale_weight),
    "a weight returned": Way(net_of(lambda net, x: (net.linear.weight.t(), net.linear(x))), rows()),
    "weights given to a call": Way(net_of(with_other_weights), rows(), between=scale_weight),
    # Python values and control flow
    "a number": Way(net_of(lambda net, x, n: net.linear(x) * n), lambda: (torch.randn(4, 8), 3)),
    "a dictionary": Way(net_of(lambda net, x: {"a": net.linear(x), "b": [x + 1, None, 3]}), rows()),
    "a graph break": Way(net_of(lambda net, x: net.linear(x if x.sum() > 1e9 else x + 1)), rows()),
    "nothing computed": Way(net_of(lambda net, x: x), rows()),
    "another size each call": Way(
        net_of(linear), functools.partial(next, iter([(torch.randn(n, 8),) for n in range(1, 99)]))
    ),
}


def _state(model: Any) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in model.state_dict().items()} if isinstance(model, nn.Module) else {}


def _aliases(tensors: Sequence[Tensor]) -> list[tuple[int, int]]:
    """Return for each tensor the index of the first one with the same storage, and the offset in that storage."""
    addresses = [tensor.untyped_storage().data_ptr() for tensor in tensors]
    return [
        (addresses.index(address), int(tensor.storage_offset()))
        for address, tensor in zip(addresses, tensors, strict=True)
    ]


def _leaves(nested: Any) -> list[Any]:
    return [leaf for leaf in _pytree.tree_leaves(nested) if isinstance(leaf, Tensor)]


def _observed(way: Way, model: Any, compiled: Any, inputs: Sequence[Any]) -> list[Any]:
    """Return everything that a caller can observe of a few calls."""
    observations: list[Any] = []
    for call, arguments in enumerate(inputs):
        torch.manual_seed(call)
        with way.context():
            result = compiled(*arguments)
        leaves = _leaves(result)
        kinds = [(leaf.dtype, leaf.shape, leaf.stride(), leaf.requires_grad) for leaf in leaves]
        shared = _aliases([*_leaves(arguments), *leaves])
        observations.append((result, kinds, shared, copy.deepcopy(arguments), _state(model), torch.get_rng_state()))
        # Writing to a result changes the same aliases as in PyTorch.
        for leaf in {id(leaf): leaf for leaf in leaves}.values():
            if leaf.dtype.is_floating_point and not leaf.requires_grad and 0 not in leaf.stride():
                with torch.inference_mode(leaf.is_inference()):
                    leaf.add_(1)
        observations.append(([leaf.detach().clone() for leaf in leaves], copy.deepcopy(arguments)))
        way.between(model, call)
    return observations


def _equal(got: Any, want: Any) -> None:
    torch.testing.assert_close(got, want, rtol=2e-3, atol=2e-3, equal_nan=True)


@pytest.mark.parametrize("name", WAYS)
def test_results_and_side_effects_match_eager(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    way = WAYS[name]
    monkeypatch.setattr(backend, "_warned_of_gradients", False)
    torch.manual_seed(0)
    inputs = [way.inputs() for _ in range(CALLS)]
    observed = []
    for kind in ("felixlike", "eager"):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = way.make()
        arguments: dict[str, Any] = (
            {"options": {"seconds": 0, "store": str(tmp_path / "s.sqlite")}} if kind != "eager" else {}
        )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            observations = _observed(way, model, torch.compile(model, backend=kind, **arguments), copy.deepcopy(inputs))
        observed.append(observations)
        if kind == "felixlike":
            not_compiled = [warning for warning in caught if warning.category is NotCompiledWarning]
            assert len(not_compiled) == (0 if way.compiled else way.warnings), [
                str(warning.message) for warning in caught
            ]
    for got, want in zip(*observed, strict=True):
        for got_part, want_part in zip(got, want, strict=True):
            if isinstance(want_part, list) and want_part and not isinstance(want_part[0], Tensor):
                assert got_part == want_part
            else:
                _equal(got_part, want_part)
    torch._dynamo.reset()


def test_no_traceback_is_printed_if_a_graph_cannot_run_in_float64(capfd: pytest.CaptureFixture[str]) -> None:
    def grouped(x: Tensor, w: Tensor, ends: Tensor) -> Tensor:
        return functional.grouped_mm(x, w, offs=ends)

    inputs = torch.randn(6, 16).bfloat16(), torch.randn(3, 16, 8).bfloat16(), torch.tensor([2, 2, 6], dtype=torch.int32)
    with torch.no_grad():
        got = torch.compile(grouped, backend="felixlike", options={"seconds": 0})(*inputs)
    torch.testing.assert_close(got, grouped(*inputs))
    assert "Traceback" not in capfd.readouterr().err
