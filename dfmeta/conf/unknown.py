"""Unknown options in configuration files; oslo.config ignores a misspelt name.

In dfmeta's own groups every unknown name is reported. ``[DEFAULT]``, ``[neutron]`` and
``[METADATA]`` may be copied from Neutron's and Nova's files with many options that are not for
dfmeta: there, only a name that is similar to one of dfmeta's options is reported.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from oslo_config import cfg

from dfmeta.conf import attachments, neutron, own_opts
from dfmeta.errors import UnknownOptionError

DEFAULT: Final = "DEFAULT"
SAMPLE: Final = "etc/dfmeta/dfmeta.conf.sample lists all options"
_SHARED: Final = (DEFAULT, neutron.GROUP.name, "METADATA", "metadata")
"""Groups that files of Neutron and Nova have too."""
_OF_OTHERS: Final = "state_path"
"""Option of Neutron and Nova there that dfmeta has in another group."""
_LIKE: Final = 0.8
"""Least similarity of two names (difflib, 1 is equal) in these groups."""
_LIKE_OWN: Final = 0.6


def unknown_options(conf: cfg.ConfigOpts) -> list[UnknownOptionError]:
    """Return the unknown options in the files of a configuration, each with its remedy.

    :param conf: a configuration that :func:`dfmeta.conf.load` returned.
    """
    names = {group or DEFAULT: _names(options) for group, options in own_opts()}
    names[DEFAULT] |= {"config_file", "config_dir", "config_source"}
    for network in attachments.networks(conf):
        names[f"{attachments.NETWORK}{network}"] = _names(attachments.NETWORK_OPTS)
    space = conf._namespace
    files = list(reversed(space._parsed)) if space is not None else []
    if any(section.lower() == neutron.GROUP.name for sections in files for section in sections):
        # keystoneauth1's names; its import is a third of the CPU time of a daemon's start.
        names[neutron.GROUP.name] |= _names(neutron.sample_opts())
    return [
        UnknownOptionError(
            file=space._sections_to_file.get(section, "the configuration"), what=what, remedy=remedy
        )
        for sections in files
        for section, options in sections.items()
        for what, remedy in _unknown(section, options, names)
    ]


def _names(options: Iterable[cfg.Opt]) -> set[str]:
    """Return all names of options, including their deprecated ones."""
    old = {former.name for option in options for former in option.deprecated_opts if former.name}
    return {name for option in options for name in (option.name, option.dest)} | old


def _unknown(
    section: str, options: Iterable[str], names: Mapping[str, set[str]]
) -> Iterator[tuple[str, str]]:
    """Yield what is unknown in a section, and the remedy."""
    group = section if section in names else section.lower()
    if group not in names:
        near = difflib.get_close_matches(group, set(names) - {DEFAULT}, n=1, cutoff=_LIKE)
        if near and group not in _SHARED:
            yield f"the group [{group}]", f"Did you mean [{near[0]}]?"
        return
    shared = group in _SHARED
    for name in options:
        if name in names[group] or (shared and name == _OF_OTHERS):
            continue
        cutoff = _LIKE if shared else _LIKE_OWN
        near = difflib.get_close_matches(name, names[group], n=1, cutoff=cutoff)
        others = [other for other in names if other not in _SHARED and name in names[other]]
        if near:
            yield f"[{group}] {name}", f"Did you mean {near[0]}?"
        elif others:
            yield f"[{group}] {name}", f"Move it to [{others[0]}]"
        elif not shared:
            yield f"[{group}] {name}", SAMPLE
