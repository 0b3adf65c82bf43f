"""Sphinx's configuration: plain pages that load nothing from elsewhere.

.venv/bin/sphinx-build -W -b html doc/source doc/build
"""

import sys
from pathlib import Path

# References are made from the code beside the pages, whatever is installed.
sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent / "_ext")]

extensions = ["dfmeta_pipeline", "dfmeta_reference", "sphinx_click"]

project = "dfmeta"
author = "The authors of dfmeta"
copyright = "The authors of dfmeta, Apache License 2.0"  # noqa: A001  # Sphinx's name for it

html_theme = "furo"
html_title = "dfmeta"
html_copy_source = False
# Each line of what programs have printed stays one line, in the colour of the text.
highlight_language = "none"
# A "--" in the text is an option's, not a dash.
smartquotes = False

man_pages = [("commands", "dfmeta", "the programs of dfmeta and their options", "", 1)]
