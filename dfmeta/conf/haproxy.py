"""The options of ``engine = haproxy``, group ``[haproxy]``."""

from typing import Any, Final

from oslo_config import cfg, types

from dfmeta.conf.kinds import check_user, reloaded
from dfmeta.errors import ConfigError

HAPROXY: Final = "haproxy"
GROUP: Final = cfg.OptGroup(
    name="haproxy",
    title="The engine haproxy",
    help="Used with engine = haproxy: one haproxy for the host, which the daemon starts, answers "
    "guests' plain requests.",
)

OPTS: Final = reloaded(
    cfg.Opt(
        "binary",
        type=types.String(regex=r"^\S+$"),
        default="haproxy",
        help="Path of the program, or its name in PATH, /usr/sbin or /usr/local/sbin. The version "
        "must be 2.6 or later.",
    ),
    cfg.IntOpt(
        "threads",
        default=1,
        min=1,
        max=64,
        help="Threads of haproxy.",
    ),
    cfg.IntOpt(
        "maxconn",
        default=4096,
        min=64,
        max=65536,
        help="Connections of all guests. More wait in the listeners' queues. haproxy needs three "
        "open files for each, and 512 more: LimitNOFILE= of dfmeta-agent's unit has to allow them.",
    ),
    cfg.StrOpt(
        "user",
        default="",
        help="User that haproxy runs as if the daemon is root. No other program may run as this "
        "user: it could read what haproxy has in memory, and answer guests. Empty: dfmeta-haproxy "
        "if there is such a user, else each process of haproxy has a user id from 65536 to 99999 "
        "that no other process has. haproxy has no capability, whether or not the daemon is root.",
    ),
)


def check(conf: Any) -> None:
    """Check the rules between options.

    :raises ConfigError: naming the option.
    """
    group = conf.df_metadata
    check_user("[haproxy] user", conf.haproxy.user)
    if group.engine != HAPROXY:
        return
    if group.backend != "nova":
        raise ConfigError(
            option="[df_metadata] engine",
            value=group.engine,
            cause=f"haproxy can only ask Nova, and [df_metadata] backend is {group.backend}",
            remedy="Set engine = wsgi, or backend = nova",
        )
    if group.proxy_workers:
        raise ConfigError(
            option="[df_metadata] proxy_workers",
            value=group.proxy_workers,
            cause="workers belong to engine = wsgi",
            remedy="Set proxy_workers = 0; haproxy has [haproxy] threads",
        )
