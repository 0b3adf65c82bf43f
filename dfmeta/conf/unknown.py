"""Options in the files that nobody reads: oslo.config passes over a name that is misspelt.

Groups of ours are looked at whole. ``[DEFAULT]`` and ``[neutron]`` may be copied from Neutron's and
Nova's files with much that is not for dfmeta: there, a name is told that looks like one of ours.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Final

from oslo_config import cfg

from dfmeta.conf import agent, limits, neutron, own_opts, rate, store
from dfmeta.exceptions import UnknownOptionError

OURS: Final = (agent.GROUP.name, limits.GROUP.name, rate.GROUP.name, store.GROUP.name)
"""Groups that nobody else has."""
DEFAULT: Final = "DEFAULT"
SAMPLE: Final = "etc/dfmeta/dfmeta.conf.sample has all that there are"
_LIKE: Final = 0.8
"""How much alike two names are at least, of 1 (difflib), where others may have options too."""
_OF_OTHERS: Final = {
    DEFAULT: frozenset(
        {
            "host",
            "metadata_backlog",
            "metadata_proxy_group",
            "metadata_proxy_socket",
            "metadata_proxy_socket_mode",
            "metadata_proxy_user",
            "metadata_workers",
            "state_path",
        }
    ),
    neutron.GROUP.name: frozenset(
        {
            "auth_section",
            "auth_type",
            "metadata_proxy_shared_secret",
            "service_metadata_proxy",
            "service_name",
            "service_type",
        }
    ),
}
"""Neutron's own names in its metadata agent's file, and Nova's in its [neutron]."""
_GROUPS_OF_OTHERS: Final = frozenset({"metadata"})
"""metadata_path's."""
_RENAMED: Final = {"nova_metadata_ip": "nova_metadata_host"}
"""By Neutron, before there was dfmeta."""


def unknown_options(conf: cfg.ConfigOpts) -> list[UnknownOptionError]:
    """Return what the files of a configuration have that is no option, each with what to do.

    :param conf: as :func:`dfmeta.conf.load` gives it.
    """
    known = {group or DEFAULT: _names(options) for group, options in own_opts()}
    known[DEFAULT] |= {"config_file", "config_dir", "config_source"}
    known[neutron.GROUP.name] |= _names(neutron.sample_opts())
    space = conf._namespace
    found = []
    for sections in reversed(space._parsed if space is not None else []):
        for section, options in sections.items():
            file = space._sections_to_file.get(section, "the configuration")
            group = section if section == DEFAULT else section.lower()
            said = _in_group(group, options, known) if group in known else _of_group(group, known)
            found += [UnknownOptionError(file=file, **fields) for fields in said]
    return found


def _names(options: list[cfg.Opt]) -> set[str]:
    """All names that an option is read by, those of earlier releases too."""
    old = {one.name for option in options for one in option.deprecated_opts if one.name}
    return {name for option in options for name in (option.name, option.dest)} | old


def _in_group(
    group: str, options: Mapping[str, object], known: Mapping[str, set[str]]
) -> Iterator[dict[str, str]]:
    for name in options:
        if name in known[group] or name in _OF_OTHERS.get(group, ()):
            continue
        elsewhere = [one for one in OURS if name in known[one] and one != group]
        cutoff = 0.6 if group in OURS else _LIKE
        near = difflib.get_close_matches(name, known[group], n=1, cutoff=cutoff)
        near = [_RENAMED[name]] if name in _RENAMED else near
        what = f"[{group}] {name}"
        if near:
            yield {"what": what, "remedy": f"Did you mean {near[0]}?"}
        elif elsewhere:
            yield {"what": what, "remedy": f"Put it into [{elsewhere[0]}]"}
        elif group in OURS:
            yield {"what": what, "remedy": SAMPLE}


def _of_group(group: str, known: Mapping[str, set[str]]) -> Iterator[dict[str, str]]:
    near = difflib.get_close_matches(group, set(known) - {DEFAULT}, n=1, cutoff=_LIKE)
    if near and group not in _GROUPS_OF_OTHERS:
        yield {"what": f"the group [{group}]", "remedy": f"Did you mean [{near[0]}]?"}
