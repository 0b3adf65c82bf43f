"""The programs in guests should start as they are installed there, and read within their bounds."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from eventlet.patcher import original

from dfmeta.guest import cni, snippet, tag_devices
from tests.harness.poll import DEADLINE


def test_the_file_of_the_cni_plugin_alone_is_a_program(tmp_path: Path) -> None:
    program = tmp_path / "dfmeta-cni"
    shutil.copy(cni.__file__, program)
    program.chmod(0o755)
    environ = {"CNI_COMMAND": "VERSION"}
    done = subprocess.run([program], input=b"", env=environ, capture_output=True, check=True)
    assert json.loads(done.stdout)["supportedVersions"] == [*cni.VERSIONS]
    assert done.stderr == b""


def test_version_and_status_of_the_cni_plugin_import_little() -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import cni; "
        "print(sorted({'socket', 'ctypes', 'hashlib', 'typing', 'http'} & sys.modules.keys()))"
    )
    command = [sys.executable, "-I", "-S", "-c", program, os.path.dirname(cni.__file__)]
    assert subprocess.run(command, capture_output=True, check=True).stdout == b"[]\n"


def test_the_script_leaves_the_program_and_runs_it_at_each_boot(tmp_path: Path) -> None:
    program, per_boot = tmp_path / "lib" / "tag_devices.py", tmp_path / "boot" / "50-x"
    text = snippet.vendor_data()
    for name, place in ((snippet.PROGRAM, program), (snippet.PER_BOOT, per_boot)):
        text = text.replace(name, str(place))
    for _again in range(2):
        subprocess.run(["sh"], input=text.encode(), check=True)
        assert program.read_bytes() == Path(tag_devices.__file__).read_bytes()
        assert os.access(per_boot, os.X_OK)
        assert [one.name for one in (*program.parent.iterdir(), *per_boot.parent.iterdir())] == [
            "tag_devices.py",
            "50-x",
        ]


def test_a_guest_boots_whatever_becomes_of_the_program(tmp_path: Path) -> None:
    text = snippet.vendor_data()
    _, _, per_boot = text.partition(".new <<'END'\n")[2].rpartition("<<'END'\n")
    script = per_boot.partition("END\n")[0].replace(snippet.PROGRAM, str(tmp_path / "away.py"))
    done = subprocess.run(["sh"], input=script.encode(), capture_output=True, check=False)
    assert done.returncode == 0
    assert b"away.py" in done.stderr
    empty = subprocess.run(
        ["/bin/sh"], input=script.encode(), capture_output=True, check=False, env={"PATH": ""}
    )
    assert (empty.returncode, empty.stdout) == (0, b"")


RAW = b'{"devices": [{"type": "nic", "bus": "none", "devname": "eth0", "tags": ["lan"]}]}'
Seen = list[tuple[str, str, dict[str, str]]]


# Whether or not another module of this process has had eventlet patch them: a server in a thread
# of its own, that nothing of the hub can hold up.
real_socket = original("socket")
real_threading = original("threading")


@contextlib.contextmanager
def listening(talk: Callable[[Any], None], *, connections: int = 1) -> Iterator[int]:
    """A server that does what *talk* does to each of so many connections; its port."""
    with real_socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for _number in range(connections):
                with contextlib.suppress(OSError), listener.accept()[0] as peer:
                    talk(peer)

        thread = real_threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


class Service:
    """A metadata service that gives these answers in turn, and writes down what it was asked."""

    def __init__(self, *answers: tuple[int, bytes]) -> None:
        self._answers = list(answers)
        self.seen: Seen = []

    def ask(self) -> tuple[int, bytes]:
        """What the program gets."""
        with listening(self._talk, connections=len(self._answers)) as port:
            return tag_devices.request("127.0.0.1", port, timeout=DEADLINE)

    def _talk(self, peer: Any) -> None:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += peer.recv(1 << 16)
        line, *fields = head.decode().split("\r\n")[:-2]
        headers = {
            name.lower(): value for name, _, value in (one.partition(": ") for one in fields)
        }
        method, path, _version = line.split(" ")
        self.seen.append((method, path, headers))
        status, body = self._answers.pop(0)
        start = f"HTTP/1.1 {status} Said\r\nContent-Length: {len(body)}\r\nLocation: /\r\n\r\n"
        peer.sendall(start.encode() + body)


def test_a_document_is_asked_for_by_the_services_own_name() -> None:
    service = Service((200, RAW))
    assert service.ask() == (200, RAW)
    [(method, path, headers)] = service.seen
    assert (method, path) == ("GET", "/openstack/latest/meta_data.json")
    assert headers["host"] == "127.0.0.1"


def test_a_service_that_wants_a_token_gets_one() -> None:
    service = Service((401, b""), (200, b"token-1"), (200, RAW))
    assert service.ask() == (200, RAW)
    assert [one[:2] for one in service.seen[1:]] == [
        ("PUT", "/latest/api/token"),
        ("GET", "/openstack/latest/meta_data.json"),
    ]
    assert service.seen[1][2]["x-aws-ec2-metadata-token-ttl-seconds"] == "60"
    assert service.seen[2][2]["x-aws-ec2-metadata-token"] == "token-1"


def test_an_odd_token_is_not_sent() -> None:
    for token in (b"a\r\nX-Tenant-ID: b", b"a\n b", b"\xff", b""):
        service = Service((401, b""), (200, token))
        with pytest.raises(ValueError, match="an invalid token"):
            service.ask()
        assert len(service.seen) == 2


def test_a_redirection_is_not_followed_and_no_proxy_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert Service((302, b"")).ask()[0] == 302


def test_no_more_than_the_bound_is_read() -> None:
    assert len(Service((200, b" " * (9 << 20))).ask()[1]) == tag_devices.MAX_BYTES + 1


def test_an_answer_that_comes_by_drops_is_given_up() -> None:
    """Each drop comes long before the socket's own time-out, and they come for ever."""
    start = b"HTTP/1.1 200 OK\r\n"
    for head in (
        b"",
        start + b"Content-Length: 100000\r\n\r\n",
        start + b"\r\n",
        start + b"Transfer-Encoding: chunked\r\n\r\n1000\r\n",
    ):

        def drip(peer: Any, head: bytes = head) -> None:
            peer.sendall(head)
            never = real_threading.Event()
            while not never.wait(0.01):
                peer.sendall(b"H")

        with listening(drip) as port, pytest.raises((OSError, http.client.HTTPException)):
            tag_devices.request("127.0.0.1", port, timeout=0.3)
