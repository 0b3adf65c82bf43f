"""The vendor data should be a script that leaves the program in a guest, whole."""

from __future__ import annotations

from dfmeta.guest import snippet


def test_the_script_is_a_script_to_cloud_init_and_small_enough_for_any_store() -> None:
    text = snippet.vendor_data()
    assert text == snippet.vendor_data()
    assert text.startswith("#!/bin/sh\n")
    assert text.isascii()
    assert len(text) < 1 << 16
