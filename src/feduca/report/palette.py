"""Colours, dashes and shapes of every chart: Okabe and Ito's, which survive colour blindness.

On a page each is darker or lighter, so that it stands out from the paper three to one (WCAG 1.4.11) and still from the others.
"""

from __future__ import annotations

OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8A7A00", "#6B6B6B")
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3])
GRID, FRAME = "#e3e6e9", "#c9ced4"

ON_LIGHT = ("#006197", "#CA5900", "#00966D", "#C2739F", "#684800", "#1E3F52", "#302B00", "#5B5B5B")
ON_DARK = ("#1A80BA", "#C05500", "#4DBB9D", "#A36186", "#E69F00", "#9AD2F2", "#B9AF66", "#E1E1E1")

STATUS = {  # of a silo in a round; page.css has the same ones
    "joined": "#0072B2",
    "declined": "#C07A00",
    "absent": "#868E96",
    "refused": "#9C2F70",
    "left": "#33383E",
}
STATUS_ON_DARK = {
    "joined": "#3A9BDC",
    "declined": "#E69F00",
    "absent": "#6E7681",
    "refused": "#CC79A7",
    "left": "#C6CDD5",
}
PAPER = {"light": ("#FFFFFF", "#F6F8FA"), "dark": ("#0D1117", "#161B22")}  # a page, and a card on it
