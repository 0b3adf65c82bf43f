"""Every regular expression of dfmeta should take time in proportion to what it reads.

Each of them sees bytes of a guest, of a client or of an upstream, and Python's engine holds the
hub until it is done. The expressions are found by their calls in the source.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Set
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Final

import pytest
from webob import Request
from webob.acceptparse import create_accept_header

from dfmeta.devices.schema import ADDRESSES, SCHEMA
from dfmeta.exceptions import BadRequestError
from dfmeta.model import Answer, GuestRequest
from dfmeta.proxy.http1 import Body, HeadLimits, find_end, parse_head
from dfmeta.store.api.representations import wants_envelope
from dfmeta.store.api.trusted import TrustedProxies
from dfmeta.store.guest.documents import hostname_of
from dfmeta.store.guest.etags import tagged, unless_known
from dfmeta.store.guest.keys import keys_of, name_keys
from dfmeta.store.guest.paths import split_path
from dfmeta.store.guest.templates import rendered
from dfmeta.store.strictjson import loads

ROOT = Path(__file__).parents[3]
Text = str | bytes
Use = tuple[re.Pattern[Any], Set[str]]
"""An expression and the methods by which it is applied."""
CALLS: Final = frozenset(
    {"compile", "match", "fullmatch", "search", "sub", "split", "findall", "finditer"}
)
RUN: Final[Mapping[str, Callable[[re.Pattern[Any], Any], object]]] = {
    "match": lambda pattern, text: pattern.match(text),
    "fullmatch": lambda pattern, text: pattern.fullmatch(text),
    "search": lambda pattern, text: pattern.search(text),
    "sub": lambda pattern, text: pattern.sub(lambda found: found[0], text),
    "split": lambda pattern, text: pattern.split(text),
    "findall": lambda pattern, text: pattern.findall(text),
    "finditer": lambda pattern, text: [*pattern.finditer(text)],
}
COMPUTED: Final[Mapping[str, tuple[str, ...]]] = {
    "ADDRESSES.get(bus, '(?!)')": (*ADDRESSES.values(),),
}
"""Expressions that are known at run time alone, by their source → all that they may be."""
PASSED_ON: Final[Mapping[str, Set[str]]] = {
    "guest/cni.py _CONTAINER": {"fullmatch"},
    "guest/cni.py _IFNAME": {"fullmatch"},
    "guest/tag_devices.py _SCSI": {"fullmatch"},
    "guest/tag_devices.py _STABLE": {"fullmatch"},
    "guest/tag_devices.py _XEN": {"fullmatch"},
}
"""Those whose methods are called by another name → the methods."""
SMALL, FACTOR, TIMES = 256, 8, 3
"""Characters, how many times as many, and how far from linear the time may be: quadratic is 8."""
TRIES: Final = (3, 9, 27)
RESOLUTION: Final = 1e-6
"""Seconds, below which no time means anything."""
LONGEST = 3
"""Characters of an example that are repeated together."""


def modules() -> Iterator[tuple[Path, ast.Module]]:
    """Those that know of regular expressions."""
    for path in sorted((ROOT / "dfmeta").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if re.search(r"^\s*(import re|from re import)\b", text, re.MULTILINE):
            yield path, ast.parse(text)


def calls(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    """Calls of the module ``re`` that take an expression, by function."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="re"), attr=name)) if name in CALLS:
                yield name, node
            case ast.ImportFrom(module="re"):
                pytest.fail(f"line {node.lineno}: import re as a whole, or it is not found here")


