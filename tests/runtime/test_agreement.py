"""Tests for the comparison of outputs: the errors it allows, and those it reports."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from support.models import Apply
from torch import Tensor, nn

from felixlike.frontend import import_model
from felixlike.runtime import Compiled, Verdict, compile_model, max_relative_error
from felixlike.runtime.agreement import Agreement, agreement

NAN, INF = math.nan, math.inf


def doubles(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def singles(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


@pytest.mark.parametrize(
    ("dtype", "right", "wrong"),
    [
        (torch.float64, 1e-8, 3e-8),
        (torch.float32, 2e-5, 4e-5),
        (torch.float16, 0.03, 0.05),
        (torch.bfloat16, 0.06, 0.15),
    ],
)
def test_rounding_errors_of_a_type_are_allowed(dtype: torch.dtype, right: float, wrong: float) -> None:
    want = doubles(1.0, 0.25)
    for error in (right, wrong):
        got = (want + torch.tensor([0.0, error], dtype=torch.float64)).to(dtype)
        result = agreement(got, want, [want], names=["logits"])
        assert result.right == (error == right)
        assert result.error == pytest.approx(error, rel=0.1)
    assert result.wrong.startswith("logits is off by ")


def test_a_less_accurate_original_allows_a_larger_error() -> None:
    want, sample = doubles(1.0, 2.0), singles(1.0, 2.002)
    assert agreement(singles(1.0, 2.03), want, [sample]).right
    assert not agreement(singles(1.0, 2.03), want).right
    assert "3.2e-02" in agreement(singles(1.0, 2.1), want, [sample]).wrong


def test_outputs_dominated_by_rounding_are_unsure() -> None:
    """PyTorch's float32 output is off by a third of the largest value."""
    result = agreement(singles(2.0, 1.0), doubles(1.0, 2.0), [singles(1.0, 1.4)])
    assert result.wrong == ""
    assert result.unsure.startswith("output 0 is off by 5.0e-01")


def test_a_reference_of_equal_precision_allows_a_larger_error() -> None:
    want = singles(1.0, 2.0)
    assert agreement(singles(1.0, 2.0003), want, exact=False).right
    assert not agreement(singles(1.0, 2.0003), want).right
    assert agreement(singles(1.0, 2.001), want, exact=False).wrong


@pytest.mark.parametrize(
    ("got", "want", "own", "error"),
    [
        (singles(NAN, 1.0), doubles(NAN, 1.0), None, 0.0),
        (singles(INF, -INF, 1.0), doubles(INF, -INF, 1.0), None, 0.0),
        (singles(INF, 1.0), doubles(1e300, 1.0), singles(INF, 1.0), 0.0),  # both overflow
        (singles(NAN, 1.0), doubles(1e300, 1.0), singles(INF, 1.0), 0.0),
        (singles(INF, 1.5), doubles(1e300, 1.0), singles(INF, 1.0), 0.5),  # an overflow does not hide errors elsewhere
        (singles(INF, 1.0), doubles(1e30, 1.0), singles(1e30, 1.0), INF),
        (singles(NAN, 1.0), doubles(2.0, 1.0), singles(2.0, 1.0), INF),
        (singles(2.0, 1.0), doubles(NAN, 1.0), singles(NAN, 1.0), INF),
        (singles(2.0, 1.0), doubles(NAN, 1.0), singles(2.0, 1.0), 0.0),
        (singles(-INF, 1.0), doubles(INF, 1.0), None, INF),
        (singles(-INF, 1.0), doubles(INF, 1.0), singles(INF, 1.0), INF),
        (singles(NAN, 1.0), doubles(INF, 1.0), singles(INF, 1.0), INF),
        (singles(NAN, 1.0), doubles(INF, 1.0), singles(NAN, 1.0), 0.0),
        (singles(0.0, 0.0), doubles(0.0, 0.0), None, 0.0),
        (torch.zeros(0), torch.zeros(0).double(), None, 0.0),
    ],
)
def test_nan_infinity_and_empty_tensors(got: Tensor, want: Tensor, own: Tensor | None, error: float) -> None:
    result = agreement(got, want, [] if own is None else [own])
    assert result.error == error
    assert result.right == (error == 0.0)


