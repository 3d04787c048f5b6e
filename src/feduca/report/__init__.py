"""Run directories made visible: one self-contained page, publication figures, and the data behind `feduca watch`.

    reading.py    a run directory, read with suspicion (it may be damaged or hostile) and incrementally (it may be growing)
    liveness.py   whether anybody still writes it
    payload.py    what the page gets to see: compact, thinned where a screen could not show more
    answer.py     what it says first: headline, tiles, a card per silo; reasons.py words why, names.py what runs are called
    verdict.py    the sentences
    charts.py     the charts as Altair values, drawn by the page and by `--figures` alike; palette.py has their colours
    page.py       everything in one HTML file; assets/ has its parts
    figures.py    the same charts as SVG, PNG and PDF files
    dashboard/    the same page over runs that go on, and the list of them

Only the standard library and NumPy are needed up to verdict.py; Altair and vl-convert (the `report` extra) from charts.py on.
"""

from feduca.report.page import write

__all__ = ["write"]
