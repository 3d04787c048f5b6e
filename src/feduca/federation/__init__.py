"""Ways to reach clients: in this process, recorded, or with faults put in."""

from feduca.federation.faults import Faulty
from feduca.federation.in_process import InProcess
from feduca.federation.replay import Recording, Replay

__all__ = ["Faulty", "InProcess", "Recording", "Replay"]
