"""Tables of the search benchmark: latencies of runs at different moments are comparable, and ratios have intervals."""

import math

import pytest

from benchmarks.search_tables import Run, text

SHARES = ("90%", "95%", "99%")


def run(task: str, seed: int, strategy: str, latencies: list[float], again: float = math.nan) -> Run:
    """Return a run with a candidate a second."""
    elapsed = [float(place) for place in range(1, len(latencies) + 1)]
    return Run("default", task, seed, strategy, latencies, elapsed, again=again)


def test_latencies_are_those_of_the_joint_timing() -> None:
    """The second run had a machine that was 20 % slower: both runs found the same after two candidates."""
    fast = run("matmul", 0, "gradient", [2e-3, 1e-3, 1e-3], again=1e-3)
    slow = run("matmul", 0, "evolutionary", [2.4e-3, 1.2e-3, 1.2e-3], again=1e-3)
    assert slow.comparable.seconds == pytest.approx(fast.comparable.seconds)
    rows = [line.split(" | ") for line in text([fast, slow]).splitlines() if line.startswith(("| grad", "| evo"))]
    assert [row[2:8] for row in rows[:2]] == [["2.0", "2.0", "2.0", "2.0", "2.0", "2.0"]] * 2


@pytest.mark.parametrize("latencies", [[1e-3, 2e-3], [math.inf, math.inf]])
def test_a_run_that_was_not_timed_again_is_unchanged(latencies: list[float]) -> None:
    assert run("matmul", 0, "gradient", latencies).comparable.seconds == latencies


def test_ratios_to_the_default_strategy_have_an_interval_over_subgraphs() -> None:
    """On half of eight subgraphs, evolution needs four times the candidates; on the others as many."""
    runs = []
    for number in range(8):
        others = [4e-3, 3e-3, 2e-3, 1e-3] if number % 2 else [1e-3] * 4
        runs += [run(f"task {number}", 0, "gradient", [1e-3] * 4), run(f"task {number}", 0, "evolutionary", others)]
    lines = text(runs).splitlines()
    (row,) = [line for line in lines if line.startswith("| evolutionary | 8 |")]
    cells = row.strip("| ").split(" | ")[2:]
    assert len(cells) == 2 * len(SHARES)
    middle, low, high = (float(word.strip("[],")) for word in cells[0].split())
    assert middle == 2.0
    assert 1.0 <= low < middle < high <= 4.0


def test_few_subgraphs_have_no_interval() -> None:
    runs = [run("matmul", 0, "gradient", [1e-3]), run("matmul", 0, "evolutionary", [1e-3])]
    assert "bootstrap" not in text(runs)
