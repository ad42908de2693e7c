"""Tests for models with nested, optional or non-tensor inputs: compiling, comparing, saving and calling them."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.models import Apply
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel, T5Config, T5ForConditionalGeneration

import felixlike as fx
from felixlike.errors import ExportFailed, InputMismatch, InvalidArtefact, InvalidModel, InvalidOption, InvalidShape
from felixlike.frontend import import_model
from felixlike.runtime import Compiled, artefact_description, compile_model, from_bytes, max_relative_error, to_bytes

X, Y, Z = (torch.randn(3, 4, generator=torch.Generator().manual_seed(seed)) for seed in range(3))
SEQUENCE, HIDDEN, CELL = torch.randn(3, 2, 4), torch.randn(2, 4), torch.randn(2, 4)


MODEL = nn.Linear(4, 4)


class Recurrent(nn.Module):
    """A model with the inputs of torch's recurrent networks."""

    def forward(self, x: Tensor, hx: tuple[Tensor, Tensor]) -> Any:
        hidden, cell = hx
        return x.relu() + hidden, (hidden * 2, cell.exp())


class Mixed(nn.Module):
    """A model whose result changes differently with each argument, so that mixed-up arguments are noticed."""

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        scale: Any = 1.0,
        *,
        flag: bool = True,
        mode: str = "a",
        **more: Any,
    ) -> dict[str, Tensor]:
        x = x.relu() * scale + (3.0 if mode == "a" else 7.0)
        if mask is not None:
            x = x - mask.exp()
        if more:
            x = x + more["extra"]["y"][0] * 5
        return {"x": x if flag else x * 2}


def compiled_and_loaded(model: Any, shapes: Any, *, error: float = 1e-5) -> tuple[Compiled, Compiled]:
    """Compile a model, verify it, and return it with its copy loaded from bytes."""
    imported = import_model(model, shapes)
    compiled = compile_model(imported)
    assert max_relative_error(compiled, model, imported.examples).error < error
    again, _ = from_bytes(to_bytes(compiled, report={}))
    assert again.signature == compiled.signature
    assert again.as_python() == compiled.as_python()
    return compiled, again


@pytest.mark.parametrize(
    ("examples", "calls"),
    [
        ({"x": X, "scale": Z}, [((X,), {"scale": Z}), ((X, None, Z), {"flag": True, "mode": "a"})]),
        ((X, None, Z), [((X, None, Z), {}), ((X,), {"scale": Z}), ((X,), {"scale": Z, "mask": None})]),
        ((X, Y, 2.5), [((X, Y, 2.5), {}), ((), {"mask": Y, "x": X, "scale": 2.5})]),
        (
            {"extra": {"y": [Y]}, "x": X, "flag": False, "mode": "b"},
            [((X,), {"extra": {"y": [Y]}, "flag": False, "mode": "b"})],
        ),
        (
            {"x": X.numpy(), "mask": Y.double().numpy(), "scale": np.float64(2)},
            [((X, Y.double(), 2.0), {})],
        ),
    ],
)
def test_arguments_of_every_kind(examples: Any, calls: Any) -> None:
    for call in compiled_and_loaded(Mixed(), examples):
        for args, kwargs in calls:
            torch.testing.assert_close(call(*args, **kwargs), Mixed()(*args, **kwargs))


def test_descriptions_with_nan_are_compared_as_text() -> None:
    """Python's NaN is not equal to itself, and in lists it is equal to the same object only."""
    description = '{"constants": [NaN, {"a": 1, "b": NaN}], "fill": NaN}'
    artefact_description.compare(
        {"fill": float("nan"), "constants": [float("nan"), {"b": float("nan"), "a": 1}]}, description, "file"
    )
    with pytest.raises(InvalidArtefact, match=r"fill is 0\.0, .*code.* NaN"):
        artefact_description.compare(
            {"fill": 0.0, "constants": [float("nan"), {"a": 1, "b": float("nan")}]}, description, "file"
        )


@pytest.mark.skipif(torch.__version__ < "2.13", reason="torch.export before 2.13 fails on a constant input that is NaN")
def test_constants_may_be_nan() -> None:

    class Unknown(nn.Module):
        def forward(self, x: Tensor, fill: float = 0.0) -> Tensor:
            return x + 1 if fill != fill else x

    compiled = compile_model(import_model(Unknown(), {"x": X, "fill": float("nan")}))
    again, _ = from_bytes(to_bytes(compiled, report={}))
    for call in (compiled, again):
        torch.testing.assert_close(call(X, float("nan")), X + 1)
        with pytest.raises(InputMismatch, match=r"'fill'.*1\.0.*fill=nan"):
            call(X, 1.0)


