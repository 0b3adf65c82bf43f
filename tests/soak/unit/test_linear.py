"""Every regular expression of dfmeta should take time in proportion to what it reads."""

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
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from webob import Request
from webob.acceptparse import create_accept_header

from dfmeta.devices.schema import ADDRESSES, SCHEMA
from dfmeta.errors import BadRequestError
from dfmeta.http.http1 import Body, HeadLimits, find_end, parse_head
from dfmeta.model import Answer, GuestRequest
from dfmeta.store.api.representations import wants_envelope
from dfmeta.store.guest.documents import hostname_of
from dfmeta.store.guest.equinix import rendered
from dfmeta.store.guest.requests import TrustedProxies, split_path, tagged, unless_known
from dfmeta.store.guest.values import keys_of, name_keys
from dfmeta.store.strictjson import loads
from tests.harness.examples import examples

DFMETA = Path(__file__).parents[3] / "dfmeta"
Text = str | bytes
Use = tuple[re.Pattern[Any], Set[str]]
"""An expression and the methods by which it is applied."""
RUN: Final[Mapping[str, Callable[[re.Pattern[Any], Any], object]]] = {
    "match": lambda pattern, text: pattern.match(text),
    "fullmatch": lambda pattern, text: pattern.fullmatch(text),
    "search": lambda pattern, text: pattern.search(text),
    "sub": lambda pattern, text: pattern.sub(lambda result: result[0], text),
    "split": lambda pattern, text: pattern.split(text),
    "findall": lambda pattern, text: pattern.findall(text),
    "finditer": lambda pattern, text: [*pattern.finditer(text)],
}
COMPUTED: Final[Mapping[str, tuple[str, ...]]] = {
    "ADDRESSES.get(bus, '(?!)')": (*ADDRESSES.values(),)
}
"""Expressions that are known at run time alone, by their source → all that they may be."""
PASSED_ON: Final[Mapping[str, Set[str]]] = {
    "guest/cni/host_api.py CONTAINER": {"fullmatch"},
    "guest/cni/host_api.py IFNAME": {"fullmatch"},
    "guest/tag_devices.py _SCSI": {"fullmatch"},
    "guest/tag_devices.py _STABLE": {"fullmatch"},
    "guest/tag_devices.py _XEN": {"fullmatch"},
    "store/lookup/upstream.py UUID": {"fullmatch"},
}
"""Those whose methods are called by another name → the methods."""
SMALL, FACTOR, TIMES = 256, 8, 3
"""Characters, how many times as many, and how far from linear the time may be: quadratic is 8."""
TRIES: Final = (3, 9, 27)
RESOLUTION: Final = 1e-6
"""Seconds, below which no time means anything."""
LONGEST = 3
"""Characters of an example that are repeated together."""
MORE = 12
"""Characters by which an example may be longer than the shortest match."""
PARSER: Final[Any] = importlib.import_module(
    "re._parser" if hasattr(re, "_parser") else "sre_parse"
)


@functools.cache
def uses() -> dict[str, dict[Text, Use]]:
    """All there are in the tree: module and name, or the text where it has none → by text."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(DFMETA.rglob("*.py"))}
    result: dict[str, dict[Text, Use]] = {}
    for path, text in texts.items():
        assert "from re import" not in text, f"{path}: import re as a whole, or it is not seen here"
        if not re.search(r"^\s*import re\b", text, re.MULTILINE):
            continue
        module = path.relative_to(DFMETA)
        names = vars(importlib.import_module(".".join(("dfmeta", *module.with_suffix("").parts))))
        left = text.count("re.compile(")
        for name in re.findall(r"^(\w+)(?:: .*)? = [(\s]*re\.compile\(", text, re.MULTILINE):
            where = text if name.startswith("_") else "".join(texts.values())
            methods = set(re.findall(rf"\b{name}\.({'|'.join(RUN)})\b", where))
            for pattern in patterns_in(names[name]):
                place = f"{module} {name}"
                add(result.setdefault(place, {}), pattern, methods or PASSED_ON[place])
                left -= 1
        assert left == 0, f"{path}: an expression that is compiled has no name"
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="re"), attr=method)):
                    if method in RUN:
                        place = f"{module} {source(node)}"
                        for pattern in compiled(node, names):
                            add(result.setdefault(place, {}), pattern, {method})
    for pattern_text in schema_patterns(SCHEMA):
        add(result.setdefault("devices/schema.py SCHEMA", {}), re.compile(pattern_text), {"search"})
    return result


def patterns_in(value: object) -> Iterator[re.Pattern[Any]]:
    """Yield compiled expressions: a value, or parts of a tuple."""
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from patterns_in(part)


def compiled(call: ast.Call, names: dict[str, Any]) -> list[re.Pattern[Any]]:
    """What a call makes of its first argument and its flags: values of dfmeta's own source."""
    given = [*call.args[1:], *(keyword.value for keyword in call.keywords)]
    flags = [ast.unparse(argument) for argument in given]
    bits = sum(eval(flag, names) for flag in flags if flag.startswith("re."))
    text = ast.unparse(call.args[0])
    return [re.compile(each, bits) for each in COMPUTED.get(text) or (eval(text, names),)]


