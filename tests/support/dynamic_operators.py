"""Operators with dynamic sizes, as PrimFuncs with symbolic shapes.

Input: the static sizes. Output: a PrimFunc whose dynamic sizes are named T, or B and T, and so on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from felixlike import _tvm
from felixlike.frontend.constants import CONSTANTS, with_indices


def symbol(name: str = "T") -> Any:
    """Return a variable for a dynamic size."""
    return _tvm.tirx.Var(name, "int64")


def _input(*shape: Any, name: str, dtype: str = "float32") -> Any:
    return _tvm.te.placeholder(shape, name=name, dtype=dtype)


def _func(*tensors: Any, constants: tuple[int, ...] = ()) -> Any:
    return with_indices(_tvm.te.create_prim_func(list(tensors)), CONSTANTS, constants)


def dense(
    k: int, n: int, *, activation: Callable[[Any], Any] | None = None, dtype: str = "float32", sums: str = ""
) -> Any:
    """activation(X[T, k] · W[n, k]ᵀ + b), W and b constant. sums: dtype of the sums and the result, if another."""
    te, t = _tvm.te, symbol()
    x, w, b = _input(t, k, name="X", dtype=dtype), _input(n, k, name="W", dtype=dtype), _input(n, name="b", dtype=dtype)
    r = te.reduce_axis((0, k), name="r")
    wide = sums or dtype
    y = te.compute((t, n), lambda i, j: te.sum(x[i, r].astype(wide) * w[j, r].astype(wide), axis=r), name="Y")
    z = te.compute((t, n), lambda i, j: y[i, j] + b[j].astype(wide), name="Z")
    return _func(x, w, b, z if activation is None else activation(z), constants=(1, 2))


def dense_of_batch(k: int, n: int) -> Any:
    """X[B, T, k] · W[n, k]ᵀ + R[B, T, n], W constant: two dynamic sizes."""
    te, batch, t = _tvm.te, symbol("B"), symbol()
    x, w, r = _input(batch, t, k, name="X"), _input(n, k, name="W"), _input(batch, t, n, name="R")
    s = te.reduce_axis((0, k), name="s")
    y = te.compute((batch, t, n), lambda b, i, j: te.sum(x[b, i, s] * w[j, s], axis=s), name="Y")
    return _func(x, w, r, te.compute((batch, t, n), lambda b, i, j: y[b, i, j] + r[b, i, j], name="Z"), constants=(1,))


def scores(batch: int, k: int) -> Any:
    """A[b, T, k] · B[b, T, k]ᵀ: queries times keys, with T in two dimensions."""
    te, t = _tvm.te, symbol()
    a, b, r = _input(batch, t, k, name="A"), _input(batch, t, k, name="B"), te.reduce_axis((0, k), name="r")
    return _func(a, b, te.compute((batch, t, t), lambda n, i, j: te.sum(a[n, i, r] * b[n, j, r], axis=r), name="C"))


def mixed(batch: int, n: int) -> Any:
    """A[b, T, T] · B[b, T, n]: attention times values, summed over T."""
    te, t = _tvm.te, symbol()
    a, b, r = _input(batch, t, t, name="A"), _input(batch, t, n, name="B"), te.reduce_axis((0, t), name="r")
    return _func(a, b, te.compute((batch, t, n), lambda m, i, j: te.sum(a[m, i, r] * b[m, r, j], axis=r), name="C"))


def product(*, names: tuple[str, str, str] = ("M", "N", "K")) -> Any:
    """A[M, K] · B[K, N], all sizes dynamic."""
    te = _tvm.te
    m, n, k = map(symbol, names)
    a, b, r = _input(m, k, name="A"), _input(k, n, name="B"), te.reduce_axis((0, k), name="r")
    return _func(a, b, te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="C"))


def row_sums(n: int) -> Any:
    """Sums of the rows of X[T, n], an operator that is not a contraction."""
    te, t = _tvm.te, symbol()
    x, r = _input(t, n, name="X"), te.reduce_axis((0, n), name="r")
    return _func(x, te.compute((t,), lambda i: te.sum(x[i, r], axis=r), name="S"))
