"""Records the metadata trees of real Nova for the instances of tests/data/nova/facts.json.

Runs with .cache/nova's interpreter: ``nova_program.py FACTS`` prints a tree for each instance, of
each path that a listing names, or that another version lists and this one answers too. Nova's own
handler answers; its database, Neutron and its random numbers are replaced.
"""

import itertools
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import webob
from nova import conf, objects
from nova.api.metadata import base, handler
from nova.network import model
from nova.objects import virt_device_metadata as tagged
from oslo_log import log
from oslo_serialization import base64

Facts = dict[str, Any]
BUSES = {"pci": tagged.PCIDeviceBus, "scsi": tagged.SCSIDeviceBus}


def devices(given: list[Facts]) -> Any:
    """Return the objects of tagged devices."""
    result = []
    for device in given:
        values = {name: device[name] for name in device if name not in ("type", "bus", "address")}
        if device["bus"] != "none":
            values["bus"] = BUSES[device["bus"]](address=device["address"])
        kinds = {"nic": "NetworkInterfaceMetadata", "disk": "DiskMetadata"}
        result.append(getattr(tagged, kinds.get(device["type"], "ShareMetadata"))(**values))
    return tagged.InstanceDeviceMetadata(devices=result)


def vif(port: Facts) -> Any:
    """Return a port as Nova caches it."""
    subnets = []
    for subnet in port["subnets"]:
        address = model.FixedIP(address=subnet["address"])
        address["floating_ips"] = [
            model.IP(text, "floating") for text in subnet.get("floating", [])
        ]
        dhcp = {"dhcp_server": subnet["gateway"]} if subnet.get("dhcp") else {}
        subnets.append(
            model.Subnet(
                cidr=subnet["cidr"],
                gateway=model.IP(subnet["gateway"], "gateway"),
                dns=[model.IP(server, "dns") for server in subnet["dns"]],
                ips=[address],
                routes=[model.Route(cidr, model.IP(via)) for cidr, via in subnet["routes"]],
                **dhcp,
            )
        )
    network = model.Network(f"net-{port['id']}", "br-int", "lan", subnets, mtu=port["mtu"])
    return model.VIF(port["id"], port["mac"], network, model.VIF_TYPE_OVS, devname=port["device"])


def instance(facts: Facts) -> Any:
    """Return an instance with all that its metadata depends on."""
    document, nova = facts["document"], facts["nova"]
    userdata, password = facts["userdata"], facts["password"]
    ((key_name, key),) = document.get("public_keys", {"": ""}).items()
    pair = objects.KeyPair(name=key_name, public_key=key, type=nova["key_type"] or "ssh")
    cells = [objects.InstanceNUMACell(pcpuset=set(document.get("dedicated_cpus", ())))]
    encoded = None if userdata is None else base64.encode_as_text(userdata.encode("latin-1"))
    return objects.Instance(
        uuid=facts["id"],
        project_id=facts["project_id"],
        hostname=document["hostname"].partition(".")[0],
        display_name=document["name"],
        launch_index=document.get("launch_index", 0),
        availability_zone=document.get("availability_zone"),
        reservation_id=nova["reservation_id"],
        root_device_name=nova["root_device_name"],
        default_ephemeral_device=None,
        default_swap_device=None,
        flavor=objects.Flavor(name=document["plan"]),
        key_name=key_name or None,
        key_data=key or None,
        keypairs=objects.KeyPairList(objects=[pair] if key_name else []),
        metadata=document.get("meta", {}),
        system_metadata={"password_0": password} if password else {},
        user_data=encoded,
        ec2_ids=objects.EC2Ids(
            instance_id=document["ec2_instance_id"],
            ami_id=nova["ami_id"],
            kernel_id=None,
            ramdisk_id=None,
        ),
        device_metadata=devices(document.get("devices", [])),
        numa_topology=objects.InstanceNUMATopology(cells=cells),
        info_cache=objects.InstanceInfoCache(
            network_info=model.NetworkInfo([vif(port) for port in nova["ports"]])
        ),
    )


class Walk:
    """Requests to Nova's handler on behalf of one instance."""

    def __init__(self, facts: Facts) -> None:
        groups = [{"name": name} for name in facts["nova"]["security_groups"]]
        volumes = [
            objects.BlockDeviceMapping(
                source_type="volume", destination_type="volume", device_name=name
            )
            for name in facts["nova"]["volumes"]
        ]
        patch = mock.patch.object
        with (
            patch(base.security_group_api, "get_instance_security_groups", lambda *_: groups),
            patch(objects.Instance, "get_bdms", lambda _: volumes),
        ):
            metadata = base.InstanceMetadata(instance(facts), "10.0.0.99")
        self._handler = handler.MetadataRequestHandler()
        self._handler.get_metadata_by_remote_address = lambda _: metadata

    def ask(self, path: str) -> list[Any] | None:
        """Return type and body of a path; None if it does not exist."""
        request = webob.Request.blank(path, remote_addr="10.0.0.99")
        with mock.patch.object(base.os, "urandom", return_value=bytes(16)):
            answer = request.get_response(self._handler)
        assert answer.status_int in (200, 404), (path, answer.status)
        text = answer.body.decode("latin-1")
        body = json.loads(text) if text.startswith("{") else text
        return None if answer.status_int == 404 else [answer.headers.get("Content-Type"), body]

    def below(self, folder: str) -> Iterator[str]:
        """Yield the paths that listings name, as cloud-init crawls them; folders end in a slash."""
        yield folder
        for name in (self.ask(folder) or ["", ""])[1].splitlines():
            if name.endswith("/"):
                yield from self.below(f"{folder}{name}")
            elif "=" in name:
                yield from self.below(f"{folder}{name.partition('=')[0]}/")
            else:
                yield f"{folder}{name}"

    def tree(self) -> dict[str, Any]:
        """Return the answers by path, and then by the first version that gives them."""
        result: dict[str, Any] = {}
        for root in ("/", "/openstack/"):
            result[root] = self.ask(root)
            versions = result[root][1].splitlines()
            names = {
                path.removeprefix(f"{root}{version}"): None
                for version in versions
                for path in self.below(f"{root}{version}/")
            }
            for name in names:
                answers = {version: self.ask(f"{root}{version}{name}") for version in versions}
                groups = itertools.groupby(answers.items(), lambda answer: answer[1])
                since = {next(group)[0]: answer for answer, group in groups if answer}
                result[f"{root}VERSION{name}"] = since
        return result


def main() -> None:
    """Print the trees as JSON, one line for each path."""
    instances = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    log.register_options(conf.CONF)
    conf.CONF([], default_config_files=[])
    objects.register_all()
    trees = []
    for name, facts in instances.items():
        with tempfile.NamedTemporaryFile("w") as file:
            json.dump(facts["document"].get("vendor_data", {}), file)
            file.flush()
            conf.CONF.set_override("vendordata_jsonfile_path", file.name, "api")
            tree = Walk(facts).tree()
        lines = [f"  {json.dumps(path)}: {json.dumps(tree[path])}" for path in tree]
        trees.append(f"{json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n}")
    sys.stdout.write("{\n" + ",\n".join(trees) + "\n}\n")


if __name__ == "__main__":
    main()
