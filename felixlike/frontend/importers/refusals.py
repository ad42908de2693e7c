"""Turn errors of torch and TVM into one line that names the user's line of code, and silence their output.

Input: their exceptions and their output on stderr. Output: ExportFailed or DynamicControlFlow.
"""

import contextlib
import io
import logging
import re
import sys
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from felixlike._util.torch_modes import alone
from felixlike._util.wording import advice
from felixlike.errors import DynamicControlFlow, ExportFailed, first_line

_ASSIGNED = re.compile(r"The tensor attributes? (.+?) (?:was|were) assigned during export")
"""The beginning of the warning of torch.export about attributes that are no buffers."""


def export_error(error: Exception, name: str, *, only_sizes: bool, dims: bool = False) -> ExportFailed:
    """Return the error for a failure of torch.export.

    name: the model's.  only_sizes: whether there was no example tensor.  dims: whether sizes were symbolic.
    """
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    where = ", ".join(part for part in (name, _user_line(error)) if part)
    if _packs_sequences(error):
        return ExportFailed(
            "packed sequences have sizes that depend on values, which compiled code does not support",
            where=where,
            remedy="pass padded sequences to the layer and mask its outputs, or use torch.compile with this backend,"
            " where PyTorch runs such layers",
        )
    if isinstance(error, GuardOnDataDependentSymNode) or "data-dependent" in str(error):
        return DynamicControlFlow(
            f"the model's control flow depends on tensor values: {first_line(error)}",
            where=where,
            remedy="replace branches with torch.where, and sizes read from tensors with constants",
        )
    for known in (_of_output, _of_dims, _of_conversion, _of_arrays):
        description = known(str(error))
        if description is not None:
            return ExportFailed(description[0], where=where, remedy=description[1])
    remedy = "check that the model runs with inputs of these shapes"
    if only_sizes:
        remedy += f"; sizes alone imply float32, so for integer inputs such as token ids, {_typed(dims)}"
    return ExportFailed(f"torch.export failed: {first_line(error)}", where=where, remedy=remedy)


def decomposition_error(error: Exception, name: str) -> ExportFailed:
    """Return the error for a failure to decompose an exported program.  name: the model's."""
    if "expected compiled_fn to be GraphModule" not in str(error):
        return ExportFailed(first_line(error), where=name)
    return ExportFailed(
        "it changes tensors that share memory with others, such as two buffers, which torch.export does not support",
        where=name,
        remedy="give each tensor memory of its own: x.clone()",
    )


def check_indices(program: Any) -> None:
    """Raise TypeError if an embedding is looked up by floating-point numbers, which PyTorch before 2.13 exports."""
    import torch

    for node in program.graph.nodes:
        if node.target is torch.ops.aten.embedding.default:
            dtype = node.args[1].meta["val"].dtype
            if dtype.is_floating_point:
                raise TypeError(f"an embedding needs integers as indices, not {str(dtype).removeprefix('torch.')}")


def _packs_sequences(error: Exception) -> bool:
    """Return whether an error was raised while PyTorch packed a sequence, or in a recurrent layer that read one."""
    from torch.nn.modules import rnn as layers
    from torch.nn.utils import rnn as packing

    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return any(
        frame.f_code.co_filename == packing.__file__
        or (frame.f_code.co_filename == layers.__file__ and frame.f_locals.get("batch_sizes") is not None)
        for frame in frames
    )


def _typed(dims: bool) -> str:
    """Return the remedy that explains how to specify an input's dtype."""
    if dims:
        return "pass an example tensor and its dynamic sizes: dynamic_shapes={'ids': {1: fx.Dim('T', range(1, 129))}}"
    return advice("pass an example tensor", "add the dtype: --shape ids=1x64:int64")


def _of_output(message: str) -> tuple[str, str] | None:
    """Return (problem, remedy) for an unsupported output type, or None if the message is about something else."""
    returned = re.search(r"Found <class '(?:[^']*\.)?(\w+)'> in output", message)
    if returned is None:
        return None
    if returned[1].endswith("Cache"):
        example = "{'input_ids': ids, 'use_cache': False}"
        return (
            f"the model returns its cache ({returned[1]}), which torch.export does not support",
            advice(
                f"pass use_cache=False with the inputs: {example}",
                f"return use_cache=False with the inputs from the function: return model, {example}",
            ),
        )
    return (
        f"the model returns a {returned[1]}, a class that is not registered with torch.export",
        f"for a dataclass, call torch.export.register_dataclass({returned[1]}) first, or return a tuple, dictionary or"
        " named tuple",
    )


