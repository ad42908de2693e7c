"""Measure candidates on simulated devices: a surrogate model predicts their latency."""
