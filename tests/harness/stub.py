"""Be a program of dfmeta in a shell: ``stub.py SOCKET MODULE CODE NAME ARGUMENT...``.

Takes the place of the interpreter that a script on a shell's PATH starts. The program runs as a
child of the nursery at SOCKET, with this process' streams, environment, directory and namespaces;
signals are passed on, and its end is ours. It is MODULE's ``main``, or CODE if that is not empty.

Imports only what is built in: dfmeta's imports take twenty times as long as this start.
"""

from __future__ import annotations

import _socket
import os
import sys
from _json import encode_basestring_ascii as quoted
from array import array

_signal = __import__("_signal")
"""Of which types are not known; ``signal`` takes half as long again as all others here."""


def main() -> None:
    """Order the program, and end as it does."""
    place, module, code, *arguments = sys.argv[1:]
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    connection.connect(place)
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    pairs = ",".join(f"{quoted(name)}:{quoted(os.environ[name])}" for name in os.environ)
    order = {
        "arguments": f"[{','.join(map(quoted, arguments))}]",
        "code": quoted(code),
        "directory": quoted(os.getcwd()),
        "env": f"{{{pairs}}}",
        "module": quoted(module),
        "namespace": quoted(""),
        "priority": str(os.getpriority(os.PRIO_PROCESS, 0)),
        "resolv_conf": quoted(""),
        "rights": "true",
        "workers": "false",
    }
    text = ",".join(f"{quoted(name)}:{value}" for name, value in order.items())
    passed = (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP)
    # The program may be told to end as soon as it runs, and its pid is known here only later.
    _signal.pthread_sigmask(_signal.SIG_BLOCK, passed)
    net, mounts = (os.open(f"/proc/self/ns/{name}", os.O_RDONLY) for name in ("net", "mnt"))
    sent = array("i", [theirs.fileno(), net, 0, 1, 2, mounts])
    connection.sendmsg([f"{{{text}}}".encode()], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, sent)])
    theirs.close()
    pid = int(ours.recv(16))

    def pass_on(number: int, _frame: object) -> None:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return  # it has ended

    for number in passed:
        _signal.signal(number, pass_on)
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, passed)
    status = int(ours.recv(16))
    if status < 0:
        if -status != _signal.SIGKILL:
            _signal.signal(-status, _signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


if __name__ == "__main__":
    main()
