"""Prove that a model computes each sample of its batch alone.

    for n in 16, h in 56, w in 56, c in 24, r in 144:        sample n is computed from sample n: proved
        Y[n, h, w, c] += X[n, h, w, r] * W[r, c]
    for n in 16, c in 24: Z[n, c] = Y[n, c] - mean[c]        mean depends on all samples: not proved

Input: a fused Relax module. Output: True if outputs of one sample depend on inputs of that sample alone, False if they
do not or if that is not known. Tensors that depend on a sample hold equal parts of all samples one after another, so
their first size is a multiple of the batch. Blocks store each part from the parts of the same sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from felixlike import _tvm
from felixlike.frontend.importers.relax import leaves


def has_independent_samples(module: Any, batch: int) -> bool:
    """Return whether it is proved that a model computes each sample of its batch alone.

    Args:
        module: A fused Relax module. Inputs whose first size is the batch are batched, others are not.
        batch: The batch size, at least 2.
    """
    main = module["main"]
    proof = _Proof(module, batch)
    proof.batched.update(parameter for parameter in main.params if _first_size(parameter.ty) == batch)
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    if not all(isinstance(b, _tvm.relax.VarBinding) and proof.holds(b.var, b.value) for b in bindings):
        return False
    return proof.is_batched(main.body.body) and batch_size(module) == batch


def batch_size(module: Any) -> int | None:
    """Return the first size of all outputs of a Relax module, None if they differ or are not known."""
    sizes = {_first_size(kind) for kind in leaves(module["main"].ret_ty)}
    return sizes.pop() if len(sizes) == 1 else None


class _Proof:
    """Follow the samples of a batch through a model.

    Attributes:
        batched: Variables whose parts depend on one sample each.
    """

    def __init__(self, module: Any, batch: int) -> None:
        """Start with no batched variable."""
        self.batched: set[Any] = set()
        self._module, self._batch = module, batch
        self._known: dict[tuple[str, tuple[bool, ...]], tuple[bool, ...] | None] = {}

    def is_batched(self, value: Any) -> bool:
        """Return whether a variable, or each field of a tuple, is batched."""
        if isinstance(value, _tvm.relax.Tuple):
            return all(map(self.is_batched, value.fields))
        return isinstance(value, _tvm.relax.Var) and value in self.batched

    def holds(self, variable: Any, value: Any) -> bool:
        """Return whether a bound value mixes no samples, and record whether it is batched."""
        if isinstance(value, _tvm.relax.Call) and value.op == _tvm.ir.Op.get("relax.call_tir"):
            results = self._results(value)
        elif isinstance(value, _tvm.relax.Call) and value.op == _tvm.ir.Op.get("relax.reshape"):
            batched, size = self.is_batched(value.args[0]), _first_size(value.ty)
            results = (batched,) if not batched or (size is not None and size % self._batch == 0) else None
        elif isinstance(value, _tvm.relax.Var | _tvm.relax.Tuple):
            parts = value.fields if isinstance(value, _tvm.relax.Tuple) else [value]
            results = tuple(map(self.is_batched, parts))
        else:
            results = None
        if results is None or len(set(results)) != 1:  # a tuple with both kinds is not followed
            return False
        self.batched.update([variable] if results[0] else [])
        return True

    def _results(self, call: Any) -> tuple[bool, ...] | None:
        """Return which results of a call are batched, None if they may mix samples."""
        arguments = call.args[1].fields if isinstance(call.args[1], _tvm.relax.Tuple) else [call.args[1]]
        if len(call.args) > 2 or any(isinstance(argument, _tvm.relax.Tuple) for argument in arguments):
            return None
        given = tuple(map(self.is_batched, arguments))
        key = str(call.args[0].name_hint), given
        if key not in self._known:
            func = self._module[call.args[0]]
            self._known[key] = self._of_function(func, given) if isinstance(func, _tvm.PrimFunc) else None
        return self._known[key]

    def _of_function(self, func: Any, given: tuple[bool, ...]) -> tuple[bool, ...] | None:
        """Return which outputs of a PrimFunc are batched, None if they may mix samples.

        given: the same of its inputs."""
        blocks = [block for block in _tvm.found(func.body, _tvm.s_tir.SBlock) if block.iter_vars]
        accesses = [_Accesses.of(block) for block in blocks]
        if sum(map(_Accesses.number, accesses)) != _Accesses.of(func.body).number() or _is_opaque(func):
            return None  # blocks in blocks, or accesses outside of blocks
        known, batched = set(func.params[: len(given)]), set[Any]()
        batched.update(buffer for buffer, is_batched in zip(func.params, given, strict=False) if is_batched)
        for block, (loads, stores) in zip(blocks, accesses, strict=True):
            written = {store.buffer for store in stores}
            if not all(load.source in known | written for load in loads):
                return None
            if any(load.source in batched for load in loads):
                if written & known - batched:
                    return None
                batched |= written
            elif written & batched:
                return None
            known |= written
            parts = [(load.source, load.indices) for load in loads if load.source in batched]
            parts += [(store.buffer, store.indices) for store in stores if store.buffer in batched]
            if not self._is_one_sample(block, parts):
                return None
        return tuple(output in batched for output in func.params[len(given) :]) or None

    def _is_one_sample(self, block: Any, parts: Sequence[tuple[Any, Any]]) -> bool:
        """Return whether a block's accesses of batched buffers are of the same sample."""
        analyzer = _tvm.sym.Analyzer()
        for iterator in block.iter_vars:
            analyzer.bind(iterator.var, iterator.dom)
        samples = [self._sample(buffer, indices) for buffer, indices in parts]
        return all(
            sample is not None and samples[0] is not None and analyzer.can_prove_equal(sample, samples[0])
            for sample in samples
        )

    def _sample(self, buffer: Any, indices: Any) -> Any:
        """Return the sample to which an element belongs, None for buffers without equal parts for all samples."""
        if not indices or not isinstance(buffer.shape[0], _tvm.tirx.IntImm) or int(buffer.shape[0]) % self._batch:
            return None
        rows = int(buffer.shape[0]) // self._batch
        return indices[0] if rows == 1 else _tvm.tirx.floordiv(indices[0], rows)


class _Accesses(NamedTuple):
    """The loads and stores of a statement."""

    loads: list[Any]
    stores: list[Any]

    @staticmethod
    def of(statement: Any) -> _Accesses:
        """Return the loads and stores below a TVM statement."""
        return _Accesses(*(_tvm.found(statement, kind) for kind in (_tvm.ir.TensorLoad, _tvm.tirx.BufferStore)))

    def number(self) -> int:
        """Return the number of accesses."""
        return len(self.loads) + len(self.stores)


def _is_opaque(func: Any) -> bool:
    """Return whether a function may access memory otherwise than by loads and stores of its buffers."""
    views = [block for block in _tvm.found(func.body, _tvm.s_tir.SBlock) if block.match_buffers]
    return bool(views or _tvm.found(func.body, _tvm.tirx.Evaluate))


def _first_size(kind: Any) -> int | None:
    """Return the first size of a tensor's type, None if it has none or it is not known."""
    shape = getattr(kind, "shape", None)
    sizes = list(shape.values) if isinstance(shape, _tvm.relax.ShapeExpr) else []
    return int(sizes[0]) if sizes and isinstance(sizes[0], _tvm.tirx.IntImm) else None
