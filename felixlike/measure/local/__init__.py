"""Measure candidates on this machine: build them, run them in forked processes, interleave their timing."""
