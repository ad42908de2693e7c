"""Define rewrite rules as data, in egglog's language: algebra between exact forms, and each operator's smooth form.

Exact rules relate equal numbers (sort Num). Smoothing is an operator: `(Smoothed x)` has sort Smooth, and smoothing
rules push it inwards. So an exact operator never becomes equal to its smooth form; the extractor smooths the cheapest
of the equal exact forms. Variables are e^x' (Felix §3.3): `(Variable n)` equals `(Exp (LogVariable n))`, so
logarithms of monomials are linear.

Associativity and commutativity are omitted on purpose: sums and products arrive in canonical order from `symbolic`.
"""

from __future__ import annotations

from dataclasses import dataclass

VERSION = 2
"""Version of the rules, costs, limits and encoding, part of the cache's key. Increase it when any of them changes."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Rewrite `left` to `right`.

    Attributes:
        name: The rule's name.
        left: The pattern.
        right: The replacement.
        when: Facts that must hold.
        where: The domain in words, for readers and tests: "any", "positive" (all pattern variables > 0), "gates" (g and
            h
            are 0 or 1, the others positive), "ordered" (a > b), or "floor" (omits the floor, so off by at most one).
    """

    name: str
    left: str
    right: str
    when: tuple[str, ...] = ()
    where: str = "positive"

    @property
    def text(self) -> str:
        """Return the rule in egglog's language."""
        conditions = f" :when ({' '.join(self.when)})" if self.when else ""
        return f"(rewrite {self.left} {self.right}{conditions} :ruleset rules)"


EXACT: tuple[Rule, ...] = (
    Rule("variable", "(Variable n)", "(Exp (LogVariable n))"),
    Rule("log of exp", "(Log (Exp a))", "a", where="any"),
    Rule("log of product", "(Log (Product a b))", "(Sum (Log a) (Log b))"),
    Rule("log of quotient", "(Log (Quotient a b))", "(Difference (Log a) (Log b))"),
    Rule("log of power", "(Log (Power a k))", "(Scale k (Log a))"),
    Rule("log of one more", "(Log (Sum a (Number 1.0)))", "(Log1p a)"),
    Rule("log of select", "(Log (Select g a b))", "(Select g (Log a) (Log b))", where="gates"),
    Rule("log of maximum", "(Log (Maximum a b))", "(Maximum (Log a) (Log b))"),
    Rule("log of minimum", "(Log (Minimum a b))", "(Minimum (Log a) (Log b))"),
    Rule("log1p of select", "(Log1p (Select g a b))", "(Select g (Log1p a) (Log1p b))", where="gates"),
    Rule("log1p of maximum", "(Log1p (Maximum a b))", "(Maximum (Log1p a) (Log1p b))"),
    Rule("log1p of minimum", "(Log1p (Minimum a b))", "(Minimum (Log1p a) (Log1p b))"),
    Rule("select between equals", "(Select g a a)", "a", where="gates"),
    Rule("select twice, else", "(Select g a (Select g b c))", "(Select g a c)", where="gates"),
    Rule("select twice, then", "(Select g (Select g a b) c)", "(Select g a c)", where="gates"),
    Rule("factor a sum", "(Sum (Product a b) (Product a c))", "(Product a (Sum b c))", where="any"),
    Rule(
        "factor a difference", "(Difference (Product a b) (Product a c))", "(Product a (Difference b c))", where="any"
    ),
    Rule("factor a maximum", "(Maximum (Product a b) (Product a c))", "(Product a (Maximum b c))"),
    Rule("factor a minimum", "(Minimum (Product a b) (Product a c))", "(Product a (Minimum b c))"),
    Rule("cancel a quotient", "(Quotient (Product a b) a)", "b"),
    Rule("cancel a quotient, right", "(Quotient (Product a b) b)", "a"),
    Rule("quotient of equals", "(Quotient a a)", "(Number 1.0)"),
    Rule("difference of equals", "(Difference a a)", "(Number 0.0)", where="any"),
    Rule("times one", "(Product (Number 1.0) a)", "a", where="any"),
    Rule("plus zero", "(Sum (Number 0.0) a)", "a", where="any"),
    Rule("minus zero", "(Difference a (Number 0.0))", "a", where="any"),
    Rule("maximum of equals", "(Maximum a a)", "a", where="any"),
    Rule("minimum of equals", "(Minimum a a)", "a", where="any"),
    Rule("sum of numbers", "(Sum (Number c) (Number d))", "(Number (+ c d))", where="any"),
    Rule("product of numbers", "(Product (Number c) (Number d))", "(Number (* c d))", where="any"),
)
"""Rules between equal exact forms."""

