"""A saved model runs by itself, and what is not one is refused before any of its code is opened."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.modeling_outputs import BaseModelOutput

from benchmarks.models import Apply, mlp
from felixlike.deploy import Compiled, check_writable, compile_model, load, save
from felixlike.errors import CompilationFailed, InvalidArtefact, InvalidModel, OutputNotWritable
from felixlike.frontend import import_model

REPORT = {"tasks": [{"name": "a", "seconds": 1.5e-3}], "seed": 0}
Pair = namedtuple("Pair", ["first", "second"])


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    model, inputs = mlp()
    return compile_model(import_model(model, inputs))


@pytest.fixture(scope="module")
def saved(compiled: Compiled, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("artefact") / "mlp.felix"
    save(compiled, path, report=REPORT)
    return path


def test_round_trip(compiled: Compiled, saved: Path, capfd: pytest.CaptureFixture[str]) -> None:
    again, report = load(saved)
    assert report == REPORT
    assert repr(again) == repr(compiled)
    (x,) = mlp()[1]
    assert torch.equal(again(x), compiled(x))
    assert capfd.readouterr() == ("", "")


def test_a_loaded_model_can_be_saved(compiled: Compiled, saved: Path, tmp_path: Path) -> None:
    copy = shutil.copy(saved, tmp_path / "copy.felix")
    again, report = load(copy)
    Path(copy).unlink()
    save(again, tmp_path / "again.felix", report=report)
    (x,) = mlp()[1]
    assert torch.equal(load(tmp_path / "again.felix")[0](x), compiled(x))


def test_saving_is_silent(compiled: Compiled, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    compiled(*mlp()[1])
    save(compiled, tmp_path / "m.felix", report={})
    assert capfd.readouterr() == ("", "")
    assert [path.name for path in tmp_path.iterdir()] == ["m.felix"]


def test_in_a_new_process(compiled: Compiled, saved: Path, tmp_path: Path) -> None:
    """Without the model, and without a compiler on the path."""
    (x,) = mlp()[1]
    torch.save(x, tmp_path / "x.pt")
    script = (
        "import sys, torch; from felixlike.deploy import load;"
        "model, report = load(sys.argv[1]); x = torch.load(sys.argv[2]);"
        "torch.save(model(x), sys.argv[3])"
    )
    arguments = [str(saved), str(tmp_path / "x.pt"), str(tmp_path / "y.pt")]
    environment = {**os.environ, "PATH": "/nonexistent"}
    subprocess.run([sys.executable, "-W", "error", "-c", script, *arguments], check=True, env=environment)
    assert torch.equal(torch.load(tmp_path / "y.pt"), compiled(x))


def test_nested_outputs_survive(tmp_path: Path) -> None:
    def function(x: Any) -> Any:
        return BaseModelOutput(last_hidden_state=x + 1, hidden_states=(x * 2, x * 3))

    compiled = compile_model(import_model(Apply(function), (3,)))
    save(compiled, tmp_path / "m.felix", report={})
    got = load(tmp_path / "m.felix")[0](torch.ones(3))
    assert type(got) is BaseModelOutput
    assert [part.tolist() for part in got.hidden_states] == [[2.0] * 3, [3.0] * 3]


def test_outputs_without_a_name_are_refused(tmp_path: Path) -> None:
    compiled = compile_model(import_model(Apply(lambda x: Pair(x + 1, x * 2)), (3,)))
    assert isinstance(compiled(torch.ones(3)), Pair)
    with pytest.raises(InvalidModel, match="output: the model's output cannot be written to a file"):
        save(compiled, tmp_path / "m.felix", report={})
    assert not list(tmp_path.iterdir())


def test_gcc_alone_is_enough(compiled: Compiled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("gcc", "ld", "as"):
        found = shutil.which(tool)
        if found is None:
            pytest.skip(f"{tool} is not installed")
        (tools / tool).symlink_to(found)
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.delenv("CC", raising=False)
    save(compiled, tmp_path / "m.felix", report={})
    assert (tmp_path / "m.felix").stat().st_size > 10_000


def test_no_compiler(compiled: Compiled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(CompilationFailed, match=r"save: no C compiler was found .*gcc.*install gcc"):
        save(compiled, tmp_path / "m.felix", report={})


def test_a_compiler_that_fails(compiled: Compiled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "/bin/false")
    with pytest.raises(CompilationFailed, match="save: linking with /bin/false failed"):
        save(compiled, tmp_path / "m.felix", report={})
    assert not list(tmp_path.iterdir())


def test_paths_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_writable(str(tmp_path / "m.felix")) == tmp_path / "m.felix"
    with pytest.raises(OutputNotWritable, match=r"there is no directory .*nowhere. make it first"):
        check_writable(tmp_path / "nowhere" / "m.felix")
    with pytest.raises(OutputNotWritable, match=r"it is a directory. give the path of a file"):
        check_writable(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputNotWritable, match="there is no directory"):
        check_writable(tmp_path / "file" / "m.felix")
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere
    with pytest.raises(OutputNotWritable, match="permission is denied"):
        check_writable(tmp_path / "m.felix")


def edited(saved: Path, tmp_path: Path, change: Callable[[dict[str, Any]], Any], library: bytes | None = None) -> Path:
    """A copy with a changed description, or another library."""
    path = tmp_path / "edited.felix"
    with zipfile.ZipFile(saved) as archive:
        meta = json.loads(archive.read("meta.json"))
        code = archive.read("model.so")
    change(meta)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("meta.json", json.dumps(meta))
        archive.writestr("model.so", code if library is None else library)
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(format=99), "it has format 99, this version reads 1. load it with felixlike"),
        (lambda m: m.update(tvm="0.26"), "it was compiled by TVM 0.26, but 0.27.* is installed"),
        (lambda m: m.update(machine=["Linux", "s390x"]), "it was made for Linux s390x, this is"),
        (lambda m: m.pop("machine"), "it was made for an unknown machine"),
        (lambda m: m["instructions"].append("avx99"), "it needs a processor with avx99"),
        (lambda m: m.pop("inputs"), "its description is damaged: 'inputs'"),
        (lambda m: m["inputs"][0].update(shape="ab"), "its description is damaged"),
        (lambda m: m.update(target="{"), "its description is damaged"),
        (lambda m: m.update(structure={"tree": 1}), "the structure of the outputs cannot be read"),
        (lambda m: m.pop("format"), "it is a zip file, but not one of felixlike's"),
    ],
)
def test_descriptions_that_do_not_fit(saved: Path, tmp_path: Path, change: Any, message: str) -> None:
    with pytest.raises(InvalidArtefact, match=message):
        load(edited(saved, tmp_path, change))


def test_code_that_cannot_be_opened(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidArtefact, match="its compiled code cannot be opened"):
        load(edited(saved, tmp_path, lambda meta: None, library=b"\x7fELF torn"))


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x05\x06" + 18 * b"\0"])
def test_other_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.felix"
    path.write_bytes(content)
    with pytest.raises(
        InvalidArtefact, match=r"m.felix: (the file is damaged or of another kind|it is a zip file, but)"
    ):
        load(path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidArtefact, match="there is no such file"):
        load(tmp_path / "m.felix")


@pytest.mark.parametrize("position", [0.1, 0.5, 0.9])
def test_a_flipped_byte(saved: Path, tmp_path: Path, position: float) -> None:
    data = bytearray(saved.read_bytes())
    data[int(position * len(data))] ^= 0xFF
    path = tmp_path / "m.felix"
    path.write_bytes(data)
    with pytest.raises(InvalidArtefact, match="damaged"):
        load(path)


def test_truncated(saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.felix"
    path.write_bytes(saved.read_bytes()[:-100])
    with pytest.raises(InvalidArtefact, match="the file is damaged"):
        load(path)
