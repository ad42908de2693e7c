"""Test the compilation cache of comprehensions: reuse by later processes, damaged entries and concurrent processes."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import felixlike as fx
from felixlike import runtime
from felixlike._util import cache, user_folders
from felixlike.errors import InvalidOption, StorageWarning
from felixlike.hardware import imitated_target, resolve_target
from felixlike.tc import compiled as kept
from felixlike.tc.call import Given
from felixlike.tc.entry import read

_SOURCE = "def f(float(N) A, float(N) B) -> (O) { O(i) = A(i) + 2.0 * B(i) }"

_CHILD = """
import json, sys, torch
import felixlike as fx
from felixlike import runtime

made = []
plain = runtime.compile_model
runtime.compile_model = lambda *arguments: made.append(1) or plain(*arguments)
found = fx.tc.define(sys.argv[1])(torch.arange(5.0), torch.ones(5))
print(json.dumps([found.tolist(), len(made)]))
"""


def _entries() -> list[Path]:
    return sorted(entry.path for entry in cache.entries() if entry.kind == "tc")


@pytest.fixture(autouse=True)
def nothing_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_memory", {})


def _call() -> torch.Tensor:
    result: torch.Tensor = fx.tc.define(_SOURCE)(torch.arange(5.0), torch.ones(5))
    return result


def _fail_if_compiled(*_: object) -> None:
    raise AssertionError("it was compiled again")


@pytest.mark.usefixtures("own_cache")
def test_compiled_programs_are_loaded_from_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = _call()
    assert len(_entries()) == 1
    monkeypatch.setattr(runtime, "compile_model", _fail_if_compiled)
    assert torch.equal(_call(), expected)
    renamed = "# the same\ndef g(float(M) X, float(M) Y) -> (Z) {\n  Z(k) = X(k) + 2.0 * u where u = Y(k)\n}"
    assert torch.equal(fx.tc.define(renamed)(torch.arange(5.0), torch.ones(5)), expected)


def test_keys_differ_by_shape_program_options_and_target() -> None:
    target = resolve_target("cpu")
    inputs = [Given((5,), "float32"), Given((5,), "float32")]
    key = kept.key_of(read(_SOURCE), inputs, target, "")
    larger_inputs = [Given((6,), "float32"), Given((6,), "float32")]
    swapped = _SOURCE.replace("A(i) + 2.0 * B(i)", "2.0 * B(i) + A(i)")
    doubles = _SOURCE.replace("float(N)", "double(N)")
    keys = {
        kept.key_of(read(_SOURCE), larger_inputs, target, ""),
        kept.key_of(read(swapped), inputs, target, ""),
        kept.key_of(read(doubles), inputs, target, ""),
        kept.key_of(read(_SOURCE), inputs, target, "hints"),
        kept.key_of(read(_SOURCE), inputs, "another target", ""),
    }
    assert key not in keys
    assert len(keys) == 5


@pytest.mark.usefixtures("own_cache")
def test_damaged_entries_are_compiled_again() -> None:
    expected = _call()
    (entry,) = _entries()
    whole = entry.read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], whole.replace(b"float32", b"float64"), os.urandom(200)):
        entry.write_bytes(damaged)
        assert torch.equal(_call(), expected)
        assert len(entry.read_bytes()) > 1000


@pytest.mark.usefixtures("own_cache")
def test_the_faster_version_stays_in_the_cache() -> None:
    _call()
    (entry,) = _entries()
    compiled, note = runtime.load(entry)
    assert note == {"seconds": None}
    for seconds, stored_seconds in ((2e-6, 2e-6), (3e-6, 2e-6), (None, 2e-6), (1e-6, 1e-6)):
        kept.store(entry.stem, compiled, {"seconds": seconds})
        assert runtime.read_report(entry) == {"seconds": stored_seconds}


def _raising(number: int) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return refuse


def test_an_unusable_cache_folder_warns_once_and_the_process_caches_in_memory(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_cache.touch()
    with pytest.warns(StorageWarning, match=r"/tc .*\((Not a directory|File exists)\)") as caught:
        assert _call().tolist() == [2, 3, 4, 5, 6]
    assert len(caught) == 1
    assert caught[0].filename == __file__
    monkeypatch.setattr(runtime, "compile_model", _fail_if_compiled)
    assert _call().tolist() == [2, 3, 4, 5, 6]  # a new comprehension in this process, without a second warning


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_full_or_read_only_disk_warns_and_stores_nothing(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(os, "replace", _raising(number))
    monkeypatch.setattr(Path, "replace", _raising(number))
    with pytest.warns(StorageWarning):
        assert _call().tolist() == [2, 3, 4, 5, 6]
    assert _entries() == []


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EACCES])
def test_a_file_system_without_locks_warns_and_stores_the_entry(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr("fcntl.flock", _raising(number))
    with pytest.warns(StorageWarning, match=os.strerror(number)):
        assert _call().tolist() == [2, 3, 4, 5, 6]
    assert len(_entries()) == 1


@pytest.mark.usefixtures("own_cache")
def test_a_warning_raised_as_an_error_does_not_lose_the_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fcntl.flock", _raising(errno.ENOLCK))
    program = fx.tc.define(_SOURCE)
    with pytest.raises(StorageWarning):  # warnings are errors in tests
        program(torch.arange(5.0), torch.ones(5))
    monkeypatch.setattr(runtime, "compile_model", _fail_if_compiled)
    assert program(torch.arange(5.0), torch.ones(5)).tolist() == [2, 3, 4, 5, 6]


def test_a_disk_too_full_to_load_an_entry_leaves_the_entry(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program is compiled again, and the entry stays for the next process."""
    _call()
    (entry,) = _entries()
    before = entry.stat().st_ino
    monkeypatch.setattr(Path, "write_bytes", _raising(errno.ENOSPC))
    monkeypatch.setattr(runtime, "to_bytes", _raising(errno.ENOSPC))
    with pytest.warns(StorageWarning):
        assert _call().tolist() == [2, 3, 4, 5, 6]
    assert entry.stat().st_ino == before


