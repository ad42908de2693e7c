"""Wrap a PrimFunc in a Relax module with one call, so that later stages handle Relax only.

Input: a PrimFunc over buffers of known shapes, whose last buffer is the output. Output: a `Source`.
"""

from collections.abc import Sequence
from typing import Any

from felixlike import _tvm
from felixlike.errors import EmptyModel
from felixlike.frontend.buffers import buffers_of, check_index_width
from felixlike.frontend.constants import LAYOUT_FREE
from felixlike.frontend.imported import Source
from felixlike.frontend.importers.input_shapes import made, match_known, read_shapes
from felixlike.frontend.signature.signature import Signature
from felixlike.frontend.signature.structure import Structure


def from_primfunc(func: Any, shapes: Any) -> Source:
    """Wrap a PrimFunc: its last buffer becomes the output, the others the inputs.

    The inputs come with every call, so the PrimFunc's `layout_free_buffers` attribute is ignored. Raises EmptyModel
    without buffers, InvalidModel for scalar parameters, InvalidShape for unknown sizes.
    """
    relax = _tvm.relax
    name = name_of(func)
    check_index_width(func, where=name)
    specs = buffers_of(func, where=name)
    if not specs:
        raise EmptyModel("the PrimFunc has no buffers", where=name, remedy="pass a PrimFunc with an output buffer")
    inputs = specs[:-1]
    examples = match_known(read_shapes(shapes), inputs, where=name)
    kinds = [relax.TensorType(spec.shape, spec.dtype) for spec in specs]
    module = called(func, name, [spec.name for spec in inputs], kinds)
    signature = Signature.plain([spec.name for spec in inputs])
    tensors = tuple(example.tensor() for example in examples)
    return Source(name, module, signature, Structure(), tensors, original=module, made=made(examples))


def called(func: Any, name: str, inputs: Sequence[str], kinds: Sequence[Any]) -> Any:
    """Return a Relax module whose "main" calls a PrimFunc.

    inputs: their names.  kinds: Relax types of the buffers, the output's last.
    """
    relax = _tvm.relax
    builder = relax.BlockBuilder()
    variable = builder.add_func(_tvm.without_attributes(func, "global_symbol", LAYOUT_FREE), name)
    params = [relax.Var(input_name, kind) for input_name, kind in zip(inputs, kinds[:-1], strict=True)]
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(relax.call_tir(variable, params, kinds[-1])))
        builder.emit_func_output(result)
    return builder.get()


def name_of(func: Any) -> str:
    """Return the function's global symbol, or the joined names of its blocks if that is missing or "main"."""
    symbol = str(func.attrs["global_symbol"]) if func.attrs and "global_symbol" in func.attrs else "main"
    if symbol != "main":
        return symbol
    names = [str(block.name_hint).removeprefix("T_") for block in _tvm.found(func.body, _tvm.s_tir.SBlock)]
    return "_".join(name for name in names if name not in ("root", "")) or "primfunc"
