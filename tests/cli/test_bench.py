"""`felixlike bench` measures the smallest network and a user's model, and its page shows what sides used."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch

from felixlike.bench import page, whole
from felixlike.bench.answers import Reference, unpacked
from felixlike.bench.given import given
from felixlike.bench.networks import NETWORKS, SMALL, Llama
from felixlike.bench.sides import (
    CHANNELS_LAST,
    COMPILED,
    COMPILED_BEST,
    EAGER,
    ONNX,
    ONNX_FUSED,
    OPENVINO,
    OPENVINO_BFLOAT16,
    OPENVINO_DEFAULT,
    TUNED,
    UNTUNED,
    ZENTORCH,
    ZERO_SHOT,
    _eager,
    loaded,
)
from felixlike.cli import main
from felixlike.errors import InvalidModel
from felixlike.measure.sides.processes import SideFailed


def _row(name: str, batch: int = 1, **more: Any) -> dict[str, Any]:
    seconds = {EAGER: 4e-3, CHANNELS_LAST: 2e-3, COMPILED: 3e-3, ONNX: 1.5e-3, "tuned": 1e-3}
    mean = {side: 1.1 * value for side, value in seconds.items()}
    row: dict[str, Any] = {"network": name, "batch": batch, "error": 1e-6, "trials": 3, "kernels": 9e-4, "mean": mean}
    return {**row, **seconds, "tuning_seconds": 20.0, "total_seconds": 22.0, "without": {}, "warnings": [], **more}


def test_a_network_is_measured_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "networks.json"
    arguments = ["bench", "networks", "mlp", "--batch", "4", "--seconds", "0.1", "--output", str(file)]
    assert main([*arguments, "--against", "eager", "--quiet"]) == 0
    (machine,) = json.loads(file.read_text())["machines"]
    (row,) = machine["data"]["rows"]
    assert (row["network"], row["batch"], row["limit"]) == ("mlp", 4, 0.1)
    assert row[EAGER] > 0
    assert row["tuned"] > 0
    assert row["error"] < 1e-5
    assert set(row["startup"]) == {EAGER, TUNED}
    assert all(len(seconds) == 2 and min(seconds) > 0 for seconds in row["startup"].values())
    assert set(row["precision"].values()) == {"float32"}
    assert max(row["errors"].values()) < 1e-5
    assert row["settings"][TUNED] == "from its file"
    assert row["without"] == row["wrong"] == {}
    assert {task["how"] for task in row["tasks"]} <= {"unmeasured", "measured", "checked", "untuned"}
    assert sum(task["calls"] for task in row["tasks"]) >= 2
    assert "| mlp | 4 |" in file.with_suffix(".md").read_text()
    assert (tmp_path / f"networks-{machine['mcpu']}.svg").exists()
    before = file.read_bytes()
    assert main(arguments) == 0  # existing rows are not measured again
    assert file.read_bytes() == before
    assert "| mlp | 4 |" in capsys.readouterr().out


def test_a_failing_network_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(name: str, batch: int, seconds: float, **_: Any) -> dict[str, Any]:
        if name == "llama":
            raise MemoryError("it is too large")
        return _row(name, batch, limit=seconds)

    monkeypatch.setattr(whole, "measure", measure)
    file = tmp_path / "networks.json"
    assert main(["bench", "networks", "--batch", "1", "--batch", "16", "--output", str(file), "--quiet"]) == 1
    rows = json.loads(file.read_text())["machines"][0]["data"]["rows"]
    others = [name for name in NETWORKS if name != "llama"]
    assert [(row["network"], row["batch"]) for row in rows] == [(n, b) for b in (1, 16) for n in others]
    assert "llama, batch 16: MemoryError: it is too large" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["alexnet"], "network 'alexnet'"),
        (["lstn"], "did you mean 'lstm'"),
        (["mlp", "--batch", "0"], r"batch.* 0\b"),
        (["mlp", "--seconds", "-1"], "seconds.* -1"),
        (["mlp", "--precision", "tf32"], "precision.*'tf32'"),
        (["mlp", "--against", "eager,tensorflow"], "--against: .*'tensorflow'"),
        (["mlp", "--output", "nowhere/networks.json"], "nowhere/networks.json: "),
        (["--shape", "x=1x2"], "--shape is for a model of yours"),
        (["--curves", "--precision", "bfloat16"], "--precision does not go with --curves"),
        (["--seeds", "0"], "--seeds is for --curves"),
    ],
)
def test_wrong_arguments_are_refused(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "networks", *arguments]) == 1
    assert re.search(words, " ".join(capsys.readouterr().err.split()))


def test_a_file_with_other_content_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "other.json"
    file.write_text('{"rows": 1}')
    assert main(["bench", "networks", "mlp", "--output", str(file)]) == 1
    assert f"felixlike: {file}: " in capsys.readouterr().err
    assert file.read_text() == '{"rows": 1}'


def test_the_page_lists_failed_sides_and_warnings() -> None:
    failed = _row("lstm", without={ONNX: "onnxruntime is not installed"})
    del failed[ONNX], failed["mean"][ONNX]
    old = {"network": "bert", EAGER: 2e-3, "tuned": 1e-3, "error": 1e-7, "trials": 9}
    old |= {"tuning_seconds": 9.0, "total_seconds": 9.5, UNTUNED: 0.1}
    text = page.text([_row("dcgan", 16, warnings=["it was not verified"]), failed, old], "picture.svg")
    lines = {line.split(" | ")[0]: line for line in text.splitlines() if line.startswith("| ")}
    assert "| 2 / 2.2* | 3 / 3.3 | 1.5 / 1.65 | 1 / 1.1 | **1.50** | 0.90 |" in lines["| dcgan"]
    assert not any(name in text for name in (OPENVINO, ZENTORCH, "first answer"))
    assert "| failed | 1 / 1.1 | **2.00** |" in lines["| lstm"]
    assert "| 1 | 2 | – | – | 1 | **2.00** | – |" in lines["| bert"]
    assert "geometric mean: **1.82**" in text
    assert "minimum 1.50" in text
    assert "Untuned TVM ÷ tuned, geometric mean: **100.0**" in text
    assert "- ONNX Runtime does not work here (onnxruntime is not installed): lstm." in text
    assert "- dcgan, 16: it was not verified" in text


def _compared(**more: Any) -> dict[str, Any]:
    """Return a row in which OpenVINO is faster by bfloat16, and one side of ONNX Runtime by a wrong answer."""
    seconds: dict[str, Any] = {
        ONNX_FUSED: 1e-4,
        OPENVINO: 1.2e-3,
        OPENVINO_DEFAULT: 5e-4,
        COMPILED_BEST: 2.5e-3,
        ZERO_SHOT: 1.5e-3,
    }
    sides = [*seconds, EAGER, CHANNELS_LAST, COMPILED, ONNX, TUNED]
    wrong = {ONNX_FUSED: "output 0 is off"}
    row = _row("bert_base", **{**seconds, "threads": 2, "wrong": wrong, **more})
    row["precision"] = dict.fromkeys(sides, "float32") | {OPENVINO_DEFAULT: "bfloat16 and float32"}
    row["errors"] = dict.fromkeys(sides, 2e-7) | {OPENVINO_DEFAULT: 3e-3, ONNX_FUSED: 0.5}
    row["settings"], row["version"] = dict.fromkeys(sides, "its best"), dict.fromkeys(sides, "package 1.0")
    row["startup"] = {side: [2.0, 1.0] for side in sides} | {ZERO_SHOT: [129.6, 6.25]}
    return row


def test_only_equal_precision_and_right_answers_count() -> None:
    row = _compared()
    assert page.ratio(row) == pytest.approx(1.2)
    text = page.text([row])
    cells = "| 2 / 2.2* | 2.5* | 1.5 / 1.65 | 1.2 | 0.5 (bfloat16 and float32) | 1 / 1.1 | **1.20** |"
    assert f"| bert_base | 1 {cells}" in text
    assert "float32, 5.0e-01 (wrong)" in text
    assert "bfloat16 and float32, 3.0e-03" in text
    assert "| 2 / 1 | 130 / 6.2 | 2 / 1 | 1.5 |" in text
    assert "- OpenVINO default: package 1.0, its best, threads: 2." in text
    assert "- bert_base: the answer of ONNX Runtime, fused is wrong (output 0 is off)." in text
    wrong = _compared(**{ONNX: 2e-4})
    wrong["wrong"][ONNX] = "it is off"
    assert "| 0.1* (wrong) |" in page.text([wrong])


def test_rows_of_each_precision_have_a_table() -> None:
    """In bfloat16, sides count that compute a part in it; ONNX Runtime's float32 is shown with its name."""
    row = _compared(**{OPENVINO_BFLOAT16: 8e-4, "products": "bfloat16"})
    row["precision"] |= {EAGER: "bfloat16", OPENVINO_BFLOAT16: "bfloat16", TUNED: "bfloat16 and float32"}
    del row[OPENVINO_DEFAULT], row[OPENVINO]
    assert page.ratio(row) == pytest.approx(0.8)
    assert "At bfloat16 and float32, OpenVINO bfloat16 is the fastest" in page.verdict(row)
    assert "## " not in page.text([row])
    single, half = page.text([row, _compared()], "picture.svg").split("## Products in bfloat16")
    assert single.startswith("## Products in float32")
    assert ("picture.svg" in single, "picture.svg" in half) == (True, False)
    assert "OpenVINO bfloat16" not in single
    assert "1.5 / 1.65 (float32) | 0.8 |" in half
    assert [page.products(r) for r in (row, _row("lstm"))] == ["bfloat16", "float32"]


