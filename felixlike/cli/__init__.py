"""The command `felixlike`: tune, resume, show, watch, merge, export, import, compact, compare, explain, doctor,
cache, collect, train, evaluate, tc and bench.

In: the command line. Out: text on stdout, progress on stderr, and the exit code: 0, 1 (a problem, said in a sentence),
2 (usage), 130 (Ctrl-C), 143 (SIGTERM), 129 (the terminal has gone) or 141 (the reader of the output has gone). A run
that was stopped has saved the best so far.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Mapping, Sequence

from felixlike._util.wording import for_the_command
from felixlike.cli.terminal import BROKEN_PIPE, Streams, complain


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code. Raises SystemExit after --help and --version, and for wrong usage."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    streams = Streams()
    with streams.prepared(), for_the_command():
        try:
            code, leave = _run(given), False
        except SystemExit as leaving:
            code, leave = int(leaving.code or 0), True
    if streams.error and not streams.broken:
        complain(f"the output could not be written: {streams.error}")
        code = code or 1
    code = code or (BROKEN_PIPE if streams.broken else 0)
    if leave:
        raise SystemExit(code)
    return code


def _run(arguments: list[str]) -> int:
    traceback = False
    try:
        parser = _parser()
        if not arguments:
            parser.print_help()
            return 0
        options = _parsed(parser, arguments)
        traceback = options.traceback
        return _carried_out(options)
    except BrokenPipeError:
        return BROKEN_PIPE
    except KeyboardInterrupt as interrupt:
        exec("")  # else Python ends itself by SIGINT, where it was in the exec of a string (a dataclass is one)
        number = getattr(interrupt, "number", signal.SIGINT)
        complain("interrupted" if number == signal.SIGINT else "terminated")
        return 128 + int(number)
    except Exception as error:
        if traceback or not _is_ours(error):
            raise
        complain(_words(error))
        return 1


def _parsed(parser: argparse.ArgumentParser, arguments: list[str]) -> argparse.Namespace:
    """The options; usage errors are those of the command, and name what was probably meant. Raises SystemExit."""
    from felixlike._util.wording import nearest

    commands = _commands(parser)
    if not arguments[0].startswith("-") and arguments[0] not in commands:
        near = nearest(arguments[0], commands)
        asked = f" (did you mean {near!r}?)" if near else ""
        parser.error(f"there is no command {arguments[0]!r}; use one of {', '.join(commands)}{asked}")
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        command = commands[options.command]
        known = [name for action in command._actions for name in action.option_strings]
        near = nearest(unknown[0].partition("=")[0], known)
        asked = f" (did you mean {near}?)" if near else ""
        command.error(f"{unknown[0]} is not understood{asked}")
    return options


def _commands(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    """The parsers of the commands by their names."""
    return next(action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))


def _carried_out(options: argparse.Namespace) -> int:
    """The exit code of the command, which a user's model that calls sys.exit does not choose."""
    try:
        return int(options.run(options))
    except SystemExit as leaving:
        from felixlike.errors import InvalidModel

        raise InvalidModel(
            f"it ends the program when it runs: sys.exit({'' if leaving.code is None else repr(leaving.code)})",
            where="model",
            remedy="raise an exception instead",
        ) from leaving


def _parser() -> argparse.ArgumentParser:
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
        command.add_argument("--traceback", action="store_true", help="show where in the code a problem was met")
    return parser


def _is_ours(error: Exception) -> bool:
    """Whether an error says all there is to say: one of our own, or the system's about a file."""
    from felixlike.errors import FelixlikeError

    return isinstance(error, FelixlikeError | OSError)


def _words(error: Exception) -> str:
    from felixlike.errors import FelixlikeError

    if isinstance(error, FelixlikeError) or not isinstance(error, OSError) or not error.strerror:
        return str(error)
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