SMOOTHING: tuple[Rule, ...] = (
    Rule("smooth a number", "(Smoothed (Number c))", "(Constant c)", where="any"),
    Rule("smooth a variable", "(Smoothed (LogVariable n))", "(Column n)"),
    Rule("smooth a shifted variable", "(Smoothed (Log1p (Shifted n)))", "(Column n)"),
    Rule("smooth a sum", "(Smoothed (Sum a b))", "(Plus (Smoothed a) (Smoothed b))", where="any"),
    Rule("smooth a difference", "(Smoothed (Difference a b))", "(Minus (Smoothed a) (Smoothed b))", where="any"),
    Rule("smooth a multiple", "(Smoothed (Scale k a))", "(Times (Constant k) (Smoothed a))", where="any"),
    Rule("smooth a product", "(Smoothed (Product a b))", "(Times (Smoothed a) (Smoothed b))", where="any"),
    Rule("smooth a select", "(Smoothed (Select g a b))", "(Mix (Smoothed g) (Smoothed a) (Smoothed b))", where="gates"),
    Rule("smooth a maximum", "(Smoothed (Maximum a b))", "(SmoothMaximum (Smoothed a) (Smoothed b))", where="any"),
    Rule("smooth a minimum", "(Smoothed (Minimum a b))", "(SmoothMinimum (Smoothed a) (Smoothed b))", where="any"),
    Rule("smooth a gate", "(Smoothed (AtLeast a c))", "(Step (Minus (Smoothed (Log a)) (Constant c)))"),
    Rule("smooth a log of a sum", "(Smoothed (Log (Sum a b)))", "(LogSumExp (Smoothed (Log a)) (Smoothed (Log b)))"),
    Rule(
        "smooth a log of a difference",
        "(Smoothed (Log (Difference a b)))",
        "(LogDiffExp (Smoothed (Log a)) (Smoothed (Log b)))",
        where="ordered",
    ),
    Rule(
        "smooth a log of a floor",
        "(Smoothed (Log (FloorDivide a b)))",
        "(Minus (Smoothed (Log a)) (Smoothed (Log b)))",
        where="floor",
    ),
    Rule("smooth a log1p", "(Smoothed (Log1p a))", "(Softplus (Smoothed (Log a)))"),
    Rule("smooth a log1p of gates", "(Smoothed (Log1p a))", "(LogOnePlus (Smoothed a))", ("(Linear a)",)),
)
"""Rules that push `Smoothed` inwards."""

_LINEAR = """
(rule ((= x (Number c))) ((Linear x)) :ruleset rules)
(rule ((= x (AtLeast a c))) ((Linear x)) :ruleset rules)
(rule ((= x (Sum a b)) (Linear a) (Linear b)) ((Linear x)) :ruleset rules)
(rule ((= x (Difference a b)) (Linear a) (Linear b)) ((Linear x)) :ruleset rules)
(rule ((= x (Product a b)) (Linear a) (Linear b)) ((Linear x)) :ruleset rules)
"""

_SORTS = """
(datatype Num
  (Number f64) (Variable String) (Shifted String) (LogVariable String)
  (Sum Num Num) (Difference Num Num) (Product Num Num) (Quotient Num Num) (Power Num f64) (Scale f64 Num)
  (FloorDivide Num Num) (Minimum Num Num) (Maximum Num Num) (AtLeast Num f64) (Select Num Num Num)
  (Log Num) (Exp Num) (Log1p Num) (Node i64))
(datatype Smooth
  (Constant f64) (Column String) (Plus Smooth Smooth) (Minus Smooth Smooth) (Times Smooth Smooth)
  (Mix Smooth Smooth Smooth) (SmoothMaximum Smooth Smooth) (SmoothMinimum Smooth Smooth) (Step Smooth)
  (LogSumExp Smooth Smooth) (LogDiffExp Smooth Smooth) (Softplus Smooth) (LogOnePlus Smooth) (Root i64))
(constructor Smoothed (Num) Smooth)
(relation Linear (Num))
(ruleset load)
(ruleset rules)
"""

COSTS: dict[str, float] = {
    "Constant": 1,
    "Column": 1,
    "Plus": 2,
    "Minus": 2,
    "Times": 20,
    "Softplus": 15,
    "LogOnePlus": 20,
    "LogSumExp": 60,
    "LogDiffExp": 80,
    "Step": 200,
    "SmoothMaximum": 1000,
    "SmoothMinimum": 1000,
    "Mix": 1000,
}
"""Cost of each smooth operator, which the extractor minimises; chosen by hand to prefer log-space monomials."""


def program() -> str:
    """Return the sorts and rules in egglog's language."""
    return "\n".join([_SORTS, *(rule.text for rule in (*EXACT, *SMOOTHING)), _LINEAR])
