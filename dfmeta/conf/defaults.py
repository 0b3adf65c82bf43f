"""The option of the group ``[store]`` that gives defaults to instances without a record."""

from __future__ import annotations

from typing import Final

from oslo_config import cfg

from dfmeta.conf.store import GROUP

__all__ = ["GROUP", "OPTS"]

OPTS: Final = [
    cfg.BoolOpt(
        "defaults",
        default=False,
        mutable=True,
        help="Answer an instance that has no record of its own from the defaults that dfmeta "
        "store put writes with --default, --default-host and --default-project. Defaults of its "
        "project override those of the host (named as hostname prints it), and these override "
        "those for all instances. The host name is made from the libvirt domain's name. When this "
        "is false, or the store has no defaults, such an instance gets 404.",
    ),
]
