"""Options of the backend, from the call or from environment variables."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from felixlike._util import option_checks as checks
from felixlike._util import user_folders
from felixlike._util.wording import choose_from
from felixlike.errors import InvalidOption

_WHERE = "backend felixlike"


@dataclass(frozen=True, slots=True)
class Options:
    """How graphs are compiled.

    Attributes:
        seconds: Tuning time for each graph, of all processes together; 0 compiles predicted schedules alone.
        trials: Most candidates measured for each graph; None for no limit.
        background: Tune in another process while calls go on. Otherwise the first call waits for it.
        store: The file that keeps measurements, shared by the user's processes; None for the one in the user's data
            folder, or for memory where that cannot be written.
        sizes: How many sets of sizes of a graph with dynamic sizes are compiled, each for itself.
        watch_weights: Compare weights with those that were compiled in, also where PyTorch does not count a change
            (through `.data`, in inference mode). Costs about 1 % of the time. Without it only changes that PyTorch
            counts are noticed, and exchanged tensors."""

    seconds: float = 60.0
    trials: int | None = None
    background: bool = True
    store: str | None = None
    sizes: int = 4
    watch_weights: bool = True

    @property
    def file(self) -> str | None:
        """The path of the store; None for one in memory, which the user was warned of."""
        if self.store is not None:
            return self.store
        path = user_folders.default_store()
        return None if path is None else str(path)


_SWITCHES = ("background", "watch_weights")


def read_options(given: dict[str, Any], environment: Mapping[str, str]) -> Options:
    """Return options by name: those that are given, else from the environment, else the defaults.

    Raises InvalidOption for an unknown name or a bad value."""
    names = [field.name for field in fields(Options)]
    for name in given:
        if name not in names:
            raise InvalidOption(f"there is no option {name!r}", where=_WHERE, remedy=choose_from(name, names))
    texts = {name: environment.get(f"FELIXLIKE_{name.upper()}") for name in names}
    values: dict[str, Any] = {name: _parsed(name, text) for name, text in texts.items() if text}
    values |= given
    if "seconds" in values:
        values["seconds"] = checks.real(values["seconds"], "seconds", where=_WHERE, unit="seconds")
    if values.get("trials") is not None:
        values["trials"] = checks.whole(values["trials"], "trials", where=_WHERE)
    if "sizes" in values:
        values["sizes"] = checks.whole(values["sizes"], "sizes", where=_WHERE)
    for name in _SWITCHES:
        if not isinstance(values.get(name, True), bool):
            raise InvalidOption(f"{name} is {values[name]!r}", where=_WHERE, remedy="give True or False")
    if values.get("store") is not None:
        values["store"] = str(checks.path(values["store"], "store", error=InvalidOption))
    return Options(**values)


def _parsed(name: str, text: str) -> Any:
    """The value of an environment variable; a text that is no number is refused by its check."""
    if name in _SWITCHES:
        return {"1": True, "true": True, "0": False, "false": False}.get(text.lower(), text)
    if name == "store":
        return text
    with contextlib.suppress(ValueError):
        return float(text) if name == "seconds" else int(text)
    return text
