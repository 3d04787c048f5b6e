"""Figures that follow the reader's theme: colours of a dark page, as a style sheet inside the SVG."""

from __future__ import annotations

PAGE = "#131416"  # the documentation's own in the dark
DARK = {  # a colour as it is drawn, and what it becomes on a dark page; others are bright enough for both
    "#ffffff": PAGE,
    "#222222": "#e2e5e9",
    "#33383e": "#c6cdd5",
    "#9c2f70": "#cc79a7",
    "#0072b2": "#5f8bff",
    "#6b6b6b": "#a0a6ad",
    "#8a7a00": "#b5a42c",
    "#888888": "#9aa1a8",
    "#000000": "#e2e5e9",
    "#e3e6e9": "#2c3137",  # grid
    "#c9ced4": "#4b525a",  # frame
}
NAMES = {"#ffffff": ("white",), "#000000": ("black", "#000"), "#888888": ("#888",)}  # other words for a colour


def adaptive(svg: str) -> str:
    """The same figure with the dark page's colours, where that is what the reader has."""
    head = svg.index(">", svg.index("<svg ")) + 1
    return f"{svg[:head]}\n<style>{STYLE}</style>{svg[head:]}"


def _rules() -> str:
    rules = [f"text{{fill:{DARK['#000000']}}}"]
    for colour, dark in DARK.items():
        for part in ("fill", "stroke"):
            ways = [f'[{part}="{word}" i]' for word in (colour, *NAMES.get(colour, ()))]
            rules.append(f'{",".join([f"""[style*="{part}: {colour}" i]""", *ways])}{{{part}:{dark} !important}}')
    return "@media (prefers-color-scheme:dark){" + "".join(rules) + "}"


STYLE = _rules()
