"""Sides report what they used and how they failed; their answers are compared with the original in float64."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from felixlike.bench.answers import Reference, packed, unpacked
from felixlike.bench.networks import bert, mlp
from felixlike.bench.openvino import _precision
from felixlike.bench.sides import (
    EAGER,
    ONNX,
    ONNX_FUSED,
    OPENVINO,
    OPENVINO_BFLOAT16,
    OPENVINO_DEFAULT,
    ZENTORCH,
    Facts,
    Prepared,
    baselines,
    loaded,
    sides_of,
)
from felixlike.hardware import placement
from felixlike.measure.sides.processes import Loaded, Side, SideFailed, Sides

WITHOUT_OPENVINO = "OpenVINO is optional: pip install 'felixlike[bench]'"
WITHOUT_ONNX_RUNTIME = "ONNX Runtime is optional: pip install 'felixlike[bench]'"


def _prepared(threads: int = 0, precision: str = "float32") -> Callable[[nn.Module, tuple[Tensor, ...]], Prepared]:
    def prepare(model: nn.Module, inputs: tuple[Tensor, ...]) -> Prepared:
        back = (precision, threads or placement.threads())
        return Prepared(lambda: {"y": model(*inputs)}, "some settings", lambda: back)

    return prepare


def test_a_side_reports_what_it_used() -> None:
    facts: Facts = loaded("torch", _prepared(precision="bfloat16"), mlp).facts
    assert facts.version == f"torch {torch.__version__}"
    assert (facts.settings, facts.precision, facts.threads) == ("some settings", "bfloat16", placement.threads())
    assert facts.seconds > 0
    assert [tensor.shape for tensor in unpacked(facts.answer)] == [(8, 10)]


def test_sides_compute_in_the_precision_of_the_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch gets the model in bfloat16. Its answer is compared with the model in float64."""
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "highest")  # other tests may have changed it
    side = baselines(mlp, [EAGER], "bfloat16")[EAGER]()
    assert isinstance(side, Loaded)
    facts: Facts = side.facts
    (answer,) = unpacked(facts.answer)
    assert (facts.precision, answer.dtype) == ("bfloat16", torch.bfloat16)
    judged = Reference(*mlp(), wide=True).judge([answer], facts.precision)
    assert 1e-4 < judged.error < 5e-2
    assert not judged.wrong
    assert OPENVINO_BFLOAT16 in sides_of("bfloat16")
    assert not {OPENVINO, OPENVINO_DEFAULT} & set(sides_of("bfloat16"))
    assert {OPENVINO, OPENVINO_DEFAULT} <= set(sides_of("float32")) - {OPENVINO_BFLOAT16}


def test_a_side_with_other_threads_is_refused() -> None:
    with pytest.raises(SideFailed, match=rf"it uses 77 threads instead of {placement.threads()}"):
        loaded("torch", _prepared(threads=77), mlp)


def test_a_missing_package_is_named_in_a_sentence() -> None:
    def prepare(*_: Any) -> Prepared:
        raise ModuleNotFoundError("No module named 'rival'", name="rival")

    with pytest.raises(SideFailed, match=r"^rival is not installed$"):
        loaded("rival", prepare, mlp)


def test_a_rival_of_another_version_is_named_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "openvino.py").write_text('__version__ = "2022.1-12-abc"')
    monkeypatch.syspath_prepend(str(tmp_path))
    with Side() as side, pytest.raises(SideFailed, match=r"AttributeError: .*convert_model.* \(openvino 2022\.1\)$"):
        side.load(baselines(mlp, [OPENVINO])[OPENVINO])


def test_zentorch_is_refused_where_it_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    with pytest.raises(SideFailed, match=r"only for CPUs with AVX-512, and this one has AVX2$"):
        baselines(mlp, [ZENTORCH])[ZENTORCH]()


def test_precision_is_lowered_openly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "medium")
    make = baselines(mlp, [EAGER])[EAGER]
    assert make().facts.precision == "float32, products medium"  # type: ignore[union-attr]


