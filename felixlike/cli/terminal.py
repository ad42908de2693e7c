"""What a command writes to: closed streams, pipes whose reader has gone, encodings without our signs.

In: the process's standard streams as they are. Out: streams to which everything can be written, and whether a reader
has gone away. So what a command is asked for is done to its end, whoever still listens.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import Any

from felixlike._encoding import HANDLER

BROKEN_PIPE = 141
"""The exit code of a command whose reader has gone: what a shell says of one that SIGPIPE ends."""

_STRICT = ("strict", "surrogateescape", "backslashreplace")
"""What a stream does with signs that it lacks unless somebody asked for something else."""


class _Descriptor(io.FileIO):
    """A file descriptor that leads to nothing as soon as the reader has gone away.  broken: whether it has."""

    broken = False

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            self.broken = True
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, self.fileno())  # so that nobody else who writes there meets the same
            os.close(nothing)
            return len(data)


class Streams:
    """The standard streams of a command.  broken: whether the reader of one has gone.  error: why standard output could
    not be written to its end; empty where it was."""

    def __init__(self) -> None:
        self._descriptors: list[_Descriptor] = []
        self.error = ""

    @property
    def broken(self) -> bool:
        return any(descriptor.broken for descriptor in self._descriptors)

    @contextlib.contextmanager
    def prepared(self) -> Iterator[None]:
        """sys.stdout and sys.stderr can be written to meanwhile; they are as they were afterwards."""
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
        """The stream itself where it is none of the process's own: a test's, or of a program that calls the command."""
        if stream is None:
            return open(os.devnull, "w", encoding="utf-8")
        if not isinstance(stream, io.TextIOWrapper):
            return stream
        raw = getattr(stream.buffer, "raw", stream.buffer)  # there is no buffer under python -u
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
        try:
            ours.flush()
            if ours is not theirs:
                ours.close()
        except (OSError, ValueError) as error:
            self.error = getattr(error, "strerror", "") or str(error)
            with contextlib.suppress(OSError, ValueError):
                ours.close()


def _open_closed() -> None:
    """Connect standard streams that are closed to nothing: the next file that is opened would take their place, and
    get what is written to them."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def complain(text: str) -> None:
    """A sentence on standard error, if that can be written to."""
    with contextlib.suppress(OSError, ValueError):
        print(f"felixlike: {text}", file=sys.stderr, flush=True)
