"""Lower a smooth program to batched torch code: a few matrix products and elementwise operations for all formulas.

Input: a `SmoothGraph` and the order of its columns. Output: `Lowered`, a torch module float[n, columns] → float[n,
formulas].

Sums, differences and multiples become linear forms. A chain of selects becomes one `mix`. Nested sums of exponentials
and nested products become one operation each. Forms of the same kind and depth are evaluated together, so the number of
torch calls depends on the depth of the formulas and not on their number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce

import numpy as np
import torch
from torch import Tensor, nn

from felixlike.smooth import kernels
from felixlike.smooth.graph import SmoothGraph, SmoothNode

_CLOSED = -60.0
"""Replacement for log 0 in the padding of a sum of exponentials, in log units; chosen by hand."""

_ATOMS = {
    "Softplus": "softplus",
    "LogOnePlus": "log_one_plus",
    "Step": "step",
    "SmoothMaximum": "maximum",
    "SmoothMinimum": "minimum",
    "LogDiffExp": "log_diff_exp",
}
"""Operators that become one atom of all their arguments, and the atom's kind."""


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """Describe a linear form: constant + Σ weight · atom.

    Equal forms of a builder are the same object.

    Attributes:
        constant: The constant.
        terms: (atom, weight) pairs.
        level: The level of the deepest atom.
    """

    constant: float
    terms: tuple[tuple[int, float], ...]
    level: int


@dataclass(slots=True)
class _Atom:
    """Describe a nonlinear term: a column (kind "column") or an operation on forms.

    Attributes:
        kind: The operation.
        inputs: The forms that it takes.
        level: The number of nested operations.
        column: The index of a column; -1 for operations.
    """

    kind: str
    inputs: tuple[Form, ...]
    level: int
    column: int = -1


