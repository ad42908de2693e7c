"""Run all GPU benchmarks in one command with a time limit: python -m benchmarks.gpu --minutes 25."""
