"""Implement `felixlike train` and `evaluate`: train weights of the cost model on stores, and score weights.

Inputs: stores. Outputs: a file of weights with its card; tables of scores.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from felixlike._util import option_checks as checks
from felixlike._util.wording import counted
from felixlike.errors import InvalidOption

if TYPE_CHECKING:
    from felixlike.training.samples import Samples


def add_parser(commands: Any) -> None:
    """Add the parsers of `felixlike train` and `evaluate`."""
    train = commands.add_parser(
        "train",
        help="train the cost model on measurements",
        description="Train weights of the cost model on all measurements of the stores. They are evaluated on a fifth "
        "of the workloads, and on each operator, by networks that were not trained on these; then trained on all.",
    )
    _add_common(train)
    train.add_argument("--output", required=True, metavar="PATH", help="file of the weights, for optimize(weights=…)")
    train.add_argument("--steps", type=int, default=800, help="maximum number of training steps, default 800")
    train.add_argument("--seed", type=int, default=0)
    train.add_argument("--no-operators", action="store_true", help="do not evaluate on left-out operators")
    train.set_defaults(run=run_train)

    evaluate = commands.add_parser(
        "evaluate",
        help="evaluate weights of the cost model on measurements",
        description="Show how well weights order the measured candidates of each workload of the stores. Scores on "
        "workloads that they were trained on mean little; the card of the weights says how many these are.",
    )
    _add_common(evaluate)
    evaluate.add_argument(
        "--weights", metavar="PATH", help="file of weights, default: the shipped weights for the stores' kind of target"
    )
    evaluate.set_defaults(run=run_evaluate)


def _add_common(parser: Any) -> None:
    """Add the arguments of both commands."""
    parser.add_argument("stores", metavar="STORE", nargs="+", help="a store, or one packed as NAME.sqlite.xz")
    parser.add_argument(
        "--kind", choices=("cpu", "cuda"), help="kind of target; required if the stores contain several"
    )


def run_train(options: argparse.Namespace) -> int:
    """Train and save weights. Return 0."""
    from felixlike import runtime
    from felixlike.costmodel import save_weights
    from felixlike.training.fit import Fit
    from felixlike.training.pipeline import course

    runtime.check_writable(options.output, *options.stores)
    fit = Fit(
        steps=checks.whole(options.steps, "--steps", least=1, where="train"),
        seed=checks.seed(options.seed, where="train"),
    )
    samples = _samples(options)
    result = course(samples.workloads, fit, operators=not options.no_operators, say=_say)
    with runtime.written_whole(options.output) as file:
        save_weights(result.network, file, result.card)
    print(result.text())
    print(f"Saved to {options.output}.")
    return 0


def run_evaluate(options: argparse.Namespace) -> int:
    """Score weights and print a table. Return 0."""
    from felixlike.costmodel import load, load_weights
    from felixlike.errors import InvalidWeights
    from felixlike.training.fit import scorer
    from felixlike.training.scores import judge
    from felixlike.training.tables import quality_table

    network = None
    if options.weights is not None:
        network = load_weights(checks.path(options.weights, "weights", error=InvalidWeights))
    samples = _samples(options)
    if network is None:
        network = load(samples.workloads[0].kind).network
    qualities = judge(scorer(network), samples.workloads)
    print(quality_table([(w.name, len(w), w.device, q) for w, q in qualities]))
    return 0


def _samples(options: argparse.Namespace) -> Samples:
    """Read the stores. Raise InvalidOption if they have no training data, or data of several kinds of targets."""
    from contextlib import ExitStack

    from felixlike.training.packed import opened
    from felixlike.training.samples import nothing_to_learn, read

    with ExitStack() as stack:
        stores = [stack.enter_context(opened(path)) for path in options.stores]
        _say(f"reading {counted(sum(store.count() for store in stores), 'measurement')}")
        samples = read(stores, kind=options.kind)
    where = ", ".join(options.stores)
    for reason, count in samples.left_out.items():
        if count:
            _say(f"skipped {counted(count, 'candidate')}: {reason}")
    if not samples.workloads:
        raise nothing_to_learn(where)
    kinds = sorted({workload.kind for workload in samples.workloads})
    if len(kinds) > 1:
        raise InvalidOption(
            f"the measurements are for {' and '.join(kinds)}", where=where, remedy=f"add --kind {kinds[0]}"
        )
    return samples


def _say(text: str) -> None:
    """Print progress on standard error."""
    print(text, file=sys.stderr, flush=True)