@dataclass(slots=True)
class _Builder:
    """Convert nodes to linear forms over shared atoms."""

    graph: SmoothGraph
    columns: dict[str, int]
    atoms: list[_Atom] = field(default_factory=list)
    forms: list[Form] = field(default_factory=list)
    known: dict[tuple[object, ...], int] = field(default_factory=dict)
    shared: dict[tuple[float, tuple[tuple[int, float], ...]], Form] = field(default_factory=dict)

    def build(self) -> list[Form]:
        """Return the form of each root."""
        for node in self.graph.nodes:
            self.forms.append(self._form(node))
        return [self.forms[root] for root in self.graph.roots]

    def _form(self, node: SmoothNode) -> Form:
        """Return the form of a node whose arguments have forms."""
        args = [self.forms[a] for a in node.args]
        match node.op:
            case "Constant":
                return self._linear(node.value, ())
            case "Column":
                return self._atom("column", (), self.columns[node.name])
            case "Plus":
                return self._combine(args[0], args[1], 1.0)
            case "Minus":
                return self._combine(args[0], args[1], -1.0)
            case "Times":
                return self._times(node)
            case "Mix":
                return self._mix(node)
            case "LogSumExp":
                return self._atom("log_sum_exp", tuple(self._flat("LogSumExp", node)))
        return self._atom(_ATOMS[node.op], tuple(args))

    def _atom(self, kind: str, inputs: tuple[Form, ...], column: int = -1) -> Form:
        """Return the form of one atom, reusing an equal atom."""
        key = (kind, inputs, column)
        if key not in self.known:
            level = 0 if kind == "column" else 1 + max(form.level for form in inputs)
            self.known[key] = len(self.atoms)
            self.atoms.append(_Atom(kind, inputs, level, column))
        return self._linear(0.0, ((self.known[key], 1.0),))

    def _linear(self, constant: float, terms: tuple[tuple[int, float], ...]) -> Form:
        """Return the shared form with this constant and these terms."""
        form = self.shared.get((constant, terms))
        if form is None:
            form = Form(constant, terms, max([self.atoms[atom].level for atom, _ in terms], default=0))
            self.shared[constant, terms] = form
        return form

    def _combine(self, a: Form, b: Form, sign: float) -> Form:
        """Return a + sign · b."""
        weights = dict(a.terms)
        for atom, weight in b.terms:
            weights[atom] = weights.get(atom, 0.0) + sign * weight
        return self._linear(a.constant + sign * b.constant, tuple(sorted((k, w) for k, w in weights.items() if w)))

    def _scale(self, form: Form, factor: float) -> Form:
        """Return factor · form."""
        return self._linear(form.constant * factor, tuple((a, w * factor) for a, w in form.terms if factor))

    def _times(self, node: SmoothNode) -> Form:
        """Return the product of two forms; it is linear if one of them is constant."""
        a, b = (self.forms[x] for x in node.args)
        if not a.terms:
            return self._scale(b, a.constant)
        if not b.terms:
            return self._scale(a, b.constant)
        return self._atom("product", tuple(self._flat("Times", node)))

    def _flat(self, op: str, node: SmoothNode) -> list[Form]:
        """Return the leaves of nested applications of one associative operator."""
        leaves: list[Form] = []
        for a in node.args:
            child = self.graph.nodes[a]
            leaves += self._flat(op, child) if child.op == op else [self.forms[a]]
        return leaves

    def _mix(self, node: SmoothNode) -> Form:
        """Return a chain of selects along the else-branches: n gates first, then n + 1 values."""
        gates: list[Form] = []
        values: list[Form] = []
        while node.op == "Mix":
            gates.append(self.forms[node.args[0]])
            values.append(self.forms[node.args[1]])
            last = node.args[2]
            node = self.graph.nodes[last]
        return self._atom("mix", (*gates, *values, self.forms[last]))


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Describe the operations of a smooth program, ordered for evaluation.

    Attributes:
        atoms: The nonlinear terms.
        roots: The form of each formula.
        columns: Number of input columns.
        levels: Indices of the atoms that the roots need, by level and by kind and padded number of inputs.
    """

    atoms: Sequence[_Atom]
    roots: Sequence[Form]
    columns: int
    levels: dict[int, dict[tuple[str, int], list[int]]]

    @staticmethod
    def of(graph: SmoothGraph, columns: Sequence[str]) -> Plan:
        """Return the plan of a smooth program with these input columns."""
        builder = _Builder(graph, {name: i for i, name in enumerate(columns)})
        roots = builder.build()
        levels: dict[int, dict[tuple[str, int], list[int]]] = {}
        for i in sorted(_needed(builder.atoms, roots)):
            atom = builder.atoms[i]
            if atom.kind != "column":
                levels.setdefault(atom.level, {}).setdefault(_bucket(atom), []).append(i)
        return Plan(builder.atoms, roots, len(columns), levels)


class Lowered(nn.Module):
    """Map float[n, columns] to float[n, formulas], differentiable any number of times.

    Args:
        graph: The smooth program.
        columns: The names of the input columns.

    Attributes:
        plan: The operations, from which `Stacked` evaluates several programs at once.
    """

    def __init__(self, graph: SmoothGraph, columns: Sequence[str]) -> None:
        super().__init__()
        self.plan = Plan.of(graph, columns)
        self._stacked = Stacked([self.plan])

    def forward(self, columns: Tensor, width: float, step_kernel: str = "algebraic") -> Tensor:
        """Return the formulas at relaxed points: float[n, formulas].

        Args:
            columns: float[n, columns], in log units.
            width: Width of the smooth operators, in log units.
            step_kernel: How steps are smoothed, a key of `kernels.STEPS`.
        """
        result: Tensor = self._stacked(columns[None], width, step_kernel)[0]
        return result


class Stacked(nn.Module):
    """Evaluate several programs at once, in about as many torch calls as one of them takes.

    All programs have one layout of values: at each level as many operations of a kind as the program with the most of
    them. Missing operations read zeros and are read by none.

    Args:
        plans: The programs.
    """

    def __init__(self, plans: Sequence[Plan]) -> None:
        super().__init__()
        rows: list[dict[int, int]] = [
            {i: atom.column for i, atom in enumerate(plan.atoms) if atom.kind == "column"} for plan in plans
        ]
        width = max(plan.columns for plan in plans)
        self.steps = nn.ModuleList()
        for level in sorted({level for plan in plans for level in plan.levels}):
            buckets = [plan.levels.get(level, {}) for plan in plans]
            groups: list[tuple[str, int, list[list[_Atom]]]] = []
            begin = width
            for bucket in dict.fromkeys(bucket for members in buckets for bucket in members):
                members = [each.get(bucket, []) for each in buckets]
                groups.append((*bucket, [[plan.atoms[i] for i in m] for plan, m in zip(plans, members, strict=True)]))
            self.steps.append(_Level(groups, rows, begin))
            for kind, arity, _ in groups:
                members = [each.get((kind, arity), []) for each in buckets]
                for row, own in zip(rows, members, strict=True):
                    row.update((i, width + place) for place, i in enumerate(own))
                width += max(map(len, members))
        self.output = _Affine([plan.roots for plan in plans], rows, width)

    def forward(self, columns: Tensor, width: float, step_kernel: str = "algebraic") -> Tensor:
        """Return the formulas at relaxed points: float[programs, n, formulas], 0 for formulas that a program lacks.

        Args:
            columns: float[programs, n, columns], in log units.
            width: Width of the smooth operators, in log units.
            step_kernel: How steps are smoothed, a key of `kernels.STEPS`.
        """
        values = columns.transpose(1, 2)  # one row per value, so that gathering and concatenating copy whole rows
        for step in self.steps:
            values = torch.cat([values, *step(values, width, step_kernel)], dim=1)
        result: Tensor = self.output(values).transpose(1, 2)
        return result


def _needed(atoms: Sequence[_Atom], roots: Sequence[Form]) -> set[int]:
    """Return the atoms that the roots depend on; the inner selects of a chain, for example, are mostly unused."""
    needed: set[int] = set()
    pending = [a for form in roots for a, _ in form.terms]
    while pending:
        atom = pending.pop()
        if atom not in needed:
            needed.add(atom)
            pending += [a for form in atoms[atom].inputs for a, _ in form.terms]
    return needed


def _bucket(atom: _Atom) -> tuple[str, int]:
    """Return the kind and the padded number of inputs; padding to a power of two limits the number of groups."""
    if atom.kind == "mix":
        gates = (len(atom.inputs) - 1) // 2
        return atom.kind, _power_of_two(gates)
    if atom.kind in ("log_sum_exp", "product"):
        return atom.kind, _power_of_two(len(atom.inputs))
    return atom.kind, len(atom.inputs)


def _power_of_two(n: int) -> int:
    """Return the least power of two ≥ n."""
    return 1 << (n - 1).bit_length()


class _Affine(nn.Module):
    """Evaluate linear forms of earlier values by one batched matrix product over the values used.

    float[programs, values, n] → [programs, forms, n]; programs with fewer forms have zeros."""

    weight: Tensor
    bias: Tensor
    used: Tensor

    def __init__(self, programs: Sequence[Sequence[Form]], rows: Sequence[dict[int, int]], width: int) -> None:
        super().__init__()
        used = sorted({row[a] for forms, row in zip(programs, rows, strict=True) for f in forms for a, _ in f.terms})
        place = {value: i for i, value in enumerate(used)}
        self.forms = max(map(len, programs))
        weight = np.zeros((len(programs), self.forms, len(used)))
        bias = np.zeros((len(programs), self.forms, 1))
        for program, (forms, row) in enumerate(zip(programs, rows, strict=True)):
            for j, form in enumerate(forms):
                bias[program, j] = form.constant
                for atom, factor in form.terms:
                    weight[program, j, place[row[atom]]] = factor
        self.everything = len(used) == width
        self.register_buffer("used", torch.tensor(used, dtype=torch.long))
        self.register_buffer("weight", torch.from_numpy(weight))
        self.register_buffer("bias", torch.from_numpy(bias))

    def forward(self, values: Tensor) -> Tensor:
        """Return the linear forms: float[programs, forms, n]."""
        inputs = values if self.everything else values.index_select(1, self.used)
        return torch.baddbmm(self.bias, self.weight, inputs)


class _Level(nn.Module):
    """Evaluate all operations of one depth: first their distinct linear forms, then each kind of operation.

    Args:
        groups: Kind and padded number of inputs of operations, with those of each program.
        rows: Where each program's values are, by atom.
        width: Number of values.
    """

    def __init__(
        self, groups: Sequence[tuple[str, int, list[list[_Atom]]]], rows: Sequence[dict[int, int]], width: int
    ) -> None:
        super().__init__()
        forms: list[dict[Form, int]] = [{} for _ in rows]
        inputs: list[list[list[tuple[int, ...]]]] = []  # by group, program and operation: the places of its inputs
        for kind, arity, programs in groups:
            most = max(map(len, programs))
            padded = [
                [*(_padded(atom, arity) for atom in atoms), *[_absent(kind, arity)] * (most - len(atoms))]
                for atoms in programs
            ]
            inputs.append(
                [
                    [tuple(known.setdefault(form, len(known)) for form in operation) for operation in operations]
                    for known, operations in zip(forms, padded, strict=True)
                ]
            )
        self.affine = _Affine([list(known) for known in forms], rows, width)
        offsets = np.arange(len(rows))[:, None, None] * self.affine.forms
        self.plans: list[tuple[str, int]] = []
        for number, (kind, _, programs) in enumerate(groups):
            places = np.array(inputs[number], dtype=np.int64) + offsets
            # All first inputs come first, then all second ones, so that an operation reads whole rows of memory.
            self.register_buffer(f"rows_{number}", torch.from_numpy(places.transpose(2, 0, 1).reshape(-1)))
            self.plans.append((kind, max(map(len, programs))))

    def forward(self, values: Tensor, width: float, step_kernel: str) -> list[Tensor]:
        """Return float[programs, operations, n] for each kind of operation."""
        inputs = self.affine(values)
        programs, _, count = inputs.shape
        flat = inputs.reshape(-1, count)
        results = []
        for number, (kind, members) in enumerate(self.plans):
            gathered = flat.index_select(0, self.get_buffer(f"rows_{number}")).split(programs * members)
            operation = _OPERATIONS.get(kind)
            result = kernels.STEPS[step_kernel](gathered[0], width) if operation is None else operation(gathered, width)
            results.append(result.reshape(programs, members, count))
        return results


def _absent(kind: str, arity: int) -> tuple[Form, ...]:
    """Return the inputs of an operation that a program lacks; all operations and their slopes are finite at zeros."""
    return (_ZERO,) * (2 * arity + 1 if kind == "mix" else arity)


def _padded(atom: _Atom, arity: int) -> tuple[Form, ...]:
    """Return the inputs, padded with neutral ones."""
    if atom.kind == "mix":
        count = (len(atom.inputs) - 1) // 2
        closed = [_ZERO] * (arity - count)
        return (*atom.inputs[:count], *closed, *atom.inputs[count:-1], *closed, atom.inputs[-1])
    missing = arity - len(atom.inputs)
    return (*atom.inputs, *[_NEUTRAL[atom.kind]] * missing) if missing else atom.inputs


_ZERO = Form(0.0, (), 0)
_NEUTRAL = {"log_sum_exp": Form(_CLOSED, (), 0), "product": Form(1.0, (), 0)}
"""The input that an operation is padded with."""


def _mix(x: Sequence[Tensor], _: float) -> Tensor:
    """Apply `kernels.mix` to gates followed by values."""
    count = (len(x) - 1) // 2
    return kernels.mix(x[:count], x[count:])


_OPERATIONS: dict[str, Callable[[Sequence[Tensor], float], Tensor]] = {
    "mix": _mix,
    "log_sum_exp": lambda x, _: reduce(torch.logaddexp, x),
    "product": lambda x, _: reduce(torch.mul, x),
    "softplus": lambda x, _: kernels.softplus(x[0]),
    "log_one_plus": lambda x, _: kernels.log_one_plus(x[0]),
    "maximum": lambda x, width: kernels.smooth_maximum(x[0], x[1], width),
    "minimum": lambda x, width: kernels.smooth_minimum(x[0], x[1], width),
    "log_diff_exp": lambda x, _: kernels.log_diff_exp(x[0], x[1]),
}
"""The implementation of each kind other than "step": it takes its inputs, each float[members, n], and the width."""