def test_precision_of_openvino_is_that_of_what_computes() -> None:
    def graph(*operators: tuple[str, str]) -> Any:
        def about(kind: str, precision: str) -> Any:
            values = {"layerType": SimpleNamespace(astype=lambda _: kind)}
            return {**values, "runtimePrecision": SimpleNamespace(astype=lambda _: precision)}

        nodes = [SimpleNamespace(get_rt_info=lambda o=operator: about(*o)) for operator in operators]
        return SimpleNamespace(get_ordered_ops=lambda: nodes)

    plain = (("Input", "bf16"), ("Reorder", "bf16"), ("Gather", "i32"), ("Eltwise", "u8"))
    assert _precision(graph(*plain, ("MatMul", "f32")), "bf16") == "float32"
    assert _precision(graph(("MatMul", "bf16"), ("Softmax", "f32")), "bf16") == "bfloat16 and float32"
    assert _precision(graph(("FullyConnected", "i8")), "f32") == "int8"
    assert _precision(graph(*plain), "bf16") == "integers"
    assert _precision(graph(("Subgraph", "f32")), "bf16") == "bfloat16 and float32"  # products inside tell nothing
    assert _precision(graph(("Subgraph", "f32")), "f32") == "float32"


def test_caches_of_a_side_are_its_own(tmp_path: Path) -> None:
    with Sides(tmp_path) as sides:
        times = sides.compare({"a, b": _cache_variable}, seconds_a_side=0.01, slot=0.001)
        assert sides.facts["a, b"] == str(tmp_path / "a-b" / "cache")
        assert sides.start("a", _cache_variable) == str(tmp_path / "a" / "cache")
        assert set(times) == {"a, b"}


def _cache_variable() -> Any:
    import os

    from felixlike.measure.sides.processes import Loaded

    return Loaded(int, os.environ["XDG_CACHE_HOME"])


class Scores(nn.Module):
    """A model with two outputs."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.softmax(-1), x.argmax(-1)


def test_answers_are_judged_by_their_precision() -> None:
    torch.manual_seed(0)
    x = torch.randn(8, 64)
    reference = Reference(Scores(), (x,), wide=True)
    right, places = Scores()(x)
    judged = reference.judge(unpacked(packed((right.numpy(), places))), "float32")
    assert judged.error < 1e-6
    assert not judged.wrong
    rounded = right.bfloat16().float()
    assert "output 0" in reference.judge([rounded, places], "float32").wrong
    assert not reference.judge([rounded, places], "bfloat16 and float32").wrong
    assert "output 0" in reference.judge([right + 1, places], "bfloat16").wrong
    assert "expected 2 outputs, got 1" in reference.judge([right], "float32").wrong


@pytest.mark.parametrize("name", [OPENVINO, OPENVINO_DEFAULT])
def test_openvino_is_right(name: str) -> None:
    pytest.importorskip("openvino", reason=WITHOUT_OPENVINO)
    facts = _facts(name, mlp)
    assert "LATENCY" in facts.settings
    assert name == OPENVINO_DEFAULT or facts.precision == "float32"
    assert not Reference(*mlp(), wide=True).judge(unpacked(facts.answer), facts.precision).wrong


def test_openvino_keeps_its_inputs() -> None:
    pytest.importorskip("openvino", reason=WITHOUT_OPENVINO)
    with Side() as side:
        side.load(baselines(lambda: (nn.AvgPool2d(8), (torch.randn(16, 3, 256, 256),)), [OPENVINO])[OPENVINO])
        assert len(side.times(3)) == 3


def test_onnx_runtime_is_right() -> None:
    pytest.importorskip("onnxruntime", reason=WITHOUT_ONNX_RUNTIME)
    reference = Reference(*bert(), wide=True)
    for name in (ONNX, ONNX_FUSED):
        facts = _facts(name, bert)
        assert facts.precision == "float32"
        assert ("LayerNormalization" in facts.settings) == (name == ONNX_FUSED)
        assert not reference.judge(unpacked(facts.answer), facts.precision).wrong
    with pytest.raises(SideFailed, match="nothing to fuse"):
        _facts(ONNX_FUSED, mlp)


def _facts(name: str, make: Callable[[], Any]) -> Facts:
    with Side() as side:
        facts: Facts = side.load(baselines(make, [name])[name])
    assert facts.threads == placement.threads()
    assert facts.version.split(" ")[1] == sys.modules[facts.version.split(" ")[0]].__version__.partition("-")[0]
    return facts
