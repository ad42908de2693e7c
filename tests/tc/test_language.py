"""Test the language of tensor comprehensions: tokens, precedence, scopes, types, ranges and errors."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pytest
import torch

import felixlike as fx
from felixlike.errors import (
    FelixlikeError,
    ImplicitSumWarning,
    InvalidOption,
    NarrowedRangeWarning,
    SuspiciousNameWarning,
    TCCallError,
    TCError,
    TCRangeError,
    TCSemanticError,
    TCSyntaxError,
)


def _run(source: str, *inputs: Any, **options: Any) -> Any:
    tensors = [torch.tensor(value) if not isinstance(value, torch.Tensor) else value for value in inputs]
    return fx.tc.define(source)(*tensors, **options)


def _expect_error(error_class: type[TCError], pattern: str, source: str, *inputs: Any, **options: Any) -> TCError:
    with pytest.raises(error_class, match=pattern) as caught:
        _run(source, *inputs, **options)
    return caught.value


def _program_with_body(body: str, output: str = "O") -> str:
    return f"def f(float(N) A, float(N,M) B, int32(N) I) -> ({output}) {{ {body} }}"


_A = torch.tensor([1.0, -2.0, 3.0, -4.0])
_B = torch.arange(12, dtype=torch.float32).reshape(4, 3)
_I = torch.tensor([3, 1, 2, 0], dtype=torch.int32)


def _run_body(body: str) -> Any:
    return fx.tc.define(_program_with_body(body))(_A, _B, _I)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("-A(i) * A(i)", lambda a: -a * a),
        ("(-3) % 2 + 0 * I(i)", lambda a: torch.full_like(a, 1).int()),
        ("-3 % 2 + 0 * I(i)", lambda a: torch.full_like(a, 1).int()),
        ("-(3 % 2) + 0 * I(i)", lambda a: torch.full_like(a, -1).int()),
        ("10 - 4 - 3 + 0 * I(i)", lambda a: torch.full_like(a, 3).int()),
        ("100 / 5 / 2 + 0 * I(i)", lambda a: torch.full_like(a, 10).int()),
        ("-7 / 2 + 0 * I(i)", lambda a: torch.full_like(a, -4).int()),
        ("7 % -3 + 0 * I(i)", lambda a: torch.full_like(a, -2).int()),
        ("2 + 3 * 4 + 0 * I(i)", lambda a: torch.full_like(a, 14).int()),
        ("A(i) > 0.0 ? 1.0 : A(i) < 0.0 - 3.0 ? 2.0 : 3.0", lambda a: torch.tensor([1.0, 3.0, 1.0, 2.0])),
        ("A(i) > 0.0 ? A(i) > 2.0 ? 1 : 2 : 3", lambda a: torch.tensor([2, 3, 1, 3], dtype=torch.int32)),
        ("!(A(i) > 0.0) == (A(i) < 0.0)", lambda a: torch.ones(4, dtype=torch.bool)),
        ("A(i) > 0.0 || A(i) < 0.0 && 1 > 2", lambda a: a > 0),
        ("1.5e1 + .5 + 3. + 2e-1 + 1E1 + 0.0 * A(i)", lambda a: torch.full_like(a, 28.7)),
        ("fmax(A(i), 0)", lambda a: a.clamp(min=0)),
        ("max(A(i), 0)", lambda a: a.clamp(min=0)),
        ("min(max(A(i), 0 - 1), 1)", lambda a: a.clamp(-1, 1)),
        ("float(1 / N) + A(i)", lambda a: a),
        ("A(i) / N", lambda a: a / 4),
        ("int32(A(i) * 0.6)", lambda a: (a * 0.6).trunc().int()),
        ("uint8(I(i) + 255)", lambda a: torch.tensor([2, 0, 1, 255], dtype=torch.uint8)),
        ("double(A(i))", lambda a: a.double()),
        ("bool(I(i))", lambda a: torch.tensor([True, True, True, False])),
        ("int32(A(i) > 0.0)", lambda a: (a > 0).int()),
        ("I(i) / 0 + I(i) % 0", lambda a: torch.zeros(4, dtype=torch.int32)),
        ("A(i) % 3.0", lambda a: torch.remainder(a, 3.0)),
        ("float(i) + 0.0 * A(i)", lambda a: torch.arange(4.0)),
        ("A(N - 1 - i)", lambda a: a.flip(0)),
        ("A(I(i))", lambda a: a[_I.long()]),
        ("I(i) == 2 ? A(i) : 0.0", lambda a: torch.where(_I == 2, a, 0.0)),
    ],
)
def test_expressions_have_the_values_of_the_language_definition(expression: str, value: Any) -> None:
    source = f"def f(float(N) A, int32(N) I) -> (O) {{ O(i) = {expression} where exists A(i) }}"
    if "/ 0" in expression:
        source = source.replace("/ 0", "/ z").replace("% 0", "% z").replace("I) ->", "I, int32 z) ->")
        result = fx.tc.define(source)(_A, _I, 0)
    else:
        result = fx.tc.define(source)(_A, _I)
    expected = value(_A)
    assert result.dtype is expected.dtype
    torch.testing.assert_close(result, expected, rtol=1e-6, atol=1e-6)


def test_whitespace_comments_and_line_breaks_are_separators() -> None:
    source = """# a comment → of any signs
    def f ( float ( N ) A )->(O,P){O(i)=A(i)#so
    +1.0 P(i)=O(i)*2.0}"""
    first, second = _run(source, _A)
    assert torch.equal(first, _A + 1)
    assert torch.equal(second, (_A + 1) * 2)


def test_names_may_begin_with_reserved_words() -> None:
    source = """def define(float(infinity) input, float(infinity) maxval) -> (defn) {
        defn(inner) = input(inner) + maxval(inner)
    }"""
    assert torch.equal(_run(source, _A, _A), 2 * _A)


def test_trailing_comments_and_windows_line_endings() -> None:
    assert torch.equal(_run("def f(float(N) A) -> (O) {\r\n O(i) = A(i)\r\n}\r\n# the end", _A), _A)


@pytest.mark.parametrize(
    ("source", "underlined", "words"),
    [
        ("def f(float(N) A) -> (O) { O[i] = A(i) }", "[", "A\\(i, j\\)"),
        ("def f(float(N) A) -> (O) { O(i) = A(i); }", ";", "token `;`"),
        ("def f(float(N) A) -> (O) { O(i) = A(i)^2 }", "^", "pow\\(x, y\\)"),
        ("def f(float(N) A) -> (O) { O(i) = A.1 }", ".1", "found `.1`"),
        ("def f(float(N) A) -> (O) { O(i) /= A(i) }", "/", "\\+=!"),
        ("def f(float(N) A) -> O { O(i) = A(i) }", "O", "expected `\\(`"),
        ("def f(float(N) A) -> (O) { O(i) = A(i,) }", ")", "expression"),
        ("def f(float(N) A) -> (O) { O(i,) = A(i) }", ")", "identifier"),
        ("def f(float(N) A) -> (O) { O(i) = 2 A(i) }", "}", "\\+=!"),
        ("def f(A) -> (O) { O(i) = A(i) }", "A", "uint16"),
        ("def f(float(N) A) -> (O) { O(i) = min(A(i)) }", ")", "`,`"),
        ("def f(float(N) A) -> (O) { O(i) = A(i) where }", "}", "`exists`"),
        ("def f(float(N) A) -> (O) { O(i) = A(i) where i in 0 }", "}", "`:`"),
        ("def f(float(N) A) -> (O) { O(i) = A(i) where i = }", "}", "expression"),
        ("float(N) A", "float", "`def`"),
        ("   ", "", "`def`"),
        ("def f(float(N) A) -> (O) { O(i) = 0x10 }", "}", "`\\("),
        ("def f(float(N) A) -> (O) { O(i) = A(i) } def f(float(N) A) -> (O) { O(i) = A(i) }", "f", "already defined"),
        ("def f(float(N) A) -> (O) { O(i) = A(i) +!= A(i) }", "!=", "expression"),
        ('def f(float(N) A) -> (O) { O(i) = "A" }', '"', 'token `"`'),
        ("def f(float(float) A) -> (O) { O(i) = A(i) }", "float", "reserved"),
        ("def f(float(N) A) -> (O) { O(i) = A(i) ** 2 }", "*", "pow\\(x, y\\)"),
        ("def f(float(N) A) -> (O) { O(i) = A(i) * 1.0f }", "}", "write 1.0, not 1.0f"),
        ("def f(float(N) A) -> (O) { O(i) = (A(i) > 0.0 and A(i) < 1.0) ? 1 : 0 }", "and", "write `&&` for `and`"),
        ("def f(float(N) A, int32(N) I) -> (O) { O(I(i)) +=! A(i) }", "(", "scatter is a sum with a test"),
    ],
)
def test_malformed_programs_raise_syntax_errors(source: str, underlined: str, words: str) -> None:
    error = _expect_error(TCSyntaxError, words, source)
    assert error.underlined == underlined
    assert isinstance(error, ValueError)
    assert isinstance(error, FelixlikeError)


@pytest.mark.parametrize(
    ("source", "underlined", "words"),
    [
        ("def f(float(N) N) -> (O) { O(i) = 1.0 where i in 0:N }", "N", "`N` is already defined as a size"),
        ("def f(float(N) A, float(A) B) -> (O) { O(i) = A(i) }", "A", "`A` is already defined as a tensor"),
        ("def f(float(N) A) -> (N) { N(i) = A(i) }", "N", "`N` is already defined as a size"),
        ("def f(float(N) A) -> (O, O) { O(i) = A(i) }", "O", "`O` is already defined as an output"),
        ("def f(float(N) A) -> (O) { O(i, i) = A(i) }", "i", "`i` is already defined as an index"),
        ("def f(float(j0) A) -> (O) { O(i) = A(i) }", "j0", "`j0` is a built-in"),
        ("def f(float(N) A) -> (O) { O(y1) = A(y1) }", "y1", "`y1` is a built-in"),
        ("def f(float(N) A) -> (exp) { exp(i) = A(i) }", "exp", "`exp` is a built-in"),
        ("def f(float(N) A) -> (O) { O(i) = u where exp = A(i), u = exp }", "exp", "`exp` is a built-in"),
        ("def f(float(N) A) -> (O) { O(i) = A(i) + exp }", "exp", "`exp` is a built-in function"),
        ("def f(float(N) A) -> (O) { O(i) = u where u = A(i), u = A(i) }", "u", "`u` is already defined"),
        ("def f(float(N) A) -> (O) { O(i) = i where i = A(i) }", "i", "`i` is already defined"),
        ("def f(float(N) A) -> (O) { O(i) = v where v = u + 1.0, u = A(i) }", "u", "used before"),
        ("def f(float(N) A) -> (O) { O(i) = u(i) where u = A(i) }", "u", "`u` is a let"),
        ("def f(float(N) A) -> (O) { O(i) = A(i) + N(i) }", "N", "`N` is a size"),
        ("def f(float(N) A) -> (O) { A(i) = 1.0 }", "A", "immutable"),
        ("def f(float(N) A) -> (O) { O(i) = O(i + 1) + A(i) }", "O(i + 1)", "`O` used here: it is an output"),
        ("def f(float(N) A) -> (O) { O(i) = A(i) * s where s = O(0) }", "O(0)", "`O` used here: it is an output"),
        ("def f(float(N) A) -> (O) { O(i) = O(i) + A(j) }", "j", "does not specify a reduction"),
        ("def f(float(N) A) -> (O) { O(i) = O(i) }", "O", "type of `O` is unknown.*declare it"),
        ("def f(float(N) A) -> (O) { O(i) = A(i) where k in 0:3 }", "k", "does not specify a reduction"),
        ("def f(float16(N) A) -> (O) { O(i) = A(i) }", "float16", "float16 is not supported"),
        ("def f(float(N) A) -> (O) { O(i) = float16(A(i)) }", "float16", "float16 is not supported"),
        ("def f(float(0) A) -> (O) { O(i) = A(i) }", "0", "size 0"),
        ("def f(float(2.5) A) -> (O) { O(i) = A(i) }", "2.5", "integral"),
        ("def f(float(N) A) -> (O) { O(i) = A(i) && A(i) ? 1 : 0 }", "A(i)", "bool"),
        ("def f(int32(N) A) -> (O) { O(i) = A(i) ? 1 : 0 }", "A(i)", "bool"),
        ("def f(float(N) A) -> (O) { O(i) = true ? A(i) : 0.0 }", "true", "no constant `true`: write 0 == 0"),
        (
            "def f(float(N) A) -> (O) { O(i) = (A(i) > 0.0) + (A(i) < 1.0) }",
            "(A(i) > 0.0) + (A(i) < 1.0)",
            "arithmetic on bool",
        ),
        ("def f(float(N) A) -> (O) { O(i) = -(A(i) > 0.0) }", "A(i) > 0.0", "arithmetic on bool"),
        ("def f(float(N,M) A) -> (O) { O(i) +=! A(i, j) > 0.0 }", "A(i, j) > 0.0", "arithmetic on bool"),
        ("def f(float(N) A) -> (O) { O(i) = A(bool(i)) }", "bool(i)", "integral"),
        ("def f(float(N) A) -> (O) { O(i) = A(i) O(i, j) = A(i) where j in 0:2 }", "O", "1 dimension.*2 dimension"),
        ("def f(float(N) A) -> (O) { O(i) = A(i) O(i) = double(A(i)) }", "double(A(i))", "type mismatch.*`O`"),
        ("def f(float(N) A) -> (O) { O(i) = A(i) O(i) += int64(1) }", "int64(1)", "type mismatch.*`O`"),
        ("def f(float(N) A) -> (int32(N) O) { O(i) = A(i) }", "A(i)", "float.*narrower.*int32"),
        ("def f(float(N) A) -> (O) { O(i) = A(i) where N in 0:3 }", "N", "a size, not an index"),
        ("def f(float(N) A) -> (O) { O(i) = A(i) where A in 0:3 }", "A", "a tensor, not an index"),
        (
            "def f(float(N) A) -> (O) { O(i) = A(i) where i in 0:N, i in 0:2 }",
            "i",
            "`i` is already defined with a range",
        ),
        ("def f(float(N) A) -> (O) { O(i) = A(i) where i in 0:K }", "K", "`K`"),
        ("def f(float(N) A) -> (O) { O(i) = A(i) where q in 0:3 }", "q", "reduction variable `q`"),
        ("def f(float(N) A) -> (O) { O(i) = A(i) + 3000000000 }", "3000000000", "int32"),
        ("def f(float(N) A) -> (O) { O(i) = A(i) + 1e39 }", "1e39", "float"),
        ("def f(float(N) A) -> (O) { O(i) = norm3d(A(i), A(i)) }", "norm3d(A(i), A(i))", "`norm3d`.*3.*2"),
        ("def f(float(N) A) -> (O) { O(i) = abs(A(i)) }", "abs", "fabs\\(x\\)"),
    ],
)
def test_inconsistent_programs_raise_semantic_errors(source: str, underlined: str, words: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _expect_error(TCSemanticError, words, source).underlined == underlined


def test_chained_comparisons_are_valid() -> None:
    """bool and int are promoted to int: the program is valid, although probably not intended."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fx.tc.define("def f(int32(N) A) -> (O) { O(i) = 1 < A(i) < 3 ? 1 : 0 }") is not None