def source(call: ast.Call) -> str:
    """A call's expression, as it is written where it is a literal."""
    literal = call.args[0]
    is_text = isinstance(literal, ast.Constant) and isinstance(literal.value, str)
    return str(literal.value) if is_text else ast.unparse(literal)


def add(result: dict[Text, Use], pattern: re.Pattern[Any], methods: Set[str]) -> None:
    """Note that an expression is applied so."""
    _pattern, before = result.get(pattern.pattern, (pattern, frozenset()))
    result[pattern.pattern] = (pattern, before | methods)


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


def head(text: str) -> object:
    """Read a request with that target and header, all that a guest writes of it."""
    raw = text.encode()
    size = find_end(raw, WIDE)
    return parse_head(raw[:size], WIDE) if size > 0 else None


def chunks(raw: bytes) -> object:
    """Read a body in chunks, whatever it is."""
    body = Body(None, WIDE.header, limits=WIDE)
    with contextlib.suppress(BadRequestError):
        body.feed(raw)
    return body.content


def same_names(text: str) -> object:
    """Give each line a name, where all want the same."""
    return name_keys(("a", line) for line in text.split("\n"))


WIDE: Final = HeadLimits(request_line=1 << 20, header=1 << 20, lines=1 << 20)
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
        *((",", text, "x") for text in (" ", ",", '"a",', 'W/"a" ,', '"', "W/")),
    ),
    "accept": (
        lambda text: wants_envelope(create_accept_header(text)),
        *(("", text, "") for text in (",", ";", "a/b;q=1,", 'a/b;c="d\\"', "q=0.1;", " ")),
    ),
    "if-none-match of an admin request": (
        lambda text: "x" in Request.blank("/", headers={"If-None-Match": text}).if_none_match,
        *(("", text, "") for text in (" ", ' "', '"', 'W/"', '\\"', '"a",')),
    ),
    "forwarded for": (
        lambda text: TrustedProxies([PEER]).guest(PEER.network_address, text),
        ("192.0.2.1", ", 192.0.2.1", ""),
        ("192.0.2.1", " ", ""),
    ),
    "template": (
        lambda text: rendered(text, {"a": "b"}),
        *(("", text, "") for text in ("{{", "{{.a}}", "{", "}}", "{{.", "{{ ")),
        ("{{", " ", "}}"),
        ("{{", ".a", "}}"),
    ),
    "JSON": (
        loads,
        *((f"[{text}", f",{text}", "]") for text in ("1", '"a"', "[]", '{"a":1}', '"\\u0041"')),
        ('["', "\\u0041", '"]'),
        ('{"b":1', " ", "}"),
    ),
    "names of keys": (same_names, ("a", "\nb", ""), ("a", " b", "")),
    "host name": (hostname_of, *(("a", text, "") for text in (".", "-", "_", " ", "a"))),
    "SSH key": (lambda text: keys_of({"ssh_keys": [text]}), ("a", " ", ""), ("a", "\n#", "")),
}
"""Code with loops of its own that reads the same bytes → what it does, and parts of texts."""


def adversaries(example: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Start, what is repeated (a character or a short piece) and end, which may not fit."""
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
    """Whether more than linear time; the fastest of tries that take turns, on a busy machine."""
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


def slow_text(pattern: re.Pattern[Any], method: str, example: Text) -> str:
    """Return a text that takes an expression more than linear time, or nothing."""

    def run(text: Any) -> object:
        return RUN[method](pattern, text)

    for parts in adversaries(example):
        if is_slow(run, parts):
            return f"{method} of {parts[0]!r} + {parts[1]!r} * n + {parts[2]!r}"
    return ""


def check(pattern: re.Pattern[Any], methods: Set[str]) -> None:
    """Look for such a text among those that are made of texts which the expression matches."""
    least = PARSER.parse(pattern.pattern).getwidth()[0]
    texts = st.from_regex(pattern, fullmatch=True).filter(lambda text: len(text) <= least + MORE)

    @settings(
        deadline=None,
        max_examples=examples(8),
        database=None,
        phases=[Phase.generate],
        suppress_health_check=[*HealthCheck],
    )
    @given(texts)
    def run(example: Text) -> None:
        for method in sorted(methods):
            assert not slow_text(pattern, method, example)

    run()


def test_expressions_take_time_in_proportion_to_their_input() -> None:
    slow = []
    for place, result in uses().items():
        for pattern, methods in result.values():
            try:
                check(pattern, methods)
            except AssertionError as error:
                slow.append(f"{place}: {error}")
    assert not slow


def test_readers_take_time_in_proportion_to_their_input() -> None:
    for name, (run, *many) in READERS.items():
        for parts in many:
            assert not is_slow(run, parts), (name, parts)


@pytest.mark.parametrize(
    ("expression", "method"),
    [
        # Entity tags, as they were once.
        (r'[ \t]*(?:(?:W/)?("[\x21\x23-\x7e]*"))?[ \t]*(?:,|\Z)', "match"),
        (r"(\{\{.*?\}\})", "split"),
        (r"//.*@", "sub"),
        (r"a+b", "search"),
    ],
)
def test_quadratic_expression_is_noticed(expression: str, method: str) -> None:
    with pytest.raises(AssertionError):
        check(re.compile(expression), {method})
