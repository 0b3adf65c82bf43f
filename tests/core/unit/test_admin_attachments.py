"""Operators should see and delete attachments on the admin listener, from this host alone."""

from typing import Any

import pytest
import webob
from webob.dec import wsgify

from dfmeta.admin.attachments import AttachmentsApi
from dfmeta.admin.listener import AdminApplication
from dfmeta.admin.server import ENDS, SAME_HOST
from dfmeta.errors import AttachDriverError
from dfmeta.runtime.hub import Health

ONE = "11111111-2222-3333-4444-555555555555"
OTHER = ONE.replace("1", "9")
ROOT, OTHER_USER = 0, 1000
ROWS = [{"id": ONE, "port": "tpi-1"}]


class Engine:
    def __init__(self) -> None:
        self.error: Exception | None = None
        self.deleted: list[str] = []

    def report(self) -> list[dict[str, Any]]:
        if self.error is not None:
            raise self.error
        return ROWS

    def dismiss(self, attachment: str) -> bool:
        self.deleted.append(attachment)
        return attachment == ONE

    def tidy_now(self) -> dict[str, int]:
        return {"removed": 1, "waiting": 2}


@pytest.fixture
def engine() -> Engine:
    return Engine()


def ask(
    engine: Engine | None,
    path: str,
    method: str = "GET",
    *,
    user: int | None = ROOT,
    **environ: Any,
) -> webob.Response:
    ends = (("client", 1), ("server", 2))
    users = {ends: user}
    api = AttachmentsApi(lambda: engine, frozenset({"localhost"}), lambda *both: users[both])
    application = AdminApplication(Health(), list, {"/ports": list}, more=[api])
    request = webob.Request.blank(path, {SAME_HOST: True, ENDS: ends, **environ}, method=method)
    return request.get_response(wsgify(application))


def test_attachments_are_listed(engine: Engine) -> None:
    response = ask(engine, "/attachments")
    assert (response.status_int, response.json) == (200, ROWS)
    assert ask(engine, "/attachments", "HEAD").body == b""
    assert ask(engine, "/ports").json == []


def test_attachment_is_deleted_by_its_id(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    assert ask(engine, f"/attachments/{ONE}", "DELETE").status_int == 204
    assert ask(engine, f"/attachments/{OTHER}", "DELETE").status_int == 404
    assert engine.deleted == [ONE, OTHER]
    assert [line for line in caplog.messages if "operator" in line] == [
        f"Attachments: an operator has deleted {ONE}"
    ]


def test_comparison_runs_at_once(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    response = ask(engine, "/attachments/gc", "POST")
    assert (response.status_int, response.json) == (200, {"removed": 1, "waiting": 2})
    assert "Attachments: compared for an operator: 1 removed, 2 waiting" in caplog.messages


def test_another_method_is_405_and_another_path_404(engine: Engine) -> None:
    for method, path, allowed in (
        ("POST", "/attachments", "GET, HEAD"),
        ("GET", "/attachments/gc", "POST"),
        ("GET", f"/attachments/{ONE}", "DELETE"),
    ):
        response = ask(engine, path, method)
        assert (response.status_int, response.headers["Allow"]) == (405, allowed)
    for path in ("/attachments/", "/attachments/1", f"/attachments/{ONE}/x"):
        assert ask(engine, path, "DELETE").status_int == 404, path
    assert engine.deleted == []


def test_other_hosts_and_web_pages_are_refused(engine: Engine) -> None:
    others = {SAME_HOST: False}, {"HTTP_HOST": "evil.example"}, {"HTTP_ORIGIN": "http://x"}
    for environ in others:
        for method, path in (("GET", ""), ("DELETE", f"/{ONE}"), ("POST", "/gc")):
            assert ask(engine, f"/attachments{path}", method, **environ).status_int == 403, environ
    disconnected = ask(engine, f"/attachments/{ONE}", "DELETE", **{ENDS: ()})
    assert disconnected.status_int == 403
    assert engine.deleted == []


def test_other_users_of_the_host_may_only_read(engine: Engine) -> None:
    for user in (OTHER_USER, None):
        assert ask(engine, "/attachments", user=user).json == ROWS
        for method, path in (("DELETE", f"/{ONE}"), ("POST", "/gc")):
            response = ask(engine, f"/attachments{path}", method, user=user)
            assert response.status_int == 403
            assert "as root" in response.json["message"]
    assert engine.deleted == []


def test_the_daemons_own_user_may_change(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: OTHER_USER)
    response = ask(engine, f"/attachments/{ONE}", "DELETE", user=OTHER_USER)
    assert response.status_int == 204


def test_attachments_that_are_off_or_away_are_named_with_the_cause(engine: Engine) -> None:
    response = ask(None, "/attachments")
    assert response.status_int == 404
    assert "[attachments] enabled" in response.json["message"]
    engine.error = AttachDriverError(cause="the database of attachments does not answer")
    response = ask(engine, "/attachments")
    assert response.status_int == 503
    assert "the database of attachments does not answer" in response.json["message"]