@pytest.mark.parametrize(
    ("body", "shape", "wanted"),
    [
        ("O(i) = A(2 * i)", (2,), lambda: _A[::2]),
        ("O(i) = A(2 * i + 1)", (2,), lambda: _A[1::2]),
        ("O(i) = A(i / 2) + A(i / 2)", (8,), lambda: 2 * _A.repeat_interleave(2)),
        ("O(i) = A(i) + B(j0_, 0) where j0_ = i", (4,), lambda: _A + _B[:, 0]),
        ("O(j) = B(j, j)", (3,), lambda: _B.diagonal()),
        ("O(i) = A(i - 1)", (4,), lambda: _A),
        ("O(i) +=! A(i + k) where k in 0:2", (3,), lambda: _A[:-1] + _A[1:]),
        ("O(i) = A(u) where u = i + 1, i in 0:3", (3,), lambda: _A[1:]),
        ("O(i) = A((i + 1) / 2)", (8,), lambda: _A.repeat_interleave(2)),
        ("O(i) = A(i % 4) where i in 0:6", (6,), lambda: _A[torch.arange(6) % 4]),
        ("O(i) = A(max(i - 2, 0)) where i in 0:N", (4,), lambda: _A[[0, 0, 0, 1]]),
        ("O(i, j) = A(i) * B(j, 2)", (4, 4), lambda: torch.outer(_A, _B[:, 2])),
        ("O(i) *=! B(i, k) + 1.0", (4,), lambda: (_B + 1).prod(1)),
        ("O(i) min=! B(i, k) - A(i)", (4,), lambda: (_B - _A[:, None]).amin(1)),
        ("O +=! A(i) * A(i)", (), lambda: (_A * _A).sum()),
        ("O(i) = A(i) O(i) *= A(i) O(i) += 1.0 where exists A(i)", (4,), lambda: _A * _A + 1),
        ("O(i) = A(i) O(i) *= A(i) O(i) += 1", (4,), lambda: _A * _A + 1),
        ("O(i) = 1 O(i) max= 2 O(i) *= A(i)", (4,), lambda: 2 * _A),
        ("O(i) +=! -A(i) * B(i, k) * 2.0", (4,), lambda: -2 * _A * _B.sum(1)),
        ("O(i) = float(u) where u = I(i), exists A(i)", (4,), lambda: _I.float()),
        ("O(i) = A(int32(float(i)) % N) where i in 0:N", (4,), lambda: _A),
        ("O(i) = (i > 0 && A(i - 1) > 0.0) ? 1.0 : 0.0 where i in 0:N", (4,), lambda: torch.tensor([0.0, 1, 0, 1])),
        ("O(i) = (i < 1 || A(i - 1) > 0.0) ? 1.0 : 0.0 where i in 0:N", (4,), lambda: torch.tensor([1.0, 1, 0, 1])),
        ("O(i) max=! (B(i, k) > 4.0) ? 1 : 0", (4,), lambda: torch.tensor([0, 1, 1, 1], dtype=torch.int32)),
        ("O(i) max=! B(i, k) > 4.0", (4,), lambda: (_B > 4).any(1)),
        ("O(i) min=! B(i, k) > 4.0", (4,), lambda: (_B > 4).all(1)),
        ("O(i) = A(i) where i in 0:min(N, M) + (N > M ? 1 : 0)", (4,), lambda: _A),
        ("O(i) +=! A(i) where exists B(i, k)", (4,), lambda: 3 * _A),
        ("O(N) = A(N)", (4,), lambda: _A),
        ("O(i) = N where N = A(i)", (4,), lambda: _A),
    ],
)
def test_ranges_are_the_largest_that_keep_accesses_in_bounds(body: str, shape: tuple[int, ...], wanted: Any) -> None:
    result = _run_body(body)
    assert tuple(result.shape) == shape
    torch.testing.assert_close(result, wanted())


