"""Tests that models whose operators are partly run by PyTorch return what they return in eager mode."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import Apply
from torch import Tensor, nn
from torch.linalg import LinAlgError  # type: ignore[attr-defined]
from torch.nn import functional

import felixlike as fx
from felixlike._util.torch_modes import default_dtype
from felixlike.errors import CompilationFailed, InvalidArtefact
from felixlike.frontend import import_model
from felixlike.frontend.importers.input_shapes import Example, Given, Input
from felixlike.runtime import compile_model, pytorch_calls
from felixlike.runtime.artefact_description import describe, with_versions
from felixlike.runtime.verification import Verdict, max_relative_error


class SpectralConvolution(nn.Module):
    """The layer of a Fourier neural operator: complex weights for the lowest frequencies."""

    def __init__(self, channels: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        shape = (channels, channels, modes, modes)
        self.top = nn.Parameter(torch.randn(shape, dtype=torch.cfloat) / channels)
        self.bottom = nn.Parameter(torch.randn(shape, dtype=torch.cfloat) / channels)

    def forward(self, x: Tensor) -> Tensor:
        spectrum, modes = torch.fft.rfft2(x), self.modes
        result = torch.zeros(*x.shape[:3], x.shape[3] // 2 + 1, dtype=torch.cfloat)
        for rows, weights in ((slice(modes), self.top), (slice(-modes, None), self.bottom)):
            part = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, rows, :modes], weights)
            result[:, :, rows, :modes] = part
        filtered: Tensor = torch.fft.irfft2(result, s=x.shape[2:])
        return filtered


class Operator(nn.Module):
    """A Fourier neural operator of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.project = nn.Conv2d(1, 4, 1), nn.Conv2d(4, 1, 1)
        self.spectral = nn.ModuleList([SpectralConvolution(4, 3) for _ in range(2)])
        self.local = nn.ModuleList([nn.Conv2d(4, 4, 1) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.lift(x)
        for spectral, local in zip(self.spectral, self.local, strict=True):
            x = functional.gelu(spectral(x) + local(x))
        projected: Tensor = self.project(x)
        return projected


class Inverse(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        product: Tensor = torch.linalg.inv(x + 1) @ y
        return product


def regular(*shape: int) -> Tensor:
    """Return random well-conditioned matrices."""
    return torch.randn(shape) + 4 * torch.eye(shape[-1])


def definite(x: Tensor) -> Tensor:
    """Return positive definite matrices."""
    return x @ x.mT + torch.eye(x.shape[-1])


def short_time(x: Tensor) -> Tensor:
    window = torch.hann_window(16)
    spectrum = torch.stft(x * 2, 16, 4, window=window, return_complex=True)
    return torch.istft(spectrum * spectrum.abs().sigmoid(), 16, 4, window=window)


def solved(factors: Tensor, pivots: Tensor, y: Tensor) -> Tensor:
    solution: Tensor = torch.linalg.lu_solve(factors, pivots, y * 2)
    return solution + 1


def unpooled(x: Tensor) -> Tensor:
    maxima, places = functional.max_pool2d(x.relu(), 2, return_indices=True)
    return functional.max_unpool2d(maxima + 1, places, [2, 2])


def assigned_afterwards(x: Tensor) -> Tensor:
    doubled = x * 2
    spectrum: Tensor = torch.fft.fft(doubled).real
    doubled.copy_(x[0])
    return spectrum + doubled


CASES: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "a tensor that is assigned to afterwards": (assigned_afterwards, (3, 5)),
    "FNet": (lambda x: torch.fft.fft(torch.fft.fft(x.relu(), dim=-1), dim=-2).real + x, (2, 6, 8)),
    "n-dimensional": (lambda x: torch.fft.ifftn(torch.fft.fftn(x + 1) * 1j).imag.relu(), (2, 4, 6)),
    "phase": (lambda x: torch.polar(x.abs(), torch.angle(torch.fft.fft(x))).imag + 1, (3, 5)),
    "conjugate": (lambda x: (torch.fft.rfft(x) * torch.fft.rfft(x + 1).conj()).real.relu(), (3, 5)),
    "from parts": (lambda x: torch.view_as_real(torch.complex(x.relu(), x).conj()[:, 1:].reshape(-1)) + 1, (3, 4)),
    "from views": (lambda x: torch.view_as_complex((x + 1).reshape(3, 2, 2)).abs() * 2, (3, 4)),
    "short time": (short_time, (2, 64)),
    "determinants": (lambda x: torch.linalg.det(x * 2) + torch.linalg.slogdet(definite(x)).logabsdet, (3, 4, 4)),
    "one determinant": (lambda x: torch.linalg.det(x * 2) + 1, (4, 4)),
    "solution": (lambda x: torch.linalg.solve(definite(x), x + 1), (3, 4, 4)),
    "Cholesky": (lambda x: torch.linalg.cholesky(definite(x)).tanh(), (4, 4)),
    "pseudo-inverse": (lambda x: torch.linalg.pinv(x + 1) * 2, (3, 5)),
    "singular values": (lambda x: torch.linalg.svdvals(x.relu()) + 1, (2, 5, 3)),
    "factors": (lambda x: (lambda q, r: (q @ r).relu())(*torch.linalg.qr(x + 1)), (5, 3)),
    "eigenvalues": (lambda x: torch.linalg.eigh(definite(x)).eigenvalues + 1, (4, 4)),
    "norms": (lambda x: torch.linalg.matrix_norm(x.relu(), 2) + torch.linalg.norm(x, ord="nuc"), (4, 4)),
    "exponential": (lambda x: torch.linalg.matrix_exp(x.tanh()) + 1, (3, 3)),
    "Bessel": (lambda x: torch.special.i0(x) + torch.special.bessel_j1(x.relu()), (7,)),
    "unpooled": (unpooled, (1, 2, 6, 6)),
    "places": (lambda x: functional.adaptive_max_pool2d(x * 2, 2, return_indices=True)[1] + 1, (1, 2, 5, 5)),
    "rank": (lambda x: torch.linalg.matrix_rank(x.relu() - 1) + 1, (2, 4, 4)),
    "double": (lambda x: torch.fft.rfft(x.double() * 2).abs() + 1, (8,)),
    "empty": (lambda x: torch.linalg.det(x[:0, :0] + 1) + x, (2, 4)),
}


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_eager_mode(name: str) -> None:
    function, shape = CASES[name]
    torch.manual_seed(0)
    x = torch.randn(shape)
    compiled = compile_model(import_model(Apply(function), x))
    assert compiled.pytorch
    torch.testing.assert_close(compiled(x), function(x), rtol=1e-4, atol=1e-5)
    x = torch.randn(shape)
    torch.testing.assert_close(compiled(x), function(x), rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def operator() -> tuple[Any, nn.Module, Tensor]:
    torch.manual_seed(0)
    model, x = Operator().eval(), torch.randn(2, 1, 12, 12)
    return fx.optimize(model, x, trials=0, progress=False), model, x


@pytest.mark.filterwarnings("error")
def test_a_neural_operator_is_verified_in_float64_and_reported(operator: tuple[Any, nn.Module, Tensor]) -> None:
    fast, model, x = operator
    assert fast.report.reference == "float64"
    assert fast.report.error < 1e-5
    assert "PyTorch runs" in str(fast.report)
    assert "_fft_r2c" in fast.report.note
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
    assert [task.name for task in fx.extract_tasks(model, x)]


def test_saved_and_copied_models(operator: tuple[Any, nn.Module, Tensor], tmp_path: Path) -> None:
    fast, model, x = operator
    fast.save(tmp_path / "model.flx")
    loaded = fx.load(tmp_path / "model.flx")
    assert loaded.report.note == fast.report.note
    for other in (loaded, pickle.loads(pickle.dumps(fast)), copy.deepcopy(fast), pickle.loads(pickle.dumps(loaded))):
        with torch.no_grad():
            torch.testing.assert_close(other(x), model(x), rtol=1e-4, atol=1e-5)
    for exported in (fast, loaded):
        with pytest.raises(CompilationFailed, match=r"^export_library: PyTorch runs .*_fft_c2r"):
            exported.export_library(tmp_path / "model.so")
    assert not (tmp_path / "model.so").exists()


def test_only_files_with_such_calls_have_the_newest_format(operator: tuple[Any, nn.Module, Tensor]) -> None:
    fast, _, _ = operator
    description = describe(fast._compiled)
    assert with_versions(description, {})["format"] == 5
    plain = compile_model(import_model(Apply(lambda x: x + 1), (3,)))
    description = describe(plain)
    assert "pytorch" not in description
    assert with_versions(description, {})["format"] == 2


def test_singular_matrices_raise_as_in_eager_mode() -> None:
    model, y = Inverse(), torch.randn(3, 3)
    compiled = compile_model(import_model(model, (regular(3, 3), y)))
    singular = -torch.ones(3, 3)
    with pytest.raises(LinAlgError) as expected:
        model(singular, y)
    for _ in range(2):
        with pytest.raises(LinAlgError) as caught:
            compiled(singular, y)
        assert str(caught.value) == str(expected.value)
    x = regular(3, 3)
    torch.testing.assert_close(compiled(x, y), model(x, y), rtol=1e-4, atol=1e-5)


def test_other_errors_keep_their_class() -> None:
    (factors, pivots), y = torch.linalg.lu_factor(regular(3, 3)), torch.randn(3, 2)
    compiled = compile_model(import_model(Apply(solved), (factors, pivots, y)))
    assert compiled.pytorch == ("linalg_lu_solve",)
    torch.testing.assert_close(compiled(factors, pivots, y), solved(factors, pivots, y))
    with pytest.raises(RuntimeError) as expected:
        solved(factors, pivots - 5, y)
    with pytest.raises(RuntimeError) as caught:
        compiled(factors, pivots - 5, y)
    assert str(caught.value) == str(expected.value)


def test_integers_that_pytorch_may_reject_are_drawn_as_zeros() -> None:
    sizes = (Example((3, 3)), Example((3,), "int32"), Example((3, 2)))
    imported = import_model(Apply(solved), Given(positional=tuple(Input((size,)) for size in sizes)))
    assert not imported.examples[1].any()
    assert imported.note.startswith("PyTorch runs 1 operator of the model: linalg_lu_solve. Only zeros")


def test_nan_and_infinities() -> None:
    model = Apply(lambda x: torch.fft.rfft(x + 1).abs().relu())
    x = torch.tensor([[1.0, float("nan"), 2.0], [float("inf"), 0.0, 1.0], [1.0, 2.0, 3.0]])
    torch.testing.assert_close(compile_model(import_model(model, x))(x), model(x), equal_nan=True)


def test_modes_of_the_caller_have_no_effect() -> None:
    model = Apply(lambda x: torch.fft.irfft(torch.einsum("bi,io->bo", torch.fft.rfft(x), torch.ones(5, 5) + 0j)) + x)
    x = torch.randn(3, 8)
    compiled, expected = compile_model(import_model(model, x)), model(x)
    with torch.autocast("cpu"):
        torch.testing.assert_close(compiled(x), expected)
    with torch.inference_mode(), default_dtype(torch.float64), torch.device("meta"):
        result = compiled(x)
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(torch.vmap(compiled)(torch.stack([x, x])), torch.stack([expected, expected]))
    with pytest.warns(fx.errors.NoGradientWarning):
        assert not compiled(x.clone().requires_grad_()).requires_grad


def test_threads_of_pytorch_are_left_as_they_are() -> None:
    compiled = compile_model(import_model(Apply(lambda x: torch.fft.rfft(x + 1).abs().relu()), (4, 8)))
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        compiled(torch.randn(4, 8))
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_a_wrong_model_is_noticed() -> None:
    compiled = compile_model(import_model(Apply(lambda x: torch.fft.rfft(x).real + 1), (4, 8)))
    verification = max_relative_error(compiled, Apply(lambda x: torch.fft.rfft(x).real + 2), [torch.randn(4, 8)])
    assert verification.verdict is Verdict.WRONG


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_dynamic_batches(batch: int) -> None:
    model, x = _dynamic()
    torch.manual_seed(batch)
    x = torch.randn(batch, 1, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(_of_any_batch()(x), model(x), rtol=1e-4, atol=1e-5)


_MADE: list[Any] = []


def _dynamic() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return Operator().eval(), torch.randn(2, 1, 8, 8)


def _of_any_batch() -> Any:
    """Return the model compiled for batches of 1 to 8, once."""
    if not _MADE:
        model, x = _dynamic()
        dims = ({0: torch.export.Dim("B", min=1, max=8)},)
        _MADE.append(fx.optimize(torch.export.export(model, (x,), dynamic_shapes=dims), trials=0, progress=False))
    return _MADE[0]


@pytest.mark.parametrize(
    "operator",
    [
        "relu_.default",
        "_print.default",
        "nonzero.default",
        "bernoulli_.float",
        "none.default",
        "add.Tensors",
        "add",
    ],
)
def test_only_functional_operators_are_called(operator: str) -> None:
    text = json.dumps({"inputs": 1, "operators": [[operator, [{"result": 0}], {}]], "outputs": [{"result": 1}]})
    x, y = torch.randn(3), torch.zeros(3)
    with pytest.raises(InvalidArtefact, match=r"\b(" + operator.partition(".")[0] + r"|Tensors|no attribute)\b"):
        pytorch_calls._run(text, x, y)
    assert not y.any()


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", '{"inputs": 0, "operators": [], "outputs": [{"kind": "x"}]}'),
        '{"inputs": 1, "operators": [["abs.default", [{"result": 0}], {"y = 1) #": 1}]], "outputs": [{"result": 1}]}',
        '{"inputs": 1, "operators": [], "outputs": [{"result": 1}]}',
    ],
)
def test_damaged_regions_are_refused(text: str) -> None:
    with pytest.raises(InvalidArtefact, match="cannot be read"):
        pytorch_calls._run(text)


def test_results_of_another_shape_or_dtype_are_refused() -> None:
    text = json.dumps({"inputs": 1, "operators": [["abs.default", [{"result": 0}], {}]], "outputs": [{"result": 1}]})
    for target in (torch.zeros(2, 3), torch.zeros(3, dtype=torch.float64)):
        with pytest.raises(RuntimeError, match=r"expected torch\.float"):
            pytorch_calls._run(text, torch.randn(3), target)
