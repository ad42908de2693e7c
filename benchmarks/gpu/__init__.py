"""What a GPU is good for, in one command with one time limit: python -m benchmarks.gpu --minutes 25."""
