"""Run the command `felixlike` with its subcommands tune, resume, show, watch, merge, export, import, compact, compare,
explain, doctor, cache, collect, train, evaluate, tc and bench.

Input: the command line. Outputs: text on stdout, progress on stderr, and an exit code: 0, 1 (a problem, described in a
sentence), 2 (usage), 130 (Ctrl-C), 143 (SIGTERM), 129 (the terminal was closed) or 141 (the reader of the output was
closed). A run that was stopped has saved the best schedules so far.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Mapping, Sequence

from felixlike._util.wording import for_the_command
from felixlike.cli.terminal import BROKEN_PIPE, Streams, complain


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: Command-line arguments without the program's name; None for those of the process.

    Returns:
        The exit code.

    Raises:
        SystemExit: After --help and --version, and for wrong usage.
    """
    command_line = sys.argv[1:] if arguments is None else list(arguments)
    streams = Streams()
    with streams.prepared(), for_the_command():
        try:
            code, exits = _run(command_line), False
        except SystemExit as leaving:
            code, exits = int(leaving.code or 0), True
    if streams.error and not streams.broken:
        complain(f"the output could not be written: {streams.error}")
        code = code or 1
    code = code or (BROKEN_PIPE if streams.broken else 0)
    if exits:
        raise SystemExit(code)
    return code


def _run(arguments: list[str]) -> int:
    """Parse the arguments, run the command, and convert errors to messages and exit codes."""
    traceback = False
    try:
        parser = _parser()
        if not arguments:
            parser.print_help()
            return 0
        options = _parsed(parser, arguments)
        traceback = options.traceback
        return _run_command(options)
    except BrokenPipeError:
        return BROKEN_PIPE
    except KeyboardInterrupt as interrupt:
        exec("")  # Python kills itself by SIGINT if the last exec of a string (dataclasses use it) was interrupted
        number = getattr(interrupt, "number", signal.SIGINT)
        complain("interrupted" if number == signal.SIGINT else "terminated")
        return 128 + int(number)
    except Exception as error:
        if traceback or not _is_expected(error):
            raise
        complain(_error_text(error))
        return 1


def _parsed(parser: argparse.ArgumentParser, arguments: list[str]) -> argparse.Namespace:
    """Parse the arguments. Raise SystemExit for wrong usage.

    Usage errors come from the parser of the subcommand and suggest a similar name.
    """
    from felixlike._util.wording import nearest

    commands = _commands(parser)
    if not arguments[0].startswith("-") and arguments[0] not in commands:
        near = nearest(arguments[0], commands)
        hint = f" (did you mean {near!r}?)" if near else ""
        parser.error(f"there is no command {arguments[0]!r}; use one of {', '.join(commands)}{hint}")
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        command = commands[options.command]
        known = [name for action in command._actions for name in action.option_strings]
        near = nearest(unknown[0].partition("=")[0], known)
        hint = f" (did you mean {near}?)" if near else ""
        command.error(f"unknown argument {unknown[0]}{hint}")
    return options


def _commands(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    """Return the parsers of the subcommands, by name."""
    return next(action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))


def _run_command(options: argparse.Namespace) -> int:
    """Run a subcommand and return its exit code. Raise InvalidModel if a user's model calls sys.exit."""
    try:
        return int(options.run(options))
    except SystemExit as error:
        from felixlike.errors import InvalidModel

        raise InvalidModel(
            f"it calls sys.exit({'' if error.code is None else repr(error.code)}) when it runs",
            where="model",
            remedy="raise an exception instead",
        ) from error


def _parser() -> argparse.ArgumentParser:
    """Create the parser of the command and its subcommands."""
    from felixlike._version import __version__
    from felixlike.cli import (
        bench,
        cache,
        collect,
        compare,
        doctor,
        explain,
        resume,
        show,
        stores,
        tc,
        train,
        tune,
        watch,
    )

    parser = argparse.ArgumentParser(prog="felixlike", description="A differentiable schedule optimizer.")
    parser.add_argument("--version", action="version", version=f"felixlike {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in (tune, resume, show, watch, stores, compare, explain, doctor, cache, collect, train, tc, bench):
        module.add_parser(commands)
    for command in _commands(parser).values():
        command.add_argument("--traceback", action="store_true", help="show the Python traceback of an error")
    return parser


def _is_expected(error: Exception) -> bool:
    """Return whether an error needs no traceback: a FelixlikeError, or an OSError about a file."""
    from felixlike.errors import FelixlikeError

    return isinstance(error, FelixlikeError | OSError)


def _error_text(error: Exception) -> str:
    """Return the message of an error. An OSError is shortened to the file and its reason."""
    from felixlike.errors import FelixlikeError

    if isinstance(error, FelixlikeError) or not isinstance(error, OSError) or not error.strerror:
        return str(error)
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
