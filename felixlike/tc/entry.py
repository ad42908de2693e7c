"""`fx.tc.define`: a text → a function of torch tensors.

In: the text of one or more definitions, which of them is meant, a target. Out: a `Comprehension`.
"""

from __future__ import annotations

import warnings
from typing import Any

from felixlike._util.wording import choose_from, kind_of
from felixlike.errors import InvalidOption, SuspiciousNameWarning, TCSemanticError, TCSyntaxError, callers_level
from felixlike.hardware import resolve_target
from felixlike.runtime.torch_operator import prepare
from felixlike.tc import operator
from felixlike.tc.checks import check
from felixlike.tc.comprehension import Comprehension
from felixlike.tc.options import Options
from felixlike.tc.program import Program
from felixlike.tc.source import Source


def define(
    source: str, name: str | None = None, target: Any = "cpu", *, options: Options | None = None
) -> Comprehension:
    """The tensor comprehension of a text, as a function of torch tensors.

    source: one or more definitions.  name: of the one that is meant; None where there is one only. The others must be
    in the language, but nothing else of them is checked.  target: "cpu", "cuda", or a TVM target.  options: hints.
    Raises TCSyntaxError, TCSemanticError, UnknownTarget, InvalidOption; ranges and shapes are checked in calls. Warns
    of an index whose name looks like a slip: SuspiciousNameWarning."""
    if options is not None and not isinstance(options, Options):
        raise InvalidOption(f"{kind_of(options)} is given", where="options", remedy="give felixlike.tc.Options()")
    program = read(source, name)
    prepare()  # once a process, and not in the first call
    operator.prepare()
    for note in program.notes:
        warnings.warn(SuspiciousNameWarning(f"{program.name}, {note}"), stacklevel=callers_level())
    return Comprehension(program, resolve_target(target), options or Options())


def read(source: str, name: str | None = None) -> Program:
    """The checked program of a text.  Raises TCSyntaxError, TCSemanticError, InvalidOption."""
    from felixlike.tc.parser import parse  # reads the grammar

    if not isinstance(source, str):
        raise InvalidOption(f"{kind_of(source)} is given", where="source", remedy="give the text of a definition")
    if name is not None and not isinstance(name, str):
        raise InvalidOption(f"{kind_of(name)} is given", where="name", remedy="give the name of a definition")
    if not source.strip():
        raise TCSyntaxError(
            "expected `def` but found the end of the text (eof)", where=name or "tc", remedy="write one"
        )
    definitions = parse(Source(source, name or ""))
    names = [definition.name.text for definition in definitions]
    if name is None and len(names) > 1:
        raise InvalidOption(
            f"there are {len(names)} definitions: {', '.join(names)}", where="name", remedy=choose_from("", names)
        )
    chosen = names[0] if name is None else name
    if chosen not in names:
        raise TCSemanticError(
            f"attempting to access the undefined function (entry point) `{chosen}`",
            where="name",
            remedy=choose_from(chosen, names),
        )
    return check(Source(source, chosen), definitions[names.index(chosen)])


operator.made_by(define)
