"""All options, and the reading of configuration files.

Only ``cmd`` and ``cli`` call :func:`load`; the other packages get values. oslo.config ignores a
misspelt name. In dfmeta's own groups every unknown name is reported. ``[DEFAULT]``, ``[neutron]``,
``[ovn]`` and ``[METADATA]`` may be copied from Neutron's and Nova's files with many options that
are not for dfmeta: there, only a name that is similar to one of dfmeta's options is reported.
"""

import contextlib
import difflib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any, Final, NoReturn

from oslo_config import cfg, types

from dfmeta.conf import agent, attachments, haproxy, limits, metadata, neutron, nova, store
from dfmeta.conf.kinds import without_password
from dfmeta.errors import ConfigError, UnknownOptionError, UsageError

GROUPS = (
    (agent.GROUP, agent.OPTS),
    (metadata.GROUP, metadata.OPTS),
    (haproxy.GROUP, haproxy.OPTS),
    (attachments.GROUP, attachments.OPTS),
    (limits.GROUP, limits.OPTS),
    (neutron.GROUP, neutron.OPTS),
    (neutron.OVN, neutron.OVN_OPTS),
    (limits.RATE_GROUP, limits.RATE_OPTS),
    (store.GROUP, store.OPTS),
)
"""Every group but ``[DEFAULT]``, with its options."""
DEFAULT_FILES = ("/etc/dfmeta/dfmeta.conf",)
_FILE: Final = "--config-file"
_FOLDER: Final = "--config-dir"
_SIGNALS = (
    "Signals: SIGHUP reads the configuration again, SIGTERM and SIGINT end it within 5 seconds."
)
_STATUS = "the last line on stderr names the cause and the remedy."
ABOUT = {
    "dfmeta-agent": "Answer 169.254.169.254 for the guests of this Open vSwitch host, in the "
    "foreground; logs go to stderr.",
    "dfmeta-store": "Keep a store for many hosts, and answer guests by their address, in the "
    "foreground; logs go to stderr.",
}
"""Program → description at the beginning of its --help."""
CLOSING = {
    "dfmeta-agent": f"{_SIGNALS} Exit status: 0, or 1 when --cleanup is refused because the daemon "
    "is running, or 2 when the configuration is wrong or a requirement on the host is missing; "
    f"{_STATUS} Example: dfmeta-agent --config-file /etc/dfmeta/dfmeta.conf",
    "dfmeta-store": f"{_SIGNALS} Exit status: 0, or 2 when the configuration is wrong, or the "
    f"database or an address cannot be used; {_STATUS} "
    "Example: dfmeta-store --config-file /etc/dfmeta/dfmeta-store.conf",
}
"""Program → text at the end of its --help."""
COMMON = [
    cfg.BoolOpt(
        "debug",
        short="d",
        default=False,
        mutable=True,
        help="Log at level DEBUG. Secrets and user-data are not logged at any level.",
    ),
]
"""Options of the command line and of files."""
LOG: Final = [
    cfg.BoolOpt(
        "use_json",
        default=False,
        mutable=True,
        help="Log a JSON object in each line, with asctime, levelname, name, process, message and, "
        "for an exception, traceback.",
    ),
]


SAMPLE: Final = "etc/dfmeta/dfmeta.conf.sample lists all options"
_NO_DEFAULTS: Final[dict[str, list[str]]] = {"default_config_files": [], "default_config_dirs": []}
"""oslo.config searches home directories too, and reads a default directory before named files."""
_SHARED: Final = ("DEFAULT", neutron.GROUP.name, neutron.OVN.name, "METADATA", "metadata")
"""Groups that files of Neutron and Nova have too."""
_OF_OTHERS: Final = "state_path"
"""Option of Neutron and Nova there that dfmeta has in another group."""
_LIKE: Final = 0.8
"""Least similarity of two names (difflib, 1 is equal) in these groups."""
_LIKE_OWN: Final = 0.6


class _Options(cfg.ConfigOpts):
    """oslo.config's class, except that :func:`load` reports every wrong value in a file itself."""

    def _validate_cli_options(self, namespace: object) -> None:
        """Accept every value: oslo.config would end the process here at a wrong value in a file."""

    def _pre_setup(self, *args: Any, **values: Any) -> Any:
        made = super()._pre_setup(*args, **values)
        parser = self._oparser

        def refuse(message: str) -> NoReturn:
            """Raise an error; argparse would print the usage and end the process here."""
            raise UsageError(cause=message, remedy=f"See {parser.prog} --help")

        parser.error = refuse
        return made

    def get_location(self, name: str, group: str | None = None) -> Any:
        """Return the place of a value; oslo.config names the last file that has the group."""
        place = super().get_location(name, group)
        if place is None or place.location is not cfg.Locations.user:
            return place
        return cfg.LocationInfo(place.location, next(files_with(self, name, group), place.detail))


def list_opts() -> list[tuple[str | None, list[cfg.Opt]]]:
    """Return all options by group, for oslo-config-generator.

    keystoneauth1's are included if it is installed.
    """
    groups = dict(own_opts())
    groups[neutron.GROUP.name] = neutron.sample_opts()
    return list(groups.items())


