"""Precisions are attributes of targets, are preserved by conversions, and are refused without tensor cores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from felixlike import _tvm
from felixlike.errors import InvalidOption, UnknownTarget
from felixlike.hardware import (
    FLOAT32,
    PRECISIONS,
    Precision,
    check_precision,
    described_target,
    imitated_target,
    precision_of,
    resolve_target,
    target_device,
    with_precision,
)
from felixlike.hardware.precision import has_pairs

GPU = resolve_target("sm_90")
ROUNDED = [precision for precision in PRECISIONS if precision.is_reduced]


def test_targets_keep_their_precision() -> None:
    assert precision_of(GPU) is FLOAT32
    assert with_precision(GPU, "float32") is GPU
    for precision in ROUNDED:
        rounded = with_precision(GPU, precision.name)
        assert precision_of(rounded) is precision
        assert target_device(rounded).precision == precision.name
        reread = resolve_target(_tvm.Target(str(rounded)))
        assert precision_of(reread) is precision
        assert str(reread) == str(rounded) != str(GPU)
        assert with_precision(rounded, "float32") is rounded  # the target's own precision has precedence
        assert precision_of(_tvm.with_host(rounded)) is precision


@pytest.mark.parametrize(
    ("target", "name", "words"),
    [
        ("cpu", "tf32", "tf32 needs tensor cores, but a CPU has none"),
        ("simulated:cpu", "float16", "float16 needs tensor cores, but a CPU has none"),
        ("simulated:cpu", "bfloat16", "bfloat16 is not supported: simulated devices"),
        ("simulated:h100", "bfloat16", "bfloat16 needs tensor cores, but simulated devices"),
        ("sm_90", "tf23", "'tf23' is not a precision"),
        ("sm_90", 32, "32 is not a precision"),
        ("sm_90", None, "None is not a precision"),
    ],
)
def test_unavailable_precisions_are_refused(target: str, name: Any, words: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        with_precision(resolve_target(target), name)
    assert words in caught.value.what
    assert caught.value.where == "precision"
    assert "float32" in caught.value.remedy


def test_older_architectures_have_no_reduced_precision() -> None:
    old = _tvm.Target({**GPU.export(), "arch": "sm_75"})
    with pytest.raises(InvalidOption, match=r"tf32 .*sm_75"):
        with_precision(old, "tf32")


@pytest.mark.parametrize(("attributes", "words"), [({}, "'tf23' is not a precision"), ({"arch": "sm_75"}, "sm_75")])
def test_targets_with_a_bad_attribute_are_refused(attributes: dict[str, str], words: str) -> None:
    invalid = {"feature.precision": "tf32" if attributes else "tf23"}
    with pytest.raises(UnknownTarget, match=r"feature\.precision") as caught:
        resolve_target(_tvm.Target({**GPU.export(), **invalid, **attributes}))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("machine", "times", "rounded"), [("zen3", 1, 1), ("graviton2", 1, 1), ("zen4", 2, 2), ("emerald-rapids", 8, 2)]
)
def test_cpus_round_to_bfloat16(machine: str, times: int, rounded: int) -> None:
    """CPUs without products of pairs, or matrices, round only weights: the error is half as large."""
    for exact in (described_target(machine), imitated_target(machine)):
        target = with_precision(exact, "bfloat16")
        assert target_device(target).precision == "bfloat16"
        assert target_device(target).multiplies_pairs == (times == 2)
        assert target_device(target).multiplies_tiles == (times == 8)
        precision = precision_of(resolve_target(_tvm.Target(str(target))))
        assert (precision.name, precision.times) == ("bfloat16", times)
        assert precision.unit == check_precision("bfloat16").unit * rounded / 2
        assert precision.model_tolerance <= 2e-2
        assert target_device(exact).precision == "float32"


def test_instructions_that_a_hypervisor_hides_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM lists the instructions of a processor's name. The host may have fewer."""
    target = _tvm.Target({"kind": "llvm", "mcpu": "znver5", "num-cores": 1})
    monkeypatch.setattr("felixlike.hardware.precision.host_cpu", lambda: "znver5")
    for features in ({"avx512f", "avx512bf16"}, {"avx512f"}):
        monkeypatch.setattr(_tvm, "host_features", lambda features=features: frozenset(features))
        assert has_pairs(target) == ("avx512bf16" in features)


def _rounded(values: Any, digits: int) -> Any:
    mantissa, exponent = np.frexp(values)
    return np.ldexp(np.round(np.ldexp(mantissa, digits)) / 2.0**digits, exponent)


@pytest.mark.parametrize(("name", "digits"), [("tf32", 11), ("float16", 11), ("bfloat16", 8)])
@pytest.mark.parametrize("terms", [16, 256, 4096])
def test_the_tolerance_is_a_few_times_the_rounding_error(name: str, digits: int, terms: int) -> None:
    """The rounding error is 0.2 to 0.43 of a unit, and the tolerance is four to twelve times the error."""
    precision: Precision = check_precision(name)
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((128, terms)), rng.standard_normal((terms, 128))
    exact = a @ b
    error = np.abs(_rounded(a, digits) @ _rounded(b, digits) - exact).max() / np.abs(exact).max()
    assert 4 < precision.tolerance / error < 12
    assert precision.tolerance < precision.model_tolerance < 0.1
