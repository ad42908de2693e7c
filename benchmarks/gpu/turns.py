"""Let rows that are prepared at the same time in processes of their own be timed one after another.

Input: a folder that the processes share. A process says that it is prepared, waits until the command lets all of them
go, and then times its sides while it holds a lock.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True)
class Turns:
    """The turns of a row.

    `folder` is shared by all rows. `name` is the row's file in it. `held` is true during a turn.
    """

    folder: Path
    name: str
    held: bool = field(default=False, init=False)

    @property
    def is_prepared(self) -> bool:
        """Return whether the row waits for its turn, or had it."""
        return (self.folder / self.name).exists()

    def let_all_go(self) -> None:
        """Let the rows that are prepared be timed."""
        (self.folder / "go").touch()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait until all rows are prepared and no other is timed; a turn within a turn does not wait."""
        if self.held:
            yield
            return
        (self.folder / self.name).touch()
        while not (self.folder / "go").exists():
            time.sleep(0.05)
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.held = True
            try:
                yield
            finally:
                self.held = False
