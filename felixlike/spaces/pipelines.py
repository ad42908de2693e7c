"""List what a target kind does to models, schedules and code, from the tables of the packages.

Input: a target. Output: a `Pipeline`. Entries added to a table (`REWRITES`, `RULES`, `PASSES`) appear here and are used
by tuning and compilation.
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
    """The steps of a target kind, each in its order.

    Attributes:
        kind: The target kind.
        rewrites: Rewrites of the graph.
        rules: Schedule rules for design spaces. The first that applies wins; MetaSchedule's are used if none does.
        passes: Passes over scheduled functions.
    """

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
    """Return the pipeline of a TVM target.

    Raises:
        UnknownTarget: If the target kind is not supported.
    """
    kind = kind_of(target)
    return Pipeline(kind, rewrites_of(kind.name), RULES[kind.name], PASSES[kind.name])
