"""Run directories made visible: one self-contained page, publication figures, and the data behind `feduca watch`.

    reading.py    a run directory, read with suspicion (it may be damaged or hostile) and incrementally (it may be growing)
    payload.py    what the page gets to see: compact, thinned where a screen could not show more
    verdict.py    the sentences on top
    charts.py     the charts as Altair values, drawn by the page and by `--figures` alike
    page.py       everything in one HTML file; page.html, page.css and page.js are its parts
    figures.py    the same charts as SVG, PNG and PDF files

Only the standard library is needed up to verdict.py; Altair and vl-convert (the `report` extra) from charts.py on.
"""

from feduca.report.page import write

__all__ = ["write"]