@pytest.mark.parametrize(
    ("body", "underlined", "words"),
    [
        ("O(i) +=! A(i + j)", "i", "`i` \\(nor `j`\\).*`A\\(i \\+ j\\)`"),
        ("O(b, n) = A(n)", "b", "range of `b`"),
        ("O(i) = 1.0 O(i) += 1.0", "i", "range of `i`.*where i in"),
        ("O(i) = A(max(i, 0))", "i", "`A\\(max\\(i, 0\\)\\)`"),
        ("O(i) = A(i * i)", "i", "`A\\(i \\* i\\)`"),
        ("O(i) max=! A(i) > inf", "inf", "no constant `inf`: write 1.0 / 0.0"),
        ("O(i) = A(I(0) + i)", "i", "`A\\(I\\(0\\) \\+ i\\)`"),
        ("O(i) = A(i) where i in 2:2", "i", "empty range.*2:2"),
        ("O(i) = A(i) where i in 0:N + 1", "i", "out of bounds access to `A`"),
        ("O(i) = A(4) where i in 0:2", "4", "out of bounds access to `A`"),
        ("O(i) = A(i) where i in -1:2", "i", "out of bounds"),
        ("O(i) = (i > 1) ? A(i + 1) : 0.0 where i in 0:N", "i + 1", "out of bounds"),
        ("O(i) = (i > 0 || A(i - 1) > 0.0) ? 1.0 : 0.0 where i in 0:N", "i - 1", "out of bounds"),
        ("O(i) = A(I(i) + 1)", "I(i) + 1", "`A`.*0 to 3"),
        ("O(i) = A(I(i) - 1)", "I(i) - 1", "`A`.*0 to 3"),
        ("O(i) = A(I(I(i) + 1))", "I(i) + 1", "`I`.*0 to 3"),
        ("O(i) = A(i) where i in 0:N / (N - N)", "N / (N - N)", "zero"),
        ("O(i) = A(i) + float(i / (N - N))", "i / (N - N)", "division by zero"),
        ("O(i) = A(i % 0) where i in 0:N", "i % 0", "division by zero"),
        ("O +=! A(0) where k in 0:100000 * 100000", "100000 * 100000", "exceeds int32"),
        ("O +=! A(k / 2000000000)", "k", "range of `k` is too large: 0:8000000000.*int32"),
        ("O(i) = float(i) where i in 60000 * 60000:60000 * 60000 + 3", "60000 * 60000", "exceeds int32"),
        ("O(i) = A(int32(-uint8(i)) + 3) where i in 0:4", "int32(-uint8(i)) + 3", "out of bounds"),
        ("O(i) = A(int32(uint8(i) - uint8(2)) + 2) where i in 0:4", "int32(uint8(i) - uint8(2)) + 2", "out of bounds"),
        ("O(i) = A(i * 32768 * 65536 / 32768 / 65536) where i in 0:4", "i * 32768 * 65536 / 32768 / 65536", "-1 to 0"),
        ("O(i) = A(int8(i) * int8(i) / 100) where i in 0:21", "int8(i) * int8(i) / 100", "out of bounds"),
        (
            "O(i, j) = B(i, j) O(i, j) = B(j, i)",
            "O(i, j) = B(j, i)",
            "incompatible ranges.*\\(0:4, 0:3\\).*\\(0:3, 0:4\\)",
        ),
    ],
)
def test_unsolvable_or_out_of_bounds_ranges_raise_range_errors(body: str, underlined: str, words: str) -> None:
    with pytest.raises(TCRangeError, match=words) as caught:
        _run_body(body)
    assert (caught.value.line, caught.value.underlined) == (1, underlined)
    assert caught.value.excerpt


