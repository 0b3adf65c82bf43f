"""Sphinx's configuration: plain pages that load nothing from elsewhere.

.venv/bin/sphinx-build -W -b html doc/source doc/build
"""

project = "dfmeta"
author = "The authors of dfmeta"
copyright = "The authors of dfmeta, Apache License 2.0"  # noqa: A001  # Sphinx's name for it

html_theme = "alabaster"
html_theme_options = {
    "page_width": "1080px",
    "sidebar_width": "220px",
    "show_powered_by": False,
}
html_copy_source = False
# Each line of what programs have printed stays one line, in the colour of the text.
highlight_language = "none"
# A "--" in the text is an option's, not a dash.
smartquotes = False
