"""Test that only one module uses names that PyTorch does not document, and what its functions say."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import torch
from torch._subclasses import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

import felixlike
from felixlike._util import torch_compat

PACKAGE = Path(felixlike.__file__).parent


def _private_names(tree: ast.AST) -> Iterator[str]:
    """Yield the private names of torch that a module imports or reads as attributes."""
    for node in ast.walk(tree):
        dotted: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module:
            dotted = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            dotted = [alias.name for alias in node.names]
        elif isinstance(node, ast.Attribute):
            dotted = [ast.unparse(node)]
        for name in dotted:
            parts = name.split(".")
            if (
                parts[0] == "torch"
                and parts[1:2] != ["ops"]
                and any(part.startswith("_") and not part.endswith("__") for part in parts)
            ):
                yield name


def test_private_names_of_torch_are_in_one_module() -> None:
    found = {
        f"{path.relative_to(PACKAGE)}: {name}"
        for path in PACKAGE.rglob("*.py")
        if path != Path(torch_compat.__file__)
        for name in _private_names(ast.parse(path.read_text()))
    }
    assert not found


def test_nested_values_and_targets_are_recognised() -> None:
    assert torch_compat.pytree().tree_leaves([1, (2, 3)]) == [1, 2, 3]
    assert torch_compat.is_operator(torch.ops.aten.relu.default)
    assert not torch_compat.is_operator(torch.relu)
    with FakeTensorMode():
        assert torch_compat.is_fake(torch.zeros(2))
    assert not torch_compat.is_fake(torch.zeros(2))


def test_tensors_are_described() -> None:
    x = torch.zeros(4, 4)
    assert torch_compat.changes(x) == 0
    x.add_(1)
    assert torch_compat.changes(x) == 1
    with torch.inference_mode():
        assert torch_compat.changes(torch.zeros(2)) == 0
    assert torch_compat.storage_id(x) == torch_compat.storage_id(x[1:]) != torch_compat.storage_id(x.clone())
    assert torch_compat.is_dense(x.T)
    assert not torch_compat.is_dense(x[:, ::2])
    assert torch_compat.is_contiguous(x)
    assert not torch_compat.is_contiguous(x.T)
    assert not torch_compat.is_wrapped(x)
    guard = torch_compat.tensor_guard([x])
    assert guard is not None
    assert guard(torch.ones(4, 4))
    assert not guard(torch.ones(4, 5))


def test_modes_and_transforms_are_seen() -> None:
    seen: list[tuple[bool, bool]] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        seen.append((torch_compat.is_differentiated(), torch_compat.is_wrapped(x)))
        return (x * x).sum()

    torch.func.grad(function)(torch.ones(2))
    torch.vmap(function)(torch.ones(2, 2))
    assert seen == [(True, True), (False, True)]
    with torch.autograd.forward_ad.dual_level():
        assert torch_compat.in_forward_mode()
    assert not torch_compat.in_forward_mode()
    assert torch_compat.dispatch_depth()() == 0
    with FlopCounterMode(display=False):
        assert torch_compat.dispatch_depth()() == 1
        assert torch_compat.has_dispatch_modes()
