"""Tests for saved models: they load without the original, and invalid files are refused before code is opened."""

import copy
import errno
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import zipfile
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.models import Apply, mlp
from transformers.modeling_outputs import BaseModelOutput

from felixlike import __version__, _tvm, codegen
from felixlike.errors import CompilationFailed, InvalidArtefact, InvalidModel, OutputNotWritable
from felixlike.frontend import import_model
from felixlike.frontend.signature.structure import structure_of
from felixlike.hardware.instructions import PAIRS
from felixlike.runtime import (
    Compiled,
    artefact,
    artefact_description,
    compile_model,
    from_bytes,
    load,
    save,
    save_again,
    to_bytes,
)

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
    copied = shutil.copy(saved, tmp_path / "copy.felix")
    again, report = load(copied)
    Path(copied).unlink()
    save(again, tmp_path / "again.felix", report=report)
    (x,) = mlp()[1]
    assert torch.equal(load(tmp_path / "again.felix")[0](x), compiled(x))


@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_saved_model_gets_another_report(
    elsewhere: bool, compiled: Compiled, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replacing the report needs no linker and works in place."""
    original = Path(shutil.copy(saved, tmp_path / "own.felix"))
    path = tmp_path / "other.felix" if elsewhere else original
    monkeypatch.setattr(artefact, "linker", lambda: pytest.fail("it is linked again"))
    save_again(original, path, report={"seed": 1})
    again, report = load(path)
    assert report == {"seed": 1}
    (x,) = mlp()[1]
    assert torch.equal(again(x), compiled(x))
    assert load(original)[1] == (REPORT if elsewhere else {"seed": 1})


def test_saving_is_silent(compiled: Compiled, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    compiled(*mlp()[1])
    save(compiled, tmp_path / "m.felix", report={})
    assert capfd.readouterr() == ("", "")
    assert [path.name for path in tmp_path.iterdir()] == ["m.felix"]


def test_a_saved_model_runs_in_a_new_process(compiled: Compiled, saved: Path, tmp_path: Path) -> None:
    """A saved model loads without the original model and without a compiler on the path."""
    (x,) = mlp()[1]
    torch.save(x, tmp_path / "x.pt")
    script = (
        "import sys, torch; from felixlike.runtime import load;"
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
    with pytest.raises(InvalidModel) as error:
        save(compiled, tmp_path / "m.felix", report={})
    assert error.value.where == "output"
    assert not list(tmp_path.iterdir())


def test_gcc_alone_is_enough(compiled: Compiled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("gcc", "ld", "as"):
        executable = shutil.which(tool)
        if executable is None:
            pytest.skip(f"{tool} is not installed")
        (tools / tool).symlink_to(executable)
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.delenv("CC", raising=False)
    save(compiled, tmp_path / "m.felix", report={})
    assert (tmp_path / "m.felix").stat().st_size > 10_000


def test_saving_without_a_compiler_is_refused(
    compiled: Compiled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(CompilationFailed, match=r"save: .*no C compiler.*gcc.* CC "):
        save(compiled, tmp_path / "m.felix", report={})


def test_a_failing_compiler_is_reported(compiled: Compiled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "/bin/false")
    with pytest.raises(CompilationFailed, match=r"save: .*/bin/false"):
        save(compiled, tmp_path / "m.felix", report={})
    assert not list(tmp_path.iterdir())


def edited(saved: Path, tmp_path: Path, change: Callable[[dict[str, Any]], Any], library: bytes | None = None) -> Path:
    """Return the path of a copy with a changed description or another library."""
    path = tmp_path / "edited.felix"
    with zipfile.ZipFile(saved) as archive:
        meta = json.loads(archive.read("meta.json"))
        code = archive.read("model.so")
    change(meta)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("meta.json", json.dumps(meta))
        archive.writestr("model.so", code if library is None else library)
    return path


@pytest.mark.skipif(PAIRS not in _tvm.host_features(), reason="this processor has no AVX512_BF16")
def test_an_instruction_that_a_hypervisor_hides_is_missing(
    compiled: Compiled, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LLVM lists it for the processor's name. Models that are compiled where it is hidden do not use it."""
    features = _tvm.host_features() - {PAIRS}
    monkeypatch.setattr(_tvm, "host_features", lambda: features)
    with pytest.raises(InvalidArtefact, match=f"lacks instructions that the model needs: {PAIRS}"):
        load(saved)
    save(compiled, tmp_path / "hidden.felix", report={})
    assert load(tmp_path / "hidden.felix")[0].name == compiled.name


NESTED = structure_of([torch.ones(1)]).to_json()
WRONG: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    (lambda m: m.update(format=99), f"format 2, 3, 4 or 5, got 99.*felixlike {re.escape(__version__)}"),
    (lambda m: m.update(format=True), "format .*true"),
    (lambda m: m.update(felixlike="\ud800"), "damaged.* surrogates not allowed"),
    (lambda m: m.update(felixlike=None), "felixlike is null, not a string"),
    (lambda m: m.update(tvm="0.26"), r"TVM 0\.26, .*TVM 0\.27"),
    (lambda m: m.update(tvm=[1]), r"tvm is \[1\], not a string"),
    (lambda m: m.update(machine=["Linux", "s390x"]), "Linux s390x.*this machine"),
    (lambda m: m.pop("machine"), "machine is missing"),
    (lambda m: m.update(machine=[3, {}]), r"machine is \[3, {}\], not a list of strings"),
    (lambda m: m["instructions"].append("avx99"), "instructions.*: avx99"),
    (lambda m: m.update(instructions=7), "instructions is 7, not a list of strings"),
    (lambda m: m.update(instructions=[]), r"instructions is \[\], .*code.* \["),
    (lambda m: m.pop("inputs"), "inputs is missing"),
    (lambda m: m.update(inputs={}), "inputs is {}, not a list of objects"),
    (lambda m: m["inputs"].append(m["inputs"][0]), 'inputs .*"input" twice'),
    (
        lambda m: m["inputs"].append({"name": "y", "shape": [2], "dtype": "int8"}),
        "signature has 1 tensor, .*inputs has 2",
    ),
    (lambda m: m["inputs"].clear(), "signature has 1 tensor, .*inputs has 0"),
    (lambda m: m["inputs"][0].update(shape="ab"), r'inputs\[0\].shape is "ab", not a list of positive integers'),
    (lambda m: m["inputs"][0].update(shape=[10**30]), r"inputs\[0\].shape is \[10+\], not a list of positive"),
    (lambda m: m["inputs"][0].update(shape=[True]), r"inputs\[0\].shape is \[true\], not a list of positive"),
    (lambda m: m["inputs"][0]["shape"].__setitem__(0, -1), r"inputs\[0\].shape is \[-1"),
    (lambda m: m["inputs"][0]["shape"].__setitem__(0, 512), "inputs is .*512.* code has"),
    (lambda m: m["inputs"][0]["shape"].append(1), "inputs is .* code has"),
    (lambda m: m["inputs"][0].update(dtype="float64"), "inputs is .*float64.* code has"),
    (lambda m: m["inputs"][0].update(dtype="Tensor"), r'inputs\[0\].dtype is "Tensor"'),
    (lambda m: m["inputs"][0].update(dtype=4), r"inputs\[0\].dtype is 4, not a string"),
    (lambda m: m["inputs"][0].update(name="z"), 'inputs is .*"z".* code has'),
    (lambda m: m["inputs"][0].pop("name"), r"inputs\[0\].name is missing"),
    (lambda m: m.pop("outputs"), "outputs is missing"),
    (lambda m: m["outputs"].append(m["inputs"][0]), "structure has 1 tensor, .*outputs has 2"),
    (lambda m: m["outputs"][0].update(shape=[1]), "outputs is .* code has"),
    (lambda m: m["outputs"][0].update(dtype="float16"), "outputs is .*float16.* code has"),
    (lambda m: m.update(target="{"), "invalid description: target "),
    (lambda m: m.update(target=None), "target is null, not a string"),
    (lambda m: m.update(target='{"kind": "opencl"}'), "'opencl'"),
    (lambda m: m.update(target=m["target"].replace("num-cores", "num_cores")), "target"),
    (lambda m: m.update(name=["a"]), r'name is \["a"\], not a string'),
    (lambda m: m.update(name="other"), 'name is "other", .*code.* "Sequential"'),
    (lambda m: m.update(key=1), "key is 1, not a string"),
    (lambda m: m.update(key="other"), 'key is "other", .*code.* "Sequential-'),
    (lambda m: m.update(structure={"tree": 1}), "structure is invalid"),
    (lambda m: m.update(structure=7), "structure is invalid"),
    (lambda m: m.update(structure=NESTED | {"constants": [[float("inf"), 1]]}), "structure is invalid"),
    (lambda m: m.pop("structure"), "structure is missing"),
    (lambda m: m.pop("signature"), "signature is missing"),
    (lambda m: m.update(signature=7), "signature is invalid: .*parameters"),
    (lambda m: m["signature"]["parameters"][0].update(kind="ANY"), "signature is invalid: .*ANY"),
    (lambda m: m["signature"]["parameters"][0].update(default=[None]), "signature is .* code has"),
    (lambda m: m["signature"]["parameters"][0].update(name="y"), 'signature is .*"y".* code has'),
    (lambda m: m["signature"].update(arguments=NESTED), "signature is invalid: .*arguments"),
    (lambda m: m.pop("report"), "report is missing"),
    (lambda m: m.update(report=[]), r"report is \[\], not an object"),
    (lambda m: m.pop("format"), "zip archive"),
]


