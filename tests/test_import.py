"""Test that `import felixlike` is fast and that the public names exist."""

from __future__ import annotations

import subprocess
import sys
from graphlib import TopologicalSorter

import pytest

import felixlike


def test_importing_loads_neither_torch_nor_tvm() -> None:
    heavy = ("torch", "tvm", "numpy", "egglog", "rich")
    code = f"import felixlike, sys; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_show_and_doctor_load_neither_torch_nor_tvm() -> None:
    """`felixlike show` starts fast, and `felixlike doctor` can report broken installations."""
    code = (
        "import sys, felixlike.cli.doctor, felixlike.cli.show, felixlike.report.layout, felixlike.records\n"
        "print([m for m in ('torch', 'tvm', 'egglog') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_packages_load_tvm_only_when_they_use_it() -> None:
    code = (
        "import sys, felixlike.codegen, felixlike.frontend, felixlike.spaces, felixlike.symbolic\n"
        "print([m for m in ('torch', 'tvm', 'egglog') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_public_names_load() -> None:
    for name in felixlike.__all__:
        assert getattr(felixlike, name) is not None
    assert set(dir(felixlike)) == set(felixlike.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'optimise'"):
        _ = felixlike.optimise  # type: ignore[attr-defined]


def test_there_are_no_import_cycles() -> None:
    """Imports for type checkers are included."""
    grimp = pytest.importorskip("grimp", reason="import-linter brings it")
    graph = grimp.build_graph("felixlike")
    order = TopologicalSorter({module: graph.find_modules_directly_imported_by(module) for module in graph.modules})
    assert len(list(order.static_order())) > 500  # raises CycleError
