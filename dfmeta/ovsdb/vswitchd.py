"""Send commands to ovs-vswitchd over its control socket, as ovs-appctl(8) does."""

from pathlib import Path

from dfmeta.errors import DfmetaError

DEFAULT_RUNDIR = Path("/var/run/openvswitch")
_NAME = "ovs-vswitchd"


class VswitchdError(DfmetaError):
    """ovs-vswitchd does not answer, or refuses the command."""

    name = "vswitchd"
    sentence = "ovs-vswitchd at {target}: {cause}"
    advice = "Check that ovs-vswitchd runs, and read its log"


def run_folder(ovsdb: str) -> Path:
    """Return Open vSwitch's run directory: the one with OVSDB's socket, or else the default."""
    kind, _, path = ovsdb.partition(":")
    return Path(path).parent if kind == "unix" else DEFAULT_RUNDIR


def management_socket(openflow: str, ovsdb: str, bridge: str) -> Path:
    """Return the path of *bridge*'s management socket (ovs-vswitchd(8)).

    :param openflow: the option openflow_connection; the socket exists also with ``listen:``.
    """
    kind, _, path = openflow.partition(":")
    return Path(path) if kind == "unix" else run_folder(ovsdb) / f"{bridge}.mgmt"


def control_socket(folder: Path) -> Path:
    """Return the path of ovs-vswitchd's control socket.

    Its name contains the process id, unless ``--unixctl`` sets another name.

    :param folder: Open vSwitch's run directory.
    :raises VswitchdError: if there is no control socket.
    """
    candidates = [folder / f"{_NAME}.ctl"]
    try:
        pid = int((folder / f"{_NAME}.pid").read_text())
        candidates.insert(0, folder / f"{_NAME}.{pid}.ctl")
    except (OSError, ValueError):
        pid = 0
    path = next((candidate for candidate in candidates if candidate.exists()), None)
    if path is None:
        raise VswitchdError(target=candidates[0], cause="there is no control socket: not running")
    return path


class Vswitchd:
    """The running ovs-vswitchd.

    :param folder: Open vSwitch's run directory.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def version(self) -> str:
        """Return its version, such as ``ovs-vswitchd (Open vSwitch) 3.1.0``.

        :raises VswitchdError: if it does not answer.
        """
        return self._ask("version").strip()

    def trace(self, bridge: str, packet: str) -> str:
        """Trace *packet* through *bridge* (``ofproto/trace``); no packet is sent.

        :param packet: in ovs-ofctl(8)'s notation.
        :raises VswitchdError: if it does not answer, or the bridge does not exist.
        """
        return self._ask("ofproto/trace", bridge, packet)

    def learned(self, bridge: str) -> str:
        """Return the MACs that *bridge* has learned (``fdb/show``), one on each line.

        :raises VswitchdError: if it does not answer, or the bridge does not exist.
        """
        return self._ask("fdb/show", bridge)

    def _ask(self, method: str, *params: str) -> str:
        # Imported only where it is needed: commands that ask the daemon alone need no OVSDB.
        from dfmeta.ovsdb.jsonrpc import RefusedError, call, why

        path = control_socket(self._folder)
        try:
            return str(call(f"unix:{path}", method, params))
        except (OSError, RefusedError) as error:
            raise VswitchdError(target=path, cause=why(error)) from error
