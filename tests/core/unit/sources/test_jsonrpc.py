"""OVSDB's messages should be the same as with the parser of ovs, wherever the texts are cut."""

import errno
import json
from collections.abc import Iterator
from typing import Any

import ovs.json
from hypothesis import assume, given
from hypothesis import strategies as st

from dfmeta.ovsdb.jsonrpc import DEPTH_MAX, Connection, MessageParser, prepare

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**31), 2**31) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)
MESSAGES = st.lists(st.dictionaries(st.text(), VALUES), min_size=1, max_size=3)


def read(texts: Iterator[str], parser: type[Any] = MessageParser) -> list[Any]:
    """Return the messages of *texts* up to the first error, taken as a connection of ovs does."""
    messages, rest, current = [], "", parser()
    for text in texts:
        rest += text
        while rest:
            rest = rest[current.feed(rest) :]
            if current.is_done():
                messages.append(current.finish())
                if isinstance(messages[-1], str):
                    return messages
                current = parser()
    return messages


def pieces(text: str, size: int) -> Iterator[str]:
    return (text[at : at + size] for at in range(0, len(text), size))


@given(MESSAGES, st.integers(1, 9), st.booleans(), st.sampled_from(["", " ", "\n"]))
def test_messages_come_whole_wherever_their_texts_are_cut(
    messages: list[Any], size: int, ascii_alone: bool, between: str
) -> None:
    text = between.join(json.dumps(message, ensure_ascii=ascii_alone) for message in messages)
    assert read(pieces(text, size)) == messages


@given(st.dictionaries(st.text(), VALUES))
def test_a_message_is_what_the_parser_of_ovs_takes_it_for(message: dict[str, Any]) -> None:
    text = json.dumps(message, ensure_ascii=False)
    assume("\\u0000" not in text)  # no string in OVSDB has this character
    assert read(iter([text])) == read(iter([text]), ovs.json.Parser)


def test_an_invalid_message_is_an_error_at_once() -> None:
    for text, error in (
        ("[]", "a message must be an object"),
        (' "{}"', "a message must be an object"),
        ("x", "a message must be an object"),
        ('{"a" 1}', "Expecting ':' delimiter: line 1 column 6 (char 5)"),
        ('{"a":]', "Expecting value: line 1 column 6 (char 5)"),
        ('{"a":' + "[" * DEPTH_MAX, f"more than {DEPTH_MAX} brackets are open"),
    ):
        assert read(iter([text])) == [error], text[:9]


def test_a_message_that_does_not_end_is_an_error_at_the_end() -> None:
    for text in ("", " ", '{"a":1', '{"a', '{"a\\'):
        parser = MessageParser()
        assert parser.feed(text) == len(text)
        assert not parser.is_done()
        assert parser.finish() == "unexpected end of input"


class CutStream:
    """A stream of ovs that gives its bytes in pieces, each followed by EAGAIN."""

    name = "unix:db.sock"

    def __init__(self, data: bytes, size: int) -> None:
        pieces = (data[at : at + size] for at in range(0, len(data), size))
        waits = (errno.EAGAIN, b"")
        self._answers = [answer for piece in pieces for answer in (waits, (0, piece))]

    def recv(self, _size: int) -> tuple[int, bytes]:
        return self._answers.pop(0) if self._answers else (errno.EAGAIN, b"")


@given(st.text(min_size=1), st.integers(1, 9))
def test_a_character_may_come_in_two_readings(text: str, size: int) -> None:
    messages = [{"id": None, "method": text, "params": [text]} for _ in range(3)]
    data = "".join(json.dumps(message, ensure_ascii=False) for message in messages)
    stream = CutStream(data.encode(), size)
    connection = Connection(stream)
    methods = []
    while len(methods) < len(messages):
        prepare(connection)
        error, message = connection.recv()
        assert error in (0, errno.EAGAIN)
        if message is not None:
            methods.append(message.method)
    assert methods == [text] * 3
