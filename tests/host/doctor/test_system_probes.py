"""What the kernel says of sockets, routes and the clock, and calls of doctor in threads."""

import os
import socket
import threading
from contextlib import closing
from ipaddress import ip_address
from pathlib import Path

import pytest

from dfmeta.doctor import services
from dfmeta.doctor.checks_host import read_managed
from dfmeta.doctor.services import ServiceRequest
from dfmeta.host.listeners import client_user, listener_at, listeners_of
from dfmeta.host.system import own_route, read_clock

USER = 65534


def test_route_and_clock_of_the_kernel_are_read() -> None:
    assert own_route("203.0.113.77", but="lo") == ""
    assert read_clock() in (True, False)


def test_network_manager_is_asked_about_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_managed("tap-x") is None
    program, words = tmp_path / "nmcli", "-g GENERAL.NM-MANAGED device show tap-x"
    for answer, managed in (("echo yes", True), ("echo no", False), ("exit 8", None)):
        program.write_text(f'#!/bin/sh\n[ "$*" = "{words}" ] || exit 1\n{answer}\n')
        program.chmod(0o755)
        assert read_managed("tap-x") is managed, answer


def test_listener_at_a_place_is_that_of_its_process() -> None:
    for family, own in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with socket.socket(family) as listening, socket.socket(family) as bound:
            listening.bind((own, 0))
            listening.listen()
            bound.bind((own, 0))
            host = f"[{own}]" if ":" in own else own
            found = listener_at(f"{host}:{listening.getsockname()[1]}")
            assert found is not None
            assert (str(found.address), found.uid) == (own, os.geteuid())
            assert found.address_and_port == f"{host}:{listening.getsockname()[1]}"
            assert found in listeners_of(os.getpid())
            assert listener_at(f"{host}:{bound.getsockname()[1]}") is None


def test_user_of_a_client_is_known_while_its_socket_is_open() -> None:
    for family, own, other in (
        (socket.AF_INET, "127.0.0.1", "127.0.0.1"),
        (socket.AF_INET6, "::1", "::1"),
        (socket.AF_INET6, "::", "::ffff:127.0.0.1"),
    ):
        with socket.socket(family) as listening, closing(socket.socket(family)) as client:
            if own == "::":
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            listening.bind((own, 0))
            listening.listen()
            os.fchown(client.fileno(), USER, USER)
            client.connect((other, listening.getsockname()[1]))
            taken, _address = listening.accept()
            places = [
                (ip_address(name.removeprefix("::ffff:")), number)
                for name, number, *_rest in (taken.getpeername(), taken.getsockname())
            ]
            with closing(taken):
                assert client_user(*places) == USER
                assert client_user(*reversed(places)) == os.geteuid()
                client.close()
                assert client_user(*places) is None, "a socket that is closed is root's for Linux"


def test_late_answer_is_marked_and_an_error_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(services, "ANSWER_TIMEOUT", 60.0)
    answered = ServiceRequest(lambda: go_on.wait(), None)
    go_on.set()
    assert answered.facts is True
    with pytest.raises(ZeroDivisionError):
        _ = ServiceRequest(lambda: 1 // 0, 0).facts
    for limit in ("ANSWER_TIMEOUT", "SPARE"):
        monkeypatch.setattr(services, limit, 0.0)
    go_on.clear()
    assert ServiceRequest(lambda: go_on.wait(), None).facts is None
    go_on.set()
