"""YAML of another user's should be refused by what it would become, before it becomes so."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dfmeta.store import strict
from tests.core.unit.store.support import named

LEVELS = 30
"""Each nine times the one before it: nobody's memory holds the last."""


def laughs(level: str, first: str = "[k]") -> str:
    """A text in which each line names the one before it nine times.

    :param level: a value, with ALL where the nine aliases stand.
    """
    lines = [f"a0: &a0 {first}"]
    for number in range(1, LEVELS):
        aliases = ", ".join([f"*a{number - 1}"] * 9)
        lines.append(f"a{number}: &a{number} {level.replace('ALL', aliases)}")
    return "\n".join(lines)


def nested(levels: int) -> str:
    """Lists inside each other, no line of which is deep: each names the one before it."""
    lines = ["a0: &a0 []", *(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, levels))]
    return "\n".join(lines)


@pytest.fixture
def composed(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Every node that PyYAML makes, and every pair that a merge copies."""
    made: list[object] = []
    for kind in (yaml.ScalarNode, yaml.CollectionNode):

        def begin(
            self: object, *args: object, begun: Any = kind.__init__, **options: object
        ) -> None:
            made.append(self)
            begun(self, *args, **options)

        monkeypatch.setattr(kind, "__init__", begin)
    flatten = yaml.SafeLoader.flatten_mapping

    def flattened(self: object, node: yaml.MappingNode) -> None:
        flatten(self, node)
        made.extend(node.value)

    monkeypatch.setattr(yaml.SafeLoader, "flatten_mapping", flattened)
    return made


def test_what_would_grow_is_refused_before_it_does(composed: list[object]) -> None:
    for text, cause in [
        (laughs("[ALL]"), "more than 100000 values, where an alias counts as a copy"),
        (laughs("{<<: [ALL]}", "{k: 1}"), "more than 100000 values"),
        (f"a: &a {'x' * 400_000}\nb: [{'*a, ' * 80}]", "more than 100000 values"),
        ("a: &a [*a]", "an alias of a value that is not defined before it in line 1"),
        ("a: 1\nb: &b {<<: *b}", "an alias of a value that is not defined before it in line 2"),
        ("? &a [*a]\n: 1", "an alias of a value that is not defined before it"),
        (f"a: {'[' * 100_000}", "more than 100 nested values"),
        (f"a: {'{<<: ' * 500}{'}' * 500}", "more than 100 nested values"),
        (nested(400), "more than 100 nested values"),
        (f"a: {'1' * 5000}", "a number of more than 1000 characters in line 1"),
        (f"a: 1{':1' * 5000}", "a number of more than 1000 characters"),
        (f"a: 1{':1' * 300}.0", "it is not YAML$"),
        ("a: &x 1\nb: &x 2", "second occurrence in line 2"),
        ('a: "\\UFFFFFFFF"', "it is not YAML$"),
        ("a: !!bool x", "it is not YAML$"),
        ("a: !!timestamp x", "it is not YAML$"),
        ("a: 2026-02-31", "it is not YAML$"),
    ]:
        composed.clear()
        with named(text):
            with pytest.raises(ValueError, match=cause):
                strict.parse_mapping(text)
            assert len(composed) <= 250_000


def test_a_password_that_is_yaml_by_mistake_is_not_repeated() -> None:
    for text in ["a: *s3cret", "a: !s3cret!x y", "a: &s3cret 1\nb: &s3cret 2"]:
        with named(text):
            with pytest.raises(ValueError, match=r"^it is not YAML: ") as caught:
                strict.parse_mapping(text)
            assert "s3cret" not in str(caught.value)


def test_what_stays_small_is_read() -> None:
    for text, value in [
        ("a: &a [1, {b: c}]\nd: [*a, *a]", {"a": [1, {"b": "c"}], "d": [[1, {"b": "c"}]] * 2}),
        ("a: &a {b: 1, c: 2}\nd: {<<: *a, c: 3}", {"a": {"b": 1, "c": 2}, "d": {"b": 1, "c": 3}}),
        (f"a: {'[' * 98}{']' * 98}", {"a": json.loads("[" * 98 + "]" * 98)}),
        (f"a: {'x' * 1_000_000}", {"a": "x" * 1_000_000}),
        (f"a: {'1' * 1000}", {"a": int("1" * 1000)}),
    ]:
        assert strict.parse_mapping(text) == value, text


def test_values_are_counted_to_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    # What is read is the list, its name and their mapping as well. The true bound takes a minute.
    monkeypatch.setattr(strict, "VALUES_MAX", 2000)
    assert strict.parse_mapping(f"a: [{'a, ' * 1997}]") == {"a": ["a"] * 1997}
    with pytest.raises(ValueError, match="more than 2000 values"):
        strict.parse_mapping(f"a: [{'a, ' * 1998}]")


def pieces() -> Iterator[str]:
    """What makes YAML, and what its tags take and do not."""
    yield from ("&a ", "*a", "<<", "?", ":", ",", "[", "]", "{", "}", "-", "|", ">", "%", "=", "~")
    yield from (f"!!{tag} " for tag in ("int", "float", "bool", "null", "str", "binary", "set"))
    yield from ("!!omap ", "!!pairs ", "!!timestamp ", "!!seq ", "!!map ", "!x ", "!!merge ", "! ")
    yield from (" ", "\n", "\n  ", "\n- ", ": ", "a", "b", "'", '"', "#", "---", "...", "\\x", "\t")
    yield from ("0x", "0b", "0o7", "1:1", "1.", "e9", ".inf", "_", "2026-01-01", "12:00:00", "+9")


@given(st.lists(st.sampled_from(tuple(pieces())), max_size=30).map("".join))
def test_any_yaml_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert isinstance(strict.parse_mapping(text), dict)
