"""Tests for `felixlike bench networks` on the smallest network, and for its page."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from felixlike.bench import page, whole
from felixlike.bench.networks import NETWORKS, SMALL, Llama
from felixlike.bench.sides import CHANNELS_LAST, COMPILED, EAGER, ONNX, UNTUNED
from felixlike.cli import main


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
        (["vgg"], "there is no network 'vgg'"),
        (["lstn"], "did you mean 'lstm'"),
        (["mlp", "--batch", "0"], "expected batch to be an integer ≥ 1, got 0"),
        (["mlp", "--seconds", "-1"], "seconds to be a number of seconds ≥ 0, got -1"),
        (["mlp", "--against", "eager,tensorflow"], "'tensorflow' is no side"),
        (["mlp", "--output", "nowhere/networks.json"], "there is no directory"),
    ],
)
def test_wrong_arguments_are_refused(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "networks", *arguments]) == 1
    assert words in " ".join(capsys.readouterr().err.split())


def test_a_file_with_other_content_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "other.json"
    file.write_text('{"rows": 1}')
    assert main(["bench", "networks", "mlp", "--output", str(file)]) == 1
    assert "holds something else" in capsys.readouterr().err
    assert file.read_text() == '{"rows": 1}'


def test_the_page_lists_failed_sides_and_warnings() -> None:
    failed = _row("lstm", without={ONNX: "ModuleNotFoundError: No module named 'onnxruntime'"})
    del failed[ONNX], failed["mean"][ONNX]
    old = {"network": "bert", EAGER: 2e-3, "tuned": 1e-3, "error": 1e-7, "trials": 9}
    old |= {"tuning_seconds": 9.0, "total_seconds": 9.5, UNTUNED: 0.1}
    text = page.text([_row("dcgan", 16, warnings=["it was not verified"]), failed, old], "picture.svg")
    lines = {line.split(" | ")[0]: line for line in text.splitlines() if line.startswith("| ")}
    assert "| 2 / 2.2* | 3 / 3.3 | 1.5 / 1.65 | 1 / 1.1 | **1.50** | 0.90 |" in lines["| dcgan"]
    assert "| failed | 1 / 1.1 | **2.00** |" in lines["| lstm"]
    assert "| 1 | 2 | – | – | 1 | **2.00** | – |" in lines["| bert"]
    assert "geometric mean: **1.82**" in text
    assert "the least 1.50" in text
    assert "Untuned TVM ÷ tuned, geometric mean: **100.0**" in text
    assert "- lstm: ONNX Runtime does not work here (ModuleNotFoundError" in text
    assert "- dcgan, 16: it was not verified" in text


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
