"""What dfmeta makes of a guest's bytes should be what h11 makes of them, or a refusal.

A search for further bytes is tests/fuzz, which tools/soak runs.
"""

from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.core.unit import test_http1
from tests.fuzz import http1_oracle
from tests.fuzz.http1_oracle import BODY_MAX, check
from tests.harness.examples import examples

CORPUS = Path(http1_oracle.__file__).parent / "corpus" / "http1"
TABLE = [
    *(raw for raw, _fields in test_http1.ACCEPTED.values()),
    *test_http1.REFUSED.values(),
    *(raw for raw, _content in test_http1.BODIES.values()),
    *(test_http1.chunked(body) for body in test_http1.BAD_BODIES.values()),
]
KEPT = [path.read_bytes() for path in sorted(CORPUS.iterdir())]
CRLF = b"\r\n"
RAW = st.sampled_from([*TABLE, *KEPT])
STREAMS = st.lists(RAW, min_size=1, max_size=3).map(b"".join)
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


@settings(
    deadline=None,
    max_examples=examples(270),
    suppress_health_check=[HealthCheck.too_slow],
    database=None,
)
@given(STREAMS, st.lists(DAMAGES, min_size=1, max_size=4))
def test_nothing_damaged_is_accepted_that_h11_refuses(raw: bytes, damages: list[Damage]) -> None:
    for damage in damages:
        raw = damage(raw)
    check(raw)


def test_the_table_and_the_fuzzers_corpus_are_read_as_h11_reads_them() -> None:
    assert len(KEPT) > 100
    for raw in (*TABLE, *KEPT):
        check(raw)
    head = test_http1.get(b"Content-Length: %d\r\n" % BODY_MAX)
    assert len(check(head + b"x" * BODY_MAX)[0].body) == BODY_MAX
