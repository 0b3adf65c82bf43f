"""A program: makes the databases of a Nova, and instances as its API and nova-compute make them.

It is run by the Python of the environment that tools/setup.sh makes for Nova, in the folder of
nova.conf. Each line of its input is an instance as JSON; it prints a line once the databases are
made, and after each instance. The tables are made from the models: the migrations take 18 s.
"""

from __future__ import annotations

import json
import sys
import uuid
from pathlib import Path
from typing import Any

import sqlalchemy
from nova import config, context, objects
from nova.db.api import models as api_models
from nova.db.main import models as main_models
from nova.network import model, neutron

CELL0, CELL1 = ("sqlite:///" + str(Path(f"{name}.db").absolute()) for name in ("cell0", "cell1"))
API = "sqlite:///" + str(Path("api.db").absolute())


def make_tables() -> None:
    """Make all databases, as ``nova-manage`` does."""
    for place, base in ((API, api_models), (CELL0, main_models), (CELL1, main_models)):
        engine = sqlalchemy.create_engine(place)
        base.BASE.metadata.create_all(engine)
        engine.dispose()


def make_cells(admin: Any) -> Any:
    """Make the mappings of the cells; return that of the one with instances."""
    for name, number, url, place in (
        ("cell0", objects.CellMapping.CELL0_UUID, "none:///", CELL0),
        ("cell1", str(uuid.uuid4()), "fake:///", CELL1),
    ):
        values = {"transport_url": url, "database_connection": place}
        cell = objects.CellMapping(admin, name=name, uuid=number, **values)
        cell.create()
    return cell


def make(admin: Any, cell: Any, facts: dict[str, Any]) -> None:
    """Make an instance; its network cache comes from Neutron's ports of the instance.

    :param facts: ``id``, ``project``, ``hostname``, ``key`` or null, ``user_data`` in Base64 or
        null, ``cached``: whether Neutron is asked for the ports.
    """
    key = facts["key"]
    pairs = [objects.KeyPair(name="key-1", public_key=key, type="ssh")] if key else []
    with context.target_cell(admin, cell) as target:
        instance = objects.Instance(
            target,
            uuid=facts["id"],
            project_id=facts["project"],
            user_id="user",
            hostname=facts["hostname"],
            display_name=facts["hostname"],
            reservation_id="r-k6l5j4h3",
            launch_index=0,
            root_device_name="/dev/vda",
            flavor=objects.Flavor(name="m1.small"),
            key_name="key-1" if key else None,
            key_data=key,
            keypairs=objects.KeyPairList(objects=pairs),
            user_data=facts["user_data"],
            metadata={},
            system_metadata={},
            info_cache=objects.InstanceInfoCache(network_info=model.NetworkInfo()),
        )
        instance.create()
        if facts["cached"]:
            neutron.API().get_instance_nw_info(target, instance, force_refresh=True)
    values = {"instance_uuid": facts["id"], "project_id": facts["project"], "user_id": "user"}
    objects.InstanceMapping(admin, cell_mapping=cell, **values).create()


def main() -> None:
    """Serve until the input ends."""
    config.parse_args(["instances", "--config-file", "nova.conf"])
    objects.register_all()
    make_tables()
    admin = context.get_admin_context()
    cell = make_cells(admin)
    sys.stdout.write("begun\n")
    sys.stdout.flush()
    for line in sys.stdin:
        make(admin, cell, json.loads(line))
        sys.stdout.write("made\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
