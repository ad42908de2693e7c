"""The command `felixlike`: tune, resume, show, merge, export, import, compact, explain, doctor.

In: the command line. Out: text on stdout, progress on stderr, exit code 0, 1 (a problem, said in a sentence) or 2
(usage).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from felixlike._version import __version__
from felixlike.cli import doctor, explain, resume, show, stores, tune
from felixlike.errors import FelixlikeError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code."""
    parser = argparse.ArgumentParser(prog="felixlike", description="A differentiable schedule optimizer.")
    parser.add_argument("--version", action="version", version=f"felixlike {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in (tune, resume, show, stores, explain, doctor):
        module.add_parser(commands)
    options = parser.parse_args(arguments)
    try:
        return int(options.run(options))
    except FelixlikeError as error:
        print(f"felixlike: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("felixlike: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
