"""A half of a record that a path shows decides on its answer; another half may stand in for it
only where the path shows neither."""

from __future__ import annotations

import pytest

from dfmeta.exceptions import LookupAnswerError
from dfmeta.store.guest.need import ANY_HALF, METADATA, USERDATA, Need
from tests.core.unit.store.lookup.support import (
    ADDRESS,
    METADATA_OF,
    NONSENSE,
    USERDATA_OF,
    Build,
    OtherStore,
    metadata,
    userdata,
)


@pytest.mark.parametrize(
    ("need", "invalid", "queries"),
    [
        (METADATA, METADATA_OF, [METADATA_OF]),
        (USERDATA, USERDATA_OF, [USERDATA_OF]),
        (ANY_HALF, METADATA_OF, [METADATA_OF, USERDATA_OF]),
        (ANY_HALF, USERDATA_OF, [METADATA_OF]),
    ],
)
def test_an_invalid_half_is_an_error_of_the_paths_that_show_it(
    store: OtherStore, build: Build, need: Need, invalid: str, queries: list[str]
) -> None:
    store.answers = {METADATA_OF: metadata(), USERDATA_OF: userdata(), invalid: NONSENSE}
    if need is ANY_HALF:
        record = build().find(ADDRESS, need)
        assert record is not None
        assert not record.empty
    else:
        with pytest.raises(LookupAnswerError):
            build().find(ADDRESS, need)
    assert store.targets() == queries


def test_an_invalid_half_is_an_error_if_the_other_is_absent(
    store: OtherStore, build: Build
) -> None:
    store.answers = {METADATA_OF: NONSENSE}
    with pytest.raises(LookupAnswerError):
        build().find(ADDRESS, ANY_HALF)
    assert store.targets() == [METADATA_OF, USERDATA_OF]
