"""Measure candidates on this machine: build them, run them in forked processes, time them in turns."""
