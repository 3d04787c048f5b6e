"""Ways to reach clients: in this process, or recorded."""

from feduca.federation.in_process import InProcess
from feduca.federation.replay import Recording, Replay

__all__ = ["InProcess", "Recording", "Replay"]