def _of_dims(message: str) -> tuple[str, str] | None:
    """Return (problem, remedy) for dimensions that cannot have all of their sizes, or None."""
    fixed = re.search(r"marked (\w+) as dynamic but your code specialized it to be a constant \((\d+)\)", message)
    if fixed is not None:
        return (
            f"dimension {fixed[1]} cannot be dynamic: the model's code fixes it to {fixed[2]}",
            f"use {fixed[2]} instead of {fixed[1]}; a Python loop over a sequence fixes its length, and so do nn.RNN,"
            " nn.GRU and nn.LSTM, because they are unrolled",
        )
    violated = re.search(r"Constraints violated \((.*?)\)", message)
    if violated is None:
        return None
    _, _, fixes = message.partition("Suggested fixes:")
    possible = "; ".join(line.strip() for line in fixes.partition("\n\n")[0].splitlines() if line.strip())
    guards = re.findall(r"Not all values of (\w+) = (\S+) in .*? satisfy the generated guard (.*?)\.?$", message, re.M)
    needed = "; ".join(dict.fromkeys(guard.replace(source, name) for name, source, guard in guards))
    remedy = f"use a range in which {needed}, or a fixed size" if needed else "use a fixed size"
    if possible:
        remedy = f"torch.export suggests {possible}"
    return f"the model does not support every size of {violated[1]}", remedy


def _of_conversion(message: str) -> tuple[str, str] | None:
    """Return (problem, remedy) for a module whose weights the model converts in each call, or None."""
    converted = re.search(r"_apply\(\): Couldn't swap (\w+)\.", message)
    if converted is None:
        return None
    return (
        f"the model converts the weights of its {converted[1]} when it is called, which torch.export does not support",
        "convert that module before, and remove the conversion from the model's code",
    )


def _of_arrays(message: str) -> tuple[str, str] | None:
    """Return (problem, remedy) for a model that computes with NumPy, or None."""
    if ".numpy() is not supported" not in message:
        return None
    return "the model computes with NumPy, which torch.export does not capture", "use torch's operators instead"


def _user_line(error: Exception) -> str:
    """Return the last line outside torch and this package that led to an error: "model.py:12 in forward: x[i]"."""
    import torch

    internal = (str(Path(torch.__file__).parent), str(Path(__file__).parents[2]), "<")
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(internal) and not frame.filename.endswith("contextlib.py")
    ]
    if not frames:
        return ""
    last = frames[-1]
    return f"{Path(last.filename).name}:{last.lineno} in {last.name}: {last.line}"


@contextlib.contextmanager
def assigned() -> Iterator[set[str]]:
    """Collect the names of the tensors that a model assigns to attributes of its own while it is exported.

    PyTorch only warns of them. Warnings inside the context are suppressed.
    """
    names: set[str] = set()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield names
    for warning in caught:
        if (found := _ASSIGNED.match(str(warning.message))) is not None:
            names.update(name.removeprefix("self.") for name in found[1].split(", "))


class _WithoutTorch(io.TextIOBase):
    """Forward what is written to a stream, except by torch's own code.

    torch prints the graph of a model that it refuses.
    """

    def __init__(self, stream: TextIO | None) -> None:
        import torch

        self._stream = stream
        self._torch = str(Path(torch.__file__).parent)

    def write(self, text: str) -> int:
        if self._stream is None or sys._getframe(1).f_code.co_filename.startswith(self._torch):
            return len(text)
        return self._stream.write(text)

    def flush(self) -> None:
        if self._stream is not None:
            self._stream.flush()

    def close(self) -> None:
        """Leave the stream open, which is the caller's. Without this, the garbage collector flushes and closes it."""


@contextlib.contextmanager
def quiet(*, stdout: bool = False) -> Iterator[None]:
    """Suppress a library's warnings, log records and stderr output.

    The library's errors and the user's prints still come through.

    stdout: also suppress stdout and all of stderr, where none of the user's code runs.

    The suppression is process-wide, since Python has no warning filters or log levels per thread. Only one thread at
    a time can be inside.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(alone())
        before = logging.root.manager.disable
        stack.enter_context(warnings.catch_warnings())
        stack.enter_context(contextlib.redirect_stderr(io.StringIO() if stdout else _WithoutTorch(sys.stderr)))
        if stdout:
            stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(before)
