"""Unknown options in configuration files; oslo.config ignores a misspelt name.

In dfmeta's own groups every unknown name is reported. ``[DEFAULT]`` and ``[neutron]`` may be copied
from Neutron's and Nova's files with many options that are not for dfmeta: there, only a name that
is similar to one of dfmeta's options is reported.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Final

from oslo_config import cfg

from dfmeta.conf import agent, attachments, limits, neutron, own_opts, rate, store
from dfmeta.errors import UnknownOptionError

OURS: Final = (
    agent.GROUP.name,
    attachments.GROUP.name,
    limits.GROUP.name,
    rate.GROUP.name,
    store.GROUP.name,
)
"""Groups that only dfmeta has."""
DEFAULT: Final = "DEFAULT"
SAMPLE: Final = "etc/dfmeta/dfmeta.conf.sample lists all options"
_LIKE: Final = 0.8
"""Least similarity of two names (difflib, 1 is equal) in groups that other programs have too."""
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
"""Options of Neutron in its metadata agent's file, and of Nova in its [neutron]."""
_GROUPS_OF_OTHERS: Final = frozenset({"metadata"})
"""Groups of metadata_path."""
_RENAMED: Final = {"nova_metadata_ip": "nova_metadata_host"}
"""Options that Neutron renamed before dfmeta existed: old name → new name."""


def unknown_options(conf: cfg.ConfigOpts) -> list[UnknownOptionError]:
    """Return the unknown options in the files of a configuration, each with its remedy.

    :param conf: a configuration that :func:`dfmeta.conf.load` returned.
    """
    known = {group or DEFAULT: _names(options) for group, options in own_opts()}
    known[DEFAULT] |= {"config_file", "config_dir", "config_source"}
    networks = [f"{attachments.NETWORK}{name}" for name in attachments.networks(conf)]
    known |= {group: _names(attachments.NETWORK_OPTS) for group in networks}
    space = conf._namespace
    files = list(reversed(space._parsed)) if space is not None else []
    if any(section.lower() == neutron.GROUP.name for sections in files for section in sections):
        # keystoneauth1's names; its import is a third of the CPU time of a daemon's start.
        known[neutron.GROUP.name] |= _names(neutron.sample_opts())
    found = []
    for sections in files:
        for section, options in sections.items():
            file = space._sections_to_file.get(section, "the configuration")
            group = section if section == DEFAULT else section.lower()
            said = _in_group(group, options, known) if group in known else _of_group(group, known)
            found += [UnknownOptionError(file=file, **fields) for fields in said]
    return found


def _names(options: list[cfg.Opt]) -> set[str]:
    """Return all names of options, including those of earlier releases."""
    old = {one.name for option in options for one in option.deprecated_opts if one.name}
    return {name for option in options for name in (option.name, option.dest)} | old


def _in_group(
    group: str, options: Mapping[str, object], known: Mapping[str, set[str]]
) -> Iterator[dict[str, str]]:
    for name in options:
        if name in known[group] or name in _OF_OTHERS.get(group, ()):
            continue
        elsewhere = [one for one in OURS if name in known[one] and one != group]
        ours = group in OURS or group.startswith(attachments.NETWORK)
        cutoff = 0.6 if ours else _LIKE
        near = difflib.get_close_matches(name, known[group], n=1, cutoff=cutoff)
        near = [_RENAMED[name]] if name in _RENAMED else near
        what = f"[{group}] {name}"
        if near:
            yield {"what": what, "remedy": f"Did you mean {near[0]}?"}
        elif elsewhere:
            yield {"what": what, "remedy": f"Move it to [{elsewhere[0]}]"}
        elif ours:
            yield {"what": what, "remedy": SAMPLE}


def _of_group(group: str, known: Mapping[str, set[str]]) -> Iterator[dict[str, str]]:
    near = difflib.get_close_matches(group, set(known) - {DEFAULT}, n=1, cutoff=_LIKE)
    if near and group not in _GROUPS_OF_OTHERS:
        yield {"what": f"the group [{group}]", "remedy": f"Did you mean [{near[0]}]?"}
