"""Shared by tests and benchmarks: operators, models, faulty candidates, and reference results.

The product does not import this package."""
