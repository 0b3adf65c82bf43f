"""Directives that write a reference from the code: options, programs' options, and limits.

``dfmeta-options:: GROUP``: every option of a group of the configuration.
``dfmeta-daemons::``: the options that each daemon reads, and whether SIGHUP reloads them.
``dfmeta-program:: NAME``: every option of the command line of a program that is not click's.
``dfmeta-limits::``: rows of a table, each of an item, of what holds its limit, and of what happens
above it; the number is added.
``dfmeta-changelog::``: the release notes, by version.
``dfmeta-checks::``: every check of doctor.
``dfmeta-errors::``: every class of errors, by the name that ends its line.
``dfmeta-metrics::``: every metric with its kind, and the values of its labels.
``dfmeta-states::``: every state of a port.
``dfmeta-symptoms::``: the chapters of the page, each with its first command.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, ClassVar

from docutils import nodes
from docutils.statemachine import StringList
from oslo_config import cfg, types
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import nested_parse_with_titles

import dfmeta
import dfmeta.conf
from dfmeta.admin.troubles import TROUBLES
from dfmeta.conf import attachments
from dfmeta.conf.values import AGENT, READS, STORE, is_reloaded
from dfmeta.doctor.check import NEEDS, PLACES
from dfmeta.doctor.table import CHECKS
from dfmeta.errors import DfmetaError
from dfmeta.flows.pipeline import Purpose
from dfmeta.guest import tag_devices
from tools.changelog import NOTES, changelog
from tools.declared import declared, states

CLEANUP = "Remove dfmeta's flows, port, rules and route from this host, and exit."
"""Of :data:`dfmeta.cmd.daemon.CLI`, which cannot be imported without os-ken."""
OSLO: Mapping[str, str] = {
    "--help": "Show the usage, and end.",
    "--config-file": "A file with options; ``*.conf`` in the directory FILE.d are read after it. "
    "Repeatable; a later file overrides an earlier one. Without it: ``/etc/dfmeta/dfmeta.conf``.",
    "--config-dir": "A directory whose ``*.conf`` files are read, in the order of their names.",
    "--version": "Show the version, and end.",
    "--shell_completion": "Print a script that completes these options in ``bash`` or ``zsh``. "
    "oslo.config 10.7.0 fails: it is without its templates.",
}
"""Option of oslo.config → its description."""

PACKAGE = Path(dfmeta.__file__).parent
_ERROR_CLASS = re.compile(r"^class \w+\(\w*Error\)", re.MULTILINE)

_CHAPTER = re.compile(r"^(\S.*)\n=+$", re.MULTILINE)
_COMMAND = re.compile(r"^   \$ (.*)$", re.MULTILINE)
LIMITS = """.. list-table::
   :header-rows: 1
   :widths: 34 10 30 26

   * - item
     - limit
     - held by
     - above it"""
"""How a table of limits begins."""
_HOLDER = re.compile(r"  - ``(\[\w+\] \w+(?: \(max\))?|dfmeta[\w.]+(?:\[\w+\])?)``")
_OPTION = re.compile(r"\[(\w+)\] (\w+)( \(max\))?")
_UNITS: Mapping[str, int] = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10}
_IN_UNITS = 1 << 16
"""A number from which on multiples of a unit are sizes."""
NETWORK = f"{attachments.NETWORK}NAME"
"""The group of a network of containers, as the page has it."""


def options_text(group: str) -> Iterator[str]:
    """Every option of a group, as lines of reStructuredText."""
    for name, options in (*dfmeta.conf.own_opts(), (NETWORK, attachments.NETWORK_OPTS)):
        if (name or "DEFAULT") != group:
            continue
        for option in options:
            yield f".. confval:: {option.dest}"
            if option.dest in _earlier(group):
                # One target for each name.
                yield "   :no-index:"
            yield ""
            yield f"   {_words(option.help)}"
            yield ""
            for text, meaning in (getattr(option.type, "choices", None) or {}).items():
                yield f"   * ``{text}``: {_words(meaning)}" if meaning else f"   * ``{text}``"
            yield ""
            yield f"   {' '.join(_facts(group, option))}"
            yield ""


def _earlier(group: str) -> set[str]:
    """Return the names of options that a group shares with one whose names are targets."""
    if group not in (attachments.GROUP.name, NETWORK):
        return set()
    others = (them for name, them in dfmeta.conf.own_opts() if name != group)
    return {option.dest for them in others for option in them}


def _facts(group: str, option: Any) -> Iterator[str]:
    yield f"*{_kind(option)}.*"
    if option.default in (None, "", [], {}):
        yield "Not set by default."
    else:
        yield f"Default: ``{_default(option.default)}``."
    if option.secret:
        yield "Secret: no log and no message shows it."
    yield f"At SIGHUP: {at_sighup(group, option.dest)}."
    if former := [f"``[{old.group or group}] {old.name}``" for old in option.deprecated_opts]:
        yield f"Former names: {', '.join(former)}."


def at_sighup(group: str, name: str) -> str:
    """Return the effect of SIGHUP on a changed option, in words."""
    if group == NETWORK:
        return "reloaded"
    fates = {daemon: _fate(daemon, (group, name)) for daemon in (AGENT, STORE)}
    if fates[STORE] == "not read":
        return fates[AGENT]
    if fates[AGENT] == "not read":
        return f"{fates[STORE]} ({STORE} alone reads it)"
    if fates[AGENT] == fates[STORE]:
        return fates[AGENT]
    return f"{fates[AGENT]} by {AGENT}, {fates[STORE]} by {STORE}"


def _fate(daemon: str, name: tuple[str, str]) -> str:
    if name not in READS[daemon]:
        return "not read"
    return "reloaded" if is_reloaded(name) else "needs a restart"


def daemons_text() -> Iterator[str]:
    """A table of every option, as lines of reStructuredText."""
    yield from (".. list-table::", "   :header-rows: 1", "   :widths: 50 25 25", "")
    yield from ("   * - Option", f"     - {AGENT}", f"     - {STORE}")
    for group, options in dfmeta.conf.own_opts():
        for option in options:
            name = (group or "DEFAULT", option.dest)
            yield f"   * - ``[{name[0]}] {name[1]}``"
            yield from (f"     - {_fate(daemon, name)}" for daemon in (AGENT, STORE))
    yield ""


def _kind(option: Any) -> str:
    kind = option.type
    low, high = getattr(kind, "min", None), getattr(kind, "max", None)
    words = {
        types.Boolean: "True or False",
        types.Integer: "A whole number",
        types.Port: "A whole number",
        types.Float: "A number",
        types.List: "A comma list",
        types.Dict: "A comma list of KEY:VALUE",
        types.IPAddress: "An IPv4 address",
    }.get(type(kind), "A text")
    if getattr(kind, "choices", None):
        return "One of the above"
    if low is not None and high is not None:
        return (
            f"{words} from {low:g} to {high:g}" if high < 1e6 else f"{words} from {low} to {high}"
        )
    return words


def _default(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, dict):
        return ",".join(f"{key}:{item}" for key, item in value.items())
    return str(value)


def _words(text: str) -> str:
    """A help text, whose stars and underscores are not markup's."""
    return text.replace("\\", "\\\\").replace("*", "\\*").replace("_", "\\_").replace("|", "\\|")