@pytest.mark.parametrize(("change", "message"), WRONG, ids=range(len(WRONG)))
def test_invalid_descriptions_are_refused(saved: Path, tmp_path: Path, change: Any, message: str) -> None:
    """Invalid descriptions are refused although their checksums are right."""
    with pytest.raises(InvalidArtefact, match=rf"edited\.felix: .*{message}"):
        load(edited(saved, tmp_path, change))


def test_another_structure_of_outputs_is_refused(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidArtefact, match=r"structure is \{.*code.* null"):
        load(edited(saved, tmp_path, lambda meta: meta.update(structure=NESTED)))


def test_the_code_of_another_model_is_refused(compiled: Compiled, saved: Path, tmp_path: Path) -> None:
    """Code of another model is refused even if its inputs and outputs are the same."""
    other = copy.deepcopy(compiled)
    other.key = "other"
    save(other, tmp_path / "other.felix", report={})
    with zipfile.ZipFile(tmp_path / "other.felix") as archive:
        code = archive.read("model.so")
    with pytest.raises(InvalidArtefact, match=r"key is .*code.*other"):
        load(edited(saved, tmp_path, lambda meta: None, library=code))


def test_code_without_a_description_is_refused(compiled: Compiled, saved: Path, tmp_path: Path) -> None:
    _, executable = codegen.compile_relax(import_model(Apply(lambda x: x + 1), (3,)).module, compiled.target)
    executable.export_library(str(tmp_path / "bare.so"))
    with pytest.raises(InvalidArtefact, match=r"edited\.felix: .*code contains no description"):
        load(edited(saved, tmp_path, lambda meta: None, library=(tmp_path / "bare.so").read_bytes()))


