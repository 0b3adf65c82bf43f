"""Sphinx's configuration: plain pages that load nothing from elsewhere.

.venv/bin/sphinx-build -W -b html doc/source doc/build
"""

import sys
from pathlib import Path

# References are made from the code beside the pages, whatever is installed.
sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent / "_ext")]

extensions = ["dfmeta_man", "dfmeta_pipeline", "dfmeta_reference", "sphinx_click"]

project = "dfmeta"
author = "dfmeta developers"
project_copyright = "dfmeta developers, Apache License 2.0"

html_theme = "furo"
html_title = "dfmeta"
html_copy_source = False
# Each line of what programs have printed stays one line, in the colour of the text.
highlight_language = "none"
# A "--" in the text is an option's, not a dash.
smartquotes = False

man_pages = [
    ("dfmeta", "dfmeta", "check and manage the metadata service of a host", "", 1),
    ("dfmeta-agent", "dfmeta-agent", "metadata for the guests of an Open vSwitch host", "", 8),
    ("dfmeta-cni", "dfmeta-cni", "network devices for the containers of a VM", "", 8),
    ("dfmeta-store", "dfmeta-store", "store of instances' metadata for many hosts", "", 8),
    ("dfmeta-tag-devices", "dfmeta-tag-devices", "udev rules for a guest's tagged devices", "", 8),
]
man_make_section_directory = True
# A page is the same on each day on which it is made.
today = " "
