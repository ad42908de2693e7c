"""Reuse models that earlier runs without measurements have compiled, from the user's cache folder.

Inputs: an exported model and the run's configuration. Output: the compiled model and its report, or nothing. An entry
applies to exactly this graph, sizes, types, memory layouts, values of weights, target, machine, seed, design space,
cost-model weights and versions of the code, and to record stores with the same fastest schedules. It is a file as
`Optimized.save` writes it, whose machine code is loaded only if no other user can have written it. A damaged entry
counts as absent. The answers of a reused model are compared with the original's again.
"""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import dataclass, replace
from typing import Any

from felixlike import runtime
from felixlike._util import cache
from felixlike._util.spent import Spent
from felixlike.costmodel import CostModel
from felixlike.errors import FelixlikeError
from felixlike.frontend import Imported
from felixlike.frontend.examples import drawn
from felixlike.frontend.fingerprint import fingerprint
from felixlike.frontend.imported import Source
from felixlike.frontend.importers.torch import Exported
from felixlike.hardware import placement, target_device
from felixlike.records import Store
from felixlike.report import Report, TaskReport
from felixlike.runtime import Compiled
from felixlike.tuning.choice import How
from felixlike.tuning.config import RunConfig
from felixlike.tuning.predictions import code_version
from felixlike.tuning.reporting import spent_fields

_KIND = "models"

_NOTE = "The compiled model is that of an earlier run, from the cache folder."


def may_reuse(config: RunConfig) -> bool:
    """Return whether a run may reuse a model: it measures nothing, has no time limit, and compiles for this CPU."""
    return config.is_here and not config.measures and config.seconds is None


@dataclass(frozen=True, slots=True)
class Entry:
    """The place of one model in the cache.

    Attributes:
        key: Key of the entry.
        exported: The model.
        config: The run's configuration.
    """

    key: str
    exported: Exported
    config: RunConfig

    @staticmethod
    def of(model: Any, config: RunConfig, predictor: CostModel) -> Entry | None:
        """Return the entry of a model; None for one that cannot be identified or has no export.

        Args:
            model: What `frontend.export_model` has returned.
            config: The run's configuration.
            predictor: The cost model.
        """
        import torch

        if not isinstance(model, Exported) or any(not model.examples[i].dtype.is_floating_point for i in model.made):
            return None
        identity = fingerprint(model)
        if identity is None:
            return None
        target = config.target
        state = torch.__version__, torch.are_deterministic_algorithms_enabled(), torch.get_default_dtype()
        machine = str(target), config.device, target_device(target), placement.threads()
        choices = predictor.version(), config.seed, config.space, config.tolerance
        return Entry(cache.digest(repr((*code_version(), identity, *state, *machine, *choices))), model, config)

    def find(self, store: Store) -> tuple[Compiled, Report] | None:
        """Return the kept model and the report of the run that made it; None without one.

        The fastest schedules in the store must be those of the model, since a new run would use these. A model with
        predicted schedules of tasks that have been measured since is not reused.
        """
        try:
            file = cache.opened(_KIND, self._file)
            if file is None:
                return None
            with file:
                compiled, data = runtime.load(file)
            report = Report.from_json(data)
        except (FelixlikeError, OSError):  # damaged, or compiled for another processor
            return None
        return (compiled, report) if all(self._has_best(task, store) for task in report.tasks) else None

    def _has_best(self, task: TaskReport, store: Store) -> bool:
        """Return whether a new run would use the schedule of a kept model's task, as far as the store decides it."""
        if task.how == How.MEASURED:
            best = store.best(task.workload, device=self.config.device)
            return best is not None and best.measurement.seconds == task.seconds
        return next(store.briefs(task.workload, device=self.config.device), None) is None

    def keep(self, compiled: Compiled, report: Report) -> None:
        """Store a model with its report, if it changes nothing in place and is not too large."""
        if compiled.mutations or compiled.pytorch or compiled.library is None:
            return
        if sum(constant.nbytes for constant in compiled.constants) > cache.most_entry_bytes(_KIND):
            return
        with contextlib.suppress(FelixlikeError):
            cache.write(_KIND, self._file, runtime.writer(compiled, report=report.to_json()))

    def imported(self, compiled: Compiled) -> Imported:
        """Return the model without its module and tasks, for the comparison with the original."""
        exported = self.exported
        source = Source(
            exported.name,
            None,
            exported.signature,
            compiled.structure,
            exported.examples,
            exported.model,
            made=exported.made,
            training=exported.training,
        )
        return drawn(source).imported(None, self.config.target, inputs=compiled.inputs, tasks=(), functions={})

    @property
    def _file(self) -> str:
        """Return the name of the entry's file."""
        return f"{self.key}.flx"


def reused_report(report: Report, config: RunConfig, spent: Spent, **fields: Any) -> Report:
    """Return the report of a run that reuses a model.

    Args:
        report: The report of the run that made the model.
        config: The run's configuration.
        spent: The run's clock.
        fields: Fields with other values.
    """
    unknown = dict.fromkeys(("latency", "latency_low", "latency_high", "eager", "eager_low", "eager_high"), math.nan)
    elapsed = time.monotonic() - config.started
    return replace(
        report,
        tasks=tuple(replace(task, spent={}) for task in report.tasks),
        seconds=0.0,
        total_seconds=elapsed,
        **(unknown | spent_fields(spent) | fields),
    )


def reused_note(report: Report, *others: str) -> str:
    """Return the remarks of a run that reuses a model."""
    return " ".join(filter(None, (report.note, _NOTE, *others)))