def test_compiling_continues_if_another_process_holds_the_lock(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_folders, "LOCK_SECONDS", 0.1)
    _call()
    (entry,) = _entries()
    entry.unlink()
    with user_folders.locked(entry.with_suffix(".lock")):
        assert _call().tolist() == [2, 3, 4, 5, 6]
    assert len(_entries()) == 1


def test_a_folder_without_permission_warns(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Path.is_file raises without permission to enter the folder. The error is simulated because root can enter any
    folder.
    """
    stat = Path.stat

    def refuse(path: Path, **options: Any) -> os.stat_result:
        if path.is_relative_to(own_cache):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", refuse)
    monkeypatch.setattr(os, "access", lambda path, _: not Path(path).is_relative_to(own_cache))
    with pytest.warns(StorageWarning):
        assert _call().tolist() == [2, 3, 4, 5, 6]


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("kept_open", ["entry", "folder", "root"])
def test_code_in_paths_writable_by_others_is_not_loaded(monkeypatch: pytest.MonkeyPatch, kept_open: str) -> None:
    expected = _call()
    (entry,) = _entries()
    path = {"entry": entry, "folder": entry.parent, "root": entry.parent.parent}[kept_open]
    path.chmod(0o777)
    loaded: list[Any] = []
    monkeypatch.setattr(runtime, "load", loaded.append)
    with pytest.warns(StorageWarning, match="mode 777") as caught:
        assert torch.equal(_call(), expected)
    assert len(caught) == 1
    assert not loaded


def test_concurrent_processes_compile_once(own_cache: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(own_cache.parent)}
    command = [sys.executable, "-c", _CHILD, _SOURCE]
    children = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) for _ in range(2)
    ]
    printed = [child.communicate(timeout=240)[0] for child in children]
    results = [json.loads(text) for text in printed]
    assert [numbers for numbers, _ in results] == [[2, 3, 4, 5, 6]] * 2
    assert sum(made for _, made in results) == 1


@pytest.mark.usefixtures("own_cache")
def test_tuned_code_is_cached_with_its_seconds() -> None:
    program = fx.tc.define("def mm(float(M,K) A, float(K,N) B) -> (C) { C(m, n) +=! A(m, k) * B(k, n) }")
    a, b = torch.randn(16, 16), torch.randn(16, 32)
    assert program.tune(a, b, trials=2) is program
    assert program.report is not None
    assert program.report.trials == 2
    torch.testing.assert_close(program(a, b), a @ b, rtol=1e-5, atol=1e-5)
    (entry,) = _entries()
    assert runtime.read_report(entry)["seconds"] > 0


@pytest.mark.usefixtures("own_cache")
def test_tuning_takes_space_effort_and_precision() -> None:
    program = fx.tc.define("def mm(float(M,K) A, float(K,N) B) -> (C) { C(m, n) +=! A(m, k) * B(k, n) }")
    a, b = torch.randn(64, 256), torch.randn(256, 64)
    program.tune(a, b, space="own", effort="instant")
    assert program.report is not None
    assert program.report.trials == 0
    for options, words in (
        ({"space": "felix"}, "^space: .*felix"),
        ({"effort": "much"}, "^effort: .*much"),
        ({"precision": "tf32"}, "^precision: "),
        ({"tolerance": "small"}, "^tolerance: .*small"),
    ):
        with pytest.raises(InvalidOption, match=words):
            program.tune(a, b, **options)  # type: ignore[arg-type]


@pytest.mark.usefixtures("own_cache")
def test_code_that_rounds_products_is_kept_in_memory_alone() -> None:
    source = "def mm(float(M,K) A, float(K,N) B) -> (C) { C(m, n) +=! A(m, k) * B(k, n) }"
    program = fx.tc.define(source, target=imitated_target("zen5"))
    a, b = torch.randn(64, 256), torch.randn(256, 64)
    program.tune(a, b, effort="instant", precision="bfloat16")
    assert program.report is not None
    assert [task.precision for task in program.report.tasks] == ["bfloat16"]
    assert not _entries()
    rounded = a.bfloat16().float() @ b.bfloat16().float()
    torch.testing.assert_close(program(a, b), rounded, rtol=1e-5, atol=1e-4)
    program.tune(a, b, effort="instant")
    torch.testing.assert_close(program(a, b), a @ b, rtol=1e-5, atol=1e-4)
    assert len(_entries()) == 1
