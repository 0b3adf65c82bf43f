"""Networks of dockerd (CNM, the container network model) and of podman (netavark).

Trust: both are root of this VM. Their values are checked as those of a CNI runtime are.
"""

from __future__ import annotations

import contextlib
import json
import os

from dfmeta.guest.cni import MAX_INPUT, CniError, Code, Document, member, parse_json, read_config
from dfmeta.guest.cni.cni import attach, delete, outer_name, routes_of
from dfmeta.guest.cni.host_api import CONTAINER, NUMBER, CniCall, HostReply, packed, prefix_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socketserver

DOCKER, STATE = "/run/docker/plugins/dfmeta.sock", "/var/lib/dfmeta-cni"
NETAVARK = "1.0.0"
"""Version of netavark's API for plugins."""
TYPED = ("mtu", "timeout", "defaultRoute", "metadataRoute")
OPTIONS = ("network", "link", "parent", "bridge", "db", "endpoint", "owner", *TYPED)
"""Options of a network: the keys of a network configuration of CNI."""
CHOSEN_BY_HOST = {
    "subnets": "the host gives addresses: leave --subnet, --gateway and --ip-range out",
    "routes": "the host gives routes: leave --route out",
    "network_interface": "the interface is an option: write -o parent=DEVICE",
    "internal": "the default route is an option: write -o defaultRoute=false",
    "ipv6_enabled": "the host gives addresses: leave --ipv6 out",
}
"""Members of a network that podman cannot set → the error."""


def from_options(options: object, name: str) -> Document:
    """Return the network configuration that a runtime has as options, whose values are text."""
    config: Document = {"name": name}
    for key, value in options.items() if isinstance(options, dict) else ():
        config[key] = parse_json(str(value).encode()) if key in TYPED else value
    return config


