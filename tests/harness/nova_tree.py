"""Nova's metadata of an instance: the OpenStack and the EC2 tree, as documents."""

import json
from dataclasses import dataclass, field
from typing import Any

OPENSTACK_VERSIONS = ("2012-08-10", "2013-04-04", "2018-08-27", "2020-10-14")
EC2_VERSIONS = ("1.0", "2007-01-19", "2009-04-04")
"""Some of Nova's: the first ones, and those that clients request."""
JSON = "application/json"
TEXT = "text/plain; charset=UTF-8"

Tree = dict[str, "Tree | str | bytes"]


@dataclass(frozen=True, kw_only=True)
class Instance:
    """An instance of Nova; ``keys`` maps names to public keys."""

    instance_id: str
    project_id: str
    hostname: str = "guest"
    keys: dict[str, str] = field(default_factory=dict)
    user_data: bytes | None = None
    ec2_id: str = ""
    """Empty: Nova's own form."""
    network_data: dict[str, Any] = field(
        default_factory=lambda: {"links": [], "networks": [], "services": []}
    )


@dataclass(frozen=True, kw_only=True)
class Document:
    """The body and content type of an answer."""

    body: bytes
    content_type: str = TEXT


def find(instance: Instance, path: str, client: str) -> Document | None:
    """Return the document at ``path`` (without a query), or None if Nova answers 404.

    :param client: X-Forwarded-For, which is the instance's local-ipv4.
    """
    parts = [part for part in path.split("/") if part]
    if not parts:
        return Document(body=_lines([*EC2_VERSIONS, "latest"]))
    if parts[0] == "openstack":
        return _openstack(instance, parts[1:])
    if parts[0] not in (*EC2_VERSIONS, "latest"):
        return None
    return _ec2(instance, parts[1:], client)


def _openstack(instance: Instance, parts: list[str]) -> Document | None:
    if not parts:
        return Document(body=_lines([*OPENSTACK_VERSIONS, "latest"]))
    if parts[0] not in (*OPENSTACK_VERSIONS, "latest"):
        return None
    files: dict[str, Document] = {
        "meta_data.json": Document(body=_json(_meta_data(instance)), content_type=JSON),
        "password": Document(body=b""),
        "vendor_data.json": Document(body=_json({}), content_type=JSON),
        "network_data.json": Document(body=_json(instance.network_data)),
        "vendor_data2.json": Document(body=_json({}), content_type=JSON),
    }
    if instance.user_data is not None:
        files["user_data"] = Document(body=instance.user_data)
    if len(parts) == 1:
        return Document(body=_lines(list(files)))
    return files.get("/".join(parts[1:]))


def _meta_data(instance: Instance) -> dict[str, Any]:
    document: dict[str, Any] = {
        "uuid": instance.instance_id,
        "hostname": instance.hostname,
        "name": instance.hostname.partition(".")[0],
        "launch_index": 0,
        "availability_zone": "nova",
        "random_seed": "bm90IHJhbmRvbQ==",
        "project_id": instance.project_id,
        "devices": [],
    }
    if instance.keys:
        document["public_keys"] = instance.keys
        document["keys"] = [
            {"name": name, "type": "ssh", "data": key} for name, key in instance.keys.items()
        ]
    return document


def _ec2(instance: Instance, parts: list[str], client: str) -> Document | None:
    meta_data: Tree = {
        "ami-id": "ami-00000001",
        "ami-launch-index": "0",
        "ami-manifest-path": "FIXME",
        "block-device-mapping": {"ami": "sda1", "root": "/dev/sda1"},
        "hostname": instance.hostname,
        "instance-action": "none",
        "instance-id": instance.ec2_id or "i-" + instance.instance_id[:8],
        "instance-type": "m1.small",
        "local-hostname": instance.hostname,
        "local-ipv4": client,
        "placement": {"availability-zone": "nova"},
        "public-hostname": instance.hostname,
        "public-ipv4": "",
        "reservation-id": "r-00000001",
        "security-groups": "default",
    }
    if instance.keys:
        meta_data["public-keys"] = {
            str(number): {"_name": f"{number}={name}", "openssh-key": key}
            for number, (name, key) in enumerate(instance.keys.items())
        }
    tree: Tree = {"meta-data": meta_data}
    if instance.user_data is not None:
        tree["user-data"] = instance.user_data
    node: Tree | str | bytes = tree
    for part in parts:
        if not isinstance(node, dict) or part not in node or part == "_name":
            return None
        node = node[part]
    if isinstance(node, dict):
        return Document(body=_listing(node))
    return Document(body=node if isinstance(node, bytes) else node.encode())


def _listing(tree: Tree) -> bytes:
    names = []
    for name, value in sorted(tree.items()):
        if name == "_name":
            continue
        if not isinstance(value, dict):
            names.append(name)
        elif "_name" in value:
            names.append(str(value["_name"]))
        else:
            names.append(name + "/")
    return _lines(names)


def _lines(names: list[str]) -> bytes:
    return "\n".join(names).encode()


def _json(document: Any) -> bytes:
    return json.dumps(document).encode()
