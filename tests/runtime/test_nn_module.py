"""Tests for an optimized model as a torch module."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import Tensor, nn

from felixlike.api import Optimized
from felixlike.errors import FixedModel, UnsupportedOperator
from felixlike.frontend import import_model
from felixlike.report import Report
from felixlike.runtime import compile_model


class Body(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.relu() * 2


@pytest.fixture(scope="module")
def optimized() -> Optimized:
    report = Report("Body", (), 0, 0, 0.0, 0.0, 0.0, "", "", "", "", {}, 0)
    return Optimized(compile_model(import_model(Body(), (3, 4))), report)


@pytest.fixture
def chain(optimized: Optimized) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), optimized.module(), nn.Linear(4, 2))


def test_a_sequence_with_an_optimized_module(chain: nn.Sequential) -> None:
    x = torch.randn(3, 5)
    with torch.no_grad():
        torch.testing.assert_close(chain(x), chain[2](chain[0](x).relu() * 2))
    assert set(chain.state_dict()) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert not list(chain[1].parameters())
    assert "<optimized Body(x: float32[3, 4])>" in repr(chain)


def test_modes_and_moves_without_effect_are_accepted(chain: nn.Sequential) -> None:
    x = torch.randn(3, 5)
    with torch.no_grad():
        want = chain(x)
        for same in (chain.train(), chain.eval(), chain.cpu(), chain.float(), chain.to("cpu", torch.float32)):
            assert torch.equal(same(x), want)
        chain.requires_grad_(False).zero_grad()
        chain.load_state_dict(chain.state_dict())
        assert torch.equal(chain(x), want)


def test_moves_to_other_dtypes_and_devices_are_refused(chain: nn.Sequential) -> None:
    with pytest.raises(FixedModel, match=r"Body: .* x from float32 on cpu to float64 on cpu"):
        chain.double()
    with pytest.raises(FixedModel, match="to float16 on cpu"):
        chain[1].half()
    with pytest.raises(FixedModel, match="to float32 on meta"):
        chain[1].to("meta")


def test_copies_and_saved_files_give_equal_outputs(chain: nn.Sequential) -> None:
    x = torch.randn(3, 5)
    file = io.BytesIO()
    torch.save(chain, file)
    file.seek(0)
    with torch.no_grad():
        want = chain(x)
        assert torch.equal(copy.deepcopy(chain)(x), want)
        assert torch.equal(torch.load(file, weights_only=False)(x), want)
    file.seek(0)
    with pytest.raises(Exception, match="Weights only load failed"):
        torch.load(file, weights_only=True)


def test_torch_compile_and_export_give_equal_outputs(chain: nn.Sequential) -> None:
    torch.compiler.reset()
    x = torch.randn(3, 5)
    with torch.no_grad():
        want = chain(x)
        torch.testing.assert_close(torch.compile(chain, backend="aot_eager", fullgraph=True)(x), want)
        torch.testing.assert_close(torch.export.export(chain, (x,)).module()(x), want)


def test_importing_an_optimized_module_is_refused(chain: nn.Sequential) -> None:
    with pytest.raises(UnsupportedOperator, match=r"^Sequential: .*\bcompiled by felixlike\b"):
        import_model(chain, (3, 5))
