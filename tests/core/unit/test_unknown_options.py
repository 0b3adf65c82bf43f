"""A name in a file that no option has should be told, and nobody else's should not."""

from __future__ import annotations

from pathlib import Path

import pytest

import dfmeta.conf
from dfmeta.conf.unknown import SAMPLE, unknown_options


def told(folder: Path, *texts: str) -> list[tuple[str, str]]:
    """What is unknown in files, and what to do about each."""
    files = []
    for number, text in enumerate(texts):
        files.append(folder / f"{number}.conf")
        files[-1].write_text(text)
    conf = dfmeta.conf.load([str(file) for file in files], prog="x")
    return [(str(one.fields["what"]), one.remedy) for one in unknown_options(conf)]


@pytest.mark.parametrize(
    ("text", "what", "remedy"),
    [
        (
            "[DEFAULT]\nnova_metadata_hots = a",
            "[DEFAULT] nova_metadata_hots",
            "nova_metadata_host?",
        ),
        (
            "[DEFAULT]\nnova_metadata_prot = 1",
            "[DEFAULT] nova_metadata_prot",
            "nova_metadata_port?",
        ),
        ("[DEFAULT]\nbackend = nova", "[DEFAULT] backend", "Move it to [df_metadata]"),
        ("[df_metadata]\nhold_timeot = 3", "[df_metadata] hold_timeot", "hold_timeout?"),
        ("[df_metadata]\nzzz = 3", "[df_metadata] zzz", SAMPLE),
        ("[Store]\nec2_tre = 3", "[store] ec2_tre", "ec2_tree?"),
        ("[store]\nhost_ip = 3", "[store] host_ip", "Move it to [df_metadata]"),
        ("[guest_limits]\nbody_mx = 3", "[guest_limits] body_mx", "body_max?"),
        (
            "[metadata_rate_limiting]\nrate_limit_enable = 1",
            "[metadata_rate_limiting] rate_limit_enable",
            "rate_limit_enabled?",
        ),
        ("[neutron]\nendpoint_overide = a", "[neutron] endpoint_overide", "endpoint_override?"),
        ("[df_metdata]\nport = 1", "the group [df_metdata]", "[df_metadata]?"),
    ],
)
def test_misspelt_name_is_reported_with_the_nearest(
    tmp_path: Path, text: str, what: str, remedy: str
) -> None:
    ((found, do),) = told(tmp_path, text)
    assert found == what
    assert do.endswith(remedy)


@pytest.mark.parametrize(
    "text",
    [
        "[DEFAULT]\ndebug = True\nnova_metadata_host = a\nmetadata_proxy_shared_secret = s",
        "[DEFAULT]\nmetadata_proxy_socket = /x\nmetadata_workers = 2\nstate_path = /y\nhost = a",
        "[agent]\nreport_interval = 2\n[cache]\nenabled = 1\n[METADATA]\nprovider_network = a",
        "[neutron]\nservice_metadata_proxy = 1\nauth_type = password\nphysnets = a",
        "[df_metadata]\nport = 1\n[store]\nec2_tree = equinix",
    ],
    ids=["ours", "neutrons", "groups", "novas", "more"],
)
def test_valid_or_foreign_name_is_not_reported(tmp_path: Path, text: str) -> None:
    assert told(tmp_path, text) == []


def test_a_line_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "dfmeta.conf"
    file.write_text("[df_metadata]\nprt = 1")
    (found,) = unknown_options(dfmeta.conf.load([str(file)], prog="x"))
    assert found.line == (
        f"{file}: [df_metadata] prt is unknown to dfmeta and is ignored. "
        "Did you mean port? [unknown-option]"
    )
