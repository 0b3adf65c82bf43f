"""Asks ovs-vswitchd over its control socket, as ovs-appctl(8) does."""

from __future__ import annotations

from pathlib import Path

from dfmeta.exceptions import DfmetaError
from dfmeta.inspect.jsonrpc import TIMEOUT, RefusedError, call, why

DEFAULT_RUNDIR = Path("/var/run/openvswitch")
_NAME = "ovs-vswitchd"


class VswitchdError(DfmetaError):
    """ovs-vswitchd does not answer, or refuses what it was asked."""

    name = "vswitchd"
    sentence = "ovs-vswitchd at {target}: {cause}"
    advice = "See that ovs-vswitchd runs, and what its log says"


def run_folder(ovsdb: str) -> Path:
    """Open vSwitch's run directory: where OVSDB's socket is, or the default."""
    kind, _, path = ovsdb.partition(":")
    return Path(path).parent if kind == "unix" else DEFAULT_RUNDIR


def management_socket(openflow: str, ovsdb: str, bridge: str) -> Path:
    """Path of *bridge*'s management socket (ovs-vswitchd(8)).

    :param openflow: the option openflow_connection; with ``listen:`` the socket is there as well.
    """
    kind, _, path = openflow.partition(":")
    return Path(path) if kind == "unix" else run_folder(ovsdb) / f"{bridge}.mgmt"


def control_socket(folder: Path) -> Path:
    """Path of its control socket: named after its pid unless ``--unixctl`` says otherwise.

    :raises VswitchdError: when there is none.
    """
    candidates = [folder / f"{_NAME}.ctl"]
    try:
        pid = int((folder / f"{_NAME}.pid").read_text())
        candidates.insert(0, folder / f"{_NAME}.{pid}.ctl")
    except (OSError, ValueError):
        pid = 0
    found = next((one for one in candidates if one.exists()), None)
    if found is None:
        raise VswitchdError(target=candidates[0], cause="there is no control socket: not running")
    return found


class Vswitchd:
    """The running ovs-vswitchd.

    :param folder: Open vSwitch's run directory.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def version(self) -> str:
        """What it calls itself, such as ``ovs-vswitchd (Open vSwitch) 3.1.0``.

        :raises VswitchdError: when it does not answer.
        """
        return self._ask("version").strip()

    def trace(self, bridge: str, packet: str) -> str:
        """Follow *packet* through *bridge* (``ofproto/trace``); nothing is sent.

        :param packet: in ovs-ofctl(8)'s notation.
        :raises VswitchdError: when it does not answer, or there is no such bridge.
        """
        return self._ask("ofproto/trace", bridge, packet)

    def _ask(self, method: str, *params: str) -> str:
        path = control_socket(self._folder)
        try:
            return str(call(f"unix:{path}", method, params, timeout=TIMEOUT))
        except (OSError, ValueError, RefusedError) as error:
            raise VswitchdError(target=path, cause=why(error)) from error
