"""``dfmeta-cni``, inside a guest: the CNI plugin that gives containers ports of their own.

A runtime calls it for each container (CNI specification 1.1.0; netavark, plugin-API.md, 1.0.0). It
asks the host for an attachment, over the metadata address, and makes the container's device: a VLAN
device of the VM's interface, or a veth whose other end is an access port of an Open vSwitch bridge
in the VM.

Trust: the runtime's environment and configuration come from root of this VM, and are checked for
form. The host's answers are bounded and checked. No token is printed or stored.

Functions raise :class:`CniError` with the text for the runtime, and OSError if the kernel refuses.

The package runs on Python 3.8 and later, with the standard library only: a guest may have nothing
but the single file that ``tools/dfmeta-cni-zip`` makes of it. Its modules are compiled at each
start, so that VERSION and STATUS, which a runtime asks often, load few of them.
"""

from __future__ import annotations

import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Document = dict[str, Any]
else:
    Document = dict

VERSIONS = ("0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
SINCE = {"ADD": "0.3.0", "DEL": "0.3.0", "CHECK": "0.4.0", "GC": "1.1.0", "STATUS": "1.1.0"}
"""Verb → the first version of the specification that has it."""
MAX_INPUT = 4 << 20
"""Bytes that are read of stdin at most."""


class Code:
    """Codes of errors: those of the specification, and from 100 on this program's own."""

    VERSION, UNKNOWN, ENVIRONMENT, IO, DECODE, CONFIGURATION = 1, 3, 4, 5, 6, 7
    LATER, UNAVAILABLE, SHORT = 11, 50, 51
    MTU, REFUSED, CONFLICT, EXHAUSTED, DIFFERENT = range(100, 105)


class CniError(Exception):
    """An error for the runtime; ``details`` has the remedy."""

    def __init__(self, code: int, msg: str, details: str = "") -> None:
        self.code, self.msg, self.details = code, msg, details
        super().__init__(msg)


def wrong_key(name: str, form: str) -> CniError:
    """Return the error for a key of the configuration that has not its form."""
    remedy = "Correct the network configuration"
    return CniError(Code.CONFIGURATION, f"{name} has to be {form}", remedy)


def parse_json(raw: bytes) -> Any:
    """Return a JSON document; None for text that is none, and for no text."""
    try:
        return json.loads(raw.decode(), parse_int=lambda digits: int(digits[:20])) if raw else None
    except (ValueError, RecursionError):
        return None


def member(document: object, name: str) -> Any:
    """Return a member of a document; None without it, and if the document is no object."""
    return document.get(name) if isinstance(document, dict) else None


def read_config(raw: bytes) -> Document:
    """Return the network configuration, which has to be a JSON object."""
    if len(raw) > MAX_INPUT:
        raise CniError(Code.DECODE, f"the network configuration has more than {MAX_INPUT} bytes")
    config = parse_json(raw)
    if not isinstance(config, dict):
        raise CniError(Code.DECODE, "the network configuration is not a JSON object", "Correct it")
    return config


def run(verb: str, raw: bytes, environ: dict[str, str]) -> object:
    """Carry out a verb of CNI; return the result to print."""
    if verb == "VERSION":
        version = read_config(raw).get("cniVersion") if raw.strip() else None
        version = version if version in VERSIONS else VERSIONS[-1]
        return {"cniVersion": version, "supportedVersions": [*VERSIONS]}
    if verb not in SINCE:
        cause = "CNI_COMMAND is not a verb" if verb else "CNI_COMMAND is missing"
        remedy = "A container runtime calls this program: see the documentation of dfmeta-cni"
        raise CniError(Code.ENVIRONMENT, cause, remedy)
    config = read_config(raw)
    version = config.get("cniVersion")
    if version not in VERSIONS or version < SINCE[verb]:
        state = f"does not allow {verb}" if version in VERSIONS else "is unknown"
        remedy = f"Use {', '.join(allowed for allowed in VERSIONS if allowed >= SINCE[verb])}"
        raise CniError(Code.VERSION, f"cniVersion {state}", remedy)

    from dfmeta.guest.cni import host_api

    call = host_api.CniCall(verb, config, environ)
    try:
        if verb == "STATUS":
            host_api.check_status(call)
            return None

        from dfmeta.guest.cni import cni

        verbs = {"ADD": cni.add, "DEL": cni.delete, "CHECK": cni.check, "GC": cni.collect}
        return verbs[verb](call)
    finally:
        call.api.close()


def main() -> int:
    """Run the plugin; return 0, or 1 after an error on stdout."""
    words, verb, raw = sys.argv[1:], os.environ.get("CNI_COMMAND", ""), b""
    if words:
        # All modules, because an upgrade may replace the file under a server.
        from dfmeta.guest.cni import cnm
    if words == ["--docker"]:
        cnm.serve()
    try:
        if (verb or words) and sys.stdin is not None and not sys.stdin.isatty():
            raw = sys.stdin.buffer.read(MAX_INPUT + 1)
        document = cnm.netavark(words, raw) if words else run(verb, raw, dict(os.environ))
    except CniError as error:
        failure = error
    except OSError as error:
        cause = f"the kernel refuses a change: {error.strerror or error}"
        failure = CniError(Code.IO, cause, "Run as root")
    else:
        sys.stdout.write("" if document is None else json.dumps(document) + "\n")
        return 0
    msg, details = _printable(failure.msg), _printable(failure.details)
    version = member(parse_json(raw), "cniVersion")
    document = {"cniVersion": version if version in VERSIONS else VERSIONS[-1]}
    document.update({"code": failure.code, "msg": msg, "details": details})
    sys.stdout.write(json.dumps({"error": f"{msg}. {details}"} if words else document) + "\n")
    return 1


def _printable(text: str) -> str:
    """Return text for a terminal, because runtimes print messages as they are."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
