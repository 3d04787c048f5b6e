"""Stand-in until the structured solver lands: the reference."""

from feduca.program.reference import solve

__all__ = ["solve"]