def own_opts() -> list[tuple[str | None, list[cfg.Opt]]]:
    """Return dfmeta's options by group; keystoneauth1 checks its own options when it is used."""
    groups = ((group.name, options) for group, options in GROUPS)
    return [(None, [*COMMON, *LOG, *nova.OPTS]), *groups]


def register(conf: cfg.ConfigOpts) -> None:
    """Register every option with *conf*."""
    conf.register_cli_opts(COMMON)
    for group, _options in GROUPS:
        # A new group for each configuration: a group object stores its options, and options that
        # keystoneauth1 registers as required would be required of each later configuration too
        # (at SIGHUP, for example).
        conf.register_group(cfg.OptGroup(group.name, title=group.title, help=group.help))
    for name, options in own_opts():
        conf.register_opts(options, group=name)


def load(
    files: Sequence[str],
    *,
    prog: str,
    args: Sequence[str] = (),
    cli: Sequence[cfg.Opt] = (),
) -> cfg.ConfigOpts:
    """Read the configuration and check every value.

    The files ``*.conf`` in the directory FILE.d are read after FILE, in the order of their names.

    :param files: configuration files and directories with such; a later one overrides an earlier
        one. If no file is named, the default file is read if it exists.
    :param args: further arguments of the command line, including oslo.config's own.
    :param cli: options of the command line that no configuration file has.
    :raises ConfigError: for a wrong value or an unreadable file.
    :raises UsageError: for a wrong argument.
    """
    conf = _Options()
    register(conf)
    conf.register_cli_opts(list(cli))
    named, others = _named(files, args)
    about = {
        "version": version("dfmeta"),
        "description": ABOUT.get(prog),
        "epilog": CLOSING.get(prog),
    }
    try:
        named = list(_expanded(named))
        words = [f"{option}={path}" for option, path in named]
        conf([*words, *others], project="dfmeta", prog=prog, **_NO_DEFAULTS, **about)
    except (cfg.Error, OSError, UnicodeError) as error:
        raise _unreadable(error, [path for _option, path in named]) from error
    _check(conf)
    return conf


def freeze(conf: cfg.ConfigOpts) -> dict[str, dict[str, Any]]:
    """Return the values of dfmeta's options by group, as JSON types. Secrets are included."""
    return {
        group or "DEFAULT": {
            option.dest: (conf[group] if group else conf)[option.dest] for option in options
        }
        for group, options in own_opts()
    }


def thaw(values: Mapping[str, Mapping[str, Any]]) -> cfg.ConfigOpts:
    """Return the configuration that :func:`freeze` was given; no file is read."""
    conf = _Options()
    register(conf)
    conf([], project="dfmeta", **_NO_DEFAULTS)
    for name, options in own_opts():
        for option in options:
            value = values[name or "DEFAULT"][option.dest]
            conf.set_override(option.dest, value, group=name)
    return conf


def unknown_options(conf: cfg.ConfigOpts) -> list[UnknownOptionError]:
    """Return the unknown options in the files of a configuration, each with its remedy.

    :param conf: a configuration that :func:`dfmeta.conf.load` returned.
    """
    names = {group or "DEFAULT": _names(options) for group, options in own_opts()}
    names["DEFAULT"] |= {"config_file", "config_dir", "config_source"}
    for network in attachments.networks(conf):
        names[f"{attachments.NETWORK}{network}"] = _names(attachments.NETWORK_OPTS)
    files = list(zip(conf.config_file, reversed(conf._namespace._parsed), strict=True))
    if any(section.lower() == neutron.GROUP.name for _, sections in files for section in sections):
        # keystoneauth1's names; its import is a third of the CPU time of a daemon's start.
        names[neutron.GROUP.name] |= _names(neutron.sample_opts())
    return [
        UnknownOptionError(file=file, what=what, remedy=remedy)
        for file, sections in files
        for section, options in sections.items()
        for what, remedy in _unknown(section, options, names)
    ]


def files_with(conf: cfg.ConfigOpts, name: str, group: str | None) -> Iterator[str]:
    """Yield the configuration files that set an option; the first one is in force."""
    option = conf._get_opt_info(name, group)["opt"]
    former = [(old.group or group, old.name or option.name) for old in option.deprecated_opts]
    names = [
        (cfg._normalize_group_name(place or "DEFAULT"), word)
        for place, word in ((group, option.name), (group, option.dest), *former)
    ]
    for file, sections in zip(reversed(conf.config_file), conf._namespace._normalized, strict=True):
        if any(word in sections.get(place, ()) for place, word in names):
            yield file