def test_the_verdict_names_the_fastest_side_of_each_precision() -> None:
    assert page.verdict(_compared()) == (
        "At float32, tuned is the fastest (1 ms per call, 1.20 times as fast as OpenVINO float32); "
        "at bfloat16 and float32, OpenVINO default is the only side (0.5 ms per call)."
    )
    sentence = page.verdict(_compared(tuned=3e-3))
    assert "At float32, OpenVINO float32 is the fastest (1.2 ms per call, 1.25 times as fast as ONNX" in sentence


MODEL = """
import torch
from torch import nn

class Scaled(nn.Module):
    def forward(self, x, *, scale):
        return {"y": torch.relu(x) * scale["s"]}

class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.count.add_(1)
        return x * self.count

def scaled():
    return Scaled(), {"x": torch.ones(2, 4), "scale": {"s": torch.full((4,), 3.0)}}

def counter():
    return Counter(), (torch.ones(4),)
"""


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    file = tmp_path / "my_model.py"
    file.write_text(MODEL)
    return file


@pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning")  # by PyTorch, when its own class is read
def test_a_users_model_is_compared(
    model_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = model_file.with_suffix(".json")

    def compared(make: Any, name: str, seconds: float, *, against: Any, **_: Any) -> dict[str, Any]:
        model, inputs = cloudpickle.loads(cloudpickle.dumps(make))()  # as sides receive it
        (y,) = model(*inputs)
        assert not model.training
        assert (y == 3).all()
        assert (seconds, against) == (2.0, (COMPILED, COMPILED_BEST, OPENVINO, OPENVINO_DEFAULT))
        row = _compared(limit=seconds)
        del row["network"]
        return row

    monkeypatch.setattr(whole, "compared", compared)
    arguments = ["bench", f"{model_file}:scaled", "--seconds", "2", "--against", "compile,openvino"]
    assert main(arguments) == 0
    assert capsys.readouterr().out.rstrip().endswith("OpenVINO default is the only side (0.5 ms per call).")
    assert not output.exists()
    for _ in range(2):  # a model may have changed, so it is measured again
        assert main([*arguments, "--output", str(output), "--quiet"]) == 0
        (row,) = json.loads(output.read_text())["machines"][0]["data"]["rows"]
        assert row["network"] == f"{model_file}:scaled"


@pytest.mark.parametrize(
    ("model", "arguments", "words"),
    [
        ("counter", [], "change its inputs or buffers"),
        ("scaled", ["--batch", "2"], "--batch is for networks"),
        ("scaled", ["resnet18"], "resnet18 is for networks"),
        ("sclaed", [], "did you mean 'scaled'"),
    ],
)
def test_models_that_cannot_be_compared_are_refused(
    model: str, arguments: list[str], words: str, model_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", f"{model_file}:{model}", *arguments]) == 1
    assert words in " ".join(capsys.readouterr().err.split())


def test_exported_programs_are_sent_to_sides() -> None:
    program = torch.export.export(torch.nn.Linear(4, 4).eval(), (torch.ones(2, 4),))
    name, make = given(program)
    facts = loaded("torch", _eager, cloudpickle.loads(cloudpickle.dumps(make))).facts
    assert name
    assert not Reference(*make(), wide=True).judge(unpacked(facts.answer), facts.precision).wrong


def test_a_tuned_model_that_cannot_be_called_is_reported(
    model_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def compared(*_: Any, **__: Any) -> dict[str, Any]:
        raise SideFailed("Scaled: the tuned model cannot be called: its process died")

    monkeypatch.setattr(whole, "compared", compared)
    assert main(["bench", f"{model_file}:scaled"]) == 1
    assert "felixlike: Scaled: the tuned model cannot be called: its process died" in capsys.readouterr().err


def test_models_without_pytorch_are_refused() -> None:
    from felixlike._tvm import relax

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.add(x, x)))
    with pytest.raises(InvalidModel, match="only models of PyTorch can be compared"):
        given(builder.get())


def test_the_picture_has_a_bar_for_each_side(tmp_path: Path) -> None:
    picture = tmp_path / "networks.svg"
    assert page.draw([_row("dcgan"), _row("lstm")], picture)
    parser = HTMLParser()
    parser.feed(picture.read_text())
    assert picture.read_text().count("<path") > 6


@pytest.mark.parametrize("name", [*NETWORKS, *SMALL])
def test_networks_run_with_a_batch_of_three(name: str) -> None:
    small: dict[str, dict[str, int]] = {
        "resnet50": {"size": 32},
        "resnet18": {"size": 32},
        "mobilenet_v2": {"size": 32},
        "r3d_18": {"frames": 4, "size": 16},
        "dcgan": {"width": 32},
        "vit_b16": {"layers": 1, "size": 32},
        "llama": {"layers": 2, "hidden": 256},
        "gpt2": {"layers": 1},
        "lstm": {"wide": 8, "steps": 3},
        "bert": {"layers": 1, "hidden": 32},
        "bert_base": {"layers": 1},
        "whisper_encoder": {"layers": 1},
        "unet": {"size": 32, "channels": 4},
        "gru_tagger": {"wide": 8, "length": 5},
        "vgg16": {"size": 32, "wide": 8},
        "squeezenet": {"size": 64},
    }
    model, inputs = (NETWORKS | SMALL)[name](batch=3, **small.get(name, {}))
    assert not model.training
    output = model(*inputs)
    assert output.shape[0] == 3
    assert bool(output.isfinite().all())


def test_llama_attention_is_causal() -> None:
    model, (x,) = NETWORKS["llama"](layers=1, hidden=128)
    assert isinstance(model, Llama)
    changed = x.clone()
    changed[:, 60:] += 1
    same = (model(x) == model(changed)).all(-1)[0]
    assert bool(same[:60].all())
    assert not bool(same[60:].any())
