"""Describe a program as text: index ranges, rounds of inference, shapes, functions.

Input: a program, or an instance of it. Output: text. Without sizes, ranges are inferred for random sizes and written
as linear sums of size names where a second set of sizes agrees.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from felixlike.errors import TCRangeError
from felixlike.tc.instance import Instance, relax_module
from felixlike.tc.printing import signature_text, statement_text
from felixlike.tc.program import Program, Step
from felixlike.tc.ranges import Ranges, infer
from felixlike.tc.scalars import spoken

_ATTEMPTS = 24
"""Random sets of sizes tried until ranges can be inferred. Chosen by hand."""


def explained(program: Program) -> str:
    """Return a program's statements and the ranges of their indices, in terms of its sizes."""
    ranges = _in_terms_of_sizes(program)
    lines = [signature_text(program)]
    for number, step in enumerate(program.steps):
        lines.append(f"  {statement_text(step)}")
        for index in (*step.indices, *step.reduced):
            range_ = ranges[number][index] if ranges else "depends on the sizes; call explain(*inputs) to see it"
            lines.append(f"    {index} in {range_}{_role(step, index)}")
    return "\n".join([*lines, *(f"  note: {note.words}" for note in program.notes)])


def explained_for(made: Instance) -> str:
    """Describe an instance: ranges, shapes, accesses checked at runtime, and TVM script."""
    program, ranges = made.program, made.ranges
    lines = [signature_text(program)]
    if made.sizes:
        lines.append("  " + ", ".join(f"{name} = {size}" for name, size in made.sizes.items()))
    for step, domain in zip(program.steps, ranges.domains, strict=True):
        lines.append(f"  {statement_text(step)}")
        for index in (*step.indices, *step.reduced):
            low, high = domain.intervals[index]
            how = "where" if domain.rounds[index] == 0 else f"round {domain.rounds[index]}"
            lines.append(f"    {index} in {low}:{high + 1} ({how}){_role(step, index)}")
    for output in program.outputs:
        shape = ", ".join(map(str, ranges.shape(output.name)))
        lowest = ", ".join(str(low) for low, _ in ranges.bounds[output.name])
        is_moved = any(low for low, _ in ranges.bounds[output.name])
        moved = f", its first element is {output.name}({lowest})" if is_moved else ""
        accumulated = ", accumulated into the tensor that the caller passes" if output.given else ""
        lines.append(f"  {output.name}: {spoken(output.dtype)}({shape}){moved}{accumulated}")
    for check in made.bounds.checks:
        low, high = check.bounds
        text = program.source.shown(check.read.subscripts[check.dimension].span)
        lines.append(f"  checked in every call: {low} <= {text} <= {high}")
    lines += [f"  note: {words}" for words in (*(note.words for note in program.notes), *made.bounds.narrowed)]
    return "\n".join([*lines, "", relax_module(made).script()])


def _role(step: Step, index: str) -> str:
    """Return ", reduced" for a reduced index."""
    return "" if index in step.indices else ", reduced"


def _in_terms_of_sizes(program: Program) -> list[dict[str, str]] | None:
    """Return each statement's ranges as text; None if ranges were found for no set of sizes."""
    random = Random(0)
    for _ in range(_ATTEMPTS):
        sizes = {name: random.choice((5, 50, 500)) + 12 * random.randrange(1, 40) for name in program.sizes}
        try:
            base = infer(program, sizes)
            moved = {name: infer(program, {**sizes, name: sizes[name] + 12}) for name in program.sizes}
            grown = infer(program, {name: size + 12 for name, size in sizes.items()})
        except TCRangeError:
            continue
        return [
            {
                index: f"{_sum(program, number, index, 0, sizes, base, moved, grown)}:"
                f"{_sum(program, number, index, 1, sizes, base, moved, grown)}"
                for index in (*step.indices, *step.reduced)
            }
            for number, step in enumerate(program.steps)
        ]
    return None


def _sum(
    program: Program,
    number: int,
    index: str,
    end: int,
    sizes: Mapping[str, int],
    base: Ranges,
    moved: Mapping[str, Ranges],
    all_: Ranges,
) -> str:
    """Return one end of a range as a sum of sizes, or "…" if it is not linear in them."""

    def at(ranges: Ranges) -> int:
        return ranges.domains[number].intervals[index][end] + end

    slopes = {name: (at(moved[name]) - at(base)) / 12 for name in program.sizes}
    rest = at(base) - sum(slopes[name] * sizes[name] for name in program.sizes)
    if any(slope != int(slope) for slope in slopes.values()) or at(all_) != at(base) + 12 * sum(slopes.values()):
        return "…"
    parts = []
    for name, slope in slopes.items():
        if slope:
            factor = "" if abs(slope) == 1 else f"{abs(int(slope))}*"
            parts.append(f"{'-' if slope < 0 else '+'} {factor}{name}")
    if rest or not parts:
        parts.append(f"{'-' if rest < 0 else '+'} {abs(int(rest))}")
    text = " ".join(parts)
    return text.removeprefix("+ ") if text.startswith("+ ") else f"-{text[2:]}"
