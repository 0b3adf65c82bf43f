"""The document should be found at the service, on a config drive or in a file, within bounds."""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from eventlet.patcher import original

from dfmeta.guest import tag_devices
from tests.harness.sysfs import Machine

DOCUMENT = {"devices": [{"type": "nic", "bus": "none", "devname": "eth0", "tags": ["lan"]}]}
RAW = json.dumps(DOCUMENT).encode()
Seen = list[tuple[str, str, dict[str, str]]]


# Whether or not another module of this process has had eventlet patch them: a server in a thread
# of its own, that nothing of the hub can hold up.
real_socket = original("socket")
real_threading = original("threading")


@contextlib.contextmanager
def listening(talk: Callable[[Any], None], *, connections: int = 1) -> Iterator[int]:
    """A server that does what *talk* does to each of so many connections; its port."""
    with real_socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(30)

        def serve() -> None:
            for _number in range(connections):
                with contextlib.suppress(OSError):
                    peer, _address = listener.accept()
                    peer.settimeout(30)
                    with peer:
                        talk(peer)

        thread = real_threading.Thread(target=serve)
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
            return tag_devices.request("127.0.0.1", port, timeout=30)

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


@pytest.mark.parametrize("token", [b"a\r\nX-Tenant-ID: b", b"a\n b", b"\xff", b""])
def test_an_odd_token_is_not_sent(token: bytes) -> None:
    service = Service((401, b""), (200, token))
    with pytest.raises(ValueError, match="an invalid token"):
        service.ask()
    assert len(service.seen) == 2


def test_a_redirection_is_not_followed_and_no_proxy_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert Service((302, b"")).ask()[0] == 302


def test_no_more_than_the_bound_is_read() -> None:
    assert len(Service((200, b" " * (9 << 20))).ask()[1]) == tag_devices.MAX_BYTES + 1


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1000\r\n",
    ],
)
def test_an_answer_that_comes_by_drops_is_given_up(head: bytes) -> None:
    """Each drop comes long before the socket's own time-out, and they come for ever."""

    def drip(peer: Any) -> None:
        peer.sendall(head)
        never = real_threading.Event()
        while not never.wait(0.01):
            peer.sendall(b"H")

    start = time.monotonic()
    with listening(drip) as port, pytest.raises((OSError, http.client.HTTPException)):
        tag_devices.request("127.0.0.1", port, timeout=0.3)
    assert time.monotonic() - start < 5


