"""What a kind of target does to models, schedules and code: the tables of the rooms, put together to be read.

In: a target, or its kind's name. Out: a `Pipeline`. Whoever adds to a table (`REWRITES`, `RULES`, `PASSES`) finds it
here, and in what is tuned and compiled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from felixlike.codegen.pipeline import PASSES, Pass
from felixlike.frontend.rewrites.pipeline import Rewrite, rewrites_of
from felixlike.hardware import Kind, kind_of
from felixlike.spaces.design import RULES, Rule


@dataclass(frozen=True, slots=True)
class Pipeline:
    """kind: of target.  rewrites: of the graph.  rules: for design spaces, the first that applies wins; MetaSchedule's
    where none does.  passes: over scheduled functions.  All in their order."""

    kind: Kind
    rewrites: tuple[Rewrite, ...]
    rules: tuple[Rule, ...]
    passes: tuple[Pass, ...]

    def __str__(self) -> str:
        steps = {
            "graph": [rewrite.name for rewrite in self.rewrites],
            "rules": [rule.name for rule in self.rules],
            "code": [one.name for one in self.passes],
        }
        lines = (f"{title}: {', '.join(names) or 'none'}" for title, names in steps.items())
        return "\n".join((f"{self.kind.name}, on {self.kind.device}", *lines))


def pipeline_of(target: Any) -> Pipeline:
    """The pipeline of a TVM target.  Raises UnknownTarget for a kind that nothing is known of."""
    kind = kind_of(target)
    return Pipeline(kind, rewrites_of(kind.name), RULES[kind.name], PASSES[kind.name])