def applied(tree: ast.Module) -> dict[str, set[str]]:
    """Name of a compiled expression → its methods that are used."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=method) if method in RUN:
                found.setdefault(name, set()).add(method)
    return found


def compiled(call: ast.Call, names: dict[str, Any]) -> list[re.Pattern[Any]]:
    """What a call makes of its arguments, all of them that it may be."""
    source = ast.unparse(call.args[0])
    flags = [
        one
        for one in (*call.args[1:], *(keyword.value for keyword in call.keywords))
        if ast.unparse(one).startswith("re.")
    ]
    # Values of our own source, in the module that has them.
    bits = [eval(ast.unparse(one), names) for one in flags]
    texts = COMPUTED.get(source) or (eval(source, names),)
    return [re.compile(text, sum(bits, start=0)) for text in texts]


@functools.cache
def uses() -> dict[str, dict[Text, Use]]:
    """All there are in the tree: module and name, or the text where it has none → by text."""
    trees = {path.relative_to(ROOT / "dfmeta"): tree for path, tree in modules()}
    own = {path: applied(tree) for path, tree in trees.items()}
    public: dict[str, set[str]] = {}
    for private in own.values():
        for name, methods in private.items():
            public.setdefault(name, set()).update(methods)
    found: dict[str, dict[Text, Use]] = {}
    for path, tree in trees.items():
        dotted = ".".join(("dfmeta", *path.with_suffix("").parts))
        names = vars(importlib.import_module(dotted))
        private, owners = own[path], assigned(tree)
        for function, call in calls(tree):
            place, methods = f"{path} {source(call)}", {function}
            if function == "compile":
                name = owners[id(call)]
                place = f"{path} {name}"
                methods = (private if name.startswith("_") else public).get(name, set())
                methods = methods or {*PASSED_ON[place]}
            for pattern in compiled(call, names):
                add(found.setdefault(place, {}), pattern, methods)
    for text in schema_patterns(SCHEMA):
        add(found.setdefault("devices/schema.py SCHEMA", {}), re.compile(text), {"search"})
    return found


def source(call: ast.Call) -> str:
    """A call's expression, as it is written where it is a literal."""
    match call.args[0]:
        case ast.Constant(value=str(text)):
            return text
    return ast.unparse(call.args[0])


def add(found: dict[Text, Use], pattern: re.Pattern[Any], methods: Set[str]) -> None:
    """Note that an expression is applied so."""
    _pattern, known = found.get(pattern.pattern, (pattern, frozenset()))
    found[pattern.pattern] = (pattern, known | methods)


def assigned(tree: ast.Module) -> dict[int, str]:
    """Identity of a value or of a part of it → the name that it is assigned to."""
    return {
        id(part): ast.unparse(target)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        for part in ast.walk(node.value)
    }


def schema_patterns(schema: object) -> Iterator[str]:
    """Expressions that a schema's validator looks for."""
    match schema:
        case Mapping():
            for name, value in schema.items():
                if name == "pattern" and isinstance(value, str):
                    yield value
                else:
                    yield from schema_patterns(value)
        case list() | tuple():
            for value in schema:
                yield from schema_patterns(value)


