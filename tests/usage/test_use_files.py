"""Tests for saved models: paths to save to, and files to load."""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest
import torch

import felixlike as fx
from felixlike.errors import InvalidArtefact, OutputNotWritable
from usage.ways import Refused


@pytest.mark.parametrize("form", ["path", "text", "relative", "home", "a link", "over another", "no suffix", "spaces"])
def test_models_are_saved_and_loaded_by_every_kind_of_path(
    form: str, fast: fx.Optimized, x: torch.Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / "model.flx"
    path: Any = {
        "path": file,
        "text": str(file),
        "relative": "model.flx",
        "home": "~/model.flx",
        "a link": tmp_path / "link.flx",
        "over another": file,
        "no suffix": "model",
        "spaces": "my tuned model (2).flx",
    }[form]
    if form == "over another":
        file.write_text("old")
    if form == "a link":
        (tmp_path / "link.flx").symlink_to(file)
    fast.save(path)
    assert len(list(tmp_path.iterdir())) == (2 if form == "a link" else 1)
    assert (tmp_path / "link.flx").is_symlink() == (form == "a link")
    torch.testing.assert_close(fx.load(path)(x), fast(x))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("", "is not a path"),
        (None, "None is not a path"),
        (3, "3 is not a path"),
        (".", "got a directory"),
        ("nowhere/model.flx", "there is no directory"),
        ("/dev/null", "got a device"),
        ("pipe", "got a named pipe"),
        ("a\0b", "is not a path"),
        ("x" * 300, "."),
    ],
)
def test_invalid_output_paths_are_refused(
    given: Any, words: str, fast: fx.Optimized, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    with Refused(OutputNotWritable, words):
        fast.save(given)
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def _half(content: bytes) -> bytes:
    return content[: len(content) // 2]


def _flipped(content: bytes) -> bytes:
    position = len(content) // 3
    return content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :]


DAMAGED: dict[str, tuple[Any, str]] = {
    "empty": (lambda content: b"", "."),
    "half": (_half, "."),
    "a bit flipped": (_flipped, "."),
    "text": (lambda content: b"hello, world\n" * 100, "."),
    "a pickle": (lambda content: pickle.dumps({"a": 1}), "."),
    "zeros": (lambda content: bytes(len(content)), "."),
}


@pytest.mark.parametrize("way", DAMAGED)
def test_damaged_files_are_refused(way: str, saved: Path, tmp_path: Path) -> None:
    change, words = DAMAGED[way]
    (tmp_path / "model.flx").write_bytes(change(saved.read_bytes()))
    with Refused(InvalidArtefact, words):
        fx.load(tmp_path / "model.flx")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, "None is not a path"),
        (5, "5 is not a path"),
        ("", "is not a path"),
        ("nowhere.flx", "no such file"),
        (".", "."),
    ],
)
def test_invalid_input_paths_are_refused(given: Any, words: str) -> None:
    with Refused(InvalidArtefact, words):
        fx.load(given)


def test_moved_and_read_only_files_are_loaded(saved: Path, x: torch.Tensor, tmp_path: Path) -> None:
    shutil.copy(saved, tmp_path / "other name")
    (tmp_path / "other name").chmod(0o400)
    loaded = fx.load(tmp_path / "other name")
    (tmp_path / "other name").unlink()
    assert loaded(x).shape == (2, 4)
    loaded.save(tmp_path / "again.flx")
    torch.testing.assert_close(fx.load(tmp_path / "again.flx")(x), loaded(x))


def test_a_changed_byte_never_changes_outputs(saved: Path, fast: fx.Optimized, x: torch.Tensor, tmp_path: Path) -> None:
    """A file with a changed byte is refused, or it is the same model if the byte has no meaning in the zip format."""
    content = saved.read_bytes()
    for position in range(0, len(content), len(content) // 20):
        changed = content[:position] + bytes([content[position] ^ 0xFF]) + content[position + 1 :]
        (tmp_path / "model.flx").write_bytes(changed)
        with contextlib.suppress(InvalidArtefact):
            torch.testing.assert_close(fx.load(tmp_path / "model.flx")(x), fast(x), rtol=0, atol=0)
