"""Tests for models whose large constants are stored apart from the code, and are read or mapped from the file."""

from __future__ import annotations

import copy
import io
import json
import mmap
import os
import pickle
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import felixlike as fx
from felixlike import _tvm
from felixlike.api import Optimized
from felixlike.errors import InvalidArtefact, InvalidOption
from felixlike.frontend import import_model
from felixlike.runtime import Compiled, compile_model, constant_layout, export_library, load, save, save_again

WIDTH = 640
WEIGHT_BYTES = 2 * 4 * WIDTH * WIDTH


def layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)).eval()


@pytest.fixture(scope="module")
def x() -> torch.Tensor:
    return torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def compiled(x: torch.Tensor) -> Compiled:
    return compile_model(import_model(layers(), (x,)))


@pytest.fixture(scope="module")
def saved(compiled: Compiled, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("apart") / "model.flx"
    save(compiled, path, report={"seed": 3})
    return path


def edited(
    saved: Path, path: Path, change: Callable[[Any, dict[str, bytes]], object] = lambda meta, members: None
) -> Path:
    """Write a copy with a changed description or other members. Its constants may not be aligned."""
    with zipfile.ZipFile(saved) as archive:
        members = {name: archive.read(name) for name in archive.namelist() if name != "meta.json"}
        meta = json.loads(archive.read("meta.json"))
    change(meta, members)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("meta.json", json.dumps(meta))
        for name, content in members.items():
            archive.writestr(name, content)
    return path


@pytest.mark.parametrize("mapped", [False, True])
def test_loaded_models_give_equal_outputs(mapped: bool, saved: Path, compiled: Compiled, x: torch.Tensor) -> None:
    again, report = load(saved, mmap=mapped)
    assert report == {"seed": 3}
    assert repr(again) == repr(compiled)
    assert torch.equal(again(x), compiled(x))
    assert all(tensor.data_ptr() % 64 == 0 for tensor in again.constants)
    assert sum(tensor.nbytes for tensor in again.constants) == WEIGHT_BYTES


def test_the_constants_are_one_aligned_member(saved: Path) -> None:
    with zipfile.ZipFile(saved) as archive:
        member = archive.getinfo("constants.bin")
        assert archive.testzip() is None
        content = archive.read("constants.bin")
        code = sum(other.file_size for other in archive.infolist()) - member.file_size
    assert member.compress_type == zipfile.ZIP_STORED
    assert len(content) == WEIGHT_BYTES
    assert saved.read_bytes().index(content) % mmap.PAGESIZE == 0
    assert code < WEIGHT_BYTES / 10


def test_small_models_have_one_library(tmp_path: Path) -> None:
    small = compile_model(import_model(nn.Linear(64, 64), (2, 64)))
    save(small, tmp_path / "small.flx", report={})
    with zipfile.ZipFile(tmp_path / "small.flx") as archive:
        assert archive.namelist() == ["meta.json", "model.so"]
    again, _ = load(tmp_path / "small.flx", mmap=True)
    assert torch.equal(again(torch.ones(2, 64)), small(torch.ones(2, 64)))


_CHILD = """
import sys, torch, felixlike as fx
def private(*kinds):
    lines = open("/proc/self/smaps_rollup").read().splitlines()
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(kinds))
fx.load(sys.argv[1])(torch.ones(2, 8))
x = torch.ones(2, 2304)
before = private("Private_Dirty", "Private_Clean"), private("Private_Dirty")
fast = fx.load(sys.argv[2], mmap=sys.argv[3] == "True")
loaded = private("Private_Dirty", "Private_Clean") - before[0]
fast(x)
print(loaded, private("Private_Dirty") - before[1])
"""


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux's smaps_rollup")
def test_mapped_weights_take_no_private_memory(tmp_path: Path) -> None:
    """Loading maps 42 MB without touching them, and a call only reads them. Without mmap there is one copy."""
    for path, (size, batch) in {"small": (8, 2), "large": (2304, 2)}.items():
        model = compile_model(import_model(nn.Sequential(nn.Linear(size, size), nn.Linear(size, size)), (batch, size)))
        save(model, tmp_path / path, report=fx.optimize(nn.ReLU(), (3,), 0, progress=False).report.to_json())
    weight_bytes = 2 * 4 * 2304**2
    for mapped in (True, False):
        arguments = [str(tmp_path / "small"), str(tmp_path / "large"), str(mapped)]
        command = [sys.executable, "-W", "error", "-c", _CHILD, *arguments]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        loaded, used = map(int, output.split())
        if mapped:
            assert loaded < weight_bytes / 4
            assert used < weight_bytes / 4
        else:
            assert weight_bytes <= used < 1.5 * weight_bytes


@pytest.mark.parametrize("fate", ["deleted", "replaced", "saved over itself"])
def test_a_mapped_file_may_be_deleted_and_replaced(
    fate: str, saved: Path, compiled: Compiled, x: torch.Tensor, tmp_path: Path
) -> None:
    path = Path(shutil.copy(saved, tmp_path / "model.flx"))
    mapped, _ = load(path, mmap=True)
    if fate == "deleted":
        path.unlink()
    elif fate == "replaced":
        save(compile_model(import_model(layers().double(), (x.double(),))), path, report={})
    else:
        save(mapped, path, report={"seed": 4})
        assert load(path)[1] == {"seed": 4}
        assert torch.equal(load(path, mmap=True)[0](x), compiled(x))
    assert torch.equal(mapped(x), compiled(x))


def test_a_freed_model_unmaps_its_file(saved: Path, x: torch.Tensor) -> None:
    def is_mapped() -> bool:
        return str(saved) in Path("/proc/self/maps").read_text()

    mapped, _ = load(saved, mmap=True)
    output = mapped(x)
    assert is_mapped()
    del mapped
    assert not is_mapped()
    assert output.shape == (3, WIDTH)


@pytest.mark.parametrize("mapped", [False, True])
def test_loaded_models_are_saved_copied_and_pickled(
    mapped: bool, saved: Path, compiled: Compiled, x: torch.Tensor, tmp_path: Path
) -> None:
    again, _ = load(saved, mmap=mapped)
    optimized = Optimized(again, fx.optimize(nn.ReLU(), (3,), 0, progress=False).report)
    optimized.save(tmp_path / "again.flx")
    others = (
        fx.load(tmp_path / "again.flx", mmap=mapped),
        copy.deepcopy(optimized),
        pickle.loads(pickle.dumps(optimized)),
    )
    for other in others:
        assert torch.equal(other(x), compiled(x))
    assert others[1]._compiled.constants is again.constants
    outputs: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: outputs.append(again(x)))
    thread.start()
    thread.join()
    assert torch.equal(outputs[0], compiled(x))


