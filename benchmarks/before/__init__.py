"""The GPU step as it was before the un-pooled kernels: what benchmarks/sweep.py compares with, to go once that is settled."""