EXAMPLES: Final[Mapping[str, tuple[Text, ...]]] = {
    "cli/config_drive.py _VERSION": ("2018-08-27",),
    "cli/gather.py _VERSION": ("Name: dfmeta\nVersion: 0.1.0\n",),
    "cli/token_command.py _DURATION": ("12h",),
    "cli/token_command.py [\\s,]+": ("a, b\t,",),
    "conf/agent.py _OPENFLOW": (
        "auto",
        "unix:/a",
        "listen:a:80",
    ),
    "conf/agent.py _OVSDB": (
        "unix:/a",
        "tcp:a:80",
    ),
    "admin/attachments.py _ONE": ("/attachments/11111111-2222-3333-4444-555555555555",),
    "attach/addresses.py _UNICAST": ("fa:16:3e:00:00:01",),
    "attach/api.py _TTL": ("12",),
    "attach/requests.py BOOT_ID": ("6f1c2b5e-3a44-4a55-9d0e-7a1f0c9b1d01",),
    "attach/requests.py CONTAINER": ("a_.-1",),
    "attach/requests.py IFNAME": ("eth0.1",),
    "attach/requests.py NETWORK": ("a_.-1",),
    "conf/attachments.py _NAME": ("a_.-1",),
    "conf/attachments.py _RANGE": ("2:4000",),
    "conf/attachments.py _UUID": (
        "6f1c2b5e-3a44-4a55-9d0e-7a1f0c9b1d01",
        "6f1c2b5e3a444a559d0e7a1f0c9b1d01",
    ),
    "conf/auth.py _JWKS_URL": ("https://a.b/c?d",),
    "conf/kinds.py HTTP_URL": ("https://a.b/c/d",),
    "conf/kinds.py _HOST_PORT": (
        "[::1]:80",
        "a.b:80",
    ),
    "conf/lookup.py _WORD": ("a!b",),
    "conf/neutron.py _URL": ("http://a.b/c",),
    "conf/neutron.py _WORD": ("ab",),
    "conf/store.py _UUID": ("12345678-90ab-cdef-0123-456789abcdef",),
    "devices/addresses.py 0x([0-9a-fA-F]{1,8})|([0-9]{1,9})": (
        "0x1f",
        "12",
    ),
    "devices/addresses.py [0-9]+:[0-9]+(\\.[0-9]+)*": ("1:2.3.4",),
    "devices/addresses.py _XEN_DISK": ("xvda1",),
    "devices/addresses.py _XEN_VIF": ("vif1.2",),
    "devices/libvirt.py [0-9]{1,4}": ("12",),
    "devices/libvirt.py _MAC": ("fa:16:3e:00:00:01",),
    "devices/libvirt.py _PRINTABLE": ("a b",),
    "devices/rules.py _TAG": ("a b",),
    "devices/schema.py SCHEMA": (
        "a b",
        "fa:16:3e:00:00:01",
        "0000:00:1f.a",
        "1:2.3",
        "1:2.3.4",
        "1:0:a:3",
        "1:1",
        "12",
        "none",
    ),
    "devices/splice.py _BLANKS": (" \t\n\r",),
    "guest/cni.py _CONTAINER": ("a1_.-b",),
    "guest/cni.py _IFNAME": ("eth0.1",),
    "guest/cni.py _MAC": ("fa:16:3e:00:00:01",),
    "guest/cni.py _NETWORK": ("a1_.-b",),
    "guest/cni.py _NUMBER": (b"12",),
    "guest/cni.py _PORT": ("169.254.169.254:80", "[fe80::1%eth0]:80"),
    "guest/cni.py _STATUS": (b"HTTP/1.1 200 OK",),
    "guest/cni.py _TOKEN": (b"a!",),
    "guest/tag_devices.py (?m)^DEVTYPE=(.*)$": ("A=b\nDEVTYPE=disk\n",),
    "guest/tag_devices.py =([0-9A-F]{2})": ("a=0Fb=A0",),
    'guest/tag_devices.py SUBSYSTEM=="([a-z]+)"': ('SUBSYSTEM=="net", SUBSYSTEM=="a"',),
    "guest/tag_devices.py [!-~]{1,4096}": ("a!",),
    "guest/tag_devices.py [:.-]": ("1:2.3-4",),
    "guest/tag_devices.py [\\[{]|[\\]}]": ("[{a}]",),
    "guest/tag_devices.py [^A-Za-z0-9_-]|_(?=[0-9A-F]{2})": ("a.b_0Fc_",),
    "guest/tag_devices.py [a-f]": ("12a",),
    "guest/tag_devices.py ^/dev/": ("/dev/sda",),
    "guest/tag_devices.py ^\\.|[^A-Za-z0-9._-]|-(?=part[0-9]+$)": (".a b-part12",),
    "guest/tag_devices.py _ADDRESS": ("0:1f.2-3",),
    "guest/tag_devices.py _ATA": ("ata12",),
    "guest/tag_devices.py _MAC": ("fa:16:3e:00:00:01",),
    "guest/tag_devices.py _NAME": ("a.1",),
    "guest/tag_devices.py _PCI": ("0000:00:1f.a",),
    "guest/tag_devices.py _SCSI": ("1:0:2:3",),
    "guest/tag_devices.py _STABLE": (
        "virtio1",
        "host1",
        "target1:2:3",
        "1:2:3:4",
        "nvme1",
    ),
    "guest/tag_devices.py _USB": ("1-2.3.4",),
    "guest/tag_devices.py _VALUE": ("a/b%n",),
    "guest/tag_devices.py _XEN": (
        "vif-1",
        "vbd-51712",
    ),
    "guest/tag_devices.py host\\d+": ("host12",),
    "guest/tag_devices.py nvme\\d+(n\\d+)": ("nvme1n12",),
    "guest/tag_devices.py usb\\d+": ("usb12",),
    "host/system.py _DATASOURCES": ("a: b\ndatasource_list: [ A, B ]\n",),
    "host/system.py _SECTION": ("[a b]",),
    "inspect/tracing.py _BRIDGE": ('bridge("br-meta")  ',),
    "inspect/tracing.py _MISS": ("reg0=0x1", "reg0=0x2"),
    "inspect/tracing.py _HOP": (
        " 0. ip,in_port=1, priority 300, cookie 0xdf ",
        " 1. No match.",
        "12. priority 0",
    ),
    "ports/sources.py _PROJECT": ("a1",),
    "admin/listener.py _VERSION": ("; version=1.0.0",),
    "admin/browsers.py _HOST": (
        "[::1]:80",
        "a.b:80",
    ),
    "ports/message_parser.py _TOKEN": ('{"a\\"b":[1]}', '{"a'),
    "ports/next_hop_list.py _MAC": ("fa:16:3e:00:00:01",),
    "ports/next_hop_list.py _SEPARATORS": ("a, b",),
    "ports/subport_list.py _PORT_ID": ("3f1a9c22-5e0d", "x" * 255),
    "proxy/haproxy/counts.py _LINE": ("5.0.1.0.2 404 ---- nova /a",),
    "proxy/haproxy/entries.py _PLAIN": ("a-b.c",),
    "proxy/haproxy/handover.py _ID": ("1795557389.0105.0.1",),
    "proxy/haproxy/process.py _OWN_LINE": ("[ALERT]    (12) : config : a b",),
    "proxy/haproxy/process.py _USUAL": ("Proxy nova stopped ", "Server nova/nova0 is UP, "),
    "proxy/haproxy/runtime.py _ENTRY": ("0x5625a06be450 127.0.0.1 a|b",),
    "proxy/haproxy/runtime.py _VERSION": ("New version created: 12\n",),
    "proxy/http1.py _BAD_ESCAPE": ("/a%2fb%%1",),
    "proxy/http1.py _CHUNK": (b'1f;a="b"\t',),
    "proxy/http1.py _LENGTH": ("12",),
    "proxy/http1.py _LITERAL": ("[fe80::1%eth0]:80", "[fe80::a9fe:a9fe%25eth0]"),
    "proxy/http1.py _NAME": ("a.b%2d:80",),
    "proxy/http1.py _REQUEST_LINE": ("GET /a/b?c HTTP/1.1",),
    "proxy/http1.py _TOKEN": ("a-B",),
    "proxy/nova/backend.py _VISIBLE": ("a1",),
    "proxy/nova/request.py PRINTABLE": ("a b",),
    "proxy/nova/replies.py _CHUNK": (b'1f \t;a="b"',),
    "proxy/nova/replies.py _FIELD": ("A-b: c\té",),
    "proxy/nova/replies.py _LENGTH": ("12",),
    "proxy/nova/replies.py _STATUS": ("HTTP/1.1 200 All right",),
    "admin/page.py _DIGITS": ("12",),
    "proxy/tokens.py _TOKEN": ("a-_1a-_1a-_1a-_1a-_1a-_1a-_1a-_1a-_1a-_1a-_1a-_1a-_1a-_1",),
    "proxy/tokens.py _TTL": ("12",),
    "proxy/application.py _ADMIN": (
        "/api/v1/metadata/x",
        "/healthz/a",
        "/metrics",
        "/version",
        "/device-metadata/a",
        "/records/a",
    ),
    "proxy/application.py _OPENSTACK_VERSION": ("//openstack//latest",),
    "proxy/application.py _PASSWORD": ("/openstack/latest/password/",),
    "store/auth/caller.py _TOKEN": ("a+/-==",),
    "store/auth/tokens.py _DIGEST": (
        "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
    ),
    "store/auth/tokens.py _NAME": ("a.b@c",),
    "store/auth/tokens.py _SCOPE": ("a:b",),
    "store/api/bodies.py _DIGITS": ("12",),
    "store/api/checks.py _KEY_TYPE": (
        "ssh-rsa",
        "ecdsa-sha2-nistp256",
        "sk-ssh-ed25519@openssh.com",
    ),
    "store/api/checks.py _LABEL": ("a-b1",),
    "store/guest/documents.py [\\s_]+": ("a _b  c",),
    "store/guest/documents.py [^a-z0-9-]": ("a!b_c",),
    "store/guest/documents.py _TAG_KEY": ("..a_index",),
    "store/guest/etags.py _MEMBER": (' \tW/"a"\t ,',),
    "store/guest/keys.py [^A-Za-z0-9._@-]+": ("a b!!c",),
    "store/lookup/answer.py UUID": ("12345678-90ab-cdef-0123-456789abcdef",),
    "store/lookup/token.py TOKEN": ("a.b",),
    "store/api/requests.py ADDRESSES.get(bus, '(?!)')": (
        "0000:00:1f.a",
        "1:2.3",
        "1:2.3.4",
        "1:0:a:3",
        "1:1",
        "12",
        "none",
    ),
    "store/api/requests.py _MAC": ("fa:16:3e:00:00:01",),
    "store/api/requests.py _UUID": ("12345678-90ab-cdef-0123-456789abcdef",),
    "store/guest/netconfig.py [0-9]{1,6}": ("12",),
    "store/guest/netconfig.py _MAC": ("fa:16:3e:00:00:01",),
    "store/guest/netconfig.py _NAME": ("eth0",),
    "store/strict.py _NAMED": ("alias 'x'", 'tag "x"'),
    "store/strictjson.py _NO_TEXT": ("a\x00b",),
    "store/guest/templates.py _FIELD": (" .a.b1 ",),
    "store/api/trusted.py _ADDRESS": ("fe80::1.2",),
    "wiring/haproxy_program.py _VERSION": ("HAProxy version 2.6.12-1",),
}
"""Place of an expression → texts that it matches or finds something in, with each of its
alternatives, loops and classes in one of them."""


