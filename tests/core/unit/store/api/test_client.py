"""A command with --url should do to a store elsewhere what it does to the configured one."""

import json
import ssl
from collections.abc import Iterable, Iterator
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import pytest
import webob
from webob.dec import wsgify

from dfmeta.admin.listener import AdminApplication
from dfmeta.errors import UpstreamAnswerError, UpstreamAwayError, UpstreamLostError
from dfmeta.runtime.hub import Health
from dfmeta.store.api import representations
from dfmeta.store.api.client import StoreClient, _reach
from dfmeta.store.auth.caller import Authorizer
from dfmeta.store.auth.caller import Client as Caller
from dfmeta.store.db.record import Kind, Push
from dfmeta.store.db.repository import PAGE, Repository
from dfmeta.store.guest.defaults import EVERYWHERE
from tests.core.unit.store.api.support import make_api
from tests.core.unit.store.support import Run, document, named, read, refusal
from tests.core.unit.support import INSTANCE, OTHER_INSTANCE, succeeded
from tests.harness.closing import serving
from tests.harness.other_store import NOT_FOUND, Asked, OtherStore, reply

TOKEN = "t0k.en-of_nobody"


class Api(ThreadingMixIn, WSGIServer):
    """The admin API in a thread of this process, whose token may do what ``allowed`` says."""

    daemon_threads = True

    def __init__(self, repository: Repository) -> None:
        super().__init__(("127.0.0.1", 0), Silent)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.token = TOKEN
        self.allowed = frozenset({"read", "write"})
        self.requests: list[str] = []
        self.failing = 0
        """A status that everything is answered with; 0: what is right."""
        self.message: object = "it fails"
        """What goes with it."""
        api = make_api(repository, authorizer=Authorizer(self))
        self._application = wsgify(AdminApplication(Health(), list, {}, api=api))
        self.set_app(self._answer)

    def client(self, token: str) -> Caller | None:
        """See :class:`dfmeta.store.auth.caller.Verifier`."""
        return Caller("token known", self.allowed) if token == self.token else None

    def _answer(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        query = f"?{environ['QUERY_STRING']}" if environ["QUERY_STRING"] else ""
        self.requests.append(f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}{query}")
        if not self.failing:
            return self._application(environ, start_response)  # type: ignore[no-any-return]
        response = webob.Response(status=self.failing, json={"message": self.message})
        return response(environ, start_response)  # type: ignore[no-any-return]  # webob is untyped


class Silent(WSGIRequestHandler):
    def log_message(self, *_args: Any) -> None:
        pass


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Repository]:
    with Repository(f"sqlite:///{tmp_path}/elsewhere/store.db") as repository:
        yield repository


@pytest.fixture
def api(elsewhere: Repository) -> Iterator[Api]:
    with serving(Api(elsewhere)) as api:
        yield api


