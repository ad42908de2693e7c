"""Check that no result is lost when a server dies: python -m benchmarks.rpc [--model resnet18] [--trials 4].

The benchmark starts TVM's tracker and two servers on this machine, measures candidates of each task of a network
there, and kills a busy server half-way. Afterwards every candidate must have its result and record, every task its
schedule, and the network must compute the right outputs. It writes docs/results/rpc.json and .md.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from support.loopback import Loopback

from benchmarks.results import write
from felixlike.measure.rpc.tracker import Tracker

if TYPE_CHECKING:
    from felixlike.frontend import Imported

_KEY = "cpu"
_SERVERS = 2


def main() -> None:
    """Run the benchmark."""
    from support import models

    from felixlike.frontend import import_model
    from felixlike.runtime import compile_model, max_relative_error

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--trials", type=int, default=4, help="candidates of each task")
    parser.add_argument("--strategy", default="gradient")
    arguments = parser.parse_args()
    network, inputs = getattr(models, arguments.model)()
    imported = import_model(network, inputs)
    with Loopback() as loopback:
        loopback.start(**{_KEY: _SERVERS})
        started = time.monotonic()
        rows, schedules = _tune(imported, loopback, arguments.trials, arguments.strategy)
        seconds = time.monotonic() - started
        left = Tracker(loopback.where).servers()[_KEY].addresses
    error = max_relative_error(compile_model(imported, schedules), network, imported.examples).error
    complete = len(left) == _SERVERS - 1 and len(schedules) == len(rows)
    complete = complete and all(row["results"] == row["records"] == row["wanted"] for row in rows)
    lines = [
        f"{arguments.model} over two servers on this machine, one of which was killed half-way ({len(left)} was left).",
        "Servers and the building of candidates share the cores, so this is about what is lost, not about speed.",
        "",
        "| task | candidates | results | records | outcomes | best µs |",
        "| --- " * 6 + "|",
    ]
    for row in rows:
        outcomes = ", ".join(f"{count} {outcome}" for outcome, count in sorted(row["outcomes"].items()))
        best = f"{row['best'] * 1e6:.1f}" if row["best"] is not None else "–"
        killed = "; server killed" if row["killed"] else ""
        lines.append(
            f"| {row['task']} | {row['wanted']} | {row['results']} | {row['records']} | {outcomes}{killed} | {best} |"
        )
    total = sum(row["results"] for row in rows)
    lines += [
        "",
        f"{total} candidates of {len(rows)} tasks in {seconds:.0f} s; {len(schedules)} tasks have a schedule; largest",
        f"relative error of the network's answer {error:.1e}. Complete: **{'yes' if complete else 'no'}**.",
    ]
    data = {"rows": rows, "servers_left": len(left), "seconds": seconds, "error": error, "complete": complete}
    write("rpc", data, "\n".join(lines), command=f"rpc --trials {arguments.trials}")


def _tune(
    imported: Imported, loopback: Loopback, trials: int, strategy: str
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Tune each task and return a row per task and the schedules by task key."""
    from felixlike import costmodel, records
    from felixlike.measure import RpcPool
    from felixlike.search import make_strategy
    from felixlike.tuning import Budget, Session, choose, one_thread

    rows: list[dict[str, Any]] = []
    schedules: dict[str, Any] = {}
    predictor = costmodel.load("cpu", seed=0)
    pool = RpcPool(imported.tasks[0].target, tracker=loopback.where, key=_KEY)
    with records.open() as store, pool, one_thread():
        for index, task in enumerate(imported.tasks):
            half_way = index == len(imported.tasks) // 2
            session = Session([task], strategy=make_strategy(strategy), model=predictor, pool=pool, store=store)
            finished = threading.Event()
            killer = threading.Thread(target=_kill_busy_server, args=[loopback, finished])
            if half_way:
                killer.start()
            session.run(Budget(trials=trials))
            finished.set()
            if half_way:
                killer.join()
            (state,) = session.states
            chosen = choose(state, predictor, pool).candidate
            if chosen is not None:
                schedules[task.key] = chosen.module()
            task_records = list(store.measurements(task))
            outcomes = Counter(record.measurement.status.value for record in task_records)
            rows.append(
                {
                    "task": task.name,
                    "wanted": state.trials if state.progress.exhausted else trials,
                    "results": state.trials,
                    "records": len(task_records),
                    "outcomes": dict(outcomes),
                    "killed": half_way,
                    "best": state.best[0] if state.best is not None else None,
                }
            )
            print(rows[-1], flush=True)
    return rows, schedules


def _kill_busy_server(loopback: Loopback, finished: threading.Event) -> None:
    """Wait until no server is free, then kill one. Return without a kill if `finished` is set first."""
    tracker = Tracker(loopback.where)
    while (servers := tracker.servers()[_KEY]).free:
        if finished.wait(0.02):
            return
    loopback.kill(servers.addresses[0])


if __name__ == "__main__":
    main()
