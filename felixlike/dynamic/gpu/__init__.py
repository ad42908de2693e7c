"""Dynamic sizes on GPUs, where a uKernel is a thread block.

Start at `tile.py`. `emit.py` generates the code, `search.py` ranks programs, `plan.py` wires the stages together.
"""