def program_text(program: str) -> Iterator[str]:
    """Every option of a program's command line, as lines of reStructuredText."""
    yield from (f".. program:: {program}", "")
    for action in PARSERS[program]()._actions:
        if action.help == argparse.SUPPRESS or action.option_strings[-1].startswith("--no"):
            continue
        long = max(action.option_strings, key=len)
        value = "" if action.nargs == 0 else f" {action.metavar or _values(action)}"
        names = ", ".join(f"{option}{value}" for option in action.option_strings)
        meaning = OSLO.get(long) or _sentence(action.help % {**vars(action)})
        yield from (f".. option:: {names}", "", f"   {meaning}", "")


def limits_text(*rows: str) -> Iterator[str]:
    """A table of limits, as lines of reStructuredText.

    :param rows: of a list table, without the numbers.
    """
    yield from LIMITS.splitlines()
    for line in rows:
        if holder := _HOLDER.fullmatch(line):
            yield f"     - {_number(held(holder[1]))}"
        yield f"   {line}" if line else ""


def held(name: str) -> float:
    """Return the number behind an option or a constant; of a collection, its size.

    :param name: ``[group] option``, with `` (max)`` behind it for the largest value that it may
        have; or a constant by its dotted name, with the name of a purpose in brackets for its rate.
    """
    if option := _OPTION.fullmatch(name):
        options = {group or "DEFAULT": them for group, them in dfmeta.conf.own_opts()}
        (holder,) = (each for each in options[option[1]] if each.name == option[2])
        return float(holder.type.max if option[3] else holder.default)
    path, _, purpose = name.removesuffix("]").partition("[")
    value = resolve_name(path)
    if purpose:
        value = value[Purpose[purpose]]
    return float(len(value) if isinstance(value, tuple) else value)