def test_a_condition_guards_a_gather() -> None:
    source = "def f(float(N) A, int32(M) I) -> (O) { O(i) = (I(i) >= 0 && I(i) < N) ? A(I(i)) : -1.0 }"
    result = _run(source, _A, torch.tensor([0, -1, 9, 3], dtype=torch.int32))
    assert torch.equal(result, torch.tensor([1.0, -1.0, -1.0, -4.0]))


@pytest.mark.parametrize(
    ("statement", "index"),
    [
        ("O(i) = (i >= 2) ? A(i - 2) : 0.0", "`i` to 2:6"),
        ("O(i) +=! ((i + k >= 1 && i + k <= N) ? A(i + k - 1) : 0.0) * B(0, k) where i in 0:N", "`k` to 1:2"),
        ("O(i) +=! ((i + k < 1 || i + k > N) ? 0.0 : A(i + k - 1)) * B(0, k) where i in 0:N", "`k` to 1:2"),
        ("O(i) +=! ((i + k >= 1 && i + k <= N) ? A(i + k - 1) : 0.0) * B(0, k) where i in 0:N, k in 0:M", ""),
        ("O(i) = (i >= 2) ? A(i - 2) : 0.0 where i in 0:N", ""),
        ("O(i) +=! (j <= i) ? A(j) : 0.0 where i in 0:N", ""),
        ("O(i) = (A(i) > 0.0) ? A(i) : 0.0", ""),
        ("O(i) = (N > 2) ? A(i) : 0.0", ""),
    ],
)
def test_tests_that_always_hold_for_an_inferred_range_warn(statement: str, index: str) -> None:
    program = fx.tc.define(_program_with_body(statement))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        program(_A, _B, _I)
        program(_A, _B, _I)
    assert [warning.category for warning in caught] == [NarrowedRangeWarning] * bool(index)
    assert all(index in str(warning.message) and warning.filename == __file__ for warning in caught)
    assert (f"limits {index}" in program.explain(_A, _B, _I)) == bool(index)


