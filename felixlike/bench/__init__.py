"""Compare tuned models with other compilers: each side runs in its own process, and sides are timed alternately."""