def _number(value: float) -> str:
    for unit, size in _UNITS.items():
        if value >= _IN_UNITS and not value % size:
            return f"{value // size:g} {unit}"
    return f"{value:g}"


def _values(action: Any) -> str:
    if action.choices:
        return "|".join(map(str, action.choices))
    return str(action.dest).upper()


def _sentence(text: str) -> str:
    text = _words(text)
    return text if text.endswith(".") else f"{text[0].upper()}{text[1:]}."


def _oslo(program: str, *cli: cfg.Opt) -> argparse.ArgumentParser:
    conf = cfg.ConfigOpts()
    conf.register_cli_opts([*dfmeta.conf.COMMON, *cli])
    files: dict[str, list[str]] = {"default_config_files": [], "default_config_dirs": []}
    conf([], project="dfmeta", prog=program, version="", **files)
    parser: argparse.ArgumentParser = conf._oparser
    return parser


PARSERS: Mapping[str, Callable[[], argparse.ArgumentParser]] = {
    AGENT: lambda: _oslo(AGENT, cfg.BoolOpt("cleanup", default=False, help=CLEANUP)),
    STORE: lambda: _oslo(STORE),
    "dfmeta-tag-devices": tag_devices.parser,
}
"""Program → what reads its command line."""


def errors_text() -> Iterator[str]:
    """Every error in the order of the names, as lines of reStructuredText."""
    # Each class declares its name; Sphinx warns of a label that two have.
    for error in sorted(errors(), key=lambda each: vars(each)["name"]):
        yield from (f".. _error-{error.name}:", "", f"``{error.name}``")
        yield f"   ``{error.sentence}``"
        yield ""
        yield from (f"   {line}" for line in inspect.cleandoc(error.__doc__ or "").splitlines())
        yield ""
        if error.advice:
            yield from (f"   Remedy: {_words(error.advice).replace('`', '``')}.", "")


def errors() -> Iterator[type[DfmetaError]]:
    """Every class of errors that any module of dfmeta declares, but for a module's private ones."""
    for path in PACKAGE.rglob("*.py"):
        if _ERROR_CLASS.search(path.read_text(encoding="utf-8")):
            module = path.relative_to(PACKAGE.parent).with_suffix("")
            importlib.import_module(".".join(module.parts))
    return (error for error in _tree(DfmetaError) if error.__name__[0] != "_")


def _tree(root: type[DfmetaError]) -> Iterator[type[DfmetaError]]:
    yield root
    for child in root.__subclasses__():
        yield from _tree(child)


def metrics_text() -> Iterator[str]:
    """Every metric in its order, as lines of reStructuredText."""
    for metric in declared():
        yield from (f"``{metric.shown}``", f"   *{metric.kind}.* {_sentence(metric.help)}", "")
        for label, values in metric.values.items():
            yield from (f"   ``{label}``: {_list(values)}.", "")
        if metric.remedy:
            yield from (f"   {metric.remedy}", "")
        for trouble in TROUBLES:
            if trouble.name == metric.shown:
                value = " of ".join(f"``{value}``" for value in trouble.labels.values())
                meaning = f"{trouble.means}. {trouble.look}."
                yield f"   * {value}: {meaning}" if value else f"   * {meaning}"
        yield ""


def states_text() -> Iterator[str]:
    """Every state of a port, as lines of reStructuredText."""
    for state, meaning in states().items():
        yield from (f"``{state}``", f"   {meaning}", "")


def _list(values: frozenset[str]) -> str:
    if values == frozenset(Purpose.__members__):
        return "the names of flows (:doc:`pipeline`)"
    return ", ".join(f"``{value}``" for value in sorted(values))


