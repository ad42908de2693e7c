"""What torch and TVM say when they refuse a model, in one line with the user's own line of code.

In: their exceptions, and their talk on stderr. Out: ExportFailed or DynamicControlFlow, and silence.
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
from typing import TextIO

from felixlike._util.torch_modes import alone
from felixlike._util.wording import advice
from felixlike.errors import DynamicControlFlow, ExportFailed, first_line


def export_error(error: Exception, name: str, *, only_sizes: bool, dims: bool = False) -> ExportFailed:
    """The error for a refusal of torch.export.

    name: the model's.  only_sizes: no example tensor was given.  dims: sizes were dimensions."""
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    where = ", ".join(part for part in (name, _user_line(error)) if part)
    if isinstance(error, GuardOnDataDependentSymNode) or "data-dependent" in str(error):
        return DynamicControlFlow(
            f"what the model does depends on the values of its tensors: {first_line(error)}",
            where=where,
            remedy="replace the branch by torch.where, and sizes read from tensors by constants",
        )
    for known in (_of_output, _of_dims):
        found = known(str(error))
        if found is not None:
            return ExportFailed(found[0], where=where, remedy=found[1])
    remedy = "check that the model runs with inputs of these shapes"
    if only_sizes:
        remedy += f"; sizes alone mean float32, so for integers (token ids) {_typed(dims)}"
    return ExportFailed(f"torch.export refused the model: {first_line(error)}", where=where, remedy=remedy)


def _typed(dims: bool) -> str:
    """How an input's type is given."""
    if dims:
        bounded = "dynamic_shapes={'ids': {1: torch.export.Dim('T', max=128)}}"
        return f"export the model yourself, torch.export.export(model, (ids,), {bounded}), and give that program"
    return advice("give an example tensor", "write the type, too: --shape ids=1x64:int64")


def _of_output(said: str) -> tuple[str, str] | None:
    """What is wrong with what the model returns, and what to do; None if it is something else."""
    returned = re.search(r"Found <class '(?:[^']*\.)?(\w+)'> in output", said)
    if returned is None:
        return None
    if returned[1].endswith("Cache"):
        example = "{'input_ids': ids, 'use_cache': False}"
        return (
            f"the model returns its cache ({returned[1]}), which torch.export cannot take apart",
            advice(
                f"give use_cache=False among the inputs: {example}",
                f"have the function return use_cache=False among the inputs: return model, {example}",
            ),
        )
    return (
        f"the model returns a {returned[1]}, a class that torch.export cannot take apart",
        f"if it is a dataclass, call torch.export.register_dataclass({returned[1]}) once before; or return a tuple, a"
        " dictionary or a named tuple",
    )


def _of_dims(said: str) -> tuple[str, str] | None:
    """The same for dimensions that cannot have all of their sizes."""
    fixed = re.search(r"marked (\w+) as dynamic but your code specialized it to be a constant \((\d+)\)", said)
    if fixed is not None:
        return (
            f"{fixed[1]} can have no other size than {fixed[2]}: the model's code fixes it",
            f"give {fixed[2]} in place of {fixed[1]}; a sequence's length is fixed where Python's loops go over it,"
            " and by nn.RNN, nn.GRU and nn.LSTM, which are unrolled",
        )
    violated = re.search(r"Constraints violated \((.*?)\)", said)
    if violated is None:
        return None
    _, _, fixes = said.partition("Suggested fixes:")
    possible = "; ".join(line.strip() for line in fixes.partition("\n\n")[0].splitlines() if line.strip())
    return (
        f"the model cannot have every size of {violated[1]}",
        f"torch.export finds these possible: {possible}" if possible else "give a fixed size",
    )


def _user_line(error: Exception) -> str:
    """The last line outside of torch and this package that led to an error: "model.py:12 in forward: x[i]"."""
    import torch

    own = (str(Path(torch.__file__).parent), str(Path(__file__).parents[2]), "<")
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(own) and not frame.filename.endswith("contextlib.py")
    ]
    if not frames:
        return ""
    last = frames[-1]
    return f"{Path(last.filename).name}:{last.lineno} in {last.name}: {last.line}"


class _WithoutTorch(io.TextIOBase):
    """A stream that passes on what is written to it, except by torch's own code: it prints the graph of a model that it
    refuses."""

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


@contextlib.contextmanager
def quiet(*, stdout: bool = False) -> Iterator[None]:
    """Keep a library's warnings, log lines and notes on stderr to itself; its errors still come through, and what the
    user's own model prints.  stdout: where no code of the user's runs, keep everything from both streams.

    For the whole process while it lasts, since Python has no warnings or log levels of a thread; one thread at a
    time."""
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
