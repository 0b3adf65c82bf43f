"""A command with --url should do to a store elsewhere what it does to the configured one."""

from __future__ import annotations

import http.client
import json
import re
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dfmeta.cli.ctl import cli
from dfmeta.exceptions import RecordError
from dfmeta.store.api import listing
from dfmeta.store.api.client import Client, _reach
from dfmeta.store.db.record import Kind, Push, Whole, parse_document
from dfmeta.store.db.repository import PAGE, Repository
from dfmeta.store.guest.defaults import EVERYWHERE
from tests.core.unit.store.api.elsewhere import Api
from tests.core.unit.support import OTHER_INSTANCE, succeeded
from tests.harness import domains as libvirt
from tests.harness.closing import serving

TOKEN = "t0k.en-of_nobody"
Run = Callable[..., Result]


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Repository]:
    with Repository(f"sqlite:///{tmp_path}/elsewhere/store.db") as repository:
        yield repository


@pytest.fixture
def api(elsewhere: Repository) -> Iterator[Api]:
    with serving(Api(elsewhere, TOKEN)) as api:
        yield api


@pytest.fixture
def over(run: Run, api: Api, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run ``dfmeta store COMMAND --url … ARGUMENTS``."""
    monkeypatch.setenv("DFMETA_TOKEN", TOKEN)
    return lambda command, *rest, **values: run(command, "--url", api.url, *rest, **values)


def document(repository: Repository, instance_id: str) -> dict[str, object]:
    record = repository.get(instance_id)
    assert record is not None
    return parse_document(record.id, record.metadata)


def test_put_changes_what_is_named_and_nothing_else(
    over: Run, elsewhere: Repository, instance_id: str
) -> None:
    put = ("put", instance_id, "--meta", "a=1", "--address", "10.0.0.5", "--user-data", "-")
    created = succeeded(over(*put, stdin=b"\xff\0"))
    assert created == f"{instance_id}: created, with meta, user-data, addresses\n"
    changed = over("put", instance_id, "--meta", "b=2", "--http-tokens", "required")
    assert succeeded(changed) == f"{instance_id}: changed meta, http tokens\n"
    record = elsewhere.get(instance_id)
    assert record is not None
    assert document(elsewhere, instance_id) == {"meta": {"a": "1", "b": "2"}}
    assert (record.userdata, record.http_tokens) == (b"\xff\0", "required")
    assert elsewhere.addresses(instance_id) == ("10.0.0.5/32",)
    again = over("put", instance_id, "--meta", "b=2", "--http-tokens", "required")
    assert succeeded(again) == f"{instance_id}: nothing to change\n"


def test_what_was_of_one_half_stays_so(over: Run, elsewhere: Repository, instance_id: str) -> None:
    with_userdata_alone = {"userdata": "u", "id": instance_id}
    over("import", "-", stdin=json.dumps(with_userdata_alone).encode())
    succeeded(over("put", instance_id, "--address", "10.0.0.6"))
    record = elsewhere.get(instance_id)
    assert record is not None
    assert (record.metadata, record.userdata) == (None, b"u")
    assert elsewhere.addresses(instance_id) == ("10.0.0.6/32",)
    assert "user-data" in succeeded(over("put", instance_id, "--user-data", "", "--name", "n"))
    record = elsewhere.get(instance_id)
    assert record is not None
    assert (record.metadata, record.userdata) == ('{"name":"n"}', None)


def test_a_whole_document_replaces(over: Run, elsewhere: Repository, instance_id: str) -> None:
    elsewhere.put(instance_id, document={"a": {"b": 1}, "c": 1})
    succeeded(over("put", instance_id, "--json", "-", stdin=b'{"a": {"x": null}}'))
    assert document(elsewhere, instance_id) == {"a": {"x": None}}


def test_get_and_delete_are_those_of_the_store(
    over: Run, elsewhere: Repository, instance_id: str
) -> None:
    missing = over("get", instance_id)
    assert (missing.exit_code, missing.stdout) == (1, "")
    elsewhere.put(instance_id, document={"hostname": "web"}, userdata=b"hush", http_tokens="off")
    (found,) = json.loads(succeeded(over("get", instance_id, "--format", "json")))
    assert (found["hostname"], found["userdata_bytes"], found["http_tokens"]) == ("web", 4, "off")
    assert found["password_set"] is None, "the API does not tell"
    assert found["created_at"] is None
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
    for halves in (whole, (*whole, "--user-data", "-")):
        said = succeeded(over("put", instance_id, *halves, stdin=b"u"))
        assert said.startswith(f"{instance_id}: written, with hostname, meta")
        assert document(elsewhere, instance_id) == {"hostname": "web", "meta": {"a": "1"}}
        assert elsewhere.addresses(instance_id) == ("10.0.0.9/32",)
    userdata = ("--user-data", "-", "--address", "10.0.0.10")
    said = succeeded(over("put", OTHER_INSTANCE, *userdata, stdin=b"u"))
    assert said == (
        f"{OTHER_INSTANCE}: written, with user-data, addresses; not compared with the earlier "
        "record\n"
    )
    record = elsewhere.get(OTHER_INSTANCE)
    assert record is not None
    assert record.userdata == b"u"


@pytest.mark.parametrize(
    "options",
    [
        ("--hostname", "x"),
        ("--meta", "a=1", "--address", "10.0.0.9"),
        ("--user-data", "-"),
        ("--user-data", "", "--address", "10.0.0.9"),
    ],
    ids=" ".join,
)
def test_a_put_that_has_to_read_says_which_scopes_it_needs(
    over: Run, api: Api, elsewhere: Repository, instance_id: str, options: tuple[str, ...]
) -> None:
    api.allowed = frozenset({"write"})
    result = over("put", instance_id, *options, stdin=b"u")
    assert (result.exit_code, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    assert "dfmeta token create --scope read --scope write" in line
    assert "give the whole record: --json or --user-data, and --address" in line
    assert elsewhere.get(instance_id) is None
    api.allowed = frozenset({"read", "write"})
    succeeded(over("put", instance_id, *options, stdin=b"u"))


@pytest.mark.parametrize("page", ["doc/source/store-auth.rst", "doc/source/runbook.rst", "--help"])
def test_the_token_that_a_page_makes_is_good_for_a_put(
    over: Run, api: Api, run: Run, instance_id: str, page: str
) -> None:
    root = Path(__file__).parents[5]
    shown = CliRunner().invoke(cli, ["token", "create", "--help"]).stdout
    text = shown if page == "--help" else (root / page).read_text(encoding="utf-8")
    found = [
        re.findall(r"--scope (\w+)", command)
        for command in re.findall(r"dfmeta token create ([^`#\n]+)", text)
    ]
    for names in (one for one in found if one != ["read"]):
        api.allowed = frozenset(names)
        succeeded(over("put", instance_id, "--hostname", "x"))
        succeeded(over("delete", instance_id))
    assert any("write" in names for names in found)


def test_the_name_of_a_domain_of_this_host_is_enough(
    over: Run, elsewhere: Repository, domains: Path
) -> None:
    libvirt.write(domains, "web1", libvirt.definition(OTHER_INSTANCE, domain="web1"))
    succeeded(over("put", "web1", "--hostname", "h"))
    assert document(elsewhere, OTHER_INSTANCE) == {"hostname": "h"}


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
    record = elsewhere.get(OTHER_INSTANCE)
    assert record is not None
    assert (record.metadata, record.userdata) == ('{"n":1}', b"u")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["put", "--default"], "--default = 'default:*'"),
        (["list", "--default"], "--default = 'default:*'"),
        (["get", "--default-host", "a"], "--default-host = 'default:host:a'"),
        (["put", OTHER_INSTANCE, "--project", "p"], "--project = 'p'"),
        (["put", OTHER_INSTANCE, "--http-tokens", "default"], "--http-tokens = 'default'"),
        (["put", "no-domain"], "INSTANCE = 'no-domain'"),
    ],
)
def test_what_the_api_cannot_do_is_refused_with_a_remedy(
    over: Run, elsewhere: Repository, arguments: list[str], named: str
) -> None:
    result = over(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert named in result.stderr
    assert result.stderr.count("\n") == 1
    assert list(elsewhere.list()) == []


def fill(repository: Repository, count: int) -> list[str]:
    """Make records; return their ids in their order."""
    ids = [f"00000000-0000-4000-8000-{number:012x}" for number in range(count)]
    repository.push_all(
        [
            Push(kind=Kind.METADATA, record_id=one, content={"name": f"n{number}"}, networks=())
            for number, one in enumerate(ids)
        ]
    )
    return ids


def test_a_list_is_the_one_of_the_store(
    over: Run, run: Run, elsewhere: Repository, tmp_path: Path, instance_id: str
) -> None:
    assert json.loads(succeeded(over("list", "--format", "json"))) == []
    elsewhere.put(instance_id, document={"ssh_keys": ["a", "b"]}, userdata=b"u", project_id="p")
    elsewhere.put(OTHER_INSTANCE, document={"hostname": "\x1b[2J", "name": {"odd": [1]}})
    elsewhere.put(EVERYWHERE, document={"name": "never"})
    there = tmp_path / "there.conf"
    there.write_text(f"[store]\nconnection = sqlite:///{tmp_path}/elsewhere/store.db\n")
    for form in ("table", "json"):
        local = succeeded(run("list", "--config-file", str(there), "--format", form))
        assert succeeded(over("list", "--format", form)) == local
        assert "never" not in local
    assert {one["id"] for one in json.loads(local)} == {instance_id, OTHER_INSTANCE}


def test_a_list_of_several_pages_is_whole(over: Run, api: Api, elsewhere: Repository) -> None:
    ids = fill(elsewhere, PAGE + 1)
    found = json.loads(succeeded(over("list", "--format", "json")))
    assert [one["id"] for one in found] == ids
    assert [one["name"] for one in found][-1] == f"n{PAGE}"
    assert api.requests == [
        "GET /records",
        f"GET /records?after={ids[PAGE - 1]}",
        f"GET /records?after={ids[PAGE]}",
    ]


@pytest.mark.parametrize("path", ["/device-metadata", "/healthz"])
def test_what_does_not_list_records_is_told_so(over: Run, api: Api, path: str) -> None:
    result = over("list", "--url", f"{api.url}{path}")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.endswith(" [no-api]\n")


@pytest.mark.parametrize(
    "page",
    [
        *("{", "{}", "7", "null", '"a"', "[7]", "[{}]", '[{"id":7}]', '[{"id":"x"}]'),
        f'[{{"id":"{OTHER_INSTANCE.upper()}"}}]',
        f'[{{"id":"{OTHER_INSTANCE}"}},{{"id":"{OTHER_INSTANCE}"}}]',
        "[" * 100_000,
    ],
    ids=lambda page: page[:20],
)
def test_what_is_no_page_is_refused(page: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # whatever it says
        listing.load(page.encode(), after="")


def test_a_page_that_does_not_follow_is_refused() -> None:
    page = json.dumps([{"id": OTHER_INSTANCE}]).encode()
    assert listing.load(page, after="") == [{"id": OTHER_INSTANCE}]
    with pytest.raises(ValueError, match="not a page that follows"):
        listing.load(page, after=OTHER_INSTANCE)


# Tokens


def test_a_token_comes_from_a_file_or_the_environment_alone(
    run: Run, api: Api, tmp_path: Path, instance_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DFMETA_TOKEN", raising=False)
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    put = ("put", "--url", api.url, instance_id, "--name", "n")
    refused = run(*put)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "answers 401 (missing authorization header, " in refused.stderr
    assert "). Give a token that may do this: --token-file FILE" in refused.stderr
    succeeded(run(*put, "--token-file", str(file)))
    monkeypatch.setenv("DFMETA_TOKEN", "another")
    succeeded(run(*put, "--token-file", str(file)))
    assert "answers 401 (invalid auth token). Give a token" in run(*put).stderr
    shown = CliRunner().invoke(cli, ["store", "put", "--help"]).stdout
    assert "--token-file" in shown
    assert "--token " not in shown


@pytest.mark.parametrize("content", ["", "a b", "a\nb", "\xe9", "a\tb"])
def test_what_is_no_token_is_not_sent(
    run: Run, api: Api, tmp_path: Path, instance_id: str, content: str
) -> None:
    file = tmp_path / "token"
    file.write_text(content, encoding="latin-1")
    result = run("get", "--url", api.url, "--token-file", str(file), instance_id)
    assert result.exit_code == 2
    assert f"--token-file = '{file}' is wrong: it contains no token" in result.stderr
    assert api.requests == []
    missing = run("get", "--url", api.url, "--token-file", "/nonexistent", instance_id)
    assert "--token-file = '/nonexistent' is wrong: No such file" in missing.stderr


def test_a_token_without_a_url_is_a_mistake(run: Run, instance_id: str) -> None:
    result = run("get", "--token-file", "x", instance_id)
    assert result.exit_code == 2
    assert "need --url" in result.stderr


def test_whoever_may_not_is_told_so_once(over: Run, api: Api) -> None:
    api.token = "another"
    lines = [json.dumps({"id": OTHER_INSTANCE, "metadata": {}})] * 3
    result = over("import", "-", stdin="\n".join(lines).encode())
    assert result.exit_code == 1
    assert result.stderr.count("answers 401") == 1
    assert len(api.requests) == 1
    assert TOKEN not in result.stderr


# Failures


@pytest.mark.parametrize(
    "url",
    [
        "store",
        "ftp://h",
        "http://",
        "http://u:hush@h/",
        "http://h/?a=1",
        "http://h:x/",
        "http://[/",
    ],
)
def test_what_is_no_url_of_an_api_is_refused(run: Run, instance_id: str, url: str) -> None:
    result = run("get", "--url", url, instance_id)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("dfmeta: --url = ")
    assert "hush" not in result.stderr


def test_nobody_who_answers_is_one_line(run: Run, api: Api, instance_id: str) -> None:
    api.shutdown()
    api.server_close()
    result = run("get", "--url", api.url, instance_id)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "does not answer: Connection refused" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("status", [302, 400, 413, 500, 503])
def test_a_failure_is_said_as_the_api_says_it(
    over: Run, api: Api, instance_id: str, status: int
) -> None:
    api.failing = status
    result = over("put", instance_id, "--name", "n")
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"answers {status} (it fails)" in result.stderr
    assert len(api.requests) == 1


def test_an_api_that_is_away_ends_an_import(over: Run, api: Api) -> None:
    api.failing = 503
    lines = [json.dumps({"id": OTHER_INSTANCE, "metadata": {}})] * 3
    result = over("import", "-", stdin="\n".join(lines).encode())
    assert (result.exit_code, result.stdout) == (1, "")
    assert api.requests[0].startswith("POST")
    assert len(api.requests) == 2, "one push, and whether it is up"


def test_a_store_that_does_not_tell_addresses_is_not_written_to(
    over: Run, api: Api, elsewhere: Repository, instance_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere.put(instance_id, document={"a": 1})
    monkeypatch.setattr("dfmeta.store.api.admin.wants_envelope", lambda _accept: False)
    result = over("put", instance_id, "--name", "n")
    assert result.exit_code == 1
    assert "it is not a dfmeta store" in result.stderr
    assert document(elsewhere, instance_id) == {"a": 1}


@pytest.mark.parametrize("message", ["\x1b[2J", "a\nb", 7, ["a"], None])
def test_an_answer_is_shown_only_if_it_is_one_line_of_text(
    over: Run, api: Api, instance_id: str, message: object
) -> None:
    api.failing, api.message = 500, message  # type: ignore[assignment]  # any type is tried
    result = over("get", instance_id)
    assert result.exit_code == 1
    assert result.stderr.endswith("answers 500. See its log for the cause [store]\n")


def test_a_token_is_in_no_repr(api: Api) -> None:
    client = Client(api.url, token=TOKEN)
    assert TOKEN not in repr(client)
    client.close()


def test_a_project_is_refused_before_anything_is_asked(api: Api, instance_id: str) -> None:
    client = Client(api.url, token=TOKEN)
    with pytest.raises(RecordError, match="--project"):
        client.put(instance_id, document=Whole({}), project_id="p")
    client.close()
    assert api.requests == []


def test_a_record_s_own_name_is_enough(over: Run, elsewhere: Repository, instance_id: str) -> None:
    elsewhere.put(instance_id, document={"name": "web7"})
    assert instance_id in succeeded(over("get", "web7"))
    assert succeeded(over("delete", "web7")) == f"{instance_id} (web7): deleted\n"


@pytest.mark.parametrize("command", ["get", "delete", "put"])
def test_a_path_that_nobody_has_is_no_missing_record(
    over: Run, api: Api, instance_id: str, command: str
) -> None:
    named = ["--meta", "a=b"] if command == "put" else []
    result = over(command, "--url", f"{api.url}/elsewhere", instance_id, *named)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "answers 404 (invalid request - route not found)" in result.stderr
    assert result.stderr.endswith(" [no-api]\n")


def test_authorities_that_are_none_are_named(over: Run, tmp_path: Path, instance_id: str) -> None:
    (tmp_path / "ca.pem").write_text("none")
    for file, cause in (("ca.pem", "no certificate in it"), ("missing", "No such file")):
        result = over("get", "--ca-file", str(tmp_path / file), instance_id)
        assert result.exit_code == 2
        assert f"--ca-file = '{tmp_path}/{file}' is wrong: " in result.stderr
        assert cause in result.stderr


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (ssl.SSLCertVerificationError(), "--ca-file FILE"),
        (ssl.SSLError(), "Write http:// if the server does not use TLS"),
        (http.client.BadStatusLine("x"), "Write https:// if the server uses TLS"),
        (UnicodeError(), "Give a name in --url that this host can resolve"),
        (ConnectionRefusedError(), "Check that dfmeta-store or dfmeta-agent runs there"),
        (BrokenPipeError(), "its [store] max_body is large enough for the record"),
        (ConnectionResetError(), "its [store] max_body is large enough for the record"),
        (http.client.RemoteDisconnected(), "Write https:// if the server uses TLS"),
    ],
    ids=["authority", "tls", "plain", "name", "refused", "broken", "reset", "disconnected"],
)
def test_each_way_to_no_answer_has_its_remedy(error: Exception, remedy: str) -> None:
    assert remedy in _reach(error)
