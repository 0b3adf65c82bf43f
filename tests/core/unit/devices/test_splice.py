"""A member should be set in a JSON text, and no other byte of it be changed."""

from __future__ import annotations

import pytest

from dfmeta.devices.splice import splice
from dfmeta.exceptions import DeviceError

CHANGES = [
    ("{}", '{"d": [1]}'),
    ("{ }\n", '{"d": [1] }\n'),
    ('{"a": 1.0e2}', '{"a": 1.0e2, "d": [1]}'),
    ('{\n  "a": 1\n}\n', '{\n  "a": 1, "d": [1]\n}\n'),
    ('{"d":[ {"d": 5} ],"a" : "}"}', '{"d":[1],"a" : "}"}'),
    ('{"a": {"d": 5}, "d": "x, \\"d\\": 5"}', '{"a": {"d": 5}, "d": [1]}'),
    ('{"\\u0064": null}', '{"\\u0064": [1]}'),
    (' {"a": "\\ud83d\\ude00\u00e9"}', ' {"a": "\\ud83d\\ude00\u00e9", "d": [1]}'),
]


def test_all_other_bytes_stay() -> None:
    for before, after in CHANGES:
        assert splice(before, "d", [1]) == after, before


def test_a_text_that_is_no_object_is_refused() -> None:
    deep, twice = '{"a":' + "[" * 100_000, '{"d": 1, "d": 2}'
    for text in ("", "[]", "5", "{", '{"a": NaN}', "{} {}", twice, deep):
        with pytest.raises(DeviceError):
            splice(text, "d", [1])
