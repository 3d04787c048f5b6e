"""`feduca reproduce NAME`: the paper's tables and figures, each from one command, beside the paper's own numbers."""

from feduca.reproduce.study import STUDIES, reproduce

__all__ = ["STUDIES", "reproduce"]
