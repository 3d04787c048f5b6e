"""The version, alone, so that `feduca --version` imports nothing."""

__version__ = "0.1.0"