_LARGE = np.array([5, -(2**31), 1000, 2**31 - 1], dtype=np.int32)
_SHORT = np.array([3, 50000, 60000, 65535], dtype=np.uint16)


def _in_int32(values: Any) -> Any:
    return values.astype(np.int32)


def test_subscripts_of_narrow_types_wrap() -> None:
    """Arithmetic on uint8 wraps before 255 is added: the sums are beyond the table. They were read without a check."""
    source = "def f(float(N) T, uint8(M) B) -> (O) { O(i) = T(-B(i) + 255) }"
    assert _run(source, torch.arange(511.0), torch.tensor([0, 1, 255], dtype=torch.uint8)).tolist() == [255, 510, 256]
    with pytest.raises(TCRangeError, match="outside 0 to 255"):
        _run(source, torch.arange(256.0), torch.tensor([0, 1], dtype=torch.uint8))
    both = "O(i) = int32(-B(i)) > 0 ? 1 : 0 P(i) = int64(uint8(C(i)) - uint8(i))"
    first, second = _run(
        f"def f(uint8(N) B, int8(N) C) -> (O, P) {{ {both} }}",
        torch.tensor([0, 1]).byte(),
        torch.tensor([0, 0], dtype=torch.int8),
    )
    assert (first.tolist(), second.tolist()) == ([0, 1], [0, 255])
    squares = _run(
        "def f(float(N) A) -> (O) { O(i) = int32(int8(i) * int8(i)) < 0 ? 1 : 0 where i in 0:N }", torch.ones(14)
    )
    assert squares.tolist() == [0] * 12 + [1, 1]
    wrapped = _run("def f() -> (O) { O(i) = int32(uint8(i - 5)) > 100 ? 1 : 0 where i in 0:10 }")
    assert wrapped.tolist() == [1] * 5 + [0] * 5
    quotient = _run("def f(uint8(N) B) -> (O) { O(i) = uint8(7) / (B(i) + uint8(1)) }", torch.tensor([255, 6]).byte())
    assert quotient.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("(i * 1103515245 + 12345) % 1000", lambda i: _in_int32(i * 1103515245 + 12345) % 1000),
        ("(i * 1103515245 + 12345) / 100000", lambda i: _in_int32(i * 1103515245 + 12345) // 100000),
        ("65536 / i", lambda i: np.array([0, 65536, 32768, 21845])),
        ("65537 % (i - 1)", lambda i: np.array([0, 0, 0, 1])),
        ("I(i) / (i - 1)", lambda i: np.array([-5, 0, 1000, 2**30 - 1])),
        ("int32(int8(i > 1 ? 65536 : i))", lambda i: np.where(i > 1, 0, i)),
        ("int32(B(i)) + int32(uint32(I(i))) < 0 ? 1 : 0", lambda i: np.array([0, 1, 0, 1])),
        ("(I(i) + 1 > I(i)) ? 1 : 0", lambda i: np.where(i == 3, 0, 1)),
        ("I(i) + 2147483647 + 2147483647", lambda i: _in_int32(_LARGE.astype(np.int64) - 2)),
        ("I(i) * 65536 * 65536", lambda i: 0 * i),
        ("max(-I(i), 7)", lambda i: np.maximum(_in_int32(-_LARGE.astype(np.int64)), 7)),
        ("int32(float(i * 65536 * 65536 / 65536))", lambda i: 0 * i),
        ("int32(int64(I(i) + 1) / int64(2))", lambda i: _in_int32(_LARGE.astype(np.int64) + 1) // 2),
        ("int32(B(i)) * int32(B(i)) % 1000", lambda i: _in_int32(_SHORT.astype(np.int64) ** 2) % 1000),
    ],
)
def test_sums_in_int32_wrap(expression: str, value: Any) -> None:
    source = f"def f(int32(N) I, uint16(N) B) -> (O) {{ O(i) = {expression} where i in 0:N }}"
    result = _run(source, torch.from_numpy(_LARGE), torch.from_numpy(_SHORT))
    assert result.tolist() == value(np.arange(4)).tolist()


