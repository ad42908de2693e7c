"""The TVM package loads names on first use and passes interrupts on."""

from __future__ import annotations

import gc
import re
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import tvm_ffi

from felixlike import _tvm
from felixlike._util.interrupts import Terminated, terminable
from felixlike.hardware import host_device


@pytest.mark.parametrize(("number", "kind"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)])
def test_an_interrupt_in_a_callback_is_raised(number: signal.Signals, kind: type[KeyboardInterrupt]) -> None:
    """A signal in a Python callback called by TVM, such as a schedule rule, raises its own exception type."""
    with terminable(), pytest.raises(KeyboardInterrupt) as raised:
        tvm_ffi.convert(lambda: signal.raise_signal(number))()
    assert type(raised.value) is kind
    assert getattr(raised.value, "number", signal.SIGINT) == number


def test_the_host_is_described() -> None:
    device = host_device()
    assert device.kind == "cpu"
    assert device.cores >= 1
    assert device.vector_bits in (128, 256, 512)
    assert 8 * 2**10 <= device.l1_bytes <= device.l2_bytes


def test_a_failing_importer_prints_no_warning(capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        builder = _tvm.relax.BlockBuilder()
        with builder.function("main", []), builder.dataflow():
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), _tvm.builders_end_their_blocks():
        fail()
    gc.collect()
    assert capfd.readouterr().err == ""
    with pytest.raises(ZeroDivisionError):
        fail()
    gc.collect()
    assert "destroyed with remaining blocks" in capfd.readouterr().err


def test_every_name_exists() -> None:
    stub = Path(_tvm.__file__).with_suffix(".pyi").read_text()
    listed = re.findall(r"^from felixlike\._tvm\.(\w+) import (\w+) as \2$", stub, re.MULTILINE)
    assert sorted(name for _, name in listed) == dir(_tvm)
    for file, name in listed:
        assert getattr(_tvm, name) is getattr(import_module(f"felixlike._tvm.{file}"), name)


def test_a_missing_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'felixlike._tvm' has no attribute 'TensorIntrin'"):
        _ = _tvm.TensorIntrin  # type: ignore[attr-defined]


_IMPORTED = """
import sys
{first}
import tvm
from tvm.ir import Op
for name in sorted(map(str, Op.list_op_names())):
    print(name, Op.get(name).get_attr("TScriptPrinterName"))
for module in sorted(name for name in sys.modules if name.startswith("tvm.") and name.endswith("_ffi_api")):
    if "disco" not in module:
        print(module, *sorted(vars(sys.modules[module])))
import tvm.runtime.disco
print(tvm.runtime.disco.Session)
"""


def test_tvm_is_imported_as_it_imports_itself() -> None:
    firsts = ("", "from felixlike._tvm import names")
    texts = [
        subprocess.run([sys.executable, "-c", _IMPORTED.format(first=f)], capture_output=True, text=True, check=True)
        for f in firsts
    ]
    plain, quick = (text.stdout.splitlines() for text in texts)
    assert len(plain) > 1000
    assert set(plain) == set(quick)