def head(text: str) -> object:
    """Read a request with that target and header, all that a guest writes of it."""
    raw = text.encode()
    size = find_end(raw, WIDE)
    return parse_head(raw[:size], WIDE) if size > 0 else None


def chunks(raw: bytes) -> object:
    """Read a body in chunks, whatever it is."""
    body = Body(parse_head(CHUNKED), WIDE.header, limits=WIDE)
    with contextlib.suppress(BadRequestError):
        body.feed(raw)
    return body.content


def same_names(text: str) -> object:
    """Give each line a name, where all want the same."""
    return name_keys(("a", line) for line in text.split("\n"))


WIDE: Final = HeadLimits(request_line=1 << 20, header=1 << 20, lines=1 << 20)
CHUNKED: Final = b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
LINE, END = "GET / HTTP/1.1\r\nHost: h\r\n", "\r\n\r\n"
PEER: Final = ip_network("192.0.2.1/32")
FOUND: Final = tagged(Answer(200, b"a"))
READERS: Final[Mapping[str, tuple[Any, ...]]] = {
    "head": (
        head,
        ("GET /", "/", " HTTP/1.1\r\nHost: h" + END),
        ("GET /", "%2F", " HTTP/1.1\r\nHost: h" + END),
        (LINE + "A:", " ", "b" + END),
        (LINE + "A:", " \t", END),
        (LINE + "Connection: ", ", ", "close" + END),
        (LINE, "A: b\r\n", "\r\n"),
    ),
    "chunks": (
        chunks,
        (b"", b"1\r\na\r\n", b"0\r\n\r\n"),
        (b"", b"1;a\r\na\r\n", b"0\r\n\r\n"),
        (b"0\r\n", b"A: b\r\n", b"\r\n"),
        (b"1;", b";", b"\r\n"),
    ),
    "path": (split_path, ("/", "/", "a"), ("/", "a/", ""), ("/", "%2f", ""), ("/", "%", "")),
    "entity tags": (
        lambda text: unless_known(FOUND, GuestRequest("GET", "/", headers={"if-none-match": text})),
        *((",", one, "x") for one in (" ", ",", '"a",', 'W/"a" ,', '"', "W/")),
    ),
    "accept": (
        lambda text: wants_envelope(create_accept_header(text)),
        *(("", one, "") for one in (",", ";", "a/b;q=1,", 'a/b;c="d\\"', "q=0.1;", " ")),
    ),
    "if-none-match of an admin request": (
        lambda text: "x" in Request.blank("/", headers={"If-None-Match": text}).if_none_match,
        *(("", one, "") for one in (" ", ' "', '"', 'W/"', '\\"', '"a",')),
    ),
    "forwarded for": (
        lambda text: TrustedProxies([PEER]).guest(PEER.network_address, text),
        ("192.0.2.1", ", 192.0.2.1", ""),
        ("192.0.2.1", " ", ""),
    ),
    "template": (
        lambda text: rendered(text, {"a": "b"}),
        *(("", one, "") for one in ("{{", "{{.a}}", "{", "}}", "{{.", "{{ ")),
        ("{{", " ", "}}"),
        ("{{", ".a", "}}"),
    ),
    "JSON": (
        loads,
        *((f"[{one}", f",{one}", "]") for one in ("1", '"a"', "[]", '{"a":1}', '"\\u0041"')),
        ('["', "\\u0041", '"]'),
        ('{"b":1', " ", "}"),
    ),
    "names of keys": (same_names, ("a", "\nb", ""), ("a", " b", "")),
    "host name": (hostname_of, *(("a", one, "") for one in (".", "-", "_", " ", "a"))),
    "SSH key": (lambda text: keys_of({"ssh_keys": [text]}), ("a", " ", ""), ("a", "\n#", "")),
}
"""Code with loops of its own that reads the same bytes → what it does, and parts of texts."""