@pytest.mark.parametrize("dtype", ["uint32", "uint64"])
def test_sums_in_unsigned_types_wrap(dtype: str) -> None:
    left, right = np.array([1, 7, 0, 2**32 - 1], dtype), np.array([3, 2, 1, 2**32 - 1], dtype)
    statements = """
        O(i) = A(i) - B(i)
        P(i) = -A(i)
        Q(i) = A(i) - B(i) > A(i) ? 1 : 0
        R(i) = float(A(i) * B(i) - A(i))
    """
    program = fx.tc.define(f"def f({dtype}(N) A, {dtype}(N) B) -> (O, P, Q, R) {{ {statements} }}")
    outputs = program(torch.from_numpy(left), torch.from_numpy(right))
    with np.errstate(all="ignore"):
        expected = (left - right, -left, left - right > left, (left * right - left).astype("float32"))
    for output, array in zip(outputs, expected, strict=True):
        assert output.tolist() == array.tolist()


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("-uint8(3)", 253),
        ("uint8(2) - uint8(5)", 253),
        ("uint8(200) + uint8(100)", 44),
        ("int8(100) * int8(3)", 44),
        ("uint16(-1)", 65535),
        ("-int8(-128)", -128),
        ("uint32(0) - uint32(1)", 2**32 - 1),
        ("-uint64(1)", 2**64 - 1),
        ("2147483647 + 1", -(2**31)),
        ("int64(2147483647) * int64(4)", 2**33 - 4),
        ("uint8(7) / uint8(2) % uint8(2)", 1),
    ],
)
def test_constants_of_integers_wrap(expression: str, value: int) -> None:
    assert _run(f"def f() -> (O) {{ O(i) = {expression} where i in 0:1 }}").tolist() == [value]


def test_let_variables_and_sizes_are_both_in_scope() -> None:
    result = _run("def f(float(N) A) -> (O) { O(i) = u + float(N) where u = A(i) }", _A)
    assert torch.equal(result, _A + 4)


def test_scalars_may_be_numbers() -> None:
    assert torch.equal(_run("def f(float a, float(N) X) -> (O) { O(i) = a * X(i) }", torch.tensor(2.0), _A), 2 * _A)
    assert torch.equal(fx.tc.define("def f(float a, float(N) X) -> (O) { O(i) = a * X(i) }")(3, _A), 3 * _A)


@pytest.mark.parametrize(
    ("dtype", "number", "words"),
    [
        ("int32", 2.7, r"type int32 for `s` but found 2\.7"),
        ("int32", 2**40, "type int32 for `s` but found 1099511627776"),
        ("uint8", -1, "type uint8 for `s` but found -1"),
        ("bool", 2, "type bool for `s` but found 2"),
        ("int64", float("nan"), "type int64 for `s` but found nan"),
        ("float", 1e300, r"type float for `s` but found 1e\+300"),
        ("double", 10**400, "type double for `s`"),
    ],
)
def test_numbers_that_their_type_cannot_represent_raise(dtype: str, number: float, words: str) -> None:
    program = fx.tc.define(f"def f(float(N) A, {dtype} s) -> (O) {{ O(i) = A(i) * float(s) }}")
    with pytest.raises(TCCallError, match=words):
        program(_A, number)


def test_special_numbers_are_floats() -> None:
    program = fx.tc.define("def f(float s, double t, int32 k) -> (O, P) { O = s * float(k) P = t }")
    first, second = program(-torch.inf, 1e300, 2.0)
    assert (first.item(), second.item()) == (-torch.inf, 1e300)


def test_outputs_are_indexed_from_the_lowest_value_of_the_index() -> None:
    first, second = _run("def f(float(N) A) -> (P, O) { P(i) = A(i - 2) O(i) = P(i) * float(i) }", _A)
    assert torch.equal(first, _A)
    assert torch.equal(second, _A * torch.arange(2, 6))


def test_max_reductions_start_from_the_lowest_value_of_the_type() -> None:
    low = torch.full((2, 3), -3.4e38)
    assert torch.equal(_run("def f(float(N,M) A) -> (O) { O(i) max=! A(i, k) }", low), low[:, 0])
    bytes_ = torch.tensor([[-128, -128]], dtype=torch.int8)
    assert _run("def f(int8(N,M) A) -> (O) { O(i) max=! A(i, k) }", bytes_).tolist() == [-128]
    infinite = torch.full((2, 3), -torch.inf)
    assert torch.equal(_run("def f(float(N,M) A) -> (O) { O(i) max=! A(i, k) }", infinite), infinite[:, 0])