class Clock:
    """Time that goes on when somebody sleeps, or as a test says."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.now += seconds


def asked(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, answers: dict[str, list[Any]]
) -> tuple[list[str], Callable[[], bytes]]:
    """Addresses that are asked, and how to ask; what each answers is given."""
    hosts: list[str] = []

    def request(host: str, _port: int, *, timeout: float) -> tuple[int, bytes]:
        assert timeout == 3
        hosts.append(host)
        answer = answers[host].pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer, RAW

    monkeypatch.setattr(tag_devices, "request", request)

    def ask() -> bytes:
        bounds: dict[str, Any] = {"timeout": 3, "deadline": 60, "clock": Clock()}
        return tag_devices.from_service(str(machine.root), attempts=3, **bounds)

    return hosts, ask


IPV4 = "169.254.169.254"
IPV6 = "fe80::a9fe:a9fe%eth0"


@pytest.fixture
def one_nic(machine: Machine) -> Machine:
    machine.nic("virtual/net/eth0")
    machine.nic("virtual/net/lo")
    return machine


def test_the_service_is_asked_over_ipv4_first_and_over_ipv6_on_each_interface(
    one_nic: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = OSError(101, "Network is unreachable")
    hosts, ask = asked(one_nic, monkeypatch, {IPV4: [away], IPV6: [200]})
    assert ask() == RAW
    assert hosts == [IPV4, IPV6]


def test_a_service_that_is_away_for_a_moment_is_asked_again(
    one_nic: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: dict[str, list[Any]] = {
        IPV4: [503, TimeoutError(), 200],
        IPV6: [OSError(), OSError()],
    }
    hosts, ask = asked(one_nic, monkeypatch, answers)
    assert ask() == RAW
    assert hosts == [IPV4, IPV6, IPV4, IPV6, IPV4]


def test_an_address_that_has_none_is_asked_once(
    one_nic: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts, ask = asked(one_nic, monkeypatch, {IPV4: [404], IPV6: [404]})
    with pytest.raises(tag_devices.TagError, match=r"no document \(404\)"):
        ask()
    assert hosts == [IPV4, IPV6]


def test_a_service_that_is_never_there_is_given_up(
    one_nic: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts, ask = asked(one_nic, monkeypatch, {IPV4: [OSError()] * 3, IPV6: [OSError()] * 3})
    with pytest.raises(tag_devices.TagError, match=r"no document \(OSError\)"):
        ask()
    assert hosts == [IPV4, IPV6] * 3


def test_interfaces_with_hardware_below_are_asked_first(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("br0", "eth0", "eth1"):
        folder = machine.nic(f"virtual/net/{name}")
        if name != "br0":
            (folder / "device").mkdir()
    away: dict[str, list[Any]] = {IPV4: [OSError()]}
    away |= {IPV6[:-4] + one: [OSError()] for one in ("eth0", "eth1")}
    hosts, ask = asked(machine, monkeypatch, away | {IPV6[:-4] + "br0": [200]})
    assert ask() == RAW
    assert hosts == [IPV4, *(IPV6[:-4] + name for name in ("eth0", "eth1", "br0"))]


def test_a_deadline_bounds_all_requests_and_pauses(
    one_nic: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, timeouts = Clock(), []

    def request(_host: str, _port: int, *, timeout: float) -> tuple[int, bytes]:
        timeouts.append(timeout)
        clock.now += timeout
        raise TimeoutError

    monkeypatch.setattr(tag_devices, "request", request)
    bounds: dict[str, Any] = {"timeout": 10, "deadline": 25, "attempts": 9, "clock": clock}
    with pytest.raises(tag_devices.TagError, match=r"in time \(\w+\)"):
        tag_devices.from_service(str(one_nic.root), **bounds)
    assert timeouts == [10, 10, 3]
    assert clock.now == 1025


def test_the_three_exchanges_of_a_request_with_a_token_share_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers, ends = [(401, b""), (200, b"token-1"), (200, RAW)], []

    def exchange(_host: str, _port: int, _order: object, end: float) -> tuple[int, bytes]:
        ends.append(end)
        return answers[len(ends) - 1]

    monkeypatch.setattr(tag_devices, "_exchange", exchange)
    before = time.monotonic()
    assert tag_devices.request("127.0.0.1", 1, timeout=5) == (200, RAW)
    assert ends == [ends[0]] * 3
    assert before + 5 <= ends[0] <= time.monotonic() + 5


@pytest.mark.parametrize(
    "words",
    [
        *(("--timeout", text) for text in ("inf", "nan", "-1", "0", "1e9", "x")),
        *(("--deadline", text) for text in ("inf", "-1")),
        *(("--attempts", text) for text in ("0", "-1", "21", "1.5")),
    ],
)
def test_a_number_that_makes_no_sense_is_refused(
    words: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        options("=".join(words))
    assert ended.value.code == 2
    assert f"argument {words[0]}:" in capsys.readouterr().err


# The config drive


@pytest.fixture
def drive(tmp_path: Path) -> Path:
    folder = tmp_path / "drive"
    (folder / "openstack" / "latest").mkdir(parents=True)
    (folder / "openstack" / "latest" / "meta_data.json").write_bytes(RAW)
    return folder


def options(*words: str) -> Any:
    return tag_devices.parser().parse_args(words)


def test_a_mounted_config_drive_is_read(drive: Path, said: list[str]) -> None:
    chosen = options("--source", "config-drive", "--config-drive", str(drive))
    assert tag_devices.fetch(chosen, said.append) == DOCUMENT


def test_no_link_leads_out_of_a_config_drive(drive: Path, tmp_path: Path) -> None:
    file = drive / "openstack" / "latest" / "meta_data.json"
    (tmp_path / "secret").write_bytes(file.read_bytes())
    file.unlink()
    file.symlink_to(tmp_path / "secret")
    with pytest.raises(tag_devices.TagError, match="a link out of the drive"):
        tag_devices.from_folder(str(drive))


def test_a_config_drive_without_a_document_is_an_error(drive: Path) -> None:
    (drive / "openstack" / "latest" / "meta_data.json").unlink()
    with pytest.raises(tag_devices.TagError, match="No such file"):
        tag_devices.from_folder(str(drive))


def test_a_config_drive_is_found_by_its_label(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    monkeypatch.setattr(tag_devices, "BY_LABEL", str(tmp_path))
    assert tag_devices.find_drive() == ""
    with pytest.raises(tag_devices.TagError, match="there is no config drive"):
        tag_devices.fetch(options("--source", "config-drive"), said.append)
    (tmp_path / "sr0").touch()
    (tmp_path / "config-2").symlink_to("sr0")
    assert tag_devices.find_drive() == str(tmp_path / "sr0")


def test_a_drive_is_found_where_it_is_mounted_whatever_else_is(
    tmp_path: Path, drive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line that is wanted comes after 4096 bytes of others; some are cut, some odd."""
    device = tmp_path / "sr0"
    device.touch()
    folder = tmp_path / "my drive\\\u2026"
    drive.rename(folder)
    mounts = tmp_path / "mounts"
    place = str(folder).replace("\\", "\\134").replace(" ", "\\040")
    lines = ["tmpfs /run tmpfs rw 0 0"] * 300 + ["", "cut", f"{device}"]
    mounts.write_text("\n".join([*lines, f"{device} {place} iso9660 ro 0 0", "/dev/la"]))
    monkeypatch.setattr(tag_devices, "MOUNTS", str(mounts))
    assert tag_devices.from_drive(str(device)) == RAW


def test_the_config_drive_takes_over_where_the_service_is_away(
    drive: Path, one_nic: Machine, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    away = {IPV4: [OSError()], IPV6: [OSError()]}
    hosts, _ask = asked(one_nic, monkeypatch, away)
    words = ("--config-drive", str(drive), "--sysfs", str(one_nic.root), "--timeout", "3")
    assert tag_devices.fetch(options(*words), said.append) == DOCUMENT
    assert hosts == [IPV4, IPV6]
    assert "reading the config drive instead" in said[0]


def test_the_service_says_more_than_the_config_drive(
    drive: Path, one_nic: Machine, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    (drive / "openstack" / "latest" / "meta_data.json").write_text("{}")
    asked(one_nic, monkeypatch, {IPV4: [200]})
    words = ("--config-drive", str(drive), "--sysfs", str(one_nic.root), "--timeout", "3")
    assert tag_devices.fetch(options(*words), said.append) == DOCUMENT
    assert said == []


def test_a_service_that_was_asked_for_alone_is_not_replaced(
    drive: Path, one_nic: Machine, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    asked(one_nic, monkeypatch, {IPV4: [404], IPV6: [404]})
    words = ("--config-drive", str(drive), "--sysfs", str(one_nic.root), "--timeout", "3")
    with pytest.raises(tag_devices.TagError):
        tag_devices.fetch(options("--source", "service", *words), said.append)
