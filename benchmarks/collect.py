"""Measure candidates of the training workloads: python -m benchmarks.collect STORE [--rounds 8] [--only NAME].

Half of the rounds are drawn at random, half follow the gradient of a model that learns on the way, so that good
schedules are well covered too. May be stopped and started again: what the store has is not measured anew.
"""

from __future__ import annotations

import argparse
import time

import torch

from benchmarks.training_workloads import workloads
from felixlike import records
from felixlike.costmodel import load
from felixlike.frontend import Task, import_model
from felixlike.measure import MeasurePool
from felixlike.search import make_strategy
from felixlike.tuning import Budget, Session


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = load(seed=0)
    with records.open(arguments.store) as store:
        for name, module, inputs in workloads():
            if arguments.only in name:
                for task in import_model(module, inputs).tasks:
                    _collect(name, task, store, model, arguments.rounds)


def _collect(name: str, task: Task, store: records.Store, model: object, rounds: int) -> None:
    started = time.monotonic()
    have = sum(1 for _ in store.measurements(task))
    missing = rounds - have // 16
    if missing <= 0:
        return
    with MeasurePool(task.target) as pool:
        best = float("inf")
        for strategy, total in (("random", rounds - missing // 2), ("gradient", rounds)):
            session = Session(
                [task],
                strategy=make_strategy(strategy),
                model=model,  # type: ignore[arg-type]
                pool=pool,
                store=store,
                seed=have,
            )
            session.run(Budget(rounds=total))
            state = session.states[0]
            best = state.best[0] if state.best else best
            if session.interrupted:
                raise KeyboardInterrupt
    rate = task.flops / best / 1e9
    print(f"{name}: {task.name} {best * 1e3:.3f} ms {rate:.1f} GFLOPS, {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
