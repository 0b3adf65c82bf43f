"""The audit should have one line for each change of a record and for each refused client."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import nullcontext

import pytest
from webob import Request

from dfmeta.exceptions import StoreAwayError
from dfmeta.quiet import QUIET
from dfmeta.store.api import audit
from dfmeta.store.api.routes import Action, Route
from dfmeta.store.db.record import Push
from dfmeta.store.db.repository import Repository
from tests.core.unit.store.api.support import INSTANCE, Client, Tokens, make_api
from tests.harness.tier import CLOCK

BODY = json.dumps({"id": INSTANCE.upper(), "metadata": {"secret": "of the guest"}}).encode()
ADDRESS = {"REMOTE_ADDR": "192.0.2.7"}


@pytest.fixture
def client(repository: Repository) -> Client:
    return Client(make_api(repository, authorizer=Tokens()))


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    caplog.set_level(logging.INFO, logger=audit.LOG.name)
    kept: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: kept.append(record.getMessage())  # type: ignore[method-assign]  # the list is all
    audit.LOG.addHandler(handler)
    yield kept
    audit.LOG.removeHandler(handler)


def test_a_change_alone_is_one_line_without_its_content(client: Client, lines: list[str]) -> None:
    one, devices = f"/device-metadata/{INSTANCE}", f"/api/v1/device-metadata/{INSTANCE}/devices"
    device = b'{"type": "disk", "bus": "scsi", "serial": "private"}'
    client.ask("POST", "/api/v1/device-metadata", BODY, authorization="Bearer write")
    client.ask("POST", devices, device, authorization="Bearer write")
    client.ask("DELETE", f"{devices}?serial=private", authorization="Bearer write")
    client.ask("POST", f"/device-metadata/refresh/{INSTANCE}", authorization="Bearer write")
    client.ask("DELETE", one, authorization="Bearer delete")
    client.ask("DELETE", one, authorization="Bearer delete")
    client.ask("GET", "/records", authorization="Bearer read")
    client.ask("PUT", "/device-metadata", authorization="Bearer write")
    by = f"instance {INSTANCE}, by token known from"
    assert [line.partition(" from ")[0] + " from" for line in lines] == [
        f"Audit: POST /device-metadata, {by}",
        f"Audit: POST /device-metadata/{{id}}/devices, {by}",
        f"Audit: DELETE /device-metadata/{{id}}/devices, {by}",
        f"Audit: POST /device-metadata/refresh/{{id}}, {by}",
        f"Audit: DELETE /device-metadata/{{id}}, {by}",
        f"Audit: DELETE /device-metadata/{{id}}, {by}",
    ]
    assert [line.rpartition(": ")[2] for line in lines] == ["200"] * 5 + ["404"]
    assert not [line for line in lines if "private" in line or "secret" in line or "Bearer" in line]


def test_a_refused_client_is_one_line(
    client: Client, repository: Repository, lines: list[str]
) -> None:
    client.ask("POST", "/device-metadata", BODY)
    client.ask("GET", f"/device-userdata/{INSTANCE}", authorization="Bearer write")
    client.ask("DELETE", "/device-metadata/a%0ab", authorization="Bearer read")
    gated = Client(make_api(repository, gate=lambda _environ: "another site"))
    refused = gated.ask("POST", "/device-metadata", BODY)
    assert (refused.status_int, refused.json) == (403, {"message": "another site"})
    assert lines.pop().startswith("Audit: POST /device-metadata, instance unknown")
    assert [line.partition(" from ")[0] for line in lines] == [
        "Audit: POST /device-metadata, instance unknown, by an unknown client",
        f"Audit: GET /device-userdata/{{id}}, instance {INSTANCE}, by token known",
        "Audit: DELETE /device-metadata/{id}, instance unknown, by token known",
    ]
    assert [line.rpartition(": ")[2] for line in lines] == ["401", "403", "403"]


def test_a_push_that_changes_nothing_has_its_line(
    client: Client, repository: Repository, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def push_all(_pushes: Sequence[Push]) -> None:
        raise error

    post = "Audit: POST /device-metadata, instance"
    for body, status in ((b"{", 400), (b"0" * (2 << 20), 413)):
        client.ask("POST", "/device-metadata", body, authorization="Bearer write")
        assert lines[-1].startswith(f"{post} unknown, by token known from "), body[:20]
        assert lines[-1].endswith(f": {status}"), body[:20]
    monkeypatch.setattr(repository, "push_all", push_all)
    client = Client(make_api(repository))
    for error, status in ((StoreAwayError(cause="it hangs"), 503), (RuntimeError(), 500)):
        with pytest.raises(RuntimeError) if status == 500 else nullcontext():
            client.ask("POST", "/device-metadata", BODY)
        (line,) = [line for line in lines[2:] if line.endswith(f": {status}")]
        assert line.startswith(f"{post} {INSTANCE}, by an unknown client"), error


def test_refused_clients_have_so_many_lines_in_a_minute(
    lines: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    log = audit.Audit()
    route = Route("POST", "/device-metadata", Action.PUSH)
    call = audit.Call(Request.blank("/", method="POST", environ=ADDRESS), route)
    line = "Audit: POST /device-metadata, instance unknown, by an unknown client from 192.0.2.7: "
    for _ in range(audit.REFUSALS + 7):
        log.note(call, 401)
    assert lines == [f"{line}401"] * audit.REFUSALS
    assert {record.levelname for record in caplog.records} == {"WARNING"}
    log.note(call, 200)
    CLOCK.advance(QUIET)
    log.note(call, 401)
    left_out = "Audit: 7 more requests of refused clients had no line"
    assert lines[audit.REFUSALS :] == [f"{line}200", left_out, f"{line}401"]
