"""Cache the Measurements of candidates by their generated code, so that equal code does not run twice."""

from dataclasses import replace

from felixlike.measure.measurement import Measurement, Status

_SAME_CODE = "the same code as an earlier candidate"

Key = tuple[str, bool, str]
"""A task's key, whether the output was verified, and the digest of the code."""


class CodeCache:
    """Cache of Measurements; with `reuse=False` it stores nothing."""

    def __init__(self, *, reuse: bool) -> None:
        self.reuse = reuse
        self._measured: dict[Key, Measurement] = {}

    def find(self, key: Key) -> Measurement | None:
        """Return the Measurement of an earlier candidate with this code, with run_seconds 0; None if there is none."""
        earlier = self._measured.get(key)
        return None if earlier is None else replace(earlier, run_seconds=0.0)

    def keep(self, key: Key, result: Measurement) -> None:
        """Store a Measurement if equal code would repeat it: a time or a wrong output, but no crash or timeout."""
        if self.reuse and (result.repeats or result.status is Status.WRONG):
            self._measured[key] = replace(result, message=result.message or _SAME_CODE)
