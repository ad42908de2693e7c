"""Tests for models given as file.py:factory or module:factory, and for errors in the user's code."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from felixlike.cli import main
from felixlike.cli.model_file import model_from, named_from_anywhere
from felixlike.errors import InvalidModel


@pytest.fixture(autouse=True)
def _imports_of_its_own() -> Iterator[None]:
    modules, path = set(sys.modules), list(sys.path)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if "model" in name:
            del sys.modules[name]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "model.py"


GOOD = """
from __future__ import annotations
from dataclasses import dataclass
import torch

@dataclass
class Size:
    n: int = 4

class Net(torch.nn.Module):
    def forward(self, x):
        return x + 1

def alone(): return Net()
def with_inputs(): return Net(), (torch.zeros(Size().n),)
def defaults(n=3, *rest, **options): return Net()
"""


def test_factories_classes_and_inputs(file: Path) -> None:
    file.write_text(GOOD)
    assert isinstance(model_from(f"{file}:alone")[0], torch.nn.Module)
    model, (x,) = model_from(f"{file}:with_inputs")
    assert model(x).tolist() == [1.0] * 4
    assert model_from(f"{file}:Net")[1] is None
    assert isinstance(model_from(f"{file}:defaults")[0], torch.nn.Module)


def test_other_files_are_left_to_the_importer() -> None:
    assert model_from("model.onnx") == ("model.onnx", None)
    assert model_from("C:model.pt2") == ("C:model.pt2", None)


def test_a_file_with_a_module_s_name_does_not_replace_the_module(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text(GOOD)
    json = sys.modules["json"]
    assert isinstance(model_from(f"{tmp_path}/json.py:alone")[0], torch.nn.Module)
    assert sys.modules["json"] is json


def test_a_tilde_in_the_path_is_expanded(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text(GOOD)
    monkeypatch.setenv("HOME", str(file.parent))
    assert isinstance(model_from("~/model.py:alone")[0], torch.nn.Module)


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        ("def f(:", "f", r"model.py:1: .* SyntaxError: "),
        ("x = 1\0", "f", r"model.py: .* SyntaxError: source code .* null bytes"),
        (
            "\nimport nowhere_at_all",
            "f",
            r"model.py:2: .*ModuleNotFoundError: .*nowhere_at_all.*PYTHONPATH",
        ),
        ("raise RuntimeError('no\\nand no')", "f", r"model.py:1: importing .* RuntimeError: no\. "),
        ("import sys\nsys.exit(3)", "f", r"model.py:2: importing .* sys\.exit\(3\)"),
        ("import sys\ndef f(): sys.exit('bye')", "f", r"model.py:2: calling .* sys.exit\('bye'\)"),
        ("def f(): raise SystemExit", "f", r"model.py:1: calling .* sys\.exit\(\)"),
        (
            "def g():\n  1 / 0\ndef f():\n  g()",
            "f",
            r"model.py:2: calling .* ZeroDivisionError: div",
        ),
        ("import json\ndef f():\n  json.loads('x')", "f", r"model.py:3: calling .* JSONDecodeError"),
        ("def f(): raise KeyError", "f", r"model.py:1: calling .* KeyError\. .*--traceback"),
        ("def f(): f()", "f", r"model.py:1: calling .* RecursionError"),
        ("class Odd(BaseException): pass\ndef f(): raise Odd('x')", "f", r"model.py:2: calling .* Odd: x"),
        ("def f(): pass", "f", r"model.py:f: .* None\. .*return model"),
        ("def f(): return 1, 2, 3", "f", r"model.py:f: .* tuple .*3\. .*return model, \(x, y\)"),
        ("def f(n, m): pass", "f", r"model.py: f needs 2 arguments: n, m\. .*return f\("),
        ("f = 3", "f", r"model.py: f is an int"),
        (
            "def resnet(): pass",
            "resnet18",
            r"model.py: .*'resnet18'.* one of resnet \(did you mean 'resnet'\?\)",
        ),
        ("from os import getcwd", "f", r"model.py: .*'f'\. define a function"),
    ],
)
def test_errors_in_the_file_name_the_line(file: Path, text: str, name: str, words: str) -> None:
    file.write_text(text)
    with pytest.raises(InvalidModel, match=words):
        model_from(f"{file}:{name}")


def test_an_error_in_an_imported_file_names_both_files(file: Path) -> None:
    (file.parent / "part_of_model.py").write_text("x = 1\ndef f(:")
    file.write_text("import torch\nimport part_of_model")
    with pytest.raises(InvalidModel, match=r"model\.py \(.*part_of_model\.py:2\): .* SyntaxError"):
        model_from(f"{file}:f")


def test_an_interrupt_is_not_reported_as_an_error_of_the_file(file: Path) -> None:
    file.write_text("def f(): raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        model_from(f"{file}:f")


def test_the_command_shows_the_traceback_on_request(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file.write_text("print('hello')\ndef f(): raise ValueError('not today')")
    assert main(["tune", f"{file}:f"]) == 1
    out, err = capfd.readouterr()
    assert out == "hello\n"
    assert re.fullmatch(r"felixlike: .*model.py:2: .* ValueError: not today\. .*\n", err)
    with pytest.raises(InvalidModel) as caught:
        main(["tune", f"{file}:f", "--traceback"])
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_model_that_exits_when_it_runs_is_reported(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(GOOD.replace("return x + 1", "raise SystemExit('enough')"))
    assert main(["explain", f"{file}:with_inputs"]) == 1
    assert re.search(r"felixlike: model: .*sys\.exit\('enough'\)", capsys.readouterr().err)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with a package, change to it, and return it."""
    (tmp_path / "models_here").mkdir()
    (tmp_path / "models_here" / "__init__.py").touch()
    (tmp_path / "models_here" / "size.py").write_text("WIDTH = 4\n")
    (tmp_path / "models_here" / "model_net.py").write_text(
        "import torch\nfrom .size import WIDTH\n\ndef net():\n    return torch.nn.Linear(WIDTH, WIDTH)\n"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_modules_are_imported_from_packages(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module may import from its package, which a file alone cannot do."""
    assert model_from("models_here.model_net:net")[0].in_features == 4
    named = named_from_anywhere("models_here.model_net:net")
    assert named == f"{package}/models_here.model_net:net"
    monkeypatch.chdir("/")
    assert model_from(named)[0].in_features == 4
    assert model_from("torch.nn:Identity")[0](3) == 3  # an installed module


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("models_here.model_net:nett", "models_here.model_net: .*'nett'.*did you mean 'net'"),
        ("models_here.model_other:net", "models_here.model_other: .*module models_here.model_other. .*PYTHONPATH"),
        ("model_elsewhere:net", "model_elsewhere: .*module model_elsewhere. .*PYTHONPATH"),
        ("models_here.model_bad:net", r"models_here/model_bad.py:2: importing .* ZeroDivisionError"),
        ("models_here.model_lost:net", "importing .* ModuleNotFoundError: No module named 'nowhere_to'"),
    ],
)
def test_modules_that_cannot_be_imported_are_reported(package: Path, text: str, words: str) -> None:
    (package / "models_here" / "model_bad.py").write_text("\n1 / 0\n")
    (package / "models_here" / "model_lost.py").write_text("import nowhere_to\n")
    with pytest.raises(InvalidModel, match=words):
        model_from(text)


def test_existing_files_are_not_taken_for_modules(package: Path) -> None:
    (package / "net").touch()
    assert model_from("net:small") == ("net:small", None)
    assert model_from("net.pt2") == ("net.pt2", None)
    assert named_from_anywhere("net.pt2") == f"{package}/net.pt2"
    assert named_from_anywhere("a/net.py:f") == f"{package}/a/net.py:f"