@pytest.mark.parametrize(
    ("left", "right", "wanted"),
    [
        ("uint8", "uint16", "uint16"),
        ("uint8", "int8", "int8"),
        ("uint32", "int8", "int32"),
        ("int64", "float", "float32"),
        ("float", "double", "float64"),
        ("bool", "uint8", "uint8"),
        ("bool", "int8", "int8"),
        ("int16", "int32", "int32"),
    ],
)
def test_types_are_promoted_as_the_language_defines(left: str, right: str, wanted: str) -> None:
    program = fx.tc.define(f"def f({left}(N) A, {right}(N) B) -> (O) {{ O(i) = A(i) + B(i) }}")
    names = {"float": "float32", "double": "float64"}
    inputs = [torch.ones(3).to(getattr(torch, names.get(name, name))) for name in (left, right)]
    result = program(*inputs)
    assert result.dtype is getattr(torch, wanted)
    assert result.tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ((), "2 inputs .* 0"),
        ((torch.ones(3), torch.ones(3), torch.ones(3)), "2 inputs .* 3"),
        (
            (torch.ones(3), torch.ones(4)),
            "dimension 0 of `B`: `N` .* 3 .* 4",
        ),
        ((torch.ones(3), torch.ones(3).double()), "float .* float64 for `B`"),
        ((torch.ones(3), torch.ones(1, 3)), "1 dimensions .* 2 dimensions for `B`"),
        ((torch.ones(0), torch.ones(0)), "dimension 0 of `A` .* 0"),
        ((np.ones(3, "float32"), torch.ones(3)), "`A`, got .* ndarray"),
        ((torch.ones(3), None), "`B`, got None"),
    ],
)
def test_calls_with_mismatched_tensors_raise(inputs: Any, words: str) -> None:
    program = fx.tc.define("def f(float(N) A, float(N) B) -> (O) { O(i) = A(i) + B(i) }")
    with pytest.raises(TCCallError, match=words):
        program(*inputs)
    assert program(torch.ones(3), torch.ones(3)).tolist() == [2, 2, 2]
    with pytest.raises(TCCallError, match=words):  # the same error is raised after a valid call
        program(*inputs)


def test_out_tensors_are_written_and_returned() -> None:
    program = fx.tc.define("def f(float(N,M) A) -> (O, P) { O(i) += A(i, j) P(i) = O(i) * 2.0 }")
    accumulator = torch.ones(4)
    first, second = program(_B, out={"O": accumulator})
    assert first is accumulator
    torch.testing.assert_close(accumulator, 1 + _B.sum(1))
    torch.testing.assert_close(second, 2 * accumulator)
    both = {"O": torch.zeros(4), "P": torch.zeros(4)}
    assert program(_B, out=both)[1] is both["P"]
    invalid_outputs: list[tuple[Any, str]] = [
        ({"O": torch.ones(5)}, r"\(4,\) .* \(5,\) for `O`"),
        ({"O": torch.ones(4, 1)}, "1 dimensions .* 2 dimensions for `O`"),
        ({"O": torch.ones(4).int()}, "float .* int32 for `O`"),
        ({"Q": torch.ones(4)}, "output 'Q'"),
        ({"P": torch.ones(4)}, "reduction without initialization: `O`"),
        ([torch.ones(4)], "`out`, got a list"),
    ]
    for out, words in invalid_outputs:
        with pytest.raises(TCCallError, match=words):
            program(_B, out=out)


def test_out_tensors_that_share_memory_raise() -> None:
    """The last output would overwrite the others."""
    program = fx.tc.define("def f(float(N) A) -> (O, P) { O(i) = A(i) P(i) = -A(i) }")
    memory = torch.zeros(5, 2)
    with torch.inference_mode():
        inference = torch.zeros(4)
    for first, second, words in (
        (memory[:4, 0], memory[:4, 0], "tensor for `P` shares memory with that for `O`"),
        (memory.view(-1)[:4], memory.view(-1)[3:7], "`P` shares memory"),
        (torch.zeros(1).expand(4), torch.zeros(4), "`O` has several elements in one place"),
        (torch.zeros(4), inference, "`P` is an inference tensor"),
        (torch.zeros(4, device="meta"), torch.zeros(4), "`O` is on the meta device"),
        (torch.zeros(4).to_sparse(), torch.zeros(4), "`O` is a sparse_coo tensor"),
    ):
        with pytest.raises(TCCallError, match=words):
            program(_A, out={"O": first, "P": second})
    program(_A, out={"O": memory[:4, 0], "P": memory[1:, 1]})
    assert torch.equal(memory[:4, 0], _A)
    assert torch.equal(memory[1:, 1], -_A)
    assert torch.equal(program(memory[:4, 0], out={"P": memory[:4, 0]})[0], _A)  # an input may be overwritten
    assert torch.equal(memory[:4, 0], -_A)


def test_only_tensors_are_inputs_of_calls() -> None:
    program = fx.tc.define("def f(float(N) A) -> (O) { O(i) = A(i) }")
    assert "O: float(4)" in program.explain((4,))
    with pytest.raises(TCCallError, match="`A`, got a tuple"):
        program((4,))
    with pytest.raises(TCCallError, match="`O`, got a tuple"):
        program(_A, out={"O": (4,)})  # type: ignore[dict-item]


def test_non_contiguous_tensors_are_read_correctly() -> None:
    program = fx.tc.define("def f(float(N,M) A) -> (O) { O(j, i) = A(i, j) }")
    assert torch.equal(program(_B.T), _B)
    assert torch.equal(program(torch.ones(1, 3).expand(4, 3)), torch.ones(3, 4))


def test_each_shape_is_compiled_separately() -> None:
    program = fx.tc.define("def f(float(N) A) -> (O) { O(i) = A(i) * N }")
    for size in (1, 4, 7, 4):
        assert torch.equal(program(torch.ones(size)), torch.full((size,), float(size)))


