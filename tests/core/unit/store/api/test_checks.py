"""What is wrong should be refused in a line that names option, value and remedy."""

import base64
import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfmeta.errors import RecordError
from dfmeta.store.api import checks
from tests.core.unit.store.support import named

Check = Callable[[str, Any], object]


def blob(*strings: bytes) -> str:
    return base64.b64encode(
        b"".join(len(string).to_bytes(4, "big") + string for string in strings)
    ).decode()


ED25519 = f"ssh-ed25519 {blob(b'ssh-ed25519', b'k' * 32)}"
RSA = f"ssh-rsa {blob(b'ssh-rsa', b'e' * 3, b'n' * 257)}"
SECURITY_KEY = (
    f"sk-ssh-ed25519@openssh.com {blob(b'sk-ssh-ed25519@openssh.com', b'k' * 32, b'ssh:')}"
)


def test_a_value_is_taken_as_it_is() -> None:
    for text in ("", "a", "web-1", "Web1.example.org", "1", "a" * 63):
        assert checks.hostname("--hostname", text) == text, text
    for text in ("", "My Web #1é", "x" * 255):
        assert checks.text_value("--name", text) == text, text
    for text, pair in (("a=b", ("a", "b")), ("a=", ("a", "")), ("a=b=c", ("a", "b=c"))):
        assert checks.meta_item("--meta", text) == pair, text
    for line in (ED25519, RSA, SECURITY_KEY, f"{RSA} a comment / of = all kinds"):
        assert checks.ssh_keys("--ssh-key", f"  {line}\r\n") == [line], line
    keys = f"# mine\n\n{ED25519} a\n{RSA} b\n"
    assert checks.ssh_keys("--ssh-key", keys, name="@f") == [f"{ED25519} a", f"{RSA} b"]
    assert checks.ssh_keys("--ssh-key", "") == []
    addresses = ["192.0.2.7", "", "10.1.2.3/28", "2001:db8::9", "::ffff:192.0.2.9"]
    networks = ["192.0.2.7/32", "10.1.2.0/28", "2001:db8::9/128", "192.0.2.9/32"]
    assert [str(network) for network in checks.networks("--address", addresses)] == networks
    for text in ("#!/bin/sh\n", "#cloud-config\na: 1\n", "#include\n", "Content-Type: text/x\n"):
        assert checks.vendor_data("o", text.encode(), name="f") == text, text
    assert checks.vendor_data("o", b' {"a": 1}', name="f") == {"a": 1}
    for text in ("version: 2\n", '{"version": 1, "config": []}', "network: {}\n"):
        assert checks.network_config("o", text.encode(), name="f") == text, text


def refused(check: Check, cause: str, *values: object) -> None:
    for value in values:
        with named(value), pytest.raises(RecordError, match=cause) as caught:
            check("--option", value)
        assert str(caught.value).isprintable()


def test_a_value_that_cannot_be_stored_is_refused_with_a_remedy() -> None:
    host = ["-a", "a-", "a_b", "a b", "a..b", ".", "a.", "a" * 64, ".".join(["a" * 60] * 5), "é"]
    refused(checks.hostname, "--option = .*host name.*Use letters", *host, "a\n")
    refused(checks.text_value, "--option = .*Use ", "a\nb", "\0", "\udcff", "x" * 256, "\x1b[2J")
    refused(checks.meta_item, "--option = ", "", "a", "=b", "a=\0", "\0=b")
    refused(checks.networks, "--option = ", ["10.0.0"], ["fe80::1%eth0"], ["10.0.0.0/33"], ["x"])
    empty = partial(checks.ssh_keys, name="@f")
    refused(empty, "'@f' is wrong: it contains no key", "# nothing\n")
    config = partial(checks.network_config, name="f")
    refused(config, "--option = 'f'", b"", b"- a", b"a: [", b"a: !!python/name:os x", b"\xff")
    vendor = partial(checks.vendor_data, name="f")
    for content, cause in (
        (b"packages: [vim]\n", "first line"),
        (b"#cloud-config\n- a\n", "not a mapping"),
        (b"#cloud-config\na: [\n", "not YAML"),
        (b"#cloud-config\n", "not a mapping"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": 1', "not JSON"),
        (b"#!/bin/sh\0", "NUL"),
        (b"\x1f\x8b", "not UTF-8"),
        (b"", "first line"),
    ):
        refused(vendor, cause, content)


def test_what_is_no_public_key_is_refused() -> None:
    for line, cause in [
        ("me@host", "does not begin with a type"),
        ("ssh-ed25519", "not the base64"),
        (ED25519[:-6], "not the base64"),
        (f"ssh-rsa {blob(b'ssh-ed25519', b'k')}", "not the base64"),
        (f"ssh-rsa {blob(b'ssh-rsa')}", "not the base64"),
        (f"ssh-rsa {blob(b'ssh-rsa', b'')}", "not the base64"),
        ("ssh-rsa é", "not the base64"),
        (f'command="x" {RSA}', "does not begin with a type"),
        (f"{RSA} \udcff", "control characters"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----", "private key"),
    ]:
        with (
            named(line),
            pytest.raises(RecordError, match=f"--ssh-key = .*{cause}.*Give a line of a .pub file"),
        ):
            checks.ssh_keys("--ssh-key", line)


def test_a_private_key_is_not_repeated() -> None:
    text = "-----BEGIN OPENSSH PRIVATE KEY-----\nhush\n"
    with pytest.raises(RecordError) as caught:
        checks.ssh_keys("--ssh-key", text)
    assert "OPENSSH" not in str(caught.value)
    with pytest.raises(RecordError, match="'@id_rsa' is wrong: it is a private key"):
        checks.ssh_keys("--ssh-key", text, name="@id_rsa")


TEXTS: list[Any] = [checks.hostname, checks.text_value, checks.meta_item, checks.ssh_keys]
FILES: list[Any] = [checks.document, checks.vendor_data, checks.network_config]


@given(st.text())
def test_any_text_is_taken_or_refused(text: str) -> None:
    content = text.encode("utf-8", "surrogatepass")
    calls: list[Callable[[], object]] = [
        *(lambda check=check: check("o", text) for check in TEXTS),
        *(lambda check=check: check("o", content, name="f") for check in FILES),
        lambda: checks.networks("o", [text]),
        lambda: checks.ssh_keys("o", f"ssh-rsa {text}"),
        lambda: checks.vendor_data("o", b"#cloud-config\n" + content, name="f"),
    ]
    for call in calls:
        with contextlib.suppress(RecordError):
            call()


def test_a_document_that_cannot_be_stored_is_refused() -> None:
    for content, cause in [
        (b"[]", "not a JSON object"),
        (b'{"a": {"b": 1, "b": 2}}', "same name"),
        (b'{"a": ' + b"9" * 5000 + b"}", "digits"),
        (b'{"a": "\xff"}', "UTF-8"),
        (b"", "not JSON"),
    ]:
        with named(content):
            with pytest.raises(RecordError, match=cause) as caught:
                checks.document("--json", content, name="f")
            assert len(str(caught.value)) < 300
    assert checks.document("--json", '\ufeff{"a": "é"}'.encode(), name="f") == {"a": "é"}
    userdata = b"h" * (checks.USERDATA_MAX + 1)
    assert checks.userdata("--user-data", userdata[:-1], name="f") == userdata[:-1]
    with pytest.raises(RecordError, match=r"--user-data = 'f' is wrong: it has more than"):
        checks.userdata("--user-data", userdata, name="f")