def test_a_deeply_nested_description_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "deep.felix"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("meta.json", "[" * 100_000 + "]" * 100_000)
        archive.writestr("model.so", b"")
    with pytest.raises(InvalidArtefact, match=r"deep\.felix: .*damaged"):
        load(path)


def _zip(path: Path, members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def test_compressed_members_are_refused_unread(saved: Path, tmp_path: Path) -> None:
    """The file holds 100 MB of zeros, compressed to 100 kB."""
    with zipfile.ZipFile(saved) as archive:
        members = {"meta.json": archive.read("meta.json"), "model.so": bytes(10**8)}
    path = _zip(tmp_path / "bomb.felix", members, zipfile.ZIP_DEFLATED)
    for read in (load, artefact.read_report):
        with pytest.raises(InvalidArtefact, match=r"meta\.json is compressed"):
            read(path)


def test_members_that_share_their_bytes_are_refused(tmp_path: Path) -> None:
    """Archives that expand a million times when they are read have such members."""
    path = _zip(tmp_path / "a.felix", {"meta.json": b'{"format": 2, "chunks": 1}', "part-1.felix": bytes(10**5)})
    content = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        start, part = archive.start_dir, archive.getinfo("part-1.felix")
    entry = content[content.index(b"PK\1\2", start + 1) : content.index(b"PK\5\6", start)]
    copies = [entry.replace(b"part-1.", b"part-%d." % number) for number in range(2, 10)]
    directory = content[start : content.index(b"PK\5\6", start)] + b"".join(copies)
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 10, 10, len(directory), start, 0)
    path.write_bytes(content[:start] + directory + end)
    assert part.file_size == 10**5
    with pytest.raises(InvalidArtefact, match=r"a\.felix: .*larger than the file"):
        load(path)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"model.so": b"", "run.py": b""}, r"'run\.py'"),
        ({"model.so": b"", "../model.so": b""}, r"'\.\./model\.so'"),
        ({"part-1.felix": b""}, "zip archive"),
        ({}, "zip archive"),
        ({f"part-{number}.felix": b"" for number in range(1, 1001)}, "got 1001"),
    ],
)
def test_files_with_other_members_are_refused(
    saved: Path, tmp_path: Path, members: dict[str, bytes], message: str
) -> None:
    with zipfile.ZipFile(saved) as archive:
        meta = archive.read("meta.json")
    with pytest.raises(InvalidArtefact, match=message):
        load(_zip(tmp_path / "other.felix", {"meta.json": meta, **members}))


