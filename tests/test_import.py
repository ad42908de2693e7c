"""`import felixlike` is light, and the public names are there."""

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


def test_what_only_shows_loads_neither_torch_nor_tvm() -> None:
    """So that `felixlike show` is quick, and `felixlike doctor` can say what is wrong with them."""
    code = (
        "import sys, felixlike.cli.doctor, felixlike.cli.show, felixlike.report.layout, felixlike.records\n"
        "print([m for m in ('torch', 'tvm', 'egglog') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_rooms_that_use_tvm_do_not_load_it_before_they_need_it() -> None:
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
        _ = felixlike.optimise


def test_no_module_imports_itself_through_others() -> None:
    """Imports for type checkers included."""
    grimp = pytest.importorskip("grimp", reason="import-linter brings it")
    graph = grimp.build_graph("felixlike")
    order = TopologicalSorter({module: graph.find_modules_directly_imported_by(module) for module in graph.modules})
    assert len(list(order.static_order())) > 500  # raises CycleError
