"""Choose programs for sizes: predict all, measure a few, fit a tree, time it again.

Input: an operator, pools of uKernels, its sizes. Output: `Found`. The number of timings does not depend on the number
of sizes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from felixlike.dynamic.combine import Combination
from felixlike.dynamic.dispatch import Tree, fit, labels
from felixlike.dynamic.emit import Pool, narrow_widths
from felixlike.dynamic.operator import Operator
from felixlike.dynamic.program import Program
from felixlike.dynamic.retiming import Corrected, places_of, timed_again
from felixlike.dynamic.selection import CPU, TILES
from felixlike.dynamic.sia import top
from felixlike.dynamic.throughput import Line, Timing, Waves, line, matrix
from felixlike.dynamic.timing import PooledProgram, TileBench, kendall
from felixlike.dynamic.ukernel import Floats, Workload
from felixlike.dynamic.workloads import workload_at
from felixlike.hardware import Device, estimate
from felixlike.spaces.cpu.bfloat16_pairs import PAIR


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search.

    Attributes:
        pool: Index of the chosen pool.
        tree: Decision tree that chooses a program by the sizes.
        programs: Number of ranked programs.
        measured: Number of timings.
        agreement: Kendall's τ between prediction and measurement.
        among_top: Fraction of timed sizes whose fastest timed program is among SIA's ten best.
        repaired: Number of sizes at which the tree was changed.
    """

    pool: int
    tree: Tree[Program]
    programs: int
    measured: int = 0
    agreement: float = 1.0
    among_top: float = 1.0
    repaired: int = 0


