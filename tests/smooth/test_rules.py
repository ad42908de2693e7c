"""Every rewrite rule at random points: exact rules have equal sides, and smoothing rules are exact at width 0."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from felixlike.smooth.rules import EXACT, SMOOTHING, Rule, program

Term = str | float | list["Term"]
VARIABLES = ("a", "b", "c")


def _parse(text: str) -> Term:
    tokens = iter(re.findall(r"[()]|[^\s()]+", text))
    return _read(next(tokens), tokens)


def _read(token: str, tokens: Iterator[str]) -> Term:
    if token != "(":
        try:
            return float(token)
        except ValueError:
            return token
    items: list[Term] = []
    while (inner := next(tokens)) != ")":
        items.append(_read(inner, tokens))
    return items


class _OutOfDomain(Exception):
    """Raised for a logarithm of a non-positive number; the point is outside the rule's domain."""


def _value(term: Term, env: dict[str, float]) -> float:
    """Return the value of a term, with smooth operators replaced by their exact counterparts (width 0)."""
    if isinstance(term, float):
        return term
    if isinstance(term, str):
        return env[term]
    op, *args = term
    if op in ("Variable", "Exp", "LogVariable", "Shifted", "Column"):
        return _variable(str(op), args[0], env)
    x = [_value(a, env) for a in args]
    match op:
        case "Number" | "Constant" | "Smoothed":
            return x[0]
        case "Sum" | "Plus" | "+":
            return x[0] + x[1]
        case "Difference" | "Minus":
            return x[0] - x[1]
        case "Product" | "Times" | "Scale" | "*":
            return x[0] * x[1]
        case "Quotient":
            return x[0] / x[1]
        case "Power":
            return float(x[0] ** x[1])
        case "FloorDivide":
            return float(x[0] // x[1])
        case "Minimum" | "SmoothMinimum":
            return min(x)
        case "Maximum" | "SmoothMaximum":
            return max(x)
        case "Select" | "Mix":
            return x[1] if x[0] > 0.5 else x[2]
        case "Log":
            if x[0] <= 0:
                raise _OutOfDomain
            return math.log(x[0])
        case "Log1p" | "LogOnePlus":
            return math.log1p(x[0])
        case "AtLeast":
            return float(math.log(x[0]) >= x[1])
        case "Step":
            return float(x[0] >= 0)
        case "LogSumExp":
            return math.log(math.exp(x[0]) + math.exp(x[1]))
        case "LogDiffExp":
            if x[0] <= x[1]:
                raise _OutOfDomain
            return math.log(math.exp(x[0]) - math.exp(x[1]))
        case "Softplus":
            return math.log1p(math.exp(x[0]))
    raise AssertionError(f"the tests do not know {op}")


def _variable(op: str, argument: Term, env: dict[str, float]) -> float:
    if op == "Exp":
        return math.exp(_value(argument, env))
    logarithm = math.log(env["v"])
    if op == "Column":  # log(value), or log(1 + value) for a shifted variable
        return math.log1p(env["v"]) if env["shifted"] else logarithm
    return {"Variable": env["v"], "Shifted": env["v"], "LogVariable": logarithm}[op]


POSITIVE = st.floats(0.05, 60.0)


def _environments(rule: Rule) -> st.SearchStrategy[dict[str, float]]:
    domain = st.floats(-40.0, 40.0) if rule.where == "any" else POSITIVE
    fields: dict[str, st.SearchStrategy[float]] = dict.fromkeys(VARIABLES, domain)
    fields |= {"g": st.sampled_from((0.0, 1.0)), "v": st.floats(1.0, 100.0), "k": st.sampled_from((1.0, 2.0, 3.0))}
    if re.search(r"\((Number|Constant|AtLeast a) c\)", rule.left):
        fields |= {"c": st.floats(-20.0, 20.0), "d": st.floats(-20.0, 20.0)}
    fields["shifted"] = st.just(float("Shifted" in rule.left))
    fields["n"] = st.just(0.0)
    return st.fixed_dictionaries(fields)


@pytest.mark.parametrize("rule", [*EXACT, *SMOOTHING], ids=lambda r: r.name)
def test_both_sides_of_a_rule_are_equal(rule: Rule) -> None:
    left, right = _parse(rule.left), _parse(rule.right)

    @settings(max_examples=60, deadline=None)
    @given(_environments(rule))
    def check(env: dict[str, float]) -> None:
        if rule.where == "ordered":
            env["a"] += env["b"]
        if rule.name == "smooth a log1p of gates":
            env["a"] = abs(env["a"])
        try:
            a, b = _value(left, env), _value(right, env)
        except _OutOfDomain:
            return
        if rule.where == "floor":  # the rule drops the floor, which changes the value by at most one
            assert abs(math.exp(b) - math.exp(a)) <= 1 + 1e-9 * math.exp(a)  # rounding of exp and log
            return
        assert math.isclose(a, b, rel_tol=1e-7, abs_tol=1e-7), (env, a, b)

    check()


def test_names_are_unique_and_every_rule_is_in_the_program() -> None:
    rules = [*EXACT, *SMOOTHING]
    assert len({r.name for r in rules}) == len(rules)
    assert all(r.text in program() for r in rules)
