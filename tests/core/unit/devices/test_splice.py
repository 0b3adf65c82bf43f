"""A member should be set in a JSON text, and no other byte of it be changed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfmeta.devices.splice import splice
from dfmeta.exceptions import DeviceError


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("{}", '{"d": [1]}'),
        ("{ }\n", '{"d": [1] }\n'),
        ('{"a": 1.0e2}', '{"a": 1.0e2, "d": [1]}'),
        ('{\n  "a": 1\n}\n', '{\n  "a": 1, "d": [1]\n}\n'),
        ('{"d":[ {"d": 5} ],"a" : "}"}', '{"d":[1],"a" : "}"}'),
        ('{"a": {"d": 5}, "d": "x, \\"d\\": 5"}', '{"a": {"d": 5}, "d": [1]}'),
        ('{"\\u0064": null}', '{"\\u0064": [1]}'),
        (' {"a": "\\ud83d\\ude00\u00e9"}', ' {"a": "\\ud83d\\ude00\u00e9", "d": [1]}'),
    ],
)
def test_all_other_bytes_stay(before: str, after: str) -> None:
    assert splice(before, "d", [1]) == after


@pytest.mark.parametrize(
    "text", ["", "[]", "5", "{", '{"a": NaN}', "{} {}", '{"d": 1, "d": 2}', '{"a":' + "[" * 100_000]
)
def test_what_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(DeviceError):
        splice(text, "d", [1])


JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(
    st.dictionaries(st.sampled_from(["d", "a", "b}", ""]) | st.text(max_size=3), JSON),
    st.sampled_from([None, 1]),
    st.booleans(),
)
def test_the_member_is_set_and_the_others_are_as_they_were(
    members: dict[str, object], indent: int | None, ascii_only: bool
) -> None:
    text = json.dumps(members, indent=indent, ensure_ascii=ascii_only)
    assert json.loads(splice(text, "d", [1])) == {**members, "d": [1]}