def test_constants_may_be_left_out() -> None:
    compiled, again = compiled_and_loaded(Mixed(), {"x": X, "scale": 2.5, "flag": False})
    for call in (compiled, again):
        torch.testing.assert_close(call(X), Mixed()(X, scale=2.5, flag=False))
        with pytest.raises(InputMismatch, match=r"Mixed: .*'flag'.*True.*flag=False"):
            call(X, flag=True)
    assert str(compiled.as_python()) == "(x: 'float32[3, 4]', mask=None, scale=2.5, *, flag=False, mode='a')"


def test_a_state_in_a_tuple(tmp_path: Path) -> None:
    model = Recurrent()
    fast = fx.optimize(model, example_inputs=(SEQUENCE, (HIDDEN, CELL)), rounds=0, progress=False)
    assert fast.report.error < 1e-5
    assert fast.report.reference == "float64"
    assert [spec.name for spec in fast.inputs] == ["x", "hx[0]", "hx[1]"]
    fast.save(tmp_path / "recurrent.flx")
    want = model(SEQUENCE, (HIDDEN, CELL))
    module = fast.module()
    callables = (
        fast,
        fx.load(tmp_path / "recurrent.flx"),
        copy.deepcopy(fast),
        pickle.loads(pickle.dumps(fast)),
        module,
    )
    for call in callables:
        torch.testing.assert_close(call(SEQUENCE, (HIDDEN, CELL)), want)
        torch.testing.assert_close(call(SEQUENCE, hx=[HIDDEN, CELL]), want)
    with pytest.raises(InputMismatch, match=r"Recurrent: .*hx\[1\].* \(3, 2, 4\), .* \(2, 4\)"):
        fast(SEQUENCE, (HIDDEN, SEQUENCE))
    with pytest.raises(InputMismatch, match=r"'x'.* ndarray.*torch\.from_numpy\(x\)"):
        fast(SEQUENCE.numpy(), (HIDDEN, CELL))


class Outer(nn.Module):
    """A model that calls a model with a nested input."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor, y: Tensor) -> Any:
        return self.inner(x, extra={"y": [y]}, flag=True)["x"] * 2


def test_under_torch_compile_export_and_vmap() -> None:
    fast = fx.optimize(Mixed(), {"x": X, "flag": True, "extra": {"y": (Y,)}}, rounds=0, progress=False)
    outer, want = Outer(fast.module()), Outer(Mixed())(X, Y)
    torch.compiler.reset()
    torch.testing.assert_close(torch.compile(outer, backend="aot_eager", fullgraph=True)(X, Y), want)
    torch.testing.assert_close(torch.export.export(outer, (X, Y)).module()(X, Y), want)
    batch = torch.vmap(lambda x: fast(x, extra={"y": [Y]})["x"])(torch.stack([X, Z]))
    torch.testing.assert_close(batch[1] * 2, Outer(Mixed())(Z, Y))


def small(kind: Any, config: Any) -> Any:
    torch.manual_seed(0)
    return kind(config).eval()


IDS, MASK = torch.randint(0, 50, (1, 6)), torch.tensor([[1, 1, 1, 1, 0, 0]])


def bert() -> Any:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    return small(BertModel, BertConfig(vocab_size=50, **sizes))


def gpt2() -> Any:
    return small(GPT2LMHeadModel, GPT2Config(vocab_size=50, n_embd=16, n_layer=1, n_head=2, n_positions=16))


def t5() -> Any:
    return small(
        T5ForConditionalGeneration, T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    )


@pytest.mark.parametrize(
    ("make", "examples", "left_out"),
    [
        (gpt2, {"input_ids": IDS, "attention_mask": MASK, "use_cache": False}, ["use_cache"]),
        (bert, {"token_type_ids": torch.ones_like(IDS), "input_ids": IDS, "return_dict": False}, ["return_dict"]),
        (t5, {"input_ids": IDS, "decoder_input_ids": IDS.flip(1), "use_cache": False}, ["use_cache"]),
    ],
)
def test_transformers(make: Any, examples: dict[str, Any], left_out: list[str]) -> None:
    model = make()
    imported = import_model(model, examples)
    compiled = compile_model(imported)
    assert max_relative_error(compiled, model, imported.examples).error < 1e-5
    with torch.no_grad():
        want = model(**examples)
    got = compiled(**{name: value for name, value in examples.items() if name not in left_out})
    assert type(got) is type(want)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_models_that_return_their_cache_are_refused() -> None:
    with pytest.raises(ExportFailed, match=r"DynamicCache.*use_cache=False"):
        import_model(gpt2(), {"input_ids": IDS})


def test_exported_programs_with_nested_inputs() -> None:
    program = torch.export.export(Mixed(), (X,), {"scale": 2.0, "mode": "b", "extra": {"y": [Y]}})
    compiled, again = compiled_and_loaded(program, None)
    want = Mixed()(X, scale=2.0, mode="b", extra={"y": [Y]})
    for call in (compiled, again):
        torch.testing.assert_close(call(X, extra={"y": [Y]}), want)
        torch.testing.assert_close(call(X, scale=2.0, mode="b", extra={"y": [Y]}), want)
    assert import_model(program, {"x": Z, "extra": {"y": [Y]}}).examples[0].data_ptr() == Z.data_ptr()
    with pytest.raises(InvalidShape, match=r"ExportedProgram: .*extra\['y'\].*tuple.*list"):
        import_model(program, {"x": Z, "extra": {"y": (Y, Y)}})
    with pytest.raises(InvalidShape, match=r"extra\['y'\]\[0\].*\(3, 4\).*\(2, 4\)"):
        import_model(program, {"x": Z, "extra": {"y": [Y[:2]]}})


def test_keywords_of_an_exported_program_are_passed_by_name() -> None:
    """The order of the program's keywords may differ from that of the model's parameters."""
    program = torch.export.export(Mixed(), (X,), {"scale": Z, "mask": Y})
    compiled, _ = compiled_and_loaded(program, None)
    torch.testing.assert_close(compiled(X, mask=Y, scale=Z), Mixed()(X, Y, Z))
    with pytest.raises(InputMismatch, match=r"at most 1\b"):
        compiled(X, Z, Y)


@dataclasses.dataclass
class Point:
    """A user's class that is registered with torch."""

    x: Tensor
    weight: int