def symptoms_text(page: str) -> Iterator[str]:
    """A table of the chapters of a page with their first commands, as reStructuredText."""
    yield from (".. list-table::", "   :header-rows: 1", "   :widths: 44 56", "")
    yield from ("   * - Symptom", "     - First command")
    titles = list(_CHAPTER.finditer(page))
    for title, ends in zip(titles, [*(each.start() for each in titles[1:]), None], strict=True):
        if command := _COMMAND.search(page, title.end(), ends or len(page)):
            yield from (f"   * - `{title[1]}`_", f"     - ``{command[1]}``")
    yield ""


def checks_text() -> Iterator[str]:
    """Every check of doctor, in the order of its lines, as lines of reStructuredText."""
    names = {check.name for check in CHECKS}
    for check in CHECKS:
        twin = f"{check.name}-ipv6"
        if check.about == f"As ``{check.name.removesuffix('-ipv6')}``, over IPv6.":
            continue
        yield f"``{check.name}``" + (f", ``{twin}``" if twin in names else "")
        yield f"   {check.about}"
        places = [PLACES[name] for name in check.only]
        if places:
            yield f"   *Only with:* {'; '.join(place.text for place in places)}."
        if check.needs:
            lacks = (NEEDS[name].text for name in check.needs)
            yield f"   *Unknown if:* {'; '.join(lacks)}."
        for page in filter(None, (check.page, *(place.page for place in places))):
            yield f"   See :doc:`{page}`."
        yield ""


class _Written(SphinxDirective):
    """A directive that stands for text."""

    text: ClassVar[Callable[..., Iterator[str]]]

    def run(self) -> list[nodes.Node]:
        """Parse the text where the directive stands."""
        return self.parsed(type(self).text(*self.arguments, *self.content))

    def parsed(self, written: Iterator[str]) -> list[nodes.Node]:
        """Parse lines of reStructuredText."""
        lines = StringList(list(written), source="the code")
        node = nodes.Element()
        self.state.nested_parse(lines, self.content_offset, node)
        return list(node.children)


class Changelog(_Written):
    """``dfmeta-changelog::``."""

    def run(self) -> list[nodes.Node]:
        """Parse the report; the page depends on each note."""
        for note in NOTES.iterdir():
            self.env.note_dependency(str(note))
        _title, _, text = changelog().partition("\n.. _")
        lines = StringList(f".. _{text}".splitlines(), source="releasenotes")
        node = nodes.Element()
        node.document = self.state.document
        nested_parse_with_titles(self.state, lines, node, self.content_offset)
        return list(node.children)


class Options(_Written):
    """``dfmeta-options:: GROUP``."""

    required_arguments = 1
    text = staticmethod(options_text)


class Daemons(_Written):
    """``dfmeta-daemons::``."""

    text = staticmethod(daemons_text)


class Program(_Written):
    """``dfmeta-program:: NAME``."""

    required_arguments = 1
    text = staticmethod(program_text)


class Errors(_Written):
    """``dfmeta-errors::``."""

    text = staticmethod(errors_text)


class Metrics(_Written):
    """``dfmeta-metrics::``."""

    text = staticmethod(metrics_text)


class States(_Written):
    """``dfmeta-states::``."""

    text = staticmethod(states_text)


class Symptoms(_Written):
    """``dfmeta-symptoms::``."""

    def run(self) -> list[nodes.Node]:
        """Parse the table of the page in which the directive stands."""
        return self.parsed(symptoms_text(Path(self.get_source_info()[0]).read_text("utf-8")))


class Checks(_Written):
    """``dfmeta-checks::``."""

    text = staticmethod(checks_text)


class Limits(_Written):
    """``dfmeta-limits::``."""

    has_content = True
    text = staticmethod(limits_text)


def setup(app: Sphinx) -> dict[str, Any]:
    """Add the directives."""
    app.add_directive("dfmeta-options", Options)
    app.add_directive("dfmeta-daemons", Daemons)
    app.add_directive("dfmeta-program", Program)
    app.add_directive("dfmeta-limits", Limits)
    app.add_directive("dfmeta-changelog", Changelog)
    app.add_directive("dfmeta-checks", Checks)
    app.add_directive("dfmeta-errors", Errors)
    app.add_directive("dfmeta-metrics", Metrics)
    app.add_directive("dfmeta-states", States)
    app.add_directive("dfmeta-symptoms", Symptoms)
    return {"parallel_read_safe": True}