@pytest.fixture
def over(run: Run, api: Api, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run ``dfmeta store COMMAND --url … ARGUMENTS``."""
    monkeypatch.setenv("DFMETA_TOKEN", TOKEN)
    return lambda command, *rest, **values: run(command, "--url", api.url, *rest, **values)


def test_put_changes_named_values_only(over: Run, elsewhere: Repository, instance_id: str) -> None:
    put = ("put", instance_id, "--meta", "a=1", "--address", "10.0.0.5", "--user-data", "-")
    created = succeeded(over(*put, stdin=b"\xff\0"))
    assert created == f"{instance_id}: created, with meta, user-data, addresses\n"
    changed = over("put", instance_id, "--meta", "b=2", "--http-tokens", "required")
    assert succeeded(changed) == f"{instance_id}: changed meta, http tokens\n"
    record = read(elsewhere)
    assert document(elsewhere, instance_id) == {"meta": {"a": "1", "b": "2"}}
    assert (record.userdata, record.http_tokens) == (b"\xff\0", "required")
    assert elsewhere.addresses(instance_id) == ("10.0.0.5/32",)
    again = over("put", instance_id, "--meta", "b=2", "--http-tokens", "required")
    assert succeeded(again) == f"{instance_id}: nothing to change\n"
    succeeded(over("put", instance_id, "--json", "-", stdin=b'{"a": {"x": null}}'))
    assert document(elsewhere) == {"a": {"x": None}}


def test_an_absent_half_stays_absent(over: Run, elsewhere: Repository, instance_id: str) -> None:
    over("import", "-", stdin=json.dumps({"userdata": "u", "id": instance_id}).encode())
    succeeded(over("put", instance_id, "--address", "10.0.0.6"))
    record = read(elsewhere)
    assert (record.metadata, record.userdata) == (None, b"u")
    assert elsewhere.addresses(instance_id) == ("10.0.0.6/32",)
    assert "user-data" in succeeded(over("put", instance_id, "--user-data", "", "--name", "n"))
    record = read(elsewhere)
    assert (record.metadata, record.userdata) == ('{"name":"n"}', None)


def test_get_and_delete_are_the_stores(over: Run, elsewhere: Repository, instance_id: str) -> None:
    missing = over("get", instance_id)
    assert (missing.exit_code, missing.stdout) == (1, "")
    elsewhere.put(instance_id, document={"hostname": "web"}, userdata=b"hush", http_tokens="off")
    (result,) = json.loads(succeeded(over("get", instance_id, "--format", "json")))
    assert (result["hostname"], result["userdata_bytes"], result["http_tokens"]) == (
        "web",
        4,
        "off",
    )
    assert result["password_set"] is None, "the API does not tell"
    assert result["created_at"] is None
    assert over("get", instance_id, "--user-data").stdout_bytes == b"hush"
    assert succeeded(over("delete", instance_id)) == f"{instance_id}: deleted\n"
    assert elsewhere.get(instance_id) is None
    assert over("delete", instance_id).exit_code == 1


def test_a_token_that_may_only_write_puts_a_whole_record(
    over: Run, api: Api, elsewhere: Repository, tmp_path: Path, instance_id: str
) -> None:
    api.allowed = frozenset({"write"})
    file = tmp_path / "document.json"
    file.write_text('{"hostname": "web"}')
    whole = ("--json", str(file), "--meta", "a=1", "--address", "10.0.0.9")
    message = succeeded(over("put", instance_id, *whole))
    assert message.startswith(f"{instance_id}: written, with hostname, meta")
    assert document(elsewhere, instance_id) == {"hostname": "web", "meta": {"a": "1"}}
    assert elsewhere.addresses(instance_id) == ("10.0.0.9/32",)
    userdata = ("--user-data", "-", "--address", "10.0.0.10")
    message = succeeded(over("put", OTHER_INSTANCE, *userdata, stdin=b"u"))
    assert message.startswith(f"{OTHER_INSTANCE}: written, with user-data, addresses; not compared")
    assert read(elsewhere, OTHER_INSTANCE).userdata == b"u"


def test_put_names_its_scopes(over: Run, api: Api, elsewhere: Repository, instance_id: str) -> None:
    for options in (("--hostname", "x"), ("--user-data", "", "--address", "10.0.0.9")):
        api.allowed = frozenset({"write"})
        line = refusal(over("put", instance_id, *options, stdin=b"u"), 1)
        assert "dfmeta token create --scope read --scope write" in line, options
        assert "give the whole record: --json or --user-data, and --address" in line, options
        assert elsewhere.get(instance_id) is None, options
        api.allowed = frozenset({"read", "write"})
        succeeded(over("put", instance_id, *options, stdin=b"u"))
        elsewhere.delete(instance_id)


def test_seeds_and_lines_are_imported(
    over: Run, elsewhere: Repository, tmp_path: Path, instance_id: str
) -> None:
    seed = tmp_path / instance_id
    seed.mkdir()
    (seed / "meta-data").write_text("local-hostname: a\n")
    (seed / "user-data").write_bytes(b"\xff")
    lines = [{"id": OTHER_INSTANCE, "metadata": {"n": 1}, "userdata": "u"}, {"id": "x"}]
    stdin = "\n".join(map(json.dumps, lines)).encode()
    result = over("import", str(seed), "-", stdin=stdin)
    assert result.exit_code == 1
    assert result.stdout.endswith("imported: 1 seeds, 1 lines\n")
    assert document(elsewhere, instance_id) == {"hostname": "a"}
    record = read(elsewhere, OTHER_INSTANCE)
    assert (record.metadata, record.userdata) == ('{"n":1}', b"u")


def test_what_the_api_cannot_do_is_refused_with_a_remedy(over: Run, elsewhere: Repository) -> None:
    for arguments, words in [
        (["list", "--default"], "--default = 'default:*'"),
        (["get", "--default-host", "a"], "--default-host = 'default:host:a'"),
        (["put", OTHER_INSTANCE, "--project", "p"], "--project = 'p'"),
        (["put", OTHER_INSTANCE, "--http-tokens", "default"], "--http-tokens = 'default'"),
        (["put", "no-domain"], "INSTANCE = 'no-domain'"),
    ]:
        result = over(*arguments)
        assert (result.exit_code, result.stdout) == (2, ""), arguments
        assert words in result.stderr, arguments
        assert result.stderr.count("\n") == 1, arguments
        assert list(elsewhere.list()) == [], arguments


def test_a_list_is_the_one_of_the_store(
    over: Run, run: Run, elsewhere: Repository, tmp_path: Path, instance_id: str
) -> None:
    assert json.loads(succeeded(over("list", "--format", "json"))) == []
    elsewhere.put(instance_id, document={"ssh_keys": ["a", "b"]}, userdata=b"u", project_id="p")
    elsewhere.put(OTHER_INSTANCE, document={"hostname": "\x1b[2J", "name": {"odd": [1]}})
    elsewhere.put(EVERYWHERE, document={"name": "never"})
    present = tmp_path / "there.conf"
    present.write_text(f"[store]\nconnection = sqlite:///{tmp_path}/elsewhere/store.db\n")
    for form in ("table", "json"):
        local = succeeded(run("list", "--config-file", str(present), "--format", form))
        assert succeeded(over("list", "--format", form)) == local
        assert "never" not in local
    assert {row["id"] for row in json.loads(local)} == {instance_id, OTHER_INSTANCE}


def test_a_list_has_all_pages(over: Run, api: Api, elsewhere: Repository) -> None:
    ids = [f"00000000-0000-4000-8000-{number:012x}" for number in range(PAGE + 1)]
    elsewhere.push_all(
        [
            Push(kind=Kind.METADATA, record_id=record_id, content={}, networks=())
            for record_id in ids
        ]
    )
    rows = json.loads(succeeded(over("list", "--format", "json")))
    assert [row["id"] for row in rows] == ids
    assert api.requests == [
        "GET /records",
        f"GET /records?after={ids[PAGE - 1]}",
        f"GET /records?after={ids[PAGE]}",
    ]


def test_text_that_is_no_page_is_refused() -> None:
    page = json.dumps([{"id": OTHER_INSTANCE}])
    assert representations.load_rows(page.encode(), after="") == [{"id": OTHER_INSTANCE}]
    with pytest.raises(ValueError, match="not a page that follows"):
        representations.load_rows(page.encode(), after=OTHER_INSTANCE)
    for text in (
        *("{", "{}", "7", "[7]", "[{}]", '[{"id":7}]', '[{"id":"x"}]'),
        page.replace(OTHER_INSTANCE, OTHER_INSTANCE.upper()),
        f'[{{"id":"{OTHER_INSTANCE}"}},{{"id":"{OTHER_INSTANCE}"}}]',
        "[" * 100_000,
    ):
        with named(text), pytest.raises(ValueError):  # noqa: PT011  # whatever it says
            representations.load_rows(text.encode(), after="")


# Tokens


def test_a_token_comes_from_a_file_or_the_environment_alone(
    run: Run, api: Api, tmp_path: Path, instance_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DFMETA_TOKEN", raising=False)
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    put = ("put", "--url", api.url, instance_id, "--name", "n")
    refused = refusal(run(*put), 1)
    assert "answers 401 (missing authorization header, " in refused
    assert "). Give a token that may do this: --token-file FILE" in refused
    succeeded(run(*put, "--token-file", str(file)))
    monkeypatch.setenv("DFMETA_TOKEN", "another")
    succeeded(run(*put, "--token-file", str(file)))
    assert "answers 401 (invalid auth token). Give a token" in run(*put).stderr


def test_malformed_token_is_not_sent(run: Run, api: Api, tmp_path: Path, instance_id: str) -> None:
    file = tmp_path / "token"
    for content in ("", "a\nb", "\xe9"):
        file.write_text(content, encoding="latin-1")
        line = refusal(run("get", "--url", api.url, "--token-file", str(file), instance_id))
        assert f"--token-file = '{file}' is wrong: it contains no token" in line, content
    missing = run("get", "--url", api.url, "--token-file", "/nonexistent", instance_id)
    assert "--token-file = '/nonexistent' is wrong: No such file" in missing.stderr
    assert "need --url" in run("get", "--token-file", "x", instance_id).stderr
    (tmp_path / "ca.pem").write_text("none")
    for name, cause in (("ca.pem", "no certificate in it"), ("missing", "No such file")):
        path = str(tmp_path / name)
        line = refusal(run("get", "--url", api.url, "--ca-file", path, instance_id))
        assert f"--ca-file = '{path}' is wrong: " in line
        assert cause in line
    assert api.requests == []
    assert TOKEN not in repr(StoreClient(api.url, token=TOKEN))


def test_bytes_behind_an_answer_are_no_answer_to_another_request() -> None:
    def answer(request: Asked) -> bytes:
        late = NOT_FOUND if len(store.asked) > store.connections else b""
        half = {"metadata": {}} if "metadata" in request.target else {"userdata": "x"}
        return late + reply({"id": INSTANCE, "ipAddresses": [], **half})

    with OtherStore(answer) as store:
        record = StoreClient(store.url).get(INSTANCE)
    assert record is not None
    assert record.userdata == b"x"


# Failures


def test_an_unusable_url_is_refused(run: Run, instance_id: str) -> None:
    for url in (
        "ftp://h",
        "http://",
        "http://u:hush@h/",
        "http://h/?a=1",
        "http://h:x/",
        "http://[/",
    ):
        line = refusal(run("get", "--url", url, instance_id))
        assert line.startswith("dfmeta: --url = "), url
        assert "hush" not in line


def test_a_url_without_the_api_is_reported(over: Run, api: Api, instance_id: str) -> None:
    for command in (
        ("get", instance_id),
        ("delete", instance_id),
        ("put", instance_id, "--meta", "a=b"),
    ):
        line = refusal(over(*command, "--url", f"{api.url}/elsewhere"), 1)
        assert "answers 404 (invalid request - route not found)" in line, command
        assert line.endswith(" [no-api]\n"), command
    assert refusal(over("list", "--url", f"{api.url}/healthz"), 1).endswith(" [no-api]\n")
    api.shutdown()
    api.server_close()
    assert "does not answer: connection refused" in refusal(over("get", instance_id), 1)


def test_error_of_the_api_is_shown_if_one_line(over: Run, api: Api, instance_id: str) -> None:
    for api.failing in (302, 503):
        line = refusal(over("put", instance_id, "--name", "n"), 1)
        assert f"answers {api.failing} (it fails)" in line
    assert len(api.requests) == 2, "neither is followed or tried again"
    api.failing = 500
    for api.message in ("\x1b[2J", "a\nb", 7, None):
        line = refusal(over("get", instance_id), 1)
        assert line.endswith("answers 500. See its log for the cause [store]\n"), api.message


def test_an_import_ends_with_an_api_that_refuses_it_or_is_away(over: Run, api: Api) -> None:
    lines = "\n".join([json.dumps({"id": OTHER_INSTANCE, "metadata": {}})] * 3).encode()
    api.failing = 503
    assert over("import", "-", stdin=lines).exit_code == 1
    assert len(api.requests) == 2, "one push, and whether it is up"
    api.failing, api.token = 0, "another"
    api.requests.clear()
    refused = over("import", "-", stdin=lines)
    assert refused.exit_code == 1
    assert refused.stderr.count("answers 401") == 1
    assert len(api.requests) == 1
    assert TOKEN not in refused.stderr


def test_each_way_to_no_answer_has_its_remedy() -> None:
    for kind, origin, remedy in [
        (UpstreamAwayError, ssl.SSLCertVerificationError(), "--ca-file FILE"),
        (UpstreamAwayError, ssl.SSLError(), "Write http:// if the server does not use TLS"),
        (UpstreamAnswerError, None, "Write https:// if the server uses TLS"),
        (UpstreamAwayError, UnicodeError(), "Give a name in --url that this host can resolve"),
        (UpstreamAwayError, ConnectionRefusedError(), "dfmeta-store or dfmeta-agent runs there"),
        (UpstreamLostError, None, "its [store] max_body is large enough for the record"),
    ]:
        error = kind(cause="why")
        error.__cause__ = origin
        assert remedy in _reach(error), error
