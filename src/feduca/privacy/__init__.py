"""Secure aggregation: the server learns sums of at least three silos' changes, and no single one (docs/secure-aggregation.md)."""
