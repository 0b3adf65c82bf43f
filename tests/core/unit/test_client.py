"""Another program where the daemon should listen is named, whatever it answers with."""

import contextlib
import os
from collections.abc import Iterator
from ipaddress import ip_address

import pytest
from oslo_config import cfg

import dfmeta.conf
from dfmeta.cli import client
from dfmeta.cli.client import agent_of
from dfmeta.errors import NotRunningError
from dfmeta.host.listeners import TcpListener
from tests.harness.other_store import Last, OtherStore, reply


@contextlib.contextmanager
def stranger(content: bytes) -> Iterator[cfg.ConfigOpts]:
    """A configuration whose admin listener is another program's."""

    with OtherStore(lambda _request: Last(reply(content))) as server:
        conf = dfmeta.conf.load([], prog="test")
        conf.set_override("admin_listen", server.url.removeprefix("http://"), group="df_metadata")
        yield conf


def test_an_answer_without_json_is_another_program_s() -> None:
    for content in (b"[" * 100_000, b'{"status": ' * 100_000, b"<html>", b"\xff", b""):
        with stranger(content) as conf:
            with pytest.raises(NotRunningError, match="is not JSON"):
                agent_of(conf).ask("/ports")
            facts = agent_of(conf).readiness()
            assert (facts.running, facts.other) == (False, True), content
            assert agent_of(conf).version() == ""


def test_options_of_a_program_of_another_user_are_not_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "_daemon_listeners", lambda _conf: [])
    with stranger(b"{}") as conf:
        place = conf.df_metadata.admin_listen
        answered, refused = "does not report them", "belongs to user"
        for uid, words in ((0, answered), (os.geteuid(), answered), (os.geteuid() + 1, refused)):
            listener = TcpListener(ip_address("127.0.0.1"), 9697, 1, uid)
            monkeypatch.setattr(client, "listener_at", {place: listener}.get)
            cause = client.take_over(conf).cause
            assert (place in cause, words in cause) == (True, True), (uid, cause)
        monkeypatch.setattr(client, "listener_at", lambda _place: None)
        assert client.take_over(conf).cause == f"nothing listens at {place}"


def test_options_come_from_the_running_daemons_place(monkeypatch: pytest.MonkeyPatch) -> None:
    with stranger(b'{"options": []}') as conf:
        place = conf.df_metadata.admin_listen
        host, _, port = place.rpartition(":")
        listener = TcpListener(ip_address(host), int(port), 1, os.geteuid())
        conf.set_override("admin_listen", "127.0.0.1:1", group="df_metadata")
        monkeypatch.setattr(client, "listener_at", {place: listener}.get)
        monkeypatch.setattr(client, "_daemon_listeners", lambda _conf: [listener])
        assert place in client.take_over(conf).cause
