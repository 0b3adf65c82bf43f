"""Options of OVN's southbound database as an identity source, group ``[ovn]``, as Neutron's agents
have them.
"""

from __future__ import annotations

import re
from typing import Final

from oslo_config import cfg

from dfmeta.conf.kinds import Several, Text, check_file, has_port

GROUP: Final = cfg.OptGroup(
    name="ovn",
    title="OVN's southbound database as an identity source",
    help="Used when identity_sources contains ovn. dfmeta only reads this host's ports there.",
)
_METHOD: Final = re.compile(r"unix:/\S+|(tcp|ssl):\S+:\d+")
FILES: Final = {
    "ovn_sb_private_key": "private key",
    "ovn_sb_certificate": "certificate of ovn_sb_private_key",
    "ovn_sb_ca_cert": "certificates of the authorities for the database's certificate",
}

OPTS: Final = [
    cfg.Opt(
        "ovn_sb_connection",
        type=Several(
            Text(
                "unix:PATH, tcp:HOST:PORT or ssl:HOST:PORT with a port from 1 to 65535",
                lambda text: _METHOD.fullmatch(text) and has_port(text),
                example="tcp:192.0.2.10:6642",
            )
        ),
        help="Address of the database, or those of a cluster's members with commas between them. "
        "Unset: that of ovn-controller, external_ids:ovn-remote of Open_vSwitch.",
    ),
    *(
        cfg.StrOpt(name, default="", help=f"PEM file with the {noun}, for ssl: addresses.")
        for name, noun in FILES.items()
    ),
]


def check(conf: cfg.ConfigOpts) -> None:
    """Check that the files can be read.

    :raises ConfigError: naming the option.
    """
    for option in FILES:
        check_file(f"[ovn] {option}", conf.ovn[option])