def test_another_report_leaves_the_constants_aligned(saved: Path, compiled: Compiled, x: torch.Tensor) -> None:
    path = saved.with_name("reported.flx")
    save_again(saved, path, report={"text": "é" * 777})
    again, report = load(path, mmap=True)
    assert report == {"text": "é" * 777}
    assert torch.equal(again(x), compiled(x))
    save_again(path, path, report={})
    assert torch.equal(again(x), load(path)[0](x))


@pytest.mark.parametrize("form", ["compiled", "loaded", "mapped"])
def test_exported_libraries_have_their_constants(
    form: str, saved: Path, compiled: Compiled, x: torch.Tensor, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = compiled if form == "compiled" else load(saved, mmap=form == "mapped")[0]
    export_library(model, tmp_path / "model.so")
    assert (tmp_path / "model.so").stat().st_size > WEIGHT_BYTES
    library = _tvm.load_module(str(tmp_path / "model.so"), keep_module_alive=False)
    main = _tvm.relax.VirtualMachine(library, _tvm.tvm.cpu())["main"]
    assert torch.equal(main(x), compiled(x))
    assert capfd.readouterr() == ("", "")


class Tied(nn.Module):
    """A model that uses a weight twice, returns a weight, and changes a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))
        self.count: torch.Tensor
        self.register_buffer("count", torch.zeros(WIDTH))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.count += 1
        return (x @ self.weight + self.count).relu() @ self.weight, self.weight


def test_tied_returned_and_changed_tensors(x: torch.Tensor, tmp_path: Path) -> None:
    """A shared weight is stored once. A returned one may be written to."""
    torch.manual_seed(0)
    model = Tied().eval()
    fast = fx.optimize(copy.deepcopy(model), (x,), 0, progress=False)
    fast.save(tmp_path / "tied.flx")
    with zipfile.ZipFile(tmp_path / "tied.flx") as archive:
        assert archive.getinfo("constants.bin").file_size <= WEIGHT_BYTES
    mapped = fx.load(tmp_path / "tied.flx", mmap=True)
    for _ in range(2):
        with torch.no_grad():
            want, weight = model(x)
        got, returned = mapped(x)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-3)
        assert torch.equal(returned, weight)
    assert mapped.state["count"].tolist() == [2.0] * WIDTH
    mapped(x)[1].zero_()


def test_parts_share_their_constants(tmp_path: Path) -> None:
    """The file of a model with a part per batch size has equal weights once."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 25, 3000), nn.ReLU(), nn.Linear(3000, 9))
    dim = fx.Dim("N", range(1, 8))
    fast = fx.optimize(model.eval(), ((dim, 3, 7, 7),), rounds=0, progress=False)
    parts = fast._compiled.parts  # type: ignore[attr-defined]
    assert len(parts) == 2
    fast.save(tmp_path / "model.flx")
    loaded = [fx.load(tmp_path / "model.flx", mmap=mapped) for mapped in (False, True)]
    for other in (*loaded, pickle.loads(pickle.dumps(loaded[1]))):
        for size in (1, 4, 7):
            image = torch.randn(size, 3, 7, 7, generator=torch.Generator().manual_seed(size))
            assert torch.equal(other(image), fast(image))
    loaded[1].save(tmp_path / "again.flx")
    assert (tmp_path / "again.flx").stat().st_size == pytest.approx((tmp_path / "model.flx").stat().st_size, rel=0.01)
    one, four = (part.constants for part in loaded[1]._compiled.parts.values())  # type: ignore[attr-defined]
    places = {tensor.data_ptr() for tensor in (*one, *four)}
    contents = {bytes(tensor.view(torch.uint8).numpy()) for tensor in (*one, *four)}
    assert len(places) == len(contents)


def test_dynamic_sizes_are_saved_with_constants(tmp_path: Path) -> None:
    torch.manual_seed(0)
    fast = fx.optimize(layers(), ((fx.Dim("T", [1, 2, 5]), WIDTH),), rounds=0, progress=False)
    fast.save(tmp_path / "model.flx")
    for mapped in (False, True):
        loaded = fx.load(tmp_path / "model.flx", mmap=mapped)
        for size in (1, 2, 5):
            tensor = torch.ones(size, WIDTH)
            assert torch.equal(loaded(tensor), fast(tensor))


@pytest.mark.parametrize("mapped", [False, True])
def test_truncated_files_are_refused(mapped: bool, saved: Path, tmp_path: Path) -> None:
    content = saved.read_bytes()
    for kept in (len(content) - 100, len(content) - WEIGHT_BYTES // 2, 100):
        (tmp_path / "short.flx").write_bytes(content[:kept])
        with pytest.raises(InvalidArtefact, match=r"short\.flx: the file is damaged"):
            load(tmp_path / "short.flx", mmap=mapped)


def test_damaged_constants_are_refused_unless_they_are_mapped(saved: Path, tmp_path: Path) -> None:
    content = bytearray(saved.read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "model.flx").write_bytes(content)
    with pytest.raises(InvalidArtefact, match=r"model\.flx: the file is damaged: the checksum of constants\[\d\]"):
        load(tmp_path / "model.flx")
    mapped, _ = load(tmp_path / "model.flx", mmap=True)
    save(mapped, tmp_path / "again.flx", report={})  # saving does not make the damage look right
    with pytest.raises(InvalidArtefact, match="checksum of constants"):
        load(tmp_path / "again.flx")


def test_constants_that_are_not_aligned_are_read_but_not_mapped(
    saved: Path, compiled: Compiled, x: torch.Tensor, tmp_path: Path
) -> None:
    with zipfile.ZipFile(saved) as archive:
        content = archive.read("constants.bin")
    path = edited(saved, tmp_path / "moved.flx")
    if path.read_bytes().index(content) % 64 == 0:
        path = edited(saved, path, lambda meta, _: meta.update(report={"seed": 33}))
    assert torch.equal(load(path)[0](x), compiled(x))
    with pytest.raises(InvalidArtefact, match=r"cannot be mapped: member constants\.bin is not aligned\. load .*mmap"):
        load(path, mmap=True)


def test_open_files_are_mapped_and_bytes_are_not(saved: Path, compiled: Compiled, x: torch.Tensor) -> None:
    with saved.open("rb") as file:
        mapped, _ = load(file, mmap=True)
    assert torch.equal(mapped(x), compiled(x))
    content = io.BytesIO(saved.read_bytes())
    assert torch.equal(load(content)[0](x), compiled(x))
    with pytest.raises(InvalidOption, match=r"mmap=True needs a file on disk\. give the path"):
        load(content, mmap=True)


@pytest.mark.parametrize("value", [1, None, "r"])
def test_mmap_must_be_a_bool(value: Any, saved: Path) -> None:
    with pytest.raises(InvalidOption, match=r"mmap.*True or False"):
        fx.load(saved, mmap=value)


WRONG: list[tuple[Callable[[Any, dict[str, bytes]], object], str]] = [
    (lambda meta, _: meta.pop("offsets"), "offsets is missing"),
    (lambda meta, _: meta["offsets"].pop(), "offsets has 1 elements, but constants has 2"),
    (lambda meta, _: meta["offsets"].__setitem__(0, 3), "offsets is .*not a list of multiples of 64"),
    (lambda meta, _: meta["offsets"].__setitem__(0, -64), "offsets is .*not a list of multiples of 64"),
    (lambda meta, _: meta["offsets"].__setitem__(0, True), "offsets is .*not a list of multiples of 64"),
    (lambda meta, _: meta["offsets"].reverse(), r"the checksum of constants\[0\]"),
    (lambda meta, _: meta["offsets"].__setitem__(1, WEIGHT_BYTES), r"constants\[1\] needs more bytes than the \d+ in"),
    (lambda meta, _: meta.pop("constants"), "constants is null, but the compiled code"),
    (lambda meta, _: meta["constants"][0].update(crc32=1), r"the checksum of constants\[0\]"),
    (lambda meta, _: meta["constants"][0]["shape"].append(1), "constants is .*but the compiled code"),
    (lambda meta, _: meta["constants"][0].update(dtype="str"), r"constants\[0\]\.dtype"),
    (lambda meta, _: meta.update(constants=3), "constants is 3, not a list"),
    (lambda _, members: members.pop("constants.bin"), r"constants\[0\] needs more bytes than the 0 in"),
    (lambda _, members: members.pop("kernels.o"), r"member kernels\.o is missing"),
    (lambda _, members: members.pop("program.json"), r"member program\.json is missing"),
]


@pytest.mark.parametrize(("change", "words"), WRONG, ids=range(len(WRONG)))
def test_invalid_files_are_refused(change: Any, words: str, saved: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidArtefact, match=rf"edited\.flx: .*{words}"):
        load(edited(saved, tmp_path / "edited.flx", change))


def test_constants_that_the_code_does_not_have_are_refused(saved: Path, tmp_path: Path) -> None:
    small = compile_model(import_model(nn.Linear(64, 64), (2, 64)))
    save(small, tmp_path / "small.flx", report={})
    with zipfile.ZipFile(saved) as archive:
        meta = json.loads(archive.read("meta.json"))
        added = {name: archive.read(name) for name in ("constants.bin", "kernels.o", "program.json")}

    def change(other: Any, members: dict[str, bytes]) -> None:
        other.update(constants=meta["constants"], offsets=meta["offsets"])
        members.update(added)

    with pytest.raises(InvalidArtefact, match=r"constants is .*but the compiled code has null"):
        load(edited(tmp_path / "small.flx", tmp_path / "edited.flx", change))


def test_a_file_system_without_mappings_is_reported(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(19, os.strerror(19))

    monkeypatch.setattr(mmap, "mmap", refuse)
    with pytest.raises(InvalidArtefact, match=r"cannot be mapped: No such device\. load it without mmap=True"):
        load(saved, mmap=True)


def test_checksums_are_not_computed_again_to_save(
    compiled: Compiled, x: torch.Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A linked or loaded model has them in its code."""
    linked = compile_model(import_model(layers(), (x,)), linked=True)
    assert linked.library is not None
    monkeypatch.setattr(constant_layout, "described", lambda _: pytest.fail("the checksums are known"))
    save(linked, tmp_path / "linked.flx", report={})
    loaded, _ = load(tmp_path / "linked.flx")
    save(loaded, tmp_path / "again.flx", report={"seed": 4})
    again, report = load(tmp_path / "again.flx")
    assert report == {"seed": 4}
    assert torch.equal(again(x), compiled(x))


def test_files_of_other_classes_are_read(saved: Path, compiled: Compiled, x: torch.Tensor) -> None:
    """They can only be read and sought, such as those of a remote file system."""
    with saved.open("rb") as file:
        reader: Any = SimpleNamespace(**{name: getattr(file, name) for name in ("read", "seek", "tell", "seekable")})
        assert torch.equal(load(reader)[0](x), compiled(x))
