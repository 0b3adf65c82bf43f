"""Whether an instance without a record gets defaults: an option of the group ``[store]``."""

from __future__ import annotations

from typing import Final

from oslo_config import cfg

from dfmeta.conf.store import GROUP

__all__ = ["GROUP", "OPTS"]

OPTS: Final = [
    cfg.BoolOpt(
        "defaults",
        default=False,
        help="Answer an instance that has no record of its own from the defaults that dfmeta "
        "store put keeps with --default, --default-host and --default-project; those of its "
        "project come before those of the host, as hostname prints its name, and these before "
        "those for all. The host name is made of the libvirt domain's name. Without defaults in "
        "the store, and when this is false, such an instance gets 404.",
    ),
]
