"""Every option, and how it is read. Only ``cmd`` calls :func:`load`; the rest get values."""

from __future__ import annotations

from collections.abc import Sequence

from oslo_config import cfg, types

from dfmeta.conf import agent, nova, store
from dfmeta.exceptions import ConfigError
from dfmeta.flows.pipeline import METADATA_IP

DEFAULT_FILES = ("/etc/dfmeta/dfmeta.conf",)
COMMON = [
    cfg.BoolOpt(
        "debug",
        short="d",
        default=False,
        help="Log at level DEBUG. Nothing secret, and no user-data, is logged at any level.",
    ),
]


def list_opts() -> list[tuple[str | None, list[cfg.Opt]]]:
    """Options by group, for oslo-config-generator."""
    return [
        (None, [*COMMON, *nova.OPTS]),
        (agent.GROUP.name, agent.OPTS),
        (store.GROUP.name, store.OPTS),
    ]


def register(conf: cfg.ConfigOpts) -> None:
    """Register every option with *conf*."""
    conf.register_cli_opts(COMMON)
    for group in (agent.GROUP, store.GROUP):
        conf.register_group(group)
    for name, options in list_opts():
        conf.register_opts(options, group=name)


def load(
    files: Sequence[str],
    *,
    prog: str,
    args: Sequence[str] = (),
    cli: Sequence[cfg.Opt] = (),
) -> cfg.ConfigOpts:
    """Read the configuration and check every value.

    :param files: configuration files, later ones win; none: the default one, if it is there.
    :param args: further arguments of the command line, oslo.config's own among them.
    :param cli: options that only the command line has.
    :raises ConfigError: for a value, a file or an argument that is wrong.
    """
    conf = cfg.ConfigOpts()
    register(conf)
    conf.register_cli_opts(list(cli))
    named = [f"--config-file={file}" for file in files]
    defaults = [file for file in DEFAULT_FILES if _readable(file)]
    try:
        conf([*named, *args], project="dfmeta", prog=prog, default_config_files=defaults)
    except cfg.ConfigFilesNotFoundError as error:
        raise ConfigError(
            option="--config-file",
            value=", ".join(error.config_files),
            cause="there is no such file, or it cannot be read",
            remedy="Name one that exists and that this user may read",
        ) from error
    except cfg.ConfigFileParseError as error:
        raise ConfigError(
            option="--config-file",
            value=error.config_file,
            cause=" ".join(error.msg.split()),
            remedy="Mend that line: an option is written name = value, in a [group]",
        ) from error
    _check(conf)
    return conf


def _check(conf: cfg.ConfigOpts) -> None:
    for group, options in list_opts():
        for option in options:
            _check_one(conf, group, option)
    agent.check(conf.df_metadata)
    nova.check(conf)


def _check_one(conf: cfg.ConfigOpts, group: str | None, option: cfg.Opt) -> None:
    try:
        section = conf[group] if group else conf
        section[option.dest]
    except (cfg.Error, ValueError) as error:
        raise ConfigError(
            option=f"[{group or 'DEFAULT'}] {option.name}",
            value="(secret)" if option.secret else _written(conf, group, option),
            cause=_cause(error),
            remedy=f"Give {_wanted(option)}",
        ) from error


def _written(conf: cfg.ConfigOpts, group: str | None, option: cfg.Opt) -> str:
    values, _location = conf._namespace._get_value([(group, option.name)])
    return str(values[-1]) if isinstance(values, list) else str(values)


def _cause(error: Exception) -> str:
    text = str(error)
    return text.rpartition("is not valid: ")[2] or text


def _wanted(option: cfg.Opt) -> str:
    kind = option.type
    choices = getattr(kind, "choices", None)
    if choices:
        return "one of " + ", ".join(map(str, choices))
    low, high = getattr(kind, "min", None), getattr(kind, "max", None)
    if low is not None or high is not None:
        return f"a number from {low} to {high}"
    example = METADATA_IP if isinstance(kind, types.IPAddress) else option.default
    return f"a value such as {example}"


def _readable(file: str) -> bool:
    try:
        with open(file, encoding="utf-8"):
            return True
    except OSError:
        return False
