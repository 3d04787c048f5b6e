"""The participation program: allocation, the exact maximum, the fallback, and problems as files."""

from feduca.program.allocation import allocate
from feduca.program.fallback import fall_back
from feduca.program.files import read_problem, to_json
from feduca.program.maximum import max_participation

__all__ = ["allocate", "fall_back", "max_participation", "read_problem", "to_json"]
