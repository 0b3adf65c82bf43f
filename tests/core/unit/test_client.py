"""Another program where the daemon should listen is named, whatever it answers with."""

import contextlib
from collections.abc import Iterator

import pytest
from oslo_config import cfg

import dfmeta.conf
from dfmeta.cli.client import ask_agent
from dfmeta.cli.gather import daemon_facts, daemon_version
from dfmeta.exceptions import NotRunningError
from tests.harness.other_store import Last, OtherStore, reply


@contextlib.contextmanager
def stranger(content: bytes) -> Iterator[cfg.ConfigOpts]:
    """A configuration whose admin listener is another program's."""

    with OtherStore(lambda _asked: Last(reply(content))) as server:
        conf = dfmeta.conf.load([], prog="test")
        conf.set_override("admin_listen", server.url.removeprefix("http://"), group="df_metadata")
        yield conf


def test_an_answer_without_json_is_another_program_s() -> None:
    for content in (b"[" * 100_000, b'{"status": ' * 100_000, b"<html>", b"\xff", b""):
        with stranger(content) as conf:
            with pytest.raises(NotRunningError, match="is not JSON"):
                ask_agent(conf, "/ports")
            assert daemon_facts(conf).cause == "its answer is not dfmeta-agent's"
            assert daemon_version(conf) == ""
