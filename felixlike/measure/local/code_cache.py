"""What came of earlier candidates, by their generated code: another one with the same code need not run."""

from dataclasses import replace

from felixlike.measure.measurement import Measurement, Status

_SAME_CODE = "the same code as an earlier candidate"

Key = tuple[str, bool, str]
"""A task's key, whether the answer was verified, the digest of the code."""


class CodeCache:
    """reuse: False to forget everything."""

    def __init__(self, *, reuse: bool) -> None:
        self.reuse = reuse
        self._measured: dict[Key, Measurement] = {}

    def find(self, key: Key) -> Measurement | None:
        """What came of an earlier candidate with this code, for one that does not run; None if there was none."""
        found = self._measured.get(key)
        return None if found is None else replace(found, run_seconds=0.0)

    def keep(self, key: Key, result: Measurement) -> None:
        """Keep what another candidate with this code would only repeat: a time or a wrong answer, not an accident."""
        if self.reuse and (result.repeats or result.status is Status.WRONG):
            self._measured[key] = replace(result, message=result.message or _SAME_CODE)