@dataclass(slots=True)
class Search:
    """The search for one operator.

    Attributes:
        operator: The operator.
        pools: Pools of register tiles.
        workloads: The operator at each instance.
        sizes: Sizes of each workload, one per symbol.
        device: The hardware description.
        scores: SIA scores of each register tile (i, j), for workloads spread evenly over `workloads`.
    """

    operator: Operator
    pools: Sequence[Pool]
    workloads: list[Workload]
    sizes: list[tuple[int, ...]]
    device: Device
    scores: Mapping[tuple[int, int], Floats]

    def predicted(self) -> Found:
        """Choose without timings: costs of uKernels are estimated."""
        best: tuple[float, Found] | None = None
        for number, pool in enumerate(self.pools):
            programs, seconds = self._estimated(pool)
            tree = self._tree(seconds, programs)
            total = self._mean(seconds)
            if best is None or total < best[0]:
                best = total, Found(number, tree, len(programs))
        assert best is not None
        return best[1]

    def fastest(self, count: int) -> list[int]:
        """Return the indices of the `count` fastest pools by estimate, ascending."""
        totals = [self._mean(self._estimated(pool)[1]) for pool in self.pools]
        return sorted(sorted(range(len(totals)), key=totals.__getitem__)[:count])

    def measured(self, bench: TileBench) -> Found:
        """Choose with timings: each uKernel is timed twice, and the best programs of the best pools at a few sizes."""
        ranked = []
        for number, pool in enumerate(self.pools):
            base = self._base(bench, number, pool)
            waves = {v: self._waves(pool, v, base) for _, v in pool.tiles}
            programs, predicted = self._ranked(pool, self._lines(bench, number, pool, waves), waves)
            ranked.append((self._mean(predicted), number, programs, predicted))
        near = min(total for total, *_ in ranked) + math.log(CPU.near)
        best: tuple[float, int, list[Program], Corrected, tuple[float, float]] | None = None
        for total, number, programs, predicted in ranked:
            if total > near:
                continue
            corrected, agreement = self._corrected(bench, number, self.pools[number], programs, predicted)
            total = self._mean(corrected.seconds())
            if best is None or total < best[0]:
                best = total, number, programs, corrected, agreement
        assert best is not None
        _, number, programs, corrected, agreement = best
        tree, changed = self._timed_again(bench, number, programs, corrected)
        return Found(number, tree, len(programs), bench.used, *agreement, changed)

    def _weights(self) -> Floats:
        return np.asarray([w.weight for w in self.workloads])

    def _mean(self, seconds: Floats) -> float:
        """Return the mean logarithm of the fastest program's seconds. seconds: float64[programs, instances]."""
        return float(np.log(seconds.min(axis=0)) @ self._weights())

    def _estimated(self, pool: Pool) -> tuple[list[Program], Floats]:
        """Return the programs worth ranking, and their estimated seconds."""
        lines = {tile: self._counted(pool, *tile) for tile in pool.tiles}
        return self._ranked(pool, lines, {v: self._waves(pool, v) for _, v in pool.tiles})

    def _waves(self, pool: Pool, vectors: int, base: float = 0.0) -> Waves:
        """Return how the output is divided for tiles of a width."""
        narrow = (width * pool.lanes for width in narrow_widths(pool.tiles) if width < vectors)
        return Waves(vectors * pool.lanes, self.device.cores, base, tuple(narrow))

    def _counted(self, pool: Pool, rows: int, vectors: int) -> Line:
        """Return the cost of a tile by its instructions: two products or two loads a cycle, and part of late loads.

        With pairs, an instruction computes two steps, and a vector holds the operand of both.
        """
        steps = PAIR if pool.pairs else 1
        cycles, item_bytes = estimate.tile(rows, vectors) / 2 / steps, self.device.vector_bits / 8 / steps
        return Line(vectors * item_bytes / self.device.memory_bandwidth, cycles / self.device.clock_hz)

    def _ranked(
        self, pool: Pool, lines: Mapping[tuple[int, int], Line], waves: Mapping[int, Waves]
    ) -> tuple[list[Program], Floats]:
        """Return the programs worth ranking, and DietCode's matrix of their predicted seconds."""
        programs: list[Program] = []
        rows: list[Floats] = []
        for vectors in sorted({v for _, v in pool.tiles}):
            lines_of_width = {height: lines[height, v] for height, v in pool.tiles if v == vectors}
            heights = sorted(lines_of_width)
            evens = [Program(height, 0, vectors) for height in heights]
            pairs = [Program(a, b, vectors) for a in heights for b in heights if b < a and 2 * b >= a]
            candidates = [*evens, *pairs]
            seconds = matrix(
                lines_of_width, [self._covers(p, lines_of_width) for p in candidates], self.workloads, waves[vectors]
            )
            gain = np.where(np.isfinite(seconds), seconds, np.inf) / seconds[: len(evens)].min(axis=0)[None, :]
            order = np.argsort(gain[len(evens) :].min(axis=1, initial=np.inf), kind="stable")[: TILES.pairs]
            selected = [*range(len(evens)), *(len(evens) + int(place) for place in order)]
            programs += [candidates[place] for place in selected]
            rows.append(seconds[selected])
        return programs, np.concatenate(rows)

    def _covers(self, program: Program, lines: Mapping[int, Line]) -> list[Combination | None]:
        """Return the cover of a program at each workload, None where a height has no cost."""
        combinations = [program.at(workload.i) for workload in self.workloads]
        return [c if c and c.large in lines and (not c.few or c.small in lines) else None for c in combinations]

    def _at_rows(self, rows: int) -> tuple[int, ...]:
        """Return sizes at which the operator has `rows` rows and all other sizes are largest."""
        largest = list(self.sizes[-1])
        for place, symbol in enumerate(self.operator.symbols):
            extent = self.operator.rows.extent
            if not isinstance(extent, int) and extent.same_as(symbol):
                largest[place] = rows
        return tuple(largest)

    def _base(self, bench: TileBench, number: int, pool: Pool) -> float:
        """Return the seconds of the smallest call, at most 2 µs."""
        smallest = min(range(len(self.workloads)), key=lambda place: self.workloads[place].flops)
        tile = pool.tiles[0]
        seconds = bench.seconds([((number, Program(tile[0], 0, tile[1])), self.sizes[smallest])])[0]
        return float(min(seconds, 2e-6)) if np.isfinite(seconds) else 0.0

    def _lines(
        self, bench: TileBench, number: int, pool: Pool, waves: Mapping[int, Waves]
    ) -> dict[tuple[int, int], Line]:
        """Return α and τ of each uKernel, from timings of one and of many tiles per share."""
        most = max(w.i for w in self.workloads)
        trials: list[tuple[PooledProgram, tuple[int, ...]]] = []
        for height, vectors in pool.tiles:
            program = number, Program(height, 0, vectors)
            trials.append((program, self._at_rows(height)))
            trials.append((program, self._at_rows(height * max(1, min(TILES.waves, most // height)))))
        seconds = bench.seconds(trials)
        lines: dict[tuple[int, int], Line] = {}
        for place, (height, vectors) in enumerate(pool.tiles):
            timings = []
            for trial, elapsed in zip(trials[2 * place : 2 * place + 2], seconds[2 * place :], strict=False):
                workload = workload_at(self.operator, trial[1])
                timings.append(Timing(float(elapsed), workload, -(-workload.i // height)))
            finite = all(np.isfinite(t.seconds) for t in timings)
            lines[height, vectors] = (
                line(timings[0], timings[1], waves[vectors]) if finite else self._counted(pool, height, vectors)
            )
        return lines

    def _corrected(
        self, bench: TileBench, number: int, pool: Pool, programs: list[Program], predicted: Floats
    ) -> tuple[Corrected, tuple[float, float]]:
        """Time the best programs by prediction and by SIA; return the corrected matrix, Kendall's τ, and SIA's hit
        rate.
        """
        places = places_of(len(self.workloads), CPU.places)
        trials: list[tuple[PooledProgram, tuple[int, ...]]] = []
        where: list[tuple[int, int]] = []
        for place in places:
            ranked = self._ranked_by_sia(pool, programs, place)
            fast = [int(p) for p in np.argsort(predicted[:, place], kind="stable")[: CPU.timed]]
            for program in dict.fromkeys([*fast, *ranked[: CPU.timed_by_sia]]):
                if np.isfinite(predicted[program, place]):
                    where.append((program, place))
                    trials.append(((number, programs[program]), self.sizes[place]))
        seconds = bench.seconds(trials)
        corrected = Corrected(predicted)
        agreements = []
        for (program, place), elapsed in zip(where, seconds, strict=True):
            corrected.note(program, place, float(elapsed))
        for place in places:
            trials_at_place = [i for i, (_, at) in enumerate(where) if at == place]
            agreements.append(
                kendall(seconds[trials_at_place], np.asarray([predicted[where[i]] for i in trials_at_place]))
            )
        return corrected, (float(np.mean(agreements)), self._among_top(pool, programs, where, seconds))

    def _ranked_by_sia(self, pool: Pool, programs: list[Program], place: int) -> list[int]:
        """Return SIA's ten best programs at a size, best first, by the mean score of both uKernels."""
        analysed = len(next(iter(self.scores.values())))
        at = round(place * (analysed - 1) / max(1, len(self.workloads) - 1))
        means = np.full(len(programs), -np.inf)
        for number, program in enumerate(programs):
            cover = program.at(self.workloads[place].i)
            heights = [] if cover is None else [cover.large, *([cover.small] if cover.few else [])]
            scores_of_tiles = [self.scores.get((height, program.vectors * pool.lanes)) for height in heights]
            available = [float(scores[at]) for scores in scores_of_tiles if scores is not None]
            if available and len(available) == len(scores_of_tiles):
                means[number] = sum(available) / len(available)
        return top(means)

    def _among_top(
        self, pool: Pool, programs: list[Program], where: Sequence[tuple[int, int]], seconds: Floats
    ) -> float:
        """Return the fraction of timed sizes whose fastest program is among SIA's ten best."""
        hits = []
        for place in sorted({at for _, at in where}):
            trials_at_place = [i for i, (_, at) in enumerate(where) if at == place]
            fastest = where[min(trials_at_place, key=lambda i: seconds[i])][0]
            hits.append(fastest in self._ranked_by_sia(pool, programs, place))
        return sum(hits) / len(hits)

    def _tree(self, seconds: Floats, programs: list[Program]) -> Tree[Program]:
        """Fit a tree to a matrix of seconds."""
        weights = [w.weight for w in self.workloads]
        return fit(self.sizes, labels(seconds, weights), weights, programs)

    def _timed_again(
        self, bench: TileBench, number: int, programs: list[Program], corrected: Corrected
    ) -> tuple[Tree[Program], int]:
        """Call `timed_again` with the programs of one pool."""

        def seconds(trials: Sequence[tuple[Program, tuple[int, ...]]]) -> Floats:
            return bench.seconds([((number, program), sizes) for program, sizes in trials])

        return timed_again(seconds, programs, corrected, self.sizes, lambda taken: self._tree(taken, programs), CPU)
