"""Tests that opening a .pt2 file never runs code from it. `torch.export.load` does run the code of these files."""

import io
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import bert, mlp

from felixlike.errors import InvalidModel
from felixlike.frontend import import_model
from felixlike.frontend.importers.pt2 import open_pt2

Edit = Callable[[str, bytes], bytes]


class Hostile:
    """An object that makes a directory when it is unpickled."""

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (self.mark,)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pt2") / "mlp.pt2"
    model, inputs = mlp()
    torch.export.save(torch.export.export(model, inputs), path)
    return path


def rewrite(source: Path, edit: Edit) -> Path:
    """Write a copy of an archive with each entry passed through `edit`, and return its path."""
    path = source.with_name("edited.pt2")
    with zipfile.ZipFile(source) as archive, zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as copy:
        for name in archive.namelist():
            copy.writestr(name, edit(name, archive.read(name)))
    return path


def pickled(mark: Path) -> bytes:
    buffer = io.BytesIO()
    torch.save(Hostile(str(mark)), buffer)
    return buffer.getvalue()


def edit_json(suffix: str, change: Callable[[Any], None]) -> Edit:
    def edit(name: str, data: bytes) -> bytes:
        if not name.endswith(suffix):
            return data
        content = json.loads(data)
        change(content)
        return json.dumps(content).encode()

    return edit


def test_plain_models_are_opened(good: Path, tmp_path: Path) -> None:
    imported = import_model(good)
    assert imported.name == "mlp"
    assert [task.key for task in imported.tasks] == [task.key for task in import_model(*mlp()).tasks]
    model, inputs = bert(layers=1, hidden=32, length=8)
    torch.export.save(torch.export.export(model, inputs), tmp_path / "bert.pt2")
    assert open_pt2(tmp_path / "bert.pt2").graph_signature.user_inputs


def test_a_pickled_weight_is_refused(good: Path, tmp_path: Path) -> None:
    def edit(name: str, data: bytes) -> bytes:
        if name.endswith("weight_0"):
            return pickled(tmp_path / "mark")
        change = edit_json("weights_config.json", lambda c: c["config"]["0.weight"].update(use_pickle=True))
        return change(name, data)

    with pytest.raises(InvalidModel, match=r"run code .*: weight 0\.weight is pickled\. .*torch\.export\.load"):
        open_pt2(rewrite(good, edit))
    assert not (tmp_path / "mark").exists()


def test_pickled_sample_inputs_are_refused(good: Path, tmp_path: Path) -> None:
    def edit(name: str, data: bytes) -> bytes:
        return pickled(tmp_path / "mark") if "sample_inputs" in name else data

    with pytest.raises(InvalidModel, match=r"run code .*: .*sample inputs"):
        open_pt2(rewrite(good, edit))
    assert not (tmp_path / "mark").exists()


def test_an_evaluated_expression_is_refused(good: Path, tmp_path: Path) -> None:
    code = f"__import__('os').mkdir({str(tmp_path / 'mark')!r})"

    def change(program: Any) -> None:
        values = program["graph_module"]["graph"]["tensor_values"]
        values["input"]["sizes"][0] = {"as_expr": {"expr_str": code, "hint": None}}

    with pytest.raises(InvalidModel, match=r"run code .*: .*symbolic sizes"):
        open_pt2(rewrite(good, edit_json("model.json", change)))
    assert not (tmp_path / "mark").exists()


def _graph(program: Any) -> Any:
    return program["graph_module"]["graph"]


def _signature(program: Any) -> Any:
    return program["graph_module"]["module_call_graph"][0]["signature"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: _graph(p)["nodes"][0].update(target="torch.os.system"), "'torch.os.system'"),
        (lambda p: p.update(guards_code=["x"]), "guards_code"),
        (lambda p: _graph(p).update(custom_obj_values={"a": {}}), "custom_obj_values"),
        (lambda p: p.update(range_constraints={"s0": {}}), "range_constraints"),
        (
            lambda p: _signature(p).update(out_spec='[1, {"type": "collections.defaultdict"}]'),
            "collections.defaultdict",
        ),
        (lambda p: _signature(p).update(out_spec='[1, {"x": "__enum__"}]'), "enumeration"),
    ],
)
def test_other_ways_to_run_code_are_refused(good: Path, change: Callable[[Any], None], message: str) -> None:
    with pytest.raises(InvalidModel, match=f"run code .*: .*{message}"):
        open_pt2(rewrite(good, edit_json("model.json", change)))


def test_unexpected_entries_are_refused(good: Path) -> None:
    path = rewrite(good, lambda name, data: data)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("mlp/data/aotinductor/model/model.so", b"code")
    with pytest.raises(InvalidModel, match=r"run code .*: .*'data/aotinductor/model/model\.so'"):
        open_pt2(path)


def test_two_archives_in_one_file_are_refused(good: Path) -> None:
    path = rewrite(good, lambda name, data: data)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("other/models/model.json", b"{}")
    with pytest.raises(InvalidModel, match=r"run code .*: .*several archives"):
        open_pt2(path)


@pytest.mark.parametrize("content", [b"", b"not a zip file", b"PK\x03\x04 torn"])
def test_damaged_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.pt2"
    path.write_bytes(content)
    with pytest.raises(InvalidModel, match=r"bad\.pt2: .*\. create the file with torch\.export\.save"):
        open_pt2(path)


def test_a_truncated_file_is_refused(good: Path) -> None:
    path = good.with_name("short.pt2")
    path.write_bytes(good.read_bytes()[:-2000])
    with pytest.raises(InvalidModel, match=r"short\.pt2: .*\. create the file with torch\.export\.save"):
        open_pt2(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidModel, match=r"none\.pt2: .*No such file"):
        open_pt2(tmp_path / "none.pt2")