def adversaries(example: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Start, what is repeated and end of texts that are made of an example.

    What is repeated is each of its characters, and each short piece at its place; what comes
    behind it fits, is missing, or fits nothing.
    """
    spoil = "\0" if isinstance(example, str) else b"\0"
    nothing = example[:0]
    single = {example[at : at + 1] for at in range(len(example))}
    for start in range(len(example) + 1):
        pieces = {example[start:end] for end in range(start + 1, start + 1 + LONGEST)}
        for piece in sorted(single | pieces):
            rests = example[start:], example[start + len(piece) :]
            for tail in dict.fromkeys((*rests, *(rest + spoil for rest in rests), spoil, nothing)):
                if piece:
                    yield example[:start], piece, tail


def seconds(run: Callable[[Any], object], text: Any) -> float:
    """CPU time of this thread."""
    begun = time.thread_time()
    run(text)
    return time.thread_time() - begun


def of_size(parts: tuple[Any, Any, Any], size: int) -> Any:
    """A text with about that many characters of what is repeated."""
    first, piece, last = parts
    return first + piece * (size // len(piece)) + last


def slower(before: float, after: float) -> float:
    """How many times as long a text takes that is :data:`FACTOR` times as long, per character."""
    return after / max(before, RESOLUTION) / FACTOR


def is_slow(run: Callable[[Any], object], parts: tuple[Any, Any, Any]) -> bool:
    """Whether it takes more than linear time. A busy machine makes a few look so at first.

    The fastest of the tries counts. Both lengths take turns, since a busy machine is slow for a
    while, and one of them alone would be measured in it.
    """
    large = of_size(parts, SMALL * FACTOR)
    after = seconds(run, large)
    if after <= TIMES * FACTOR * RESOLUTION:
        # That is no more, however short a time the short text takes. Most match nothing at all.
        return False
    small = of_size(parts, SMALL)
    if slower(seconds(run, small), after) <= TIMES:
        return False
    for tries in TRIES:
        times = [(seconds(run, small), seconds(run, large)) for _ in range(tries)]
        if slower(*(min(column) for column in zip(*times, strict=True))) <= TIMES:
            return False
    return True


def worst(pattern: re.Pattern[Any], method: str, examples: tuple[Text, ...]) -> str:
    """A text that takes an expression more than linear time, or nothing."""

    def run(text: Any) -> object:
        return RUN[method](pattern, text)

    for example in examples:
        for parts in adversaries(example):
            if is_slow(run, parts):
                return f"{method} of {parts[0]!r} + {parts[1]!r} * n + {parts[2]!r}"
    return ""


def test_every_expression_has_its_examples() -> None:
    assert {*EXAMPLES} == {*uses()}
    for place, examples in EXAMPLES.items():
        patterns: list[re.Pattern[Any]] = [one for one, _methods in uses()[place].values()]
        for example in examples:
            assert any(one.search(example) for one in patterns), (place, example)
        for one in patterns:
            assert any(one.search(example) for example in examples), (place, one)


def test_expressions_take_time_in_proportion_to_their_input() -> None:
    for place, examples in EXAMPLES.items():
        for pattern, methods in uses()[place].values():
            for method in sorted(methods):
                assert not worst(pattern, method, examples), place


def test_readers_take_time_in_proportion_to_their_input() -> None:
    for name, (run, *many) in READERS.items():
        for parts in many:
            assert not is_slow(run, parts), (name, parts)


def test_quadratic_expression_is_noticed() -> None:
    for expression, method, example in (
        # Entity tags, as they were once.
        (r'[ \t]*(?:(?:W/)?("[\x21\x23-\x7e]*"))?[ \t]*(?:,|\Z)', "match", ' W/"a" ,'),
        (r"(\{\{.*?\}\})", "split", "{{a}}"),
        (r"//.*@", "sub", "//a@"),
        (r"a+b", "search", "aab"),
    ):
        assert worst(re.compile(expression), method, (example,)), expression
