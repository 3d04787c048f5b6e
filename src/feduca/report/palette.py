"""Colours, dashes and shapes of every chart: Okabe and Ito's, which survive colour blindness."""

from __future__ import annotations

OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8A7A00", "#6B6B6B")
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3])
GRID, FRAME = "#e3e6e9", "#c9ced4"
