"""Saved models: where they are put, and what is loaded."""

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
def test_it_is_saved_and_loaded(
    form: str, fast: fx.Optimized, x: torch.Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / "model.flx"
    given: Any = {
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
    fast.save(given)
    assert len(list(tmp_path.iterdir())) == (2 if form == "a link" else 1)
    assert (tmp_path / "link.flx").is_symlink() == (form == "a link")
    torch.testing.assert_close(fx.load(given)(x), fast(x))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("", "is not a path"),
        (None, "None is not a path"),
        (3, "3 is not a path"),
        (".", "it is a directory"),
        ("nowhere/model.flx", "there is no directory"),
        ("/dev/null", "it is a device"),
        ("pipe", "it is a named pipe"),
        ("a\0b", "is not a path"),
        ("x" * 300, "."),
    ],
)
def test_places_that_are_refused(
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
    place = len(content) // 3
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


DAMAGED: dict[str, tuple[Any, str]] = {
    "empty": (lambda content: b"", "."),
    "half": (_half, "."),
    "a bit flipped": (_flipped, "."),
    "text": (lambda content: b"hello, world\n" * 100, "."),
    "a pickle": (lambda content: pickle.dumps({"a": 1}), "."),
    "zeros": (lambda content: bytes(len(content)), "."),
}


@pytest.mark.parametrize("way", DAMAGED)
def test_damaged_files(way: str, saved: Path, tmp_path: Path) -> None:
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
def test_what_cannot_be_loaded(given: Any, words: str) -> None:
    with Refused(InvalidArtefact, words):
        fx.load(given)


def test_an_artefact_is_moved_and_read_only(saved: Path, x: torch.Tensor, tmp_path: Path) -> None:
    shutil.copy(saved, tmp_path / "other name")
    (tmp_path / "other name").chmod(0o400)
    loaded = fx.load(tmp_path / "other name")
    (tmp_path / "other name").unlink()
    assert loaded(x).shape == (2, 4)
    loaded.save(tmp_path / "again.flx")
    torch.testing.assert_close(fx.load(tmp_path / "again.flx")(x), loaded(x))


def test_whatever_byte_is_changed(saved: Path, fast: fx.Optimized, x: torch.Tensor, tmp_path: Path) -> None:
    """The file is refused by name, or (some bytes of a zip file say nothing) it is the same model."""
    content = saved.read_bytes()
    for place in range(0, len(content), len(content) // 20):
        changed = content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :]
        (tmp_path / "model.flx").write_bytes(changed)
        with contextlib.suppress(InvalidArtefact):
            torch.testing.assert_close(fx.load(tmp_path / "model.flx")(x), fast(x), rtol=0, atol=0)
