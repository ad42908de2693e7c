"""Read the options of the backend from the call or from environment variables."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from felixlike._util import option_checks as checks
from felixlike._util import user_folders
from felixlike._util.wording import choose_from
from felixlike.errors import InvalidOption
from felixlike.hardware import FLOAT32, resolve_target, with_precision

_WHERE = "backend felixlike"


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the backend.

    Attributes:
        seconds: Tuning time per graph in seconds, summed over all processes. With 0 only predicted schedules are used.
        trials: Maximum number of measured candidates per graph; None for no limit.
        background: Whether to tune in another process while the program continues. Otherwise the first call waits for
            tuning.
        store: Path of the record store, shared by the user's processes. None uses the store in the user's data folder,
            or memory if that cannot be written.
        sizes: Maximum number of versions of a graph with dynamic sizes. A version serves all sizes in a range, or one
            combination of sizes if the graph cannot be compiled for many.
        watch_weights: Whether to compare the contents of weights, to detect changes that PyTorch does not count
            (through `.data`, or in inference mode). This takes about 1 % of the time. Without it only counted changes
            and replaced tensors are detected.
        precision: Precision of float32 products: "float32" or "bfloat16", as for `felixlike.optimize`.
        tolerance: Largest error of a graph that `precision` may cause, relative to its largest output; None for no
            limit. See `felixlike.optimize`.
    """

    seconds: float = 60.0
    trials: int | None = None
    background: bool = True
    store: str | None = None
    sizes: int = 4
    watch_weights: bool = True
    precision: str = FLOAT32.name
    tolerance: float | None = None

    @property
    def target(self) -> Any:
        """Return the TVM target of the graphs, with the precision of their products."""
        return with_precision(resolve_target("cpu"), self.precision)

    @property
    def file(self) -> str | None:
        """Return the path of the store; None for one in memory, about which the user was warned."""
        if self.store is not None:
            return self.store
        path = user_folders.default_store()
        return None if path is None else str(path)


_SWITCHES = ("background", "watch_weights")
"""Names of the boolean options."""


def read_options(given: dict[str, Any], environment: Mapping[str, str]) -> Options:
    """Return options from the call, else from the environment, else with default values.

    Args:
        given: Options of the call by name.
        environment: Environment variables, such as FELIXLIKE_SECONDS.

    Raises:
        InvalidOption: A name is unknown or a value is invalid.
    """
    names = [field.name for field in fields(Options)]
    for name in given:
        if name not in names:
            raise InvalidOption(f"unknown option {name!r}", where=_WHERE, remedy=choose_from(name, names))
    texts = {name: environment.get(f"FELIXLIKE_{name.upper()}") for name in names}
    values: dict[str, Any] = {name: _parsed(name, text) for name, text in texts.items() if text}
    values |= given
    return Options(**_checked(values))


def _checked(values: dict[str, Any]) -> dict[str, Any]:
    """Return values of options in their types. Raise InvalidOption."""
    values = dict(values)
    if "seconds" in values:
        values["seconds"] = checks.real(values["seconds"], "seconds", where=_WHERE, unit="seconds")
    if values.get("trials") is not None:
        values["trials"] = checks.whole(values["trials"], "trials", where=_WHERE)
    if "sizes" in values:
        values["sizes"] = checks.whole(values["sizes"], "sizes", where=_WHERE)
    if values.get("tolerance") is not None:
        values["tolerance"] = checks.real(values["tolerance"], "tolerance", where=_WHERE, otherwise="None")
    with_precision(resolve_target("cpu"), values.get("precision", FLOAT32.name))
    for name in _SWITCHES:
        if not isinstance(values.get(name, True), bool):
            raise InvalidOption(
                f"expected a bool for {name}, got {values[name]!r}", where=_WHERE, remedy="use True or False"
            )
    if values.get("store") is not None:
        values["store"] = str(checks.path(values["store"], "store", error=InvalidOption))
    return values


def _parsed(name: str, text: str) -> Any:
    """Parse an environment variable. Return text that is not a number unchanged; later checks raise an error."""
    if name in _SWITCHES:
        return {"1": True, "true": True, "0": False, "false": False}.get(text.lower(), text)
    if name in ("store", "precision"):
        return text
    with contextlib.suppress(ValueError):
        return float(text) if name in ("seconds", "tolerance") else int(text)
    return text
