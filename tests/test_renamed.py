"""Test that names from before version 0.1.0 work and warn with their new names."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import operators

import felixlike
from felixlike import errors, symbolic

ROOT = Path(__file__).parents[1]


def test_moved_modules_warn_and_have_the_same_names() -> None:
    """They are imported in a new process, because each warns only once."""
    code = """
import importlib, warnings
from felixlike._util.moved_modules import MOVED
for old, new in MOVED.items():
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        before = importlib.import_module(old)
    now = importlib.import_module(new)
    texts = [str(w.message) for w in told if w.category is DeprecationWarning and "has moved to" in str(w.message)]
    assert texts == [f"{old} has moved to {new}"], (old, texts)
    names = [name for name in dir(now) if not name.startswith("_")]
    assert names and all(getattr(before, name) is getattr(now, name) for name in names), (old, names)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_the_warning_of_a_moved_module_names_the_import_statement() -> None:
    code = "import felixlike.deploy"
    done = subprocess.run([sys.executable, "-W", "always", "-c", code], capture_output=True, text=True, check=True)
    assert "<string>:1: DeprecationWarning: felixlike.deploy has moved to felixlike.runtime" in done.stderr


def test_modules_in_moved_packages_have_the_same_classes() -> None:
    with pytest.warns(DeprecationWarning, match="has moved to"):
        before = importlib.import_module("felixlike.algebra.expression")
    assert before.Expr is importlib.import_module("felixlike.symbolic.expr.expression").Expr


def test_unknown_modules_raise() -> None:
    with pytest.raises(ModuleNotFoundError), pytest.warns(DeprecationWarning, match="has moved to"):
        importlib.import_module("felixlike.deploy.nothing")


def test_the_former_testing_package_imports() -> None:
    code = "import felixlike.testing.tvm_view as view; assert view.tvm_view"
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=120)


@pytest.mark.parametrize(
    "name",
    [
        "FellBack",
        "GradientsStop",
        "NotCompiled",
        "NotVerified",
        "OwnMistake",
        "RandomModel",
        "SearchFailed",
        "SuspiciousName",
    ],
)
def test_old_names_of_warnings_warn_and_return_the_new_classes(name: str) -> None:
    with pytest.warns(DeprecationWarning, match="is now") as caught:
        warning = getattr(errors, name)
    assert issubclass(warning, errors.FelixlikeWarning)
    assert warning.__name__ in str(caught[0].message)
    assert caught[0].filename == __file__


def test_the_old_name_of_observations_warns() -> None:
    with pytest.warns(DeprecationWarning, match="Observations"):
        known = felixlike.search.Known
    assert known is felixlike.search.Observations


def test_unknown_names_raise() -> None:
    assert not hasattr(errors, "Nothing")


def test_the_page_has_every_error_and_warning() -> None:
    page = (ROOT / "docs/errors.md").read_text(encoding="utf-8")
    rows = " ".join(line.split(" | ")[0] for line in page.splitlines() if line.startswith("| `"))
    classes = {
        name
        for name, member in vars(errors).items()
        if isinstance(member, type) and issubclass(member, errors.FelixlikeError | errors.FelixlikeWarning)
    }
    assert set(re.findall(r"`(\w+)`", rows)) == classes - {"FelixlikeError", "FelixlikeWarning", "TCError"}


def test_renamed_property_of_sketches() -> None:
    (sketch, *_) = symbolic.sketches(operators.matmul(8, 8, 8), "cpu")
    with pytest.warns(DeprecationWarning, match="is_symbolic"):
        assert sketch.understood == sketch.is_symbolic
