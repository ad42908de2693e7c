"""How rewrites walk a Relax module: a mutator's class applied to every Relax function."""

from __future__ import annotations

from typing import Any


def rewritten(module: Any, mutator: Any) -> Any:
    """The module with each Relax function visited by a PyExprMutator of the given class."""
    from felixlike import tvmlib

    visitor = tvmlib.relax.expr_functor.mutator(mutator)(module)
    functions = [(v, f) for v, f in module.functions.items() if isinstance(f, tvmlib.relax.Function)]
    for variable, function in functions:
        visitor.builder_.update_func(variable, visitor.visit_expr(function))
    return visitor.builder_.get()