class DockerDriver:
    """Docker's remote driver (libnetwork, docs/remote.md).

    dockerd moves devices into containers, and sets addresses and routes.

    :param folder: keeps what dockerd sends once: options of networks, and ids of endpoints.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def answer(self, verb: str, body: object) -> Document:
        """Return the answer to a call."""
        if verb == "Plugin.Activate":
            return {"Implements": ["NetworkDriver"]}
        calls = {"CreateEndpoint": self._create, "Join": self._join, "DeleteEndpoint": self._delete}
        name = verb.partition(".")[2]
        if name in calls:
            call = self._call(body)
            with contextlib.closing(call.api):
                return calls[name](call, body)
        if name == "CreateNetwork":
            self._save(body)
            self._clear(body)
        if name == "DeleteNetwork" and os.path.exists(self._path(body)):
            self._clear(body)
            os.unlink(self._path(body))
        # Addresses are given in each VM, and a network is that of other VMs too (as macvlan's).
        scopes = {"Scope": "local", "ConnectivityScope": "global"}
        return scopes if name == "GetCapabilities" else {}

    def _path(self, body: object) -> str:
        network = member(body, "NetworkID")
        if not isinstance(network, str) or not CONTAINER.fullmatch(network):
            raise CniError(Code.ENVIRONMENT, "NetworkID has not its form", "dockerd has to send it")
        return os.path.join(self.folder, network)

    def _save(self, body: object) -> None:
        options = member(member(body, "Options"), "com.docker.network.generic")
        config = from_options(options, "docker")
        CniCall("STATUS", config, {})
        os.makedirs(self.folder, exist_ok=True)
        with open(self._path(body) + ".new", "w", encoding="utf-8") as file:
            json.dump(config, file)
        os.replace(self._path(body) + ".new", self._path(body))

    def _clear(self, body: object) -> None:
        """Delete the endpoints of a network that has none for dockerd: a kill makes it forget."""
        for name in os.listdir(self.folder):
            network, colon, endpoint = name.partition(":")
            if colon and network == member(body, "NetworkID"):
                endpoints = {"NetworkID": network, "EndpointID": endpoint}
                self.answer("NetworkDriver.DeleteEndpoint", endpoints)

    def _call(self, body: object) -> CniCall:
        try:
            with open(self._path(body), "rb") as file:
                config = read_config(file.read())
        except FileNotFoundError:
            raise CniError(Code.UNKNOWN, "the network is unknown", "Make it again") from None
        interface, endpoint = member(body, "Interface"), str(member(body, "EndpointID"))
        mac, address = member(interface, "MacAddress"), member(interface, "Address")
        config["runtimeConfig"] = {"mac": mac, "ips": [address] if address else []}
        environ = {"CNI_CONTAINERID": endpoint, "CNI_NETNS": "/proc/self/ns/net"}
        environ["CNI_IFNAME"] = outer_name(endpoint, "docker").replace("dfc", "dfd")
        call = CniCall("ADD", config, environ)
        call.bare = True
        return call

    def _create(self, call: CniCall, body: object) -> Document:
        open(f"{self._path(body)}:{call.container}", "ab").close()
        reply, interface = attach(call), member(body, "Interface")
        given = {"Address": reply.ips[0][0], "MacAddress": reply.mac}
        return {"Interface": {name: given[name] for name in given if not member(interface, name)}}

    def _join(self, call: CniCall, _body: object) -> Document:
        routes = routes_of(call, HostReply(call.api.ask("GET", call.path)))
        gateways = [gateway for dst, gateway in routes if not prefix_of(dst)[1]]
        far = [(dst, gateway) for dst, gateway in routes if prefix_of(dst)[1]]
        static = [{"Destination": dst, "RouteType": int(not gw), "NextHop": gw} for dst, gw in far]
        return {
            "InterfaceName": {"SrcName": call.ifname, "DstPrefix": "eth"},
            "Gateway": gateways[0] if gateways else "",
            "StaticRoutes": static,
            "DisableGatewayService": True,
        }

    def _delete(self, call: CniCall, body: object) -> Document:
        delete(call)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{self._path(body)}:{call.container}")
        return {}


def listen(path: str, folder: str) -> socketserver.BaseServer:
    """Return a server for dockerd at a unix socket that root alone may use."""
    import http.server
    import socketserver

    driver = DockerDriver(folder)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = self.headers.get("Content-Length", "0").encode()
            raw = self.rfile.read(min(int(length), MAX_INPUT)) if NUMBER.fullmatch(length) else b""
            try:
                answer = driver.answer(self.path[1:], parse_json(raw))
            except (CniError, OSError) as error:
                answer = {"Err": f"{error}. {getattr(error, 'details', '')}"}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *_arguments: object) -> None:
            pass

    # A call leaves its descriptors to the end of its process.
    class Server(socketserver.ForkingMixIn, socketserver.UnixStreamServer):
        max_children, request_queue_size = 100, 128

    os.makedirs(os.path.dirname(path), exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    before = os.umask(0o177)
    try:
        return Server(path, Handler)
    finally:
        os.umask(before)


def serve() -> None:
    """Serve dockerd until the process is terminated."""
    import signal
    import sys

    # The first process of a container ignores signals without a handler (pid_namespaces(7)).
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    listen(DOCKER, STATE).serve_forever()


def netavark(words: list[str], raw: bytes) -> Document | None:
    """Carry out a sub-command of a plugin (netavark, plugin-API.md); return the document to print.

    :param words: the sub-command, and the path of the container's namespace.
    """
    if words == ["info"]:
        from importlib import metadata

        return {"version": metadata.version("dfmeta"), "api_version": NETAVARK}
    verb = {"setup": "ADD", "teardown": "DEL"}.get(words[0], "")
    if len(words) != (2 if verb else 1) or not (verb or words == ["create"]):
        remedy = "Use info, create, setup PATH or teardown PATH, as podman does"
        raise CniError(Code.ENVIRONMENT, "the arguments are not those of a sub-command", remedy)
    document = read_config(raw)
    if not verb:
        return _create(document)
    options, name = member(document, "network_options"), member(document, "container_name")
    config = from_options(member(member(document, "network"), "options"), "podman")
    ips, mac = member(options, "static_ips") or [], member(options, "static_mac")
    config["runtimeConfig"] = {"mac": mac, "ips": ips}
    environ = {"CNI_NETNS": words[1], "CNI_ARGS": f"K8S_POD_NAME={name}" if name else ""}
    environ["CNI_CONTAINERID"] = str(member(document, "container_id") or "")
    environ["CNI_IFNAME"] = str(member(options, "interface_name") or "")
    call = CniCall(verb, config, environ)
    with contextlib.closing(call.api):
        if verb == "ADD":
            return _set_up(call)
        delete(call)
        return None


def _create(network: Document) -> Document:
    """Return a network as podman has to store it."""
    remedy = "Write podman network create -d DRIVER -o network=NETWORK NAME"
    for name, cause in CHOSEN_BY_HOST.items():
        if network.get(name):
            raise CniError(Code.CONFIGURATION, cause, remedy)
    if (member(network.get("ipam_options"), "driver") or "none") != "none":
        cause = "the host gives addresses: use --ipam-driver none"
        raise CniError(Code.CONFIGURATION, cause, remedy)
    config = from_options(network.get("options"), "podman")
    remedy = f"Use {', '.join(OPTIONS)}"
    for key in config:
        if key not in (*OPTIONS, "name"):
            raise CniError(Code.CONFIGURATION, f"{key} is not an option", remedy)
    CniCall("STATUS", config, {})
    return {**network, "dns_enabled": False, "ipam_options": {"driver": "none"}}


def _set_up(call: CniCall) -> Document:
    """Attach a container; return its devices, addresses and name servers."""
    reply = attach(call)
    subnets = [{"ipnet": address, "gateway": gateway or None} for address, gateway in reply.ips]
    lists = [reply.dns.get(name) for name in ("nameservers", "search")]
    servers, search = ([*map(str, texts)] if isinstance(texts, list) else [] for texts in lists)
    return {
        "interfaces": {call.ifname: {"mac_address": reply.mac, "subnets": subnets}},
        "dns_server_ips": [server for server in servers if packed(server)],
        "dns_search_domains": search,
    }