def test_the_report_is_read_without_the_code(saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "damaged.felix"
    content = bytearray(saved.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(InvalidArtefact, match=r"Bad CRC-32 for file 'model\.so'"):
        load(path)
    assert artefact.read_report(path) == REPORT


def test_a_model_is_converted_to_bytes_and_back(compiled: Compiled, saved: Path) -> None:
    again, report = from_bytes(to_bytes(compiled, report=REPORT))
    (x,) = mlp()[1]
    assert report == REPORT
    assert again.key == compiled.key
    assert torch.equal(again(x), compiled(x))
    with pytest.raises(InvalidArtefact, match=r"a pickled model: .*damaged"):
        from_bytes(saved.read_bytes()[:-100])


def test_a_link_to_a_saved_model_stays(compiled: Compiled, tmp_path: Path) -> None:
    link = tmp_path / "latest.felix"
    link.symlink_to(tmp_path / "v1.felix")
    save(compiled, link, report=REPORT)
    assert link.is_symlink()
    assert load(tmp_path / "v1.felix")[1] == REPORT
    with pytest.raises(OutputNotWritable, match=r"/dev/null: .*device"):
        save(compiled, "/dev/null", report={})


def test_directories_and_devices_are_not_loaded(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", Path("/dev/null")):
        with pytest.raises(InvalidArtefact, match="expected a file") as error:
            load(path)
        assert error.value.where == str(path)


def test_a_deleted_model_frees_its_library_file_and_memory(saved: Path) -> None:
    """Deleting a model unloads its library, removes the extracted file and frees its constants."""
    (x,) = mlp()[1]

    def mapped() -> set[str]:
        maps = Path("/proc/self/maps").read_text().splitlines()
        return {line.split()[-1] for line in maps if line.endswith("model.so")}

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    before, sizes = mapped(), []
    for _ in range(100):
        again, _ = load(saved)
        output = again(x)
        (file,) = mapped() - before
        del again
        assert mapped() == before
        assert not Path(file).parent.exists()
        sizes.append(resident())
    assert sizes[-1] - sizes[20] < 80 * saved.stat().st_size / 2
    assert torch.equal(output, load(saved)[0](x))  # an output outlives its model


def test_a_damaged_library_is_refused(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidArtefact, match=r"edited\.felix: the compiled code "):
        load(edited(saved, tmp_path, lambda meta: None, library=b"\x7fELF torn"))


def test_a_folder_that_does_not_allow_code_is_named(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torn = edited(saved, tmp_path, lambda meta: None, library=b"\x7fELF torn")
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_NOEXEC))
    with pytest.raises(InvalidArtefact, match=r"set TMPDIR to .* is mounted with noexec"):
        load(torn)


def test_a_full_disk_while_loading_is_reported(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, content: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", refuse)
    with pytest.raises(OutputNotWritable, match=r"No space left on device\. .*TMPDIR"):
        load(saved)


def test_a_library_without_a_model_is_refused(compiled: Compiled, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (kernels,) = [module for module in compiled.runtime.imports if module.kind == "llvm"]
    monkeypatch.setattr(codegen, "open_library", lambda path: kernels)
    with pytest.raises(InvalidArtefact, match=r"the compiled code .*has no function"):
        load(saved)


@pytest.mark.parametrize("kind", [RuntimeError, TypeError, ValueError, AttributeError])
def test_internal_errors_are_not_reported_as_invalid_files(
    compiled: Compiled, saved: Path, tmp_path: Path, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise kind("ours")

    for module, name in ((artefact, "Compiled"), (artefact_description, "device_name")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, fail)
            with pytest.raises(kind, match="ours"):
                load(saved)
    monkeypatch.setattr(codegen, "relink_relax", fail)
    with pytest.raises(kind, match="ours"):
        save(compiled, tmp_path / "m.felix", report={})


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x05\x06" + 18 * b"\0"])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.felix"
    path.write_bytes(content)
    with pytest.raises(InvalidArtefact, match=r"m\.felix: the file is (damaged|a zip archive)"):
        load(path)


@pytest.mark.parametrize("path", [None, 5, "", "a\0b", b"bytes"])
def test_invalid_paths_are_refused(path: Any) -> None:
    with pytest.raises(InvalidArtefact, match=r"path.*pathlib\.Path") as error:
        load(path)
    assert error.value.where == "load"


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArtefact, match=r"m\.felix: .*no such file"):
        load(tmp_path / "m.felix")


@pytest.mark.parametrize("position", [0.1, 0.5, 0.9])
def test_a_flipped_byte_is_refused(saved: Path, tmp_path: Path, position: float) -> None:
    data = bytearray(saved.read_bytes())
    data[int(position * len(data))] ^= 0xFF
    path = tmp_path / "m.felix"
    path.write_bytes(data)
    with pytest.raises(InvalidArtefact, match=r"m\.felix: .*damaged"):
        load(path)


def test_a_truncated_file_is_refused(saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.felix"
    path.write_bytes(saved.read_bytes()[:-100])
    with pytest.raises(InvalidArtefact, match=r"m\.felix: .*damaged"):
        load(path)