def _named(files: Sequence[str], args: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the files and directories that are named, with their options, and other arguments."""
    named = [(_FOLDER if os.path.isdir(file) else _FILE, file) for file in files]
    others, words = [], iter(args)
    for word in words:
        option, sign, value = word.partition("=")
        options = [name for name in (_FILE, _FOLDER) if name.startswith(option)]
        if len(options) == 1 and (path := value if sign else next(words, "")):
            named.append((options[0], path))
        else:
            others.append(word)
    return named, others


def _expanded(named: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the files in the order in which they are read, with the option of each.

    :raises OSError: if a directory may not be read. A default file that may not be is left out.
    """
    if _FILE not in dict(named):
        usual = [path for file in DEFAULT_FILES for path in (file, *_files_in(f"{file}.d"))]
        yield from ((_FILE, path) for path in usual if _readable(path))
    for option, path in named:
        if option == _FILE or not os.path.isdir(path):
            yield option, path
        folder = f"{path}.d" if option == _FILE else path
        yield from ((_FILE, file) for file in _files_in(folder))


def _files_in(folder: str) -> list[str]:
    if not os.path.isdir(folder):
        return []
    names = sorted(name for name in os.listdir(folder) if name.endswith(".conf"))
    return [os.path.join(folder, name) for name in names if not name.startswith(".")]


def _unreadable(error: Exception, files: Sequence[str]) -> ConfigError:
    option, value = _FILE, ", ".join(files)
    cause = "there is no such file"
    remedy = "Name a file that exists and that this user may read"
    match error:
        case cfg.ConfigFilesNotFoundError():
            value = ", ".join(error.config_files)
        case cfg.ConfigFilesPermissionDeniedError():
            value, cause = ", ".join(error.config_files), "this user may not read it"
            remedy = "Run it as root or as the daemon's user, or name a file that it may read"
        case cfg.ConfigDirNotFoundError():
            option, value, cause = _FOLDER, error.config_dir, "there is no such directory"
        case cfg.ConfigFileParseError():
            value, cause = error.config_file, " ".join(error.msg.split())
            remedy = "Correct that line: an option is written name = value, in a [group]"
        case OSError():
            value, cause = str(error.filename or value), str(error.strerror)
        case UnicodeError():
            value = ", ".join(file for file in files if not _is_text(file))
            cause, remedy = "it is not UTF-8", "Save it as plain text in UTF-8"
        case _:
            cause = str(error)
    return ConfigError(option=option, value=value, cause=cause, remedy=remedy)


def _check(conf: cfg.ConfigOpts) -> None:
    for group, options in own_opts():
        for option in options:
            _check_one(conf, group, option)
    for network in attachments.register_networks(conf):
        for option in attachments.NETWORK_OPTS:
            _check_one(conf, network, option)
    metadata.apply(conf)
    agent.check(conf.df_metadata)
    metadata.check(conf)
    haproxy.check(conf)
    attachments.check(conf)
    nova.check(conf)
    neutron.check(conf)
    store.check(conf)


def _check_one(conf: cfg.ConfigOpts, group: str | None, option: cfg.Opt) -> None:
    try:
        section = conf[group] if group else conf
        if section[option.dest] != section[option.dest]:
            # NaN passes the checks of a minimum and of a maximum.
            raise ValueError("it is not a number")
    except (cfg.Error, ValueError) as error:
        cause = str(error).rpartition("is not valid: ")[2] or str(error)
        if len(conf.config_file) > 1 and _variable(group, option) not in os.environ:
            cause += f" ({next(files_with(conf, option.dest, group), '')})"
        raise ConfigError(
            option=f"[{group or 'DEFAULT'}] {option.name}",
            value="(secret)" if option.secret else without_password(_written(conf, group, option)),
            cause=cause,
            remedy=f"Give {_wanted(option)}",
        ) from error


def _written(conf: cfg.ConfigOpts, group: str | None, option: cfg.Opt) -> str:
    variable = _variable(group, option)
    if variable in os.environ:
        # The environment overrides the files, see oslo_config.sources._environment.
        return os.environ[variable]
    former = [(old.group or group, old.name) for old in option.deprecated_opts]
    values, _location = conf._namespace._get_value([(group, option.name), *former])
    return str(values[-1]) if isinstance(values, list) else str(values)


def _variable(group: str | None, option: cfg.Opt) -> str:
    return f"OS_{group or 'DEFAULT'}__{option.name}".upper()


def _wanted(option: cfg.Opt) -> str:
    kind = option.type
    if wanted := getattr(kind, "wanted", ""):
        return str(wanted)
    if choices := getattr(kind, "choices", None):
        return f"one of {', '.join(choices)}"
    if isinstance(kind, types.IPAddress):
        return "an IP address"
    if isinstance(getattr(kind, "item_type", None), types.IPAddress):
        return "IP addresses with commas between them"
    if isinstance(kind, types.Dict):
        return "key:value pairs with commas between them"
    low, high = getattr(kind, "min", None), getattr(kind, "max", None)
    if low is not None or high is not None:
        return f"a number from {low} to {high}"
    return f"a value such as {option.default}"


def _readable(file: str) -> bool:
    try:
        with open(file, encoding="utf-8"):
            return True
    except OSError:
        return False


def _is_text(file: str) -> bool:
    with contextlib.suppress(UnicodeError), open(file, encoding="utf-8") as text:
        text.read()
        return True
    return False


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
        near = difflib.get_close_matches(group, set(names) - {"DEFAULT"}, n=1, cutoff=_LIKE)
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