def test_errors_where_only_float64_has_nan_are_relative_to_the_own_precision() -> None:
    want, own = doubles(NAN, NAN), singles(2.0, 1.0)
    result = agreement(singles(2.00001, 1.0), want, [own])
    assert result.right
    assert 1e-6 < result.error < 1e-5
    assert agreement(singles(2.5, 1.0), want, [own]).wrong


def test_few_different_integers_are_unsure_and_many_are_wrong() -> None:
    want = torch.arange(1000)
    few, many = want.clone(), want.clone()
    few[3], many[:20] = 7, 0
    assert agreement(want.clone(), want, [want]).right
    result = agreement(few, want, [want], names=["best"])
    assert (result.error, result.wrong) == (0.0, "")
    assert result.unsure.startswith("1 of the 1000 values of best ")
    assert agreement(few, want, [few]).right  # PyTorch's float32 output differs in the same way
    assert agreement(many, want, [want]).wrong.startswith("19 of the 1000 values of output 0 ")
    assert agreement(
        torch.tensor([3, 1]), torch.tensor([3, 2]), [torch.tensor([4, 2])]
    ).unsure  # PyTorch's output differs too
    assert agreement(torch.tensor(True), torch.tensor(False)).wrong
    assert agreement(torch.tensor([10**6 + 1]), torch.tensor([10**6])).wrong


def test_the_wrong_output_is_named() -> None:
    x = doubles(1.0)
    result = agreement((x.float(), [x.float() + 1]), (x, [x]), names=["a", "b[0]"])
    assert (result.error, result.unsure) == (1.0, "")
    assert result.wrong.startswith("b[0] is off by 1.0e+00")
    assert result.wrong.endswith("3.1e-05")
    assert agreement((x, x), (x,)) == Agreement(math.inf, wrong="expected 1 output, got 2")
    wrong = agreement(x, x[None]).wrong
    assert wrong.startswith("output 0 has shape (1,)")
    assert "(1, 1)" in wrong


# -- with models ------------------------------------------------------------------------------------------------------


def compiled(function: Any, x: Tensor) -> Compiled:
    return compile_model(import_model(Apply(function), x))


@pytest.fixture(scope="module")
def twice() -> Compiled:
    return compiled(lambda x: x * 2, torch.ones(8))


@pytest.mark.parametrize(
    ("model", "verdict", "words"),
    [
        (Apply(lambda x: x + x), Verdict.RIGHT, ""),
        (Apply(lambda x: x * 3), Verdict.WRONG, "output is off by 3.3e-01"),
        (Apply(lambda x: nn.functional.dropout(x * 2, training=True)), Verdict.RANDOM, "every call"),
        (Apply(lambda x: x * 2 + torch.rand(8).to(x)), Verdict.RANDOM, "every call"),
        (Apply(lambda x: torch.where(x * 1e38 * 10 > 1e38, x / 0, x)), Verdict.WRONG, "NaN"),
    ],
)
def test_verdicts(model: nn.Module, verdict: Verdict, words: str, twice: Compiled) -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    verification = max_relative_error(twice, model, (torch.linspace(1, 2, 8),))
    assert verification.verdict is verdict
    assert words in verification.words
    assert verification.reference == "float64"
    assert torch.equal(torch.get_rng_state(), state)


def test_an_output_that_overflows_where_the_original_does_is_right() -> None:
    x = torch.tensor([1.0, 50.0, 100.0])
    verification = max_relative_error(compiled(torch.exp, x), Apply(torch.exp), (x,))
    assert torch.exp(x).isinf().tolist() == [False, False, True]
    assert (verification.verdict, verification.words) == (Verdict.RIGHT, "")
    assert verification.error < 1e-5


