"""The GPU step before the un-pooled kernels: benchmarks/sweep.py compares with it, until that is settled."""
