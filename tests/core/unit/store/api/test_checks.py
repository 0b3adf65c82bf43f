"""What is wrong should be refused in a line that names option, value and remedy."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfmeta.exceptions import RecordError
from dfmeta.store.api import checks


def blob(*strings: bytes) -> str:
    return base64.b64encode(
        b"".join(len(string).to_bytes(4, "big") + string for string in strings)
    ).decode()


ED25519 = f"ssh-ed25519 {blob(b'ssh-ed25519', b'k' * 32)}"
RSA = f"ssh-rsa {blob(b'ssh-rsa', b'e' * 3, b'n' * 257)}"
SECURITY_KEY = (
    f"sk-ssh-ed25519@openssh.com {blob(b'sk-ssh-ed25519@openssh.com', b'k' * 32, b'ssh:')}"
)


@pytest.mark.parametrize("text", ["", "a", "web-1", "Web1.example.org", "1", "a" * 63])
def test_host_names(text: str) -> None:
    assert checks.hostname("--hostname", text) == text


@pytest.mark.parametrize(
    "text",
    ["-a", "a-", "a_b", "a b", "a..b", ".", "a.", "a" * 64, ".".join(["a" * 60] * 5), "é", "a\n"],
)
def test_what_is_no_host_name_is_refused(text: str) -> None:
    with pytest.raises(RecordError, match=r"--hostname = .*host name.*Use letters"):
        checks.hostname("--hostname", text)


@pytest.mark.parametrize("text", ["", "My Web #1", "é", "x" * 255])
def test_text(text: str) -> None:
    assert checks.text_value("--name", text) == text


@pytest.mark.parametrize("text", ["a\nb", "\0", "\udcff", "x" * 256, "\x1b[2J"])
def test_text_that_is_not_one_short_line_is_refused(text: str) -> None:
    with pytest.raises(RecordError, match=r"--name = .*Use ") as caught:
        checks.text_value("--name", text)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("text", "item"), [("a=b", ("a", "b")), ("a=", ("a", "")), ("a=b=c", ("a", "b=c"))]
)
def test_meta(text: str, item: tuple[str, str]) -> None:
    assert checks.meta_item("--meta", text) == item


@pytest.mark.parametrize("text", ["", "a", "=b", "a=\0", "\0=b"])
def test_what_is_not_key_value_is_refused(text: str) -> None:
    with pytest.raises(RecordError, match=r"--meta = "):
        checks.meta_item("--meta", text)


def test_userdata_that_is_too_large_is_refused_without_repeating_it() -> None:
    content = b"h" * (checks.USERDATA_MAX + 1)
    assert checks.userdata("--user-data", content[:-1], name="f") == content[:-1]
    with pytest.raises(RecordError, match=r"--user-data = 'f' is wrong: it has more than"):
        checks.userdata("--user-data", content, name="f")


@pytest.mark.parametrize("line", [ED25519, RSA, SECURITY_KEY, f"{RSA} a comment / of = all kinds"])
def test_ssh_keys(line: str) -> None:
    assert checks.ssh_keys("--ssh-key", f"  {line}\r\n") == [line]


def test_a_file_of_keys() -> None:
    text = f"# mine\n\n{ED25519} a\n{RSA} b\n"
    assert checks.ssh_keys("--ssh-key", text, name="@f") == [f"{ED25519} a", f"{RSA} b"]


def test_an_empty_key_is_no_key_but_an_empty_file_is_a_mistake() -> None:
    assert checks.ssh_keys("--ssh-key", "") == []
    with pytest.raises(RecordError, match="'@f' is wrong: it contains no key"):
        checks.ssh_keys("--ssh-key", "# nothing\n", name="@f")


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("me@host", "does not begin with a type"),
        ("ssh-ed25519", "not the base64"),
        (ED25519[:-6], "not the base64"),
        (f"ssh-rsa {blob(b'ssh-ed25519', b'k')}", "not the base64"),
        (f"ssh-rsa {blob(b'ssh-rsa')}", "not the base64"),
        (f"ssh-rsa {blob(b'ssh-rsa', b'')}", "not the base64"),
        ("ssh-rsa AAA", "not the base64"),
        ("ssh-rsa é", "not the base64"),
        (f'command="x" {RSA}', "does not begin with a type"),
        (f"{RSA} \x1b[2J", "control characters"),
        (f"{RSA} \udcff", "control characters"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----", "private key"),
    ],
)
def test_what_is_no_public_key_is_refused(line: str, cause: str) -> None:
    with pytest.raises(RecordError, match=f"--ssh-key = .*{cause}.*Give a line of a .pub file"):
        checks.ssh_keys("--ssh-key", line)


def test_a_private_key_is_not_repeated() -> None:
    text = "-----BEGIN OPENSSH PRIVATE KEY-----\nhush\n"
    with pytest.raises(RecordError) as caught:
        checks.ssh_keys("--ssh-key", text)
    assert "OPENSSH" not in str(caught.value)
    with pytest.raises(RecordError, match="'@id_rsa' is wrong: it is a private key"):
        checks.ssh_keys("--ssh-key", text, name="@id_rsa")


@given(st.text())
def test_any_text_is_taken_or_refused(text: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: checks.hostname("o", text),
        lambda: checks.text_value("o", text),
        lambda: checks.meta_item("o", text),
        lambda: checks.networks("o", [text]),
        lambda: checks.document("o", text.encode("utf-8", "surrogatepass"), name="f"),
        lambda: checks.vendor_data(
            "o", f"#cloud-config\n{text}".encode("utf-8", "replace"), name="f"
        ),
        lambda: checks.network_config("o", text.encode("utf-8", "replace"), name="f"),
        lambda: checks.ssh_keys("o", text),
        lambda: checks.ssh_keys("o", f"ssh-rsa {text}"),
    ]
    for call in calls:
        with contextlib.suppress(RecordError):
            call()


# Addresses and files


def test_an_address_is_a_network_with_its_host_bits_masked() -> None:
    texts = ["192.0.2.7", "", "10.1.2.3/28", "2001:db8::9", "::ffff:192.0.2.9"]
    assert [str(one) for one in checks.networks("--address", texts)] == [
        "192.0.2.7/32",
        "10.1.2.0/28",
        "2001:db8::9/128",
        "192.0.2.9/32",
    ]
    assert checks.networks("--address", [""]) == []


@pytest.mark.parametrize("text", ["10.0.0", "fe80::1%eth0", "10.0.0.0/33", "x"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(RecordError, match="--address = "):
        checks.networks("--address", [text])


def test_vendor_data_is_an_object_or_a_text_that_says_what_it_is() -> None:
    for text in ("#!/bin/sh\n", "#cloud-config\na: 1\n", "#include\n", "Content-Type: text/x\n"):
        assert checks.vendor_data("o", text.encode(), name="f") == text
    assert checks.vendor_data("o", b' {"a": 1}', name="f") == {"a": 1}


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"packages: [vim]\n", "first line"),
        (b"#cloud-config\n- a\n", "not a mapping"),
        (b"#cloud-config\na: [\n", "not YAML"),
        (b"#cloud-config\n", "not a mapping"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": 1', "not JSON"),
        (b"#!/bin/sh\0", "NUL"),
        (b"\x1f\x8b", "not UTF-8"),
        (b"", "first line"),
    ],
)
def test_vendor_data_that_cloud_init_would_drop_is_refused(content: bytes, cause: str) -> None:
    with pytest.raises(RecordError, match=cause):
        checks.vendor_data("--vendor-data", content, name="f")


@pytest.mark.parametrize("text", ["version: 2\n", '{"version": 1, "config": []}', "network: {}\n"])
def test_a_network_config_is_kept_as_it_is_written(text: str) -> None:
    assert checks.network_config("o", text.encode(), name="f") == text


@pytest.mark.parametrize("content", [b"", b"- a", b"a: [", b"a: !!python/name:os x", b"\xff"])
def test_a_network_config_that_is_no_mapping_is_refused(content: bytes) -> None:
    with pytest.raises(RecordError, match="--network-config = 'f'"):
        checks.network_config("--network-config", content, name="f")


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"[]", "not a JSON object"),
        (b'{"a": 1} {', "Extra data"),
        (b'{"a": {"b": 1, "b": 2}}', "same name"),
        (b'{"a": Infinity}', "Infinity"),
        (b'{"a": 1e999}', "too large"),
        (b'{"a": "\\ud800"}', "surrogate"),
        (b'{"\\u0000": 1}', "NUL"),
        (b'{"a":' * 100_000, "deep"),
        (b'{"a":' * 101 + b"1" + b"}" * 101, "deep"),
        (b'{"a": ' + b"9" * 5000 + b"}", "digits"),
        (b'{"a": "\xff"}', "UTF-8"),
        (b"", "not JSON"),
    ],
)
def test_a_document_that_cannot_be_stored_is_refused(content: bytes, cause: str) -> None:
    with pytest.raises(RecordError, match=cause) as caught:
        checks.document("--json", content, name="f")
    assert len(str(caught.value)) < 300


def test_a_document_is_what_it_says() -> None:
    deep = b'{"a":' * 100 + b"1" + b"}" * 100
    assert checks.document("--json", deep, name="f")
    content = '\ufeff{"a": [1.5, "é", null], "b": {}}'.encode()
    assert checks.document("--json", content, name="f") == {"a": [1.5, "é", None], "b": {}}