def test_name_selects_one_of_several_definitions() -> None:
    source = "def f(float(N) A) -> (O) { O(i) = A(i) } def g(float(N) A) -> (O) { O(i) = Q(i) }"
    assert torch.equal(fx.tc.define(source, name="f")(_A), _A)
    with pytest.raises(InvalidOption, match=r"^name: .* 2 definitions: f, g"):
        fx.tc.define(source)
    with pytest.raises(TCSemanticError, match=r"^name: .*`h`"):
        fx.tc.define(source, name="h")
    with pytest.raises(InvalidOption, match=r"^source: .* an int"):
        fx.tc.define(3)  # type: ignore[arg-type]


def test_plain_assignments_over_a_free_index_sum_and_warn() -> None:
    source = "def conv1d(float(M) I, float(N) K) → (O) {\n  O(i) = K(x) * I(i + x)\n}"
    with pytest.warns(ImplicitSumWarning, match="^conv1d, line 2: .*`x`.*write \\+=!"):
        conv1d = fx.tc.define(source)
    signal, taps = torch.randn(20), torch.randn(3)
    wanted = torch.nn.functional.conv1d(signal[None, None], taps[None, None])[0, 0]
    torch.testing.assert_close(conv1d(signal, taps), wanted)


def test_outputs_that_are_read_first_must_be_passed() -> None:
    scale = fx.tc.define("def scale(float b, float(N) A) -> (C) { C(i) = b * C(i) + A(i) }")
    with pytest.raises(TCCallError, match=r"`C` is read before it is written.*pass out="):
        scale(2.0, torch.ones(3))
    c = torch.arange(3.0)
    assert scale(2.0, torch.ones(3), out={"C": c}) is c
    assert c.tolist() == [1.0, 3.0, 5.0]


def test_a_likely_typo_in_an_index_warns() -> None:
    with pytest.warns(SuspiciousNameWarning, match="^mm, line 1: .*`kk`.*`k`"):
        fx.tc.define("def mm(float(M,K) A, float(K,N) B) -> (C) { C(i, j) +=! A(i, kk) * B(k, j) }")


def test_errors_pickle_with_their_location() -> None:
    error = _expect_error(TCSemanticError, "`Q`", "def f(float(N) A) -> (O) {\n  O(i) = A(i) + Q(i)\n}")
    assert (error.line, error.column, error.underlined) == (2, 17, "Q")
    assert error.excerpt.splitlines()[1].index("^") == error.excerpt.splitlines()[0].index("Q")
    unpickled = pickle.loads(pickle.dumps(error))
    assert (str(unpickled), unpickled.line, unpickled.reason) == (str(error), 2, error.reason)


def test_programs_nested_too_deeply_raise() -> None:
    deep = "def f(float(N) A) -> (O) { O(i) = " + "+".join(["A(i)"] * 5000) + " }"
    _expect_error(TCSyntaxError, "nested .* 150", deep)
    _expect_error(TCSyntaxError, "nested .* 150", "def f(float(N) A) -> (O) { O(i) = " + "-" * 5000 + "A(i) }")
    assert torch.equal(_run("def f(float(N) A) -> (O) { O(i) = " + "(" * 100 + "A(i)" + ")" * 100 + " }", _A), _A)
    lets = ", ".join(f"u{i} = u{i - 1} * u{i - 1}" for i in range(1, 40))
    _expect_error(
        TCSemanticError, "too large .* lets", f"def f(float(N) A) -> (O) {{ O(i) = u39 where u0 = A(i), {lets} }}"
    )


@pytest.mark.parametrize("function", ["tanh", "exp"])
def test_nested_function_calls_do_not_duplicate_code(function: str) -> None:
    source = "def f(float(N) A) -> (O) {{ O(i) = {} }}"
    once = fx.tc.define(source.format(f"{function}(A(i))"))
    thrice = _run(source.format(f"{function}({function}({function}(A(i) * 0.1)))"), _A)
    torch.testing.assert_close(thrice, once(once(once(_A * 0.1))), rtol=1e-5, atol=1e-6)
    many = "tanh(" * 60 + "A(i)" + ")" * 60
    assert torch.isfinite(_run(source.format(many), _A)).all()


def test_formula_functions_cannot_take_function_calls_as_arguments() -> None:
    source = "def f(float(N) A) -> (O) {{ O(i) = {} }}"
    _expect_error(TCSemanticError, "`erfinv` .* function calls", source.format("erfinv(tanh(A(i)))"))
    result = _run(source.format("tanh(erfinv(A(i) * 0.1))"), _A)
    torch.testing.assert_close(result, torch.tanh(torch.erfinv(_A * 0.1)), rtol=1e-5, atol=1e-6)


def test_nested_float_remainders_are_limited() -> None:
    source = "def f(float(N) A) -> (O) {{ O(i) = {} }}"
    result = _run(source.format("A(i) % 3.0 % 2.5 % 2.0"), _A)
    torch.testing.assert_close(result, torch.remainder(torch.remainder(torch.remainder(_A, 3.0), 2.5), 2.0))
    _expect_error(TCSemanticError, "too large", source.format("A(i)" + " % 2.0" * 20))


def test_a_statement_reads_values_of_earlier_statements() -> None:
    results = _run("def f(float(N,M) A) -> (S, O) { S(i) +=! A(i, j) O(i) = S(i) S(i) = S(i) * 2.0 O(i) += S(i) }", _B)
    torch.testing.assert_close(results[0], 2 * _B.sum(1))
    torch.testing.assert_close(results[1], 3 * _B.sum(1))


def test_library_call_annotations_are_ignored() -> None:
    result = _run("def f(float(N) A) -> (O) { O(i) = A(i) + 1.0 <=> lib(A) where i in 0:3 }", _A)
    assert torch.equal(result, _A[:3] + 1)