def test_a_precision_that_the_cpu_lacks_is_skipped(twice: Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    def wide_only(x: Tensor) -> Tensor:
        if x.dtype is not torch.float64:
            raise RuntimeError("not implemented for 'Half'")
        return x * 2.0001

    verification = max_relative_error(twice, Apply(wide_only), (torch.ones(8),))
    assert verification.verdict is Verdict.RIGHT  # without a sample, the error of the original is unknown
    verification = max_relative_error(twice, Apply(lambda x: x * 2.0001), (torch.ones(8),))
    assert verification.verdict is Verdict.WRONG


def test_rounded_products_allow_a_larger_error() -> None:
    want = doubles(1.0, 2.0)
    assert agreement(singles(1.0, 2.01), want, products=8e-3).right
    assert "8.0e-03" in agreement(singles(1.0, 2.03), want, products=8e-3).wrong
    assert not agreement(singles(1.0, 2.01), want).right
    numbers = torch.arange(1000)
    assert not agreement(numbers + 1, numbers, products=8e-3).right


# -- element by element -----------------------------------------------------------------------------------------------


def detections(count: int = 300) -> Tensor:
    """Return rows of four box coordinates up to 640 and two scores up to 1."""
    generator = torch.Generator().manual_seed(0)
    boxes = 640 * torch.rand(count, 4, generator=generator, dtype=torch.float64)
    return torch.cat((boxes, torch.rand(count, 2, generator=generator, dtype=torch.float64)), dim=1)


@pytest.mark.parametrize("layout", ["rows", "columns", "grid", "one after the other", "a single one"])
@pytest.mark.parametrize("off", [0.2, 0.05])
def test_errors_in_slices_of_small_values_are_reported(layout: str, off: float) -> None:
    want = detections(1 if layout == "a single one" else 300)
    got = want.clone()
    got[:, 4:] += off
    shape: Any = {
        "rows": lambda x: x,
        "columns": lambda x: x.T[None],
        "grid": lambda x: x.T.reshape(1, 6, 15, 20),
        "one after the other": lambda x: x.T.reshape(-1),
        "a single one": lambda x: x,
    }[layout]
    got, want = shape(got).float(), shape(want)
    for samples in ([], [want.float()]):
        result = agreement(got, want, samples, names=["detections"])
        assert result.wrong.startswith("detections")
        assert agreement(want.float(), want, samples).right


def test_the_wrong_slice_is_named_in_python_syntax() -> None:
    want = detections()
    got = want.clone()
    got[7, 4] += 0.01
    words = agreement(got.float(), want, names=["out['boxes']"]).wrong
    assert words.startswith("out['boxes'][:, 4] is off by 1.0e-02")
    assert words.endswith("6.1e-04")


def test_the_allowed_error_of_a_slice_follows_the_original_in_that_slice() -> None:
    """A column of differences of nearly equal numbers is small, and all of it is rounding noise."""
    want = detections()
    want[:, 5] = 1e-6
    sample, got = want.float(), want.float()
    sample[::3, 5] += 3e-7
    got[1::3, 5] -= 6e-7
    assert agreement(got.float(), want, [sample.float()]).right
    got[:, 4] += 1e-2
    assert "[:, 4]" in agreement(got, want, [sample]).wrong
    assert agreement(want.float() + torch.tensor([0.0, 0, 0, 0, 0, 0.1]), want, [sample]).wrong


def test_rounding_errors_of_the_largest_value_are_allowed_in_every_slice() -> None:
    """A value that is zero in exact arithmetic and in PyTorch may be the remainder of a subtraction."""
    want = detections()
    want[:, 5] = 0.0
    got = want.float()
    got[:, 5] = 6e-5  # 1e-7 of 640
    assert agreement(got, want, [want.float()]).right


def test_the_allowed_error_of_noisy_rows_is_shared() -> None:
    """Rows of rounding noise get the error of all such rows, because the noise of one may be small by chance."""
    want = torch.full((65, 8), 1e-9, dtype=torch.float64)
    sample, got = want + 1e-6, want + 2e-6
    sample[17] = want[17]
    for answer in (want, sample, got):
        answer[64] = 1.0
    assert agreement(got.float(), want, [sample.float()]).right
    sample[:40] = want[:40]
    assert agreement(got.float(), want, [sample.float()]).wrong.startswith("output 0[")


def test_slices_of_few_elements_are_not_compared_separately() -> None:
    """The noise of one element may be small by chance."""
    want = doubles(1.0, 1e-6, 0.5)[:, None]
    got = want.float()
    got[1] += 1e-6
    assert agreement(got, want, [want.float()]).right


def test_outputs_that_are_mostly_nan_are_blind() -> None:
    want = torch.full((100,), NAN, dtype=torch.float64)
    assert agreement(want.float(), want, names=["out"]).blind == ("out",)
    want[:20] = 1.0
    assert agreement(want.float(), want).blind == ()
