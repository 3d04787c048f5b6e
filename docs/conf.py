"""Sphinx: Furo, MyST, and the library's own docstrings. Built with warnings as errors (`make docs`)."""

from __future__ import annotations

import logging
import re

from feduca._version import __version__

project = "feduca"
author = "The feduca developers"
project_copyright = author
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
source_suffix = {".md": "markdown"}
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = "feduca"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0058a3", "color-brand-content": "#0058a3"},
    "dark_css_variables": {"color-brand-primary": "#6cb6ff", "color-brand-content": "#6cb6ff"},
}

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_mock_imports: list[str] = []


def plain_to_rst(app, what, name, obj, options, lines):
    """Docstrings are plain words with `names` in backticks; turn them into reStructuredText that says the same."""
    out, literal = [], False
    for line in lines:
        indented = line.startswith("    ")
        if indented and not literal:
            out += ["", "::", ""]
            literal = True
        elif line.strip() and not indented and literal:
            out.append("")
            literal = False
        out.append(line if literal else _words(line))
    lines[:] = out


def _words(line: str) -> str:
    """Backticks become literals; what reStructuredText would take for markup elsewhere is escaped."""
    pieces = re.split(r"(`[^`]*`)", line)
    return "".join(
        f"`{piece}`" if piece.startswith("`") and len(piece) > 2 else re.sub(r"([*_|`\\])", r"\\\1", piece)
        for piece in pieces
    )


def outside_links(app, name, source):
    """Files beside the documentation (SECURITY.md, say) are named, not linked: they are not part of what is built."""
    source[0] = re.sub(r"\[([^\]]+)\]\(\.\./(?:\.\./)*[A-Z][^)]*\)", r"`\1`", source[0])


def setup(app):
    app.connect("source-read", outside_links)
    # A glob may stand for pages that are not there; Sphinx gives that warning no type that could be suppressed.
    toctree = logging.getLogger("sphinx.sphinx.directives.other")
    toctree.addFilter(lambda record: getattr(record, "subtype", None) != "empty_glob")
    app.connect("autodoc-process-docstring", plain_to_rst)
