"""A Nova in place of the daemon's own store.

The engine haproxy needs ``backend = nova``. With ``DFMETA_TEST_ENGINE=haproxy``, a daemon whose
test sets no backend asks a Nova that has what the test puts into the store.
"""

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from weakref import WeakKeyDictionary

from tests.harness.nova import SECRET, RecordingNova
from tests.harness.nova_tree import Instance
from tests.harness.ovs import OpenvSwitch

ENGINE: Final = os.environ.get("DFMETA_TEST_ENGINE", "wsgi")
"""Engine of a daemon whose test sets neither engine nor workers; tools/soak runs some tests with
both."""
PORT: Final = 8774
"""Not Nova's own, which tests use."""
PROJECT: Final = "0c5e1b9f4e0a4d0f9b6f6f2d1c3a7e58"
"""Project of all its instances, and of guests there whose test sets none."""
OPTIONS: Final[dict[str, dict[str, object]]] = {
    "DEFAULT": {"metadata_proxy_shared_secret": SECRET, "nova_metadata_port": PORT},
    "df_metadata": {"backend": "nova"},
}


class StandIn:
    """A Nova on a compute node, for all daemons there; see :func:`of`.

    Guests that are there already get their project.
    """

    def __init__(self, host: OpenvSwitch) -> None:
        self._nova = RecordingNova(host.namespace, port=PORT)
        host.on_close(self._nova.close)
        table = json.loads(
            host.vsctl("--format=json", "--columns=name,external_ids", "list", "Interface")
        )
        for name, (_kind, pairs) in table["data"]:
            ids = dict(pairs)
            if "vm-uuid" in ids and "project-id" not in ids:
                host.vsctl("set", "Interface", name, f"external_ids:project-id={PROJECT}")

    def put(self, arguments: Sequence[str]) -> None:
        """Do as ``dfmeta store put`` does with these arguments.

        :raises SystemExit: when Nova has no such thing.
        """
        parser = argparse.ArgumentParser()
        parser.add_argument("instance_id")
        parser.add_argument("--hostname", default="")
        parser.add_argument("--user-data", type=Path)
        parser.add_argument("--ssh-key", action="append", default=[])
        given = parser.parse_args(arguments)
        self._nova.put(
            Instance(
                instance_id=given.instance_id,
                project_id=PROJECT,
                hostname=given.hostname,
                keys={key.split()[-1]: key for key in given.ssh_key},
                user_data=given.user_data and given.user_data.read_bytes(),
                ec2_id=given.instance_id,
            )
        )


_there: WeakKeyDictionary[OpenvSwitch, StandIn] = WeakKeyDictionary()


def of(host: OpenvSwitch) -> StandIn:
    """Return the one of that compute node."""
    if host not in _there:
        _there[host] = StandIn(host)
    return _there[host]


def project_on(host: OpenvSwitch) -> str:
    """Return the project of guests on that compute node; empty: it has no stand-in."""
    return PROJECT if host in _there else ""
