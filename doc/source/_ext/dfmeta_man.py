"""Gives manual pages the form that man(7) expects: the builder ``man`` alone has any of this.

A page starts with its synopsis, and ends with the other pages. A table is a list of its first
cells, a link is its text or the name of a manual page, and ``dfmeta`` has a section for each
command.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
from docutils import nodes
from sphinx.application import Sphinx

from dfmeta.cli import ctl

SITE = "https://dfmeta.readthedocs.io/"
SYNOPSES = {
    "dfmeta": "dfmeta [--config-file FILE] COMMAND [OPTION]... [ARGUMENT]...",
    "dfmeta-agent": "dfmeta-agent [OPTION]...",
    "dfmeta-cni": "dfmeta-cni [--docker]",
    "dfmeta-store": "dfmeta-store [OPTION]...",
    "dfmeta-tag-devices": "dfmeta-tag-devices [OPTION]...",
}


def shape(app: Sphinx, tree: nodes.document, page: str) -> None:
    """Change the tree of a manual page."""
    if app.builder.name != "man":
        return
    for link in list(tree.findall(nodes.reference)):
        if not link.get("refuri", "").startswith("http"):
            link.replace_self(nodes.emphasis("", link.astext()))
    for table in list(tree.findall(nodes.table)):
        table.replace_self(_listed(table))
    for rubric in list(tree.findall(nodes.rubric)):
        rubric.replace_self(nodes.paragraph("", "", nodes.strong("", rubric.astext())))
    for block in [
        each for each in tree.findall(nodes.line_block) if _lines(each)[0] == "Examples:"
    ]:
        text = "\n".join(_lines(block)[1:])
        heading = nodes.paragraph("", "", nodes.strong("", "Examples"))
        block.replace_self([heading, nodes.literal_block(text, text)])
    (top,) = (each for each in tree if isinstance(each, nodes.section))
    if page == "dfmeta":
        _flatten(top)
    first = next((at for at, each in enumerate(top) if isinstance(each, nodes.section)), len(top))
    lead = top.children[1:first]
    top[1:first] = [_section("Synopsis", nodes.paragraph("", SYNOPSES[page]))]
    top.insert(2, _section("Description", *lead))
    others = ", ".join(
        f"{name}({number})" for _page, name, _text, _, number in app.config.man_pages
    )
    top += _section("See also", nodes.paragraph("", f"{others}, {SITE}"))


def _lines(block: nodes.line_block) -> list[str]:
    return [line.astext().strip() for line in block.findall(nodes.line)]


def _section(title: str, *children: nodes.Node) -> nodes.section:
    return nodes.section("", nodes.title("", title), *children)


def _listed(table: nodes.table) -> nodes.definition_list:
    """Return a table as a list; cells from the third column on have their heading before them."""
    heads, *rows = ([*row] for row in table.findall(nodes.row))
    items = nodes.definition_list()
    for first, *cells in rows:
        definition = nodes.definition()
        for head, cell in zip(heads[1:], cells, strict=True):
            for block in cell:
                if len(cells) > 1:
                    block.insert(0, nodes.Text(f"{head.astext()}: "))
                definition += block
        items += nodes.definition_list_item("", nodes.term("", "", *first[0]), definition)
    return items


def _flatten(top: nodes.section) -> None:
    """Put the sections of all commands, which are inside each other, behind one another."""
    (root,) = (
        each for each in top if isinstance(each, nodes.section) and each[0].astext() == "dfmeta"
    )
    commands = _section("Commands", *_commands(root, "dfmeta"))
    at = top.index(root)
    top[at : at + 1] = [*root[1:], commands]


def _commands(section: nodes.section, path: str) -> Iterator[nodes.section]:
    for each in list(section.children):
        if isinstance(each, nodes.section):
            section.remove(each)
            name = f"{path} {each[0].astext()}"
            inside = list(_commands(each, name))
            each[0] = nodes.title("", name)
            yield each
            yield from inside


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect it, and import all commands, since the directive ``click`` sees no others."""
    context = click.Context(ctl.cli)
    for name in ctl.COMMANDS:
        if command := ctl.cli.get_command(context, name):
            ctl.cli.add_command(command)
    app.connect("doctree-resolved", shape)
    return {"parallel_read_safe": True}
