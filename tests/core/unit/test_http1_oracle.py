"""What dfmeta makes of a guest's bytes should be what h11 makes of them, or a refusal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.core.unit import test_http1
from tests.fuzz import http1_oracle
from tests.fuzz.http1_oracle import BODY_MAX, check
from tests.harness.examples import examples

CORPUS = Path(http1_oracle.__file__).parent / "corpus" / "http1"
BOUNDED = settings(
    deadline=None,
    max_examples=examples(80),
    suppress_health_check=[HealthCheck.too_slow],
    database=None,
)
TABLE = [
    *(raw for raw, _fields in test_http1.ACCEPTED.values()),
    *test_http1.REFUSED.values(),
    *(raw for raw, _content in test_http1.BODIES.values()),
    *(test_http1.chunked(body) for body in test_http1.BAD_BODIES.values()),
]
TCHAR = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
PCHAR = TCHAR.replace("#", "").replace("%", "") + '/:@;=,()[]<>{}\\"'
FRAMING = ("host", "content-length", "transfer-encoding")
BLANKS = st.text(" \t", max_size=3).map(str.encode)
CRLF = b"\r\n"


def octets(alphabet: str, low: int = 0, high: int = 12) -> st.SearchStrategy[bytes]:
    return st.text(alphabet, min_size=low, max_size=high).map(str.encode)


TOKENS = octets(TCHAR, 1)
METHODS = st.one_of(st.sampled_from([b"GET", b"HEAD", b"POST", b"PUT"]), TOKENS).filter(
    lambda method: method != b"CONNECT"
)
ESCAPES = st.integers(0, 255).map(lambda octet: b"%%%02x" % octet)
TARGETS = st.lists(st.one_of(octets(PCHAR), ESCAPES, st.just(b"?")), max_size=6).map(
    lambda parts: b"/" + b"".join(parts)
)
NAMES = TOKENS.filter(lambda name: name.decode().lower() not in FRAMING)
TEXT = st.text(
    st.characters(max_codepoint=0xFF, blacklist_categories=["Cc"], whitelist_characters="\t\x85"),
    max_size=20,
).map(lambda text: text.encode("latin-1"))
CASED = [b"Connection", b"CONNECTION", b"connection"]
FIELDS = st.one_of(
    st.tuples(NAMES, TEXT),
    st.tuples(
        st.sampled_from(CASED),
        st.sampled_from([b"close", b"Keep-Alive", b"TE, close", b",", b"closed", b"upgrade"]),
    ),
    st.tuples(st.just(b"Expect"), st.sampled_from([b"100-continue", b"100-CONTINUE", b"x"])),
    st.tuples(st.just(b"Upgrade"), st.just(b"h2c")),
)
HOSTS = st.sampled_from([b"", b"h", b"169.254.169.254:80", b"[fe80::a9fe:a9fe%eth0]", b"a%2Db:"])


@st.composite
def chunks(draw: st.DrawFn) -> tuple[bytes, bytes]:
    content, coded = b"", b""
    for piece in draw(st.lists(st.binary(min_size=1, max_size=30), max_size=4)):
        size = draw(st.sampled_from([b"%x", b"%X", b"%04x", b"%016X"])) % len(piece)
        extension = draw(st.sampled_from([b"", b";a", b"; a=b", b';a="b;c"\t']))
        content += piece
        coded += size + extension + CRLF + piece + CRLF
    trailers = draw(st.lists(st.tuples(NAMES, TEXT), max_size=2))
    return content, coded + b"0\r\n" + b"".join(n + b":" + v + CRLF for n, v in trailers) + CRLF


@st.composite
def requests(draw: st.DrawFn) -> tuple[bytes, bytes, bytes]:
    """A well-formed request, its method and its body."""
    method, minor = draw(METHODS), draw(st.sampled_from([1, 1, 1, 0]))
    fields = draw(st.lists(FIELDS, max_size=5))
    if minor or draw(st.booleans()):
        fields.append((b"hOST", draw(HOSTS)))
    content = coded = b""
    how = draw(st.sampled_from(["none", "length", "chunked"]))
    if how == "length":
        content = coded = draw(st.binary(max_size=60))
        fields.append((b"Content-length", b"%03d" % len(content)))
    elif how == "chunked" and minor:
        content, coded = draw(chunks())
        fields.append((b"TRANSFER-ENCODING", draw(st.sampled_from([b"chunked", b"Chunked"]))))
    lines = [
        name + b":" + draw(BLANKS) + value + draw(BLANKS) + CRLF
        for name, value in draw(st.permutations(fields))
    ]
    line = b"%s %s HTTP/1.%d\r\n" % (method, draw(TARGETS), minor)
    return line + b"".join(lines) + CRLF + coded, method, content


RAW = requests().map(lambda request: request[0])
STREAMS = st.one_of(
    RAW, st.lists(RAW, min_size=2, max_size=3).map(b"".join), st.sampled_from(TABLE)
)
CONTROLS = [b"\0", b"\r", b"\n", CRLF, CRLF + CRLF, b"\x0b", b"\x7f", b"\x85", b"\xa0"]
SIGNS = [b" ", b"\t", b":", b",", b";", b"%", b"#", b"0", b"1", b"+", b"-", b"_", b"0x"]
ODD = st.sampled_from([*CONTROLS, *SIGNS, b"CONNECT ", b"chunked"])
PLACES = st.integers(0, 1 << 16)
Damage = Callable[[bytes], bytes]


def insert(piece: bytes, place: int) -> Damage:
    return lambda raw: raw[: place % (len(raw) + 1)] + piece + raw[place % (len(raw) + 1) :]


def flip(place: int, bits: int) -> Damage:
    def flipped(raw: bytes) -> bytes:
        at = place % len(raw) if raw else 0
        return raw[:at] + bytes(one ^ bits for one in raw[at : at + 1]) + raw[at + 1 :]

    return flipped


def lines(place: int, times: int) -> Damage:
    def copied(raw: bytes) -> bytes:
        all_lines = raw.splitlines(keepends=True) or [b""]
        at = place % len(all_lines)
        return b"".join([*all_lines[:at], *all_lines[at : at + 1] * times, *all_lines[at + 1 :]])

    return copied


def splice(other: bytes, place: int, start: int) -> Damage:
    return lambda raw: raw[: place % (len(raw) + 1)] + other[start % (len(other) + 1) :]


DAMAGES = st.one_of(
    st.builds(insert, ODD, PLACES),
    st.builds(flip, PLACES, st.integers(1, 255)),
    st.builds(lines, PLACES, st.sampled_from([0, 2, 3])),
    st.builds(splice, RAW, PLACES, PLACES),
)


@BOUNDED
@given(st.lists(requests(), min_size=1, max_size=4), st.binary(max_size=10))
def test_well_formed_requests_are_accepted_as_h11_reads_them(
    requests_: list[tuple[bytes, bytes, bytes]], rest: bytes
) -> None:
    raw = b"".join(raw for raw, _method, _content in requests_)
    read = check(raw + rest)
    assert [(one.method, one.body) for one in read] == [one[1:] for one in requests_]
    assert read[-1].rest == rest


@settings(BOUNDED, max_examples=examples(270))
@given(STREAMS, st.lists(DAMAGES, min_size=1, max_size=4))
def test_nothing_damaged_is_accepted_that_h11_refuses(raw: bytes, damages: list[Damage]) -> None:
    for damage in damages:
        raw = damage(raw)
    check(raw)


def test_the_table_and_the_fuzzers_corpus_are_read_as_h11_reads_them() -> None:
    kept = [path.read_bytes() for path in CORPUS.iterdir()]
    assert len(kept) > 100
    for raw in (*TABLE, *kept):
        check(raw)
    head = test_http1.get(b"Content-Length: %d\r\n" % BODY_MAX)
    assert len(check(head + b"x" * BODY_MAX)[0].body) == BODY_MAX
