"""Test models with dynamic sizes: outputs at all sizes, saving and loading, and errors."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import felixlike as fx
from felixlike.dynamic import optimize
from felixlike.errors import (
    FelixlikeWarning,
    InputMismatch,
    InvalidDim,
    InvalidModel,
    InvalidOption,
    InvalidShape,
    VerificationFailed,
    WrongContext,
)
from felixlike.runtime import Verdict, Verification

_T = fx.Dim("T", range(1, 33))
_FEW = fx.Dim("T", range(1, 9))
"""Sizes for tests that do not depend on them: fewer heights of tiles are compiled."""


class _Block(torch.nn.Module):
    """A transformer layer: dense layers, products with two dynamic sizes, softmax and a layer norm."""

    def __init__(self) -> None:
        super().__init__()
        self.queries, self.keys, self.values = (torch.nn.Linear(16, 16) for _ in range(3))
        self.up, self.down, self.norm = torch.nn.Linear(16, 40), torch.nn.Linear(40, 16), torch.nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part(x).view(1, -1, 2, 8).transpose(1, 2) for part in (self.queries, self.keys, self.values))
        attended = torch.softmax(q @ k.transpose(2, 3) / 8**0.5, -1) @ v
        x = x + attended.transpose(1, 2).reshape(1, -1, 16)
        result: torch.Tensor = self.norm(x + self.down(torch.nn.functional.gelu(self.up(x))))
        return result


class _Sum(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x @ y.transpose(0, 1), (x + y).exp()


def _model() -> _Block:
    torch.manual_seed(0)
    return _Block().eval()


@pytest.fixture(scope="module")
def optimized() -> fx.Optimized:
    return fx.optimize(_model(), ((1, _T, 16),), rounds=0, progress=False)


def _is_correct(output: torch.Tensor, x: torch.Tensor) -> bool:
    with torch.no_grad():
        return bool((output - _model().double()(x.double())).abs().max() < 1e-5)


def test_outputs_are_correct_at_every_size(optimized: fx.Optimized) -> None:
    for size in range(1, 33):
        x = torch.randn(1, size, 16)
        assert _is_correct(optimized(x), x), size
    assert optimized.inputs[0].shape == (1, 32, 16)
    assert optimized.report.error < 1e-4
    assert "T in 1…32" in optimized.report.stopped
    assert {"queries", "up + gelu", "down + add"} <= {layer for task in optimized.report.tasks for layer in task.layers}
    assert 0 < optimized.report.latency_low <= optimized.report.latency <= optimized.report.latency_high
    assert any("uKernels in code" in task.note for task in optimized.report.tasks)
    assert str(optimized.report)


def test_saved_and_pickled_models_give_equal_outputs(optimized: fx.Optimized, tmp_path: Path) -> None:
    path = tmp_path / "model.fx"
    optimized.save(path)
    for other in (fx.load(path), pickle.loads(pickle.dumps(optimized))):
        for size in (1, 17, 32):
            x = torch.randn(1, size, 16)
            assert torch.equal(other(x), optimized(x))
        with pytest.raises(InputMismatch, match="T is 33"):
            other(torch.zeros(1, 33, 16))


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((1, 33, 16), "T is 33 in input 'x', .*1 to 32"),
        ((1, 0, 16), "T is 0 in input 'x'"),
        ((2, 5, 16), r"\(2, 5, 16\).*\(1, T, 16\)"),
        ((5, 16), r"\(5, 16\).*\(1, T, 16\)"),
    ],
)
def test_inputs_of_invalid_sizes_raise(optimized: fx.Optimized, shape: tuple[int, ...], words: str) -> None:
    with pytest.raises(InputMismatch, match=words):
        optimized(torch.zeros(shape))


def test_calls_with_fake_tensors_raise(optimized: fx.Optimized) -> None:
    with pytest.raises(WrongContext, match="sizes of the outputs"), torch._subclasses.FakeTensorMode():
        optimized(torch.empty(1, 4, 16))


def test_inputs_that_share_a_dimension_must_agree() -> None:
    dim = fx.Dim("N", [2, 3, 9])
    both = fx.optimize(_Sum(), {"x": (dim, 8), "y": (dim, 8)}, rounds=0, progress=False)
    for n in (2, 7, 9):
        x, y = torch.randn(n, 8), torch.randn(n, 8)
        product, power = both(x, y)
        assert torch.allclose(product, x @ y.T, atol=1e-5)
        assert torch.allclose(power, (x + y).exp(), rtol=1e-5)
    with pytest.raises(InputMismatch, match=r"N .*3.*'x'.*4.*'y'"):
        both(torch.zeros(3, 8), torch.zeros(4, 8))


class _Rest(torch.nn.Module):
    """A model with any number of inputs, which returns a sum and the indices of extremes along the dynamic axis."""

    def forward(self, first: torch.Tensor, *rest: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (torch.stack([first, *rest]).sum(0), first.argmax(1), first.argmin(1, keepdim=True))


def test_variadic_inputs_and_argmax_along_a_dynamic_axis() -> None:
    optimized_model = fx.optimize(_Rest().eval(), ((2, _T, 3),) * 3, rounds=0, progress=False)
    for size in (1, 8, 31):
        tensors = [torch.randn(2, size, 3) for _ in range(3)]
        tensors[0][0, size // 2, 1] = torch.nan
        for got, want in zip(optimized_model(*tensors), _Rest()(*tensors), strict=True):
            torch.testing.assert_close(got, want, equal_nan=True)


@pytest.mark.parametrize("norm", [torch.nn.GroupNorm(3, 6), torch.nn.InstanceNorm1d(6)])
def test_norms_of_equal_values(norm: torch.nn.Module) -> None:
    """A variance that is the difference of two means can be negative, and the result NaN."""
    sizes = {2: fx.Dim("T", range(2, 65))}
    torch.manual_seed(0)
    fast = fx.optimize(norm.eval(), (torch.randn(2, 6, 33),), dynamic_shapes=(sizes,), trials=0, progress=False)
    for size, mean, deviation, error in ((19, 0.0, 1.0, 1e-5), (33, 100.3, 0.0, 0.5), (64, 255.7, 0.0, 0.5)):
        x = mean + deviation * torch.randn(2, 6, size)
        torch.testing.assert_close(fast(x), norm(x), rtol=1e-5, atol=error)


def test_a_transformer_encoder_layer_with_two_dynamic_sizes() -> None:
    """The weights are shared by all samples of a batch."""
    torch.manual_seed(0)
    model = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    dims = fx.Dim("N", range(1, 3)), fx.Dim("T", range(1, 6))
    optimized_model = fx.optimize(model, ((*dims, 16),), rounds=0, progress=False)
    for shape in ((1, 1, 16), (2, 5, 16), (1, 4, 16)):
        x = torch.randn(shape)
        torch.testing.assert_close(optimized_model(x), model(x).detach(), rtol=1e-4, atol=1e-5)


def test_an_exported_program_with_dynamic_shapes_is_correct_in_its_range() -> None:
    dynamic, model = {"x": {1: torch.export.Dim("T", min=2, max=8)}}, _Positions().eval()
    program = torch.export.export(model, (torch.randn(1, 5, 16),), dynamic_shapes=dynamic)
    optimized_program = fx.optimize(program, rounds=0, progress=False)
    for size in (2, 5, 8):
        x = torch.randn(1, size, 16)
        torch.testing.assert_close(optimized_program(x), model(x).detach(), rtol=1e-4, atol=1e-4)
    with pytest.raises(InputMismatch, match=r"9 .*'x'.*2 to 8"):
        optimized_program(torch.zeros(1, 9, 16))


class _Positions(torch.nn.Module):
    """Tokens with positions from a table that ends at 9."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = torch.nn.Embedding(9, 16)
        self.dense = torch.nn.Linear(16, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.dense(x + self.positions(torch.arange(x.shape[1])))
        return result


@pytest.mark.parametrize(
    ("make", "most", "dim"),
    [(lambda: torch.nn.Linear(16, 24), 40, torch.export.Dim.AUTO), (_Positions, 5, torch.export.Dim("T"))],
)
def test_a_size_without_a_bound_gets_a_range(make: Callable[[], torch.nn.Module], most: int, dim: Any) -> None:
    """The range is halved where the model cannot be run at its end."""
    model = make().eval()
    program = torch.export.export(model, (torch.randn(1, 5, 16),), dynamic_shapes=({1: dim},))
    with pytest.warns(FelixlikeWarning, match=rf"without an upper bound.* in \d…{most}\. Give") as warned:
        fast = fx.optimize(program, rounds=0, progress=False)
    assert len(warned) == 1
    assert f"…{most}." in fast.report.note
    for size in (2, most - 1, most):
        x = torch.randn(1, size, 16)
        torch.testing.assert_close(fast(x), model(x).detach(), rtol=1e-4, atol=1e-4)
    with pytest.raises(InputMismatch, match=rf"{most + 1} .*'(x|input)'.*to {most}"):
        fast(torch.zeros(1, most + 1, 16))


class _Tokens(torch.nn.Module):
    """Tokens, a mask and a nested state, which all have a length."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.dense = torch.nn.Embedding(50, 16), torch.nn.Linear(16, 8)

    def forward(
        self, ids: torch.Tensor, mask: torch.Tensor, state: Any = None, *more: torch.Tensor, scale: float = 1.0
    ) -> torch.Tensor:
        y: torch.Tensor = self.dense(self.table(ids) * mask[..., None]) * scale
        return sum(more, y if state is None else y + state["h"][0])


def _tokens(length: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(0, 50, (1, length)), torch.rand(1, length) > 0.3


_TD = torch.export.Dim("T", min=1, max=8)


@pytest.mark.parametrize(
    ("make", "sizes"),
    [
        (lambda *given: given[:2], ({1: _FEW}, (None, _FEW))),
        (lambda *given: given[:2], {"ids": {1: _TD}, "mask": [1, _TD]}),
        (lambda ids, mask, _: {"ids": ids, "mask": mask, "scale": 2.0}, {"mask": {1: _FEW}, "ids": {1: _FEW, 0: None}}),
        (lambda *given: given, ({1: _FEW}, {1: _FEW}, {"h": ({1: _FEW}, None)})),
        (
            lambda ids, mask, state: (ids, mask, None, state["h"][0]),
            {"ids": {1: _FEW}, "mask": {1: _FEW}, "more": ({1: _FEW},)},
        ),
    ],
)
def test_examples_of_any_dtype_have_dynamic_sizes(make: Any, sizes: Any) -> None:
    """Examples of size 1 are repeated, since torch.export takes that size as fixed."""
    torch.manual_seed(0)
    model = _Tokens().eval()

    def inputs(length: int) -> Any:
        return make(*_tokens(length), {"h": (torch.randn(1, length, 8), torch.randn(3))})

    fast = fx.optimize(model, inputs(1), rounds=0, progress=False, dynamic_shapes=sizes)
    for length in (1, 2, 5, 8):
        given = inputs(length)
        args, named = ((), given) if isinstance(given, dict) else (given, {})
        torch.testing.assert_close(fast(*args, **named), model(*args, **named).detach(), rtol=1e-4, atol=1e-5)
    given = inputs(9)
    with pytest.raises(InputMismatch, match="T is 9"):
        fast(**given) if isinstance(given, dict) else fast(*given)


def test_sizes_in_nested_inputs() -> None:
    class Pair(torch.nn.Module):
        def forward(self, pair: tuple[torch.Tensor, torch.Tensor], flag: bool) -> torch.Tensor:
            return pair[0] @ pair[1] if flag else pair[0]

    fast = fx.optimize(Pair(), (((_T, 8), (8, 24)), True), rounds=0, progress=False)
    for size in (1, 9, 32):
        pair = torch.randn(size, 8), torch.randn(8, 24)
        torch.testing.assert_close(fast(pair), pair[0] @ pair[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("sizes", "error", "words"),
    [
        (({}, None), InvalidDim, "at least one Dim"),
        (({1: _T},), InvalidShape, "expected 2 entries, got 1"),
        (3, InvalidShape, "tuple or a dictionary, got 3"),
        ({"idz": {1: _T}}, InvalidShape, "no input 'idz'.*ids, mask"),
        (({2: _T}, None), InvalidShape, r"ynamic_shapes\[0\]: .*no dimension 2 .*\(1, 6\).*0 to 1"),
        (([_T], None), InvalidShape, "expected 2 entries, got 1"),
        (({1: "T"}, None), InvalidDim, "expected a Dim, got 'T'"),
        (({1: 7}, None), InvalidShape, "is 6 in the example, but 7"),
        (({1: fx.Dim("T", [2, 5])}, None), InvalidShape, "size is 6, out of the range 2 to 5 of T"),
        (({0: _T, 1: _T}, None), InvalidShape, "T is 1 .*but 6"),
        (({1: _T}, {1: fx.Dim("T", [4, 8])}), InvalidDim, "two different dimensions have the name 'T'"),
        (({1: _TD + 1}, None), InvalidDim, "name and a range"),
        (({1: torch.export.Dim.AUTO}, None), InvalidDim, "expected a Dim"),
    ],
)
def test_invalid_dynamic_sizes_of_examples_raise(sizes: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        fx.optimize(_Tokens().eval(), _tokens(6), rounds=0, progress=False, dynamic_shapes=sizes)


def test_dynamic_sizes_of_a_program_are_its_own() -> None:
    program = torch.export.export(_model(), (torch.randn(1, 5, 16),))
    with pytest.raises(InvalidOption, match="ExportedProgram"):
        fx.optimize(program, dynamic_shapes=({1: _T},), progress=False)


def test_sizes_that_exceed_memory_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention has a tensor of length × length elements."""

    class Attention(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x @ x.transpose(1, 2)).softmax(-1) @ x

    monkeypatch.setattr("felixlike.dynamic.memory.memory_bytes", lambda: 2**30)
    long = fx.Dim("T", [2, 2**16])
    with pytest.raises(InvalidDim, match=r"Attention: at T = 65536 .*16\.0 GiB.* 1\.0 GiB"):
        fx.optimize(Attention(), ((1, long, 16),), rounds=0, progress=False)


@pytest.mark.parametrize(
    ("model", "shapes", "error", "words"),
    [
        ("relax", ((1, _T, 16),), InvalidModel, "dynamic sizes .*an object"),
        (_Sum, ((_T, 8), (fx.Dim("T", [1, 2]), 8)), InvalidDim, "two .*'T'"),
        (_Sum, ((_T, 8), {3}), InvalidShape, "tuple of sizes, got a set"),
        (
            _Sum,
            (tuple(fx.Dim(n, [2, 3]) for n in "ABC"), tuple(fx.Dim(n, [2, 3]) for n in "DE")),
            InvalidDim,
            "got 5: A, B, C, D, E",
        ),
    ],
)
def test_invalid_models_and_shapes_raise(model: Any, shapes: Any, error: Any, words: str) -> None:
    source = object() if model == "relax" else model().eval()
    with pytest.raises(error, match=words):
        fx.optimize(source, shapes, rounds=0, progress=False)


class _Encoder(torch.nn.Module):
    """A small BERT or GPT-2, whose masks and positions depend on the length."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        from transformers import BertConfig, BertModel, GPT2Config, GPT2Model

        self.more = {} if kind == "bert" else {"use_cache": False}
        config: Any
        if kind == "bert":
            config = BertConfig(
                num_hidden_layers=1, hidden_size=32, num_attention_heads=2, intermediate_size=48, vocab_size=50
            )
        else:
            config = GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=50, bos_token_id=0, eos_token_id=0)
        self.model = BertModel(config) if kind == "bert" else GPT2Model(config)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.model(input_ids=ids, **self.more).last_hidden_state
        return result


@pytest.mark.parametrize(("kind", "most"), [("bert", 128), ("gpt2", 8)])
def test_transformers_are_correct_at_every_length(kind: str, most: int) -> None:
    pytest.importorskip("transformers", reason="the models come from there")
    torch.manual_seed(0)
    model = _Encoder(kind).eval()
    ids = torch.randint(0, 50, (1, most))
    dynamic = {"ids": {1: torch.export.Dim("T", min=1, max=most)}}
    program = torch.export.export(model, (ids[:, :5],), dynamic_shapes=dynamic)
    optimized_model, float64_model = fx.optimize(program, rounds=0, progress=False), model.double()
    with torch.no_grad():
        for length in (1, 2, most // 4 - 1, most * 3 // 4 + 1, most):
            expected = float64_model(ids[:, :length])
            assert (optimized_model(ids[:, :length]) - expected).abs().max() <= 1e-4 * expected.abs().max(), length


class _LastToken(torch.nn.Module):
    """A token that attends to a cache, and is classified by layers of fixed sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(32, 64), torch.nn.Linear(64, 32)

    def forward(self, x: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        attended = torch.softmax(x @ cache.transpose(0, 1), -1) @ cache
        result: torch.Tensor = self.down(torch.relu(self.up(attended)))
        return result


def test_functions_of_fixed_sizes_are_tasks() -> None:
    torch.manual_seed(0)
    model = _LastToken().eval()
    fast = fx.optimize(model, ((1, 32), (_T, 32)), trials=24, progress=False)
    tasks = {task.name: task for task in fast.report.tasks}
    dense = [task for name, task in tasks.items() if "add" in name]
    assert [task.sketches > 0 and task.error is not None for task in dense] == [True, True]
    assert sum(task.trials for task in tasks.values()) == fast.report.trials == 24
    for size in (1, 20, 32):
        x, cache = torch.randn(1, 32), torch.randn(size, 32)
        torch.testing.assert_close(fast(x, cache), model(x, cache).detach(), rtol=1e-4, atol=1e-5)


def test_a_model_without_functions_of_fixed_sizes_ignores_the_strategy() -> None:
    with pytest.warns(FelixlikeWarning, match="strategy has no effect"):
        fx.optimize(_Sum(), {"x": (_T, 8), "y": (_T, 8)}, trials=0, strategy="random", progress=False)


class _Masked(torch.nn.Module):
    """A mask is one longer than the cache that it is for."""

    def forward(self, cache: torch.Tensor, new: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.cat([cache, new]) * mask[:, None]


def test_sizes_may_differ_by_a_constant(tmp_path: Path) -> None:
    length = torch.export.Dim("T", min=2, max=20)
    shapes = {"cache": {0: length}, "new": None, "mask": {0: length + 1}}
    examples = (torch.randn(5, 4), torch.randn(1, 4), torch.randn(6))
    program = torch.export.export(_Masked(), examples, dynamic_shapes=shapes)
    fast = fx.optimize(program, rounds=0, progress=False)
    fast.save(tmp_path / "model.fx")
    for model in (fast, fx.load(tmp_path / "model.fx")):
        for size in (2, 11, 20):
            cache, new, mask = torch.randn(size, 4), torch.randn(1, 4), torch.randn(size + 1)
            torch.testing.assert_close(model(cache, new, mask), _Masked()(cache, new, mask))
        with pytest.raises(InputMismatch, match=r"is 5 in input .*cache.* and 4 in input .*mask"):
            model(torch.randn(5, 4), torch.randn(1, 4), torch.randn(5))


class _Turned(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (x * 2).transpose(1, 2), x[:, -1:, :] + 1


def test_outputs_have_pytorchs_memory_order() -> None:
    fast = fx.optimize(_Turned(), ((2, _T, 8),), rounds=0, progress=False)
    for size in (2, 9, 32):
        x = torch.randn(2, size, 8)
        for got, want in zip(fast(x), _Turned()(x), strict=True):
            torch.testing.assert_close(got, want)
            assert got.stride() == want.stride()


class _Counted(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (torch.arange(3) + x.shape[1])[None].repeat(2, 1)


def test_values_may_depend_on_a_size_alone() -> None:
    fast = fx.optimize(_Counted(), ((2, _T),), rounds=0, progress=False)
    for size in (1, 7, 32):
        x = torch.randn(2, size)
        torch.testing.assert_close(fast(x), _Counted()(x), rtol=0, atol=0)


@pytest.mark.parametrize("size", [1, 5])
def test_a_dimension_may_have_one_size(size: int) -> None:
    model = torch.nn.Linear(8, 24).eval()
    fast = fx.optimize(model, ((2, fx.Dim("T", [size]), 8),), rounds=0, progress=False)
    x = torch.randn(2, size, 8)
    torch.testing.assert_close(fast(x), model(x).detach(), rtol=1e-4, atol=1e-5)
    with pytest.raises(InputMismatch, match=f"T is {size + 1} .*{size} to {size}"):
        fast(torch.randn(2, size + 1, 8))


class _Branching(torch.nn.Module):
    """A model that computes something else where a condition on its two sizes holds."""

    def __init__(self, condition: Callable[[int, int], bool]) -> None:
        super().__init__()
        self.condition = condition

    def forward(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        scores = queries @ keys.transpose(0, 1)
        return scores * 2 if self.condition(queries.shape[0], keys.shape[0]) else scores


@pytest.mark.parametrize(
    ("condition", "least", "words"),
    [
        (lambda t, s: t == 1 < s, 1, r"at T = 1, S = \d"),
        (lambda t, s: t > s, 1, r"at T = \d, S = \d"),
        (lambda t, s: t == s, 8, "at T = 8, S = 8"),
    ],
    ids=["one query", "more queries than keys", "as many"],
)
def test_branches_that_the_export_did_not_take_are_noticed(
    condition: Callable[[int, int], bool], least: int, words: str
) -> None:
    """torch.export takes sizes as larger than 1, and forgets conditions on several sizes."""
    t, s = fx.Dim("T", range(1, 17)), fx.Dim("S", range(least, 33))
    with pytest.raises(VerificationFailed, match=words + r"\); there, .*\bbranch\. leave .*`optimized`\.$"):
        fx.optimize(_Branching(condition), ((t, 8), (s, 8)), rounds=0, progress=False)


def test_errors_without_a_branch_are_to_be_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Verification(1.0, "float64", Verdict.WRONG, "output is off")
    monkeypatch.setattr(optimize, "max_relative_error", lambda *_, **__: wrong)
    shapes = ((fx.Dim("T", range(1, 17)), 8), (fx.Dim("S", range(1, 33)), 8))
    with pytest.raises(VerificationFailed, match=r"off \(at T = 1, S = 1\)\. .*please report") as raised:
        fx.optimize(_Branching(lambda *_: False), shapes, rounds=0, progress=False)
    assert raised.value.optimized is not None


class _Picked(torch.nn.Module):
    def forward(self, x: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x[i, j], x[:, j], x[..., j, i], x.gather(1, j.abs()[:, None, None].expand(-1, -1, 8))


def test_indices_of_dynamic_axes_count_from_the_end() -> None:
    example = torch.tensor([0, 1])
    examples = (torch.randn(2, 6, 8), example, example)
    sizes = ({1: fx.Dim("T", range(2, 33))}, None, None)
    fast = fx.optimize(_Picked(), examples, rounds=0, progress=False, dynamic_shapes=sizes)
    for size in (2, 7, 32):
        x, i, j = torch.randn(2, size, 8), torch.tensor([1, -2]), torch.tensor([-1, size - 2])
        for got, want in zip(fast(x, i, j), _Picked()(x, i, j), strict=True):
            torch.testing.assert_close(got, want, rtol=0, atol=0)


class _Even(torch.nn.Module):
    """A model that torch.export takes for an even number of rows only."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(-1, 2, 4).sum(1) if x.shape[0] % 2 == 0 else x


def test_sizes_that_a_program_was_not_exported_for_raise(tmp_path: Path) -> None:
    """Only a program's own checks know of the condition, whose other branch is not in it."""
    program = torch.export.export(_Even(), (torch.randn(6, 4),), dynamic_shapes=({0: torch.export.Dim.AUTO(max=20)},))
    fast = fx.optimize(program, rounds=0, progress=False)
    fast.save(tmp_path / "model.fx")
    for model in (fast, fx.load(tmp_path / "model.fx")):
        for size in (2, 4, 20):
            x = torch.randn(size, 4)
            torch.testing.assert_close(model(x), _Even()(x))
        with pytest.raises(InputMismatch, match=r"exported for sizes with .* % 2.* == 0, but got \w+ = 5"):
            model(torch.randn(5, 4))


class _Ranges(torch.nn.Module):
    """Ranges that end at a size, slices that begin at one, and dimensions that a squeeze keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(64, 8))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        size = x.shape[1]
        falling = torch.arange(size - 1, -1, -1)
        return (
            x + falling[:, None],
            x + self.table[-size:],
            x.squeeze(0),
            x[..., :1].squeeze(),
            torch.arange(size, 0, -1),
        )


def test_ranges_slices_and_squeezes_follow_a_size() -> None:
    model = _Ranges().eval()
    batch = fx.Dim("B", range(2, 5))
    fast = fx.optimize(model, ((batch, fx.Dim("T", range(2, 33)), 8),), rounds=0, progress=False)
    for size in (2, 5, 32):
        x = torch.randn(3, size, 8)
        for got, want in zip(fast(x), model(x), strict=True):
            torch.testing.assert_close(got, want.detach())