torch.export.register_dataclass(Point, serialized_type_name="tests.Point")


def test_registered_dataclasses_as_inputs() -> None:
    compiled, again = compiled_and_loaded(Apply(lambda point: point.x.relu() * point.weight), (Point(X, 3),))
    for call in (compiled, again):
        torch.testing.assert_close(call(Point(X, 3)), X.relu() * 3)
        with pytest.raises(InputMismatch, match=r"weight.* 4.*weight=3"):
            call(Point(X, 4))


def test_fake_tensors_are_refused_where_values_are_needed() -> None:
    with FakeTensorMode():
        model, x = nn.Linear(4, 4), torch.ones(3, 4)
    with pytest.raises(InvalidModel, match=r"weight .*FakeTensor"):
        import_model(model, (3, 4))
    with pytest.raises(InvalidShape, match=r"FakeTensor.*\(3, 4\)"):
        import_model(nn.Linear(4, 4), x)
    with FakeTensorMode():
        assert len(fx.extract_tasks(MODEL, (3, 4))) == 1


def test_a_constant_that_is_returned() -> None:
    compiled = compile_model(import_model(Apply(lambda x, n: (x.relu(), n)), (X, 7)))
    assert compiled(X, 7)[1] == 7


def test_a_dictionary_as_the_only_input() -> None:
    model = Apply(lambda batch: batch["b"] * 2 + batch["a"])
    compiled, _ = compiled_and_loaded(model, ({"b": X, "a": Y},))
    torch.testing.assert_close(compiled({"a": Y, "b": X}), X * 2 + Y)

    class Batch(nn.Module):
        def forward(self, batch: dict[str, Tensor]) -> Tensor:
            return batch["a"].relu()

    with pytest.raises(InvalidShape, match=r"'a'.*batch"):
        import_model(Batch(), {"a": X})


@pytest.mark.filterwarnings("ignore:.torch.jit")
@pytest.mark.parametrize("make", ["trace", "script"])
def test_torchscript_is_refused(make: str) -> None:
    maker: Any = getattr(torch.jit, make)
    script = maker(nn.Linear(4, 4), X) if make == "trace" else maker(nn.Linear(4, 4))
    with pytest.raises(InvalidModel, match=r"TorchScript.*torch\.jit\.trace"):
        import_model(script, X)
    with pytest.raises(InvalidModel, match=r"Sequential: .*1.*TorchScript"):
        import_model(nn.Sequential(nn.ReLU(), script), X)


def test_shapes_and_example_inputs_exclude_each_other() -> None:
    model = nn.ReLU()
    assert len(fx.extract_tasks(model, example_inputs=X)) == 1
    with pytest.raises(InvalidOption, match=r"shapes.*example_inputs"):
        fx.optimize(model, X, example_inputs=X, progress=False)


def test_a_tilde_in_paths_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    torch.export.save(torch.export.export(nn.ReLU(), (X,)), tmp_path / "model.pt2")
    fast = fx.optimize("~/model.pt2", rounds=0, store="~/runs.sqlite", progress=False)
    fast.save("~/model.flx")
    assert torch.equal(fx.load("~/model.flx")(X), X.relu())
    assert {"model.pt2", "model.flx", "runs.sqlite"} <= {path.name for path in tmp_path.iterdir()}
    with pytest.raises(InvalidModel, match="no such file") as error:
        fx.extract_tasks(Path("~/other.pt2"))
    assert error.value.where == str(tmp_path / "other.pt2")
