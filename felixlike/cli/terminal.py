"""Make the standard streams writable: closed streams, pipes without a reader, encodings that lack characters.

Input: the standard streams of the process. Outputs: streams that accept all text, and whether a reader was closed. So a
command completes its work even if its output is no longer read.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import Any

from felixlike._encoding import HANDLER
from felixlike._util.wording import printable

BROKEN_PIPE = 141
"""Exit code of a command whose reader was closed: 128 + SIGPIPE, as in a shell."""

_STRICT = ("strict", "surrogateescape", "backslashreplace")
"""Python's default error handlers of streams, which are replaced. Other handlers were set by the user and stay."""


class _Descriptor(io.FileIO):
    """A file descriptor that is redirected to the null device when its reader is closed. broken: whether it was."""

    broken = False

    def write(self, data: Any, /) -> int:
        """Write data. Discard it if the reader was closed."""
        try:
            return super().write(data)
        except BrokenPipeError:
            self.broken = True
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, self.fileno())  # other writers to this descriptor get no error either
            os.close(nothing)
            return len(data)


class Streams:
    """The standard streams of a command.

    Attributes:
        broken: Whether the reader of a stream was closed.
        error: Why the output of a stream is incomplete; empty if everything was written.
    """

    def __init__(self) -> None:
        self._descriptors: list[_Descriptor] = []
        self.error = ""

    @property
    def broken(self) -> bool:
        """Return whether the reader of a stream was closed."""
        return any(descriptor.broken for descriptor in self._descriptors)

    @contextlib.contextmanager
    def prepared(self) -> Iterator[None]:
        """Make sys.stdout and sys.stderr writable within the block. Restore the previous objects afterwards."""
        _open_closed()
        before = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = self._ready(sys.stdout), self._ready(sys.stderr)
        try:
            yield
        finally:
            for ours, theirs in zip((sys.stdout, sys.stderr), before, strict=True):
                self._finish(ours, theirs)
            sys.stdout, sys.stderr = before

    def _ready(self, stream: Any) -> Any:
        """Wrap a stream of the process. Return other objects (of a test or a calling program) unchanged."""
        if stream is None:
            return open(os.devnull, "w", encoding="utf-8")
        if not isinstance(stream, io.TextIOWrapper):
            return stream
        raw = getattr(stream.buffer, "raw", stream.buffer)  # python -u has no buffer
        if not isinstance(raw, io.FileIO) or raw.fileno() not in (1, 2):
            if stream.errors in _STRICT:
                stream.reconfigure(errors=HANDLER)
            return stream
        stream.flush()
        descriptor = _Descriptor(stream.fileno(), "w", closefd=False)
        self._descriptors.append(descriptor)
        return io.TextIOWrapper(
            descriptor if raw is stream.buffer else io.BufferedWriter(descriptor),
            encoding=stream.encoding,
            errors=HANDLER if stream.errors in _STRICT else stream.errors,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )

    def _finish(self, ours: Any, theirs: Any) -> None:
        """Flush and close our stream, and remember its error."""
        try:
            ours.flush()
            if ours is not theirs:
                ours.close()
        except (OSError, ValueError) as error:
            self.error = getattr(error, "strerror", "") or str(error)
            with contextlib.suppress(OSError, ValueError):
                ours.close()


def _open_closed() -> None:
    """Open the null device for standard streams that are closed.

    Otherwise the next opened file would get their number, and the text written to them.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def complain(text: str) -> None:
    """Print a sentence on standard error. Ignore write errors."""
    with contextlib.suppress(OSError, ValueError):
        print(f"felixlike: {printable(text)}", file=sys.stderr, flush=True)
