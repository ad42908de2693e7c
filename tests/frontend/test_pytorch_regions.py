"""Tests that regions of operators that TVM cannot import become single calls, and which models are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from support.models import Apply
from torch import Tensor, nn
from torch.nn import functional

import felixlike as fx
from felixlike import _tvm
from felixlike.errors import InvalidModel, UnsupportedOperator
from felixlike.frontend import import_model
from felixlike.frontend.importers.pytorch_regions import PACKED, operators_in
from felixlike.runtime import compile_model


def regions(imported: Any) -> list[dict[str, Any]]:
    """Return the regions of an imported model in the order of their calls."""
    found = []

    def visit(node: Any) -> None:
        if isinstance(node, _tvm.relax.Call) and isinstance(node.args[0], _tvm.relax.ExternFunc):
            assert str(node.args[0].global_symbol) == PACKED
            found.append(json.loads(str(node.args[1].fields[0].value)))

    _tvm.relax.analysis.post_order_visit(imported.module["main"], visit)
    return found


def operators(region: dict[str, Any]) -> list[str]:
    return [name for name, _, _ in region["operators"]]


class Filter(nn.Module):
    """A filter with complex weights between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(8, 8), nn.Linear(8, 8)
        self.weights = nn.Parameter(torch.randn(5, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(self.before(x)) * self.weights
        result: Tensor = self.after(torch.fft.irfft(spectrum, n=8))
        return result


@pytest.mark.parametrize(
    ("moved", "real"),
    [
        (lambda y: y.transpose(-1, 0), torch.abs),
        (lambda y: y.transpose(1, -3), torch.view_as_real),
        (lambda y: y.permute(-1, 0, 1).transpose(0, 1), torch.view_as_real),
        (lambda y: y.permute(2, 1, 0), torch.abs),
    ],
)
def test_dimensions_are_reordered_outside_of_regions(moved: Any, real: Any) -> None:
    x = torch.randn(3, 4, 9)
    model = Apply(lambda x: real(moved(torch.fft.rfft(x))) * 2)
    imported = import_model(model, (x,))
    (region,) = regions(imported)
    assert operators(region) == ["_fft_r2c.default", f"{real.__name__}.default"]
    torch.testing.assert_close(compile_model(imported)(x), model(x))


def _low_and_high(y: Tensor, x: Tensor) -> Tensor:
    y[:, :2, :3] = x[:, :2, :3]
    y[:, -2:, ::2] = x[:, 1:3, ::2] * 2
    return y


def _broadcast(y: Tensor, x: Tensor) -> Tensor:
    y[1:, :, :4] = x[0, 0, :4]
    return y


def _kept(y: Tensor, x: Tensor) -> Tensor:
    before = y[:, 1:]
    z = y.clone()
    z[:, 1:3, :2] = x[:, 1:3, :2]
    return torch.cat([before, z], dim=1)


def _whole_rows(y: Tensor, x: Tensor) -> Tensor:
    y[1:] = x[1:]
    return y


@pytest.mark.parametrize(("write", "joined"), [(_low_and_high, 2), (_broadcast, 1), (_kept, 0), (_whole_rows, 0)])
def test_slices_of_slices_of_new_complex_tensors_are_written_at_once(write: Any, joined: int) -> None:
    x = torch.randn(3, 4, 8)
    model = Apply(lambda x: write(torch.full((3, 4, 5), 2j), torch.fft.rfft(x)).abs() + 1)
    imported = import_model(model, (x,))
    (region,) = regions(imported)
    assert operators(region).count("as_strided_scatter.default") == joined
    torch.testing.assert_close(compile_model(imported)(x), model(x))


def test_slices_of_results_with_unknown_strides_are_written_one_by_one() -> None:
    """FFTs return other strides than torch.export notes."""
    x = torch.randn(3, 4, 8)
    model = Apply(lambda x: _low_and_high(torch.fft.rfft2(x), torch.fft.rfft(x)).abs() + 1)
    imported = import_model(model, (x,))
    assert "as_strided_scatter.default" not in operators(regions(imported)[0])
    torch.testing.assert_close(compile_model(imported)(x), model(x))


def test_a_region_is_one_call_and_the_rest_is_compiled() -> None:
    imported = import_model(Filter(), (4, 8))
    (region,) = regions(imported)
    assert operators(region) == ["view_as_complex.default", "_fft_r2c.default", "mul.Tensor", "_fft_c2r.default"]
    assert (region["inputs"], len(region["outputs"])) == (2, 1)
    assert operators_in(imported.module) == ("_fft_c2r", "_fft_r2c", "mul")
    assert sum(task.weight for task in imported.tasks) == 2, "the two layers"
    assert imported.note == "PyTorch runs 3 operators of the model: _fft_c2r, _fft_r2c, mul."


class _FromWeights(nn.Module):
    """A filter and a product whose factors are computed from weights. The matrix is singular for a scale of 0."""

    def __init__(self, scale: float = 3.0) -> None:
        super().__init__()
        self.register_buffer("kernel", torch.linspace(-1, 1, 8))
        self.matrix = nn.Parameter(torch.eye(8) * scale)

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(torch.relu(x)) * torch.fft.rfft(self.get_buffer("kernel") + 0.5)
        result: Tensor = torch.fft.irfft(spectrum, n=8) @ torch.linalg.inv(self.matrix)
        return result


def test_what_depends_on_weights_alone_is_computed_once() -> None:
    model, x = _FromWeights(), torch.randn(4, 8)
    imported = import_model(model, (x,))
    assert [operators(region)[-3:] for region in regions(imported)] == [
        ["_fft_r2c.default", "mul.Tensor", "_fft_c2r.default"]
    ]
    assert model.get_buffer("kernel").dtype == torch.float32
    fast = fx.optimize(imported, trials=0, progress=False)
    torch.testing.assert_close(fast(x), model(x).detach(), rtol=1e-5, atol=1e-5)


def test_errors_and_random_numbers_are_not_computed_once() -> None:
    assert operators_in(import_model(_FromWeights(0.0), (4, 8)).module) == (
        "_fft_c2r",
        "_fft_r2c",
        "_linalg_check_errors",
        "linalg_inv_ex",
        "mul",
    )
    noisy = Apply(lambda x: torch.relu(x) + torch.rand(8) * 2)
    assert operators_in(import_model(noisy, (4, 8), random=True).module) == ("rand",)


def test_buffers_that_calls_change_are_not_constants() -> None:
    class Halved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("matrix", torch.eye(3))

        def forward(self, x: Tensor) -> Tensor:
            self.get_buffer("matrix").mul_(0.5)
            result: Tensor = x + torch.linalg.matrix_exp(self.get_buffer("matrix")).sum()
            return result

    assert operators_in(import_model(Halved(), (4, 8)).module) == ("linalg_matrix_exp",)


def test_a_compiled_part_between_two_halves_of_a_region_splits_it() -> None:
    def gated(x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(x)
        filtered: Tensor = torch.fft.irfft(spectrum * torch.softmax(spectrum.abs(), -1)).relu()
        return filtered

    first, second = regions(import_model(Apply(gated), (2, 8)))
    assert operators(first)[-2:] == ["resolve_conj.default", "view_as_real.default"], "the spectrum passes as real"
    assert len(first["outputs"]) == 2
    assert operators(second) == ["view_as_complex.default", "mul.Tensor", "_fft_c2r.default"]


def test_regions_without_a_connection_are_separate_calls() -> None:
    def both(x: Tensor) -> Tensor:
        total: Tensor = torch.linalg.det(x).relu().sum() + torch.special.i0(x).relu()
        return total

    assert sorted(map(operators, regions(import_model(Apply(both), (2, 3, 3))))) == [
        ["_linalg_det.default"],
        ["i0.default"],
    ]


def test_arguments_of_all_kinds() -> None:
    def mixed(x: Tensor) -> Tensor:
        z = torch.fft.fft(x, norm="ortho") * 2j / (1 + 2j)
        z = torch.cat([z, z]).to("cpu", torch.complex128).clone(memory_format=torch.contiguous_format)
        return torch.view_as_real(z.roll([1], [0]) * float("inf")).relu()

    (region,) = regions(import_model(Apply(mixed), (3,)))
    assert {"complex": [0.0, 2.0]} in [a for _, arguments, _ in region["operators"] for a in arguments]
    text = json.dumps(region)
    assert all(part in text for part in ('{"dtype": "complex128"}', '{"device": "cpu"}', "Infinity"))


def test_programs_keep_their_complex_weights() -> None:
    model = Filter().eval()
    program = torch.export.export(model, (torch.zeros(4, 8),))
    import_model(program)
    assert program.state_dict["weights"].dtype is torch.complex64
    assert program.state_dict["weights"].data_ptr() == model.weights.data_ptr()


def test_models_that_pytorch_would_run_alone_are_refused() -> None:
    with pytest.raises(UnsupportedOperator, match=r"^Apply: .*linalg_inv_ex\.default, and .*no other operators"):
        import_model(Apply(torch.linalg.inv), (torch.eye(4),))
    with pytest.raises(UnsupportedOperator, match=r"^Apply: .*aten\._fft_r2c\.default.*no other operators"):
        import_model(Apply(lambda x: torch.fft.rfft(x).abs()), (4,))
    with pytest.raises(UnsupportedOperator, match=r"^Apply: .*_fft_r2c, abs, and .*no other operators"):
        import_model(Apply(lambda x: torch.fft.rfft(x.reshape(2, 8)).abs()), (2, 2, 4))


def test_complex_inputs_and_outputs_are_refused() -> None:
    program = torch.export.export(Apply(lambda z: z.abs().relu()), (torch.zeros(3, dtype=torch.complex64),))
    with pytest.raises(InvalidModel, match=r"^ExportedProgram: .*complex64"):
        import_model(program)
    with pytest.raises(UnsupportedOperator, match=r"^Apply: the model returns .*complex64.*view_as_real"):
        import_model(Apply(lambda x: torch.fft.fft(x.relu())), (3,))

    class Changed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("state", torch.zeros(3, dtype=torch.complex64))

        def forward(self, x: Tensor) -> Tensor:
            self.state.mul_(1j)  # type: ignore[operator]
            return x + 1

    with pytest.raises(InvalidModel, match=r"^Changed: .*state.*complex64"):
        import_model(Changed(), (3,))


@pytest.mark.skipif(torch.__version__ < "2.12", reason="torch.export 2.11 drops the operator")
def test_an_error_without_a_result_that_is_used_is_refused() -> None:
    def checked(x: Tensor) -> Tensor:
        torch.linalg.inv(x)
        return x + 1

    with pytest.raises(UnsupportedOperator, match=r"^Apply: .*linalg\.inv.*not used"):
        import_model(Apply(checked), (torch.eye(3),))


def test_sizes_that_depend_on_values_are_refused_beside_regions() -> None:
    with pytest.raises(UnsupportedOperator, match=r"^Apply: .*aten\._unique2"):
        import_model(Apply(lambda x: torch.unique(torch.special.i0(x)) + 1), (4,))


def test_gpus_are_refused() -> None:
    with pytest.raises(UnsupportedOperator, match=r"^Filter: .*_fft_r2c.*\bCPUs\b"):
        import_model(Filter(), (4, 8), "sm_80")


def test_unused_results_are_left_out() -> None:
    imported = import_model(Apply(lambda x: (torch.linalg.svdvals(x), x + 1)[1]), (3, 3))
    assert regions(imported) == []
    imported = import_model(Apply(lambda x: torch.linalg.svd(x)[1] + 1), (3, 3))
    assert [len(region["outputs"]) for region in regions(imported)] == [1]


def test_indices_of_maxima_are_computed_by_pytorch_only_if_they_are_used() -> None:
    used = Apply(lambda x: tuple(part + 1 for part in functional.max_pool2d(x, 2, return_indices=True)))
    unused = Apply(lambda x: functional.max_pool2d(x, 2, return_indices=True)[0] + 1)
    assert operators_in(import_model(used, (1, 1, 4, 4)).module) == ("max_pool2d_with_indices",)
    assert operators_in(import_model(unused, (1, 1, 4, 4)).module) == ()
