"""Define a tensor comprehension: implements `fx.tc.define`.

Input: the text of one or more definitions, the name of one of them, a target. Output: a `Comprehension`.
"""

from __future__ import annotations

import warnings
from typing import Any

from felixlike._util.wording import choose_from, kind_of
from felixlike.errors import InvalidOption, TCSemanticError, TCSyntaxError, callers_level
from felixlike.hardware import kind_of as kind_of_target
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
    """Define a function of torch tensors from the text of a tensor comprehension.

    Index ranges and shapes are checked at each call.

    Args:
        source: The text of one or more definitions.
        name: Name of the definition to use. None if `source` has only one. Of the other definitions only the syntax is
            checked.
        target: "cpu", "cuda" or a TVM target.
        options: Mapping hints for the search. None for no hints.

    Returns:
        A `Comprehension`. It is compiled at its first call.

    Raises:
        TCSyntaxError: The text does not follow the grammar.
        TCSemanticError: The definition is invalid, or there is no definition called `name`.
        UnknownTarget: The target is unknown.
        InvalidOption: An argument has the wrong type, `name` is None and there are several definitions, or the options
            request memory that a CPU does not have.

    Warns:
        SuspiciousNameWarning: The name of an index looks like a misspelling of another one.
        ImplicitSumWarning: A statement with a plain `=` sums over an index that is only on its right.

    Example:
        mm = fx.tc.define("def mm(float(M,K) A, float(K,N) B) -> (C) { C(m, n) +=! A(m, k) * B(k, n) }")
        c = mm(a, b)
    """
    if options is not None and not isinstance(options, Options):
        raise InvalidOption(
            f"expected felixlike.tc.Options, got {kind_of(options)}",
            where="options",
            remedy="create the options with felixlike.tc.Options()",
        )
    program = read(source, name)
    prepare()  # once per process, here rather than in the first call
    operator.prepare()
    for note in program.notes:
        warnings.warn(note.category(f"{program.name}, {note.words}"), stacklevel=callers_level())
    resolved = resolve_target(target)
    if options is not None:
        options.check_target(on_host=kind_of_target(resolved).on_host)
    return Comprehension(program, resolved, options or Options())


def read(source: str, name: str | None = None) -> Program:
    """Parse and check one definition of a text. Raise TCSyntaxError, TCSemanticError, InvalidOption."""
    from felixlike.tc.parser import parse  # the import reads the grammar

    if not isinstance(source, str):
        raise InvalidOption(
            f"expected a str, got {kind_of(source)}", where="source", remedy="give the text of a definition"
        )
    if name is not None and not isinstance(name, str):
        raise InvalidOption(
            f"expected a str, got {kind_of(name)}", where="name", remedy="give the name of a definition"
        )
    if not source.strip():
        raise TCSyntaxError(
            "expected `def` but found the end of the text (eof)",
            where=name or "tc",
            remedy="give the text of a definition",
        )
    definitions = parse(Source(source, name or ""))
    names = [definition.name.text for definition in definitions]
    if name is None and len(names) > 1:
        raise InvalidOption(
            f"the text has {len(names)} definitions: {', '.join(names)}", where="name", remedy=choose_from("", names)
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
