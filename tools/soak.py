"""Run the tier soak: what takes hours, or machines that boot.

  tools/soak                     all parts, one after the other
  tools/soak PART...             some of them
  tools/soak --factor 20 PART... tests of endurance run 20 times as long (default: 10)
  tools/soak --uml real          user-mode Linux in place of QEMU, see tools/real

The status is 0 only if every part has passed; the last lines name each part and its status.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHON = str(ROOT / ".venv/bin/python")
E2E = "tests/host/e2e"
WITH_ANOTHER = (
    *(
        f"{E2E}/test_{name}.py"
        for name in (
            "addresses",
            "faults",
            "hostile_packets",
            "identity",
            "tap",
            "twins",
            "unknown_ports",
        )
    ),
    "tests/soak/e2e/test_pairs_of_faults.py",
    "tests/host/nova",
    *(f"tests/host/ovn/test_{name}.py" for name in ("faults", "guests", "live_migration")),
)
"""Tests of identity and faults, which hold with each engine, scheme and number of workers."""
OF_HAPROXY = tuple(
    f"{E2E}/test_{name}.py" for name in ("haproxy", "http_strict", "nova_tls", "start")
)
NOT_WITH_HAPROXY = "not tap and not cleanup"
"""Left out with haproxy: the daemon's own reading of a device."""


@dataclass(frozen=True)
class Part:
    """A command and its variables."""

    text: str
    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)


def pytest(*arguments: str) -> list[str]:
    """Return a command of pytest, with a limit for each test that a hang alone reaches."""
    return [PYTHON, "-m", "pytest", "-q", "--timeout=3600", *arguments]


def parts(factor: int, *, uml: bool) -> Mapping[str, Part]:
    """Return all parts by their names, in their order."""
    own = ["tests/soak", "--ignore=tests/soak/real", f"--soak={factor}"]
    meta_ip, haproxy = {"DFMETA_TEST_SCHEME": "meta_ip"}, {"DFMETA_TEST_ENGINE": "haproxy"}
    workers = {"DFMETA_TEST_WORKERS": "2"}
    newer_ovn = {"DFMETA_TEST_OVN": "ovn-trixie"}
    bounds = {
        "lowest": "the lowest versions that setup.cfg allows",
        "newest": "the newest versions that setup.cfg allows",
        "openstack": "the versions of OpenStack's newest stable release",
        "python3.13": "Python 3.13",
        "python3.14": "Python 3.14",
    }
    fuzz = ["-m", "tests.fuzz.fuzz_http1", f"-max_total_time={factor * 30}"]
    return {
        "own": Part("pages, matrices, floods, churn", pytest(*own)),
        "workers": Part("two workers", pytest(*WITH_ANOTHER, f"{E2E}/test_full_disk.py"), workers),
        "meta-ip": Part("Meta IPs", pytest(*WITH_ANOTHER), meta_ip),
        "meta-ip-workers": Part("both", pytest(*WITH_ANOTHER), meta_ip | workers),
        "haproxy": Part(
            "the engine haproxy",
            pytest(*WITH_ANOTHER, *OF_HAPROXY, "-k", NOT_WITH_HAPROXY),
            haproxy,
        ),
        "haproxy-meta-ip": Part(
            "haproxy and Meta IPs",
            pytest(*WITH_ANOTHER, *OF_HAPROXY, "-k", NOT_WITH_HAPROXY),
            haproxy | meta_ip,
        ),
        "ovn": Part("OVN of Debian 13", pytest("tests/host/ovn"), newer_ovn),
        "examples": Part(
            "other and more examples of the properties",
            pytest("-m", "hypothesis", "tests/core", "tests/host/ovs"),
            {"DFMETA_TEST_EXAMPLES": str(factor)},
        ),
        "stall": Part("core on a machine that stands still", ["tools/stall", "tests/core", "-q"]),
        "mutants": Part("faults that core must notice", ["tools/mutants"]),
        **{name: Part(text, ["tools/bounds", name]) for name, text in bounds.items()},
        "real": Part("machines that boot", ["tools/real", *(["--uml"] if uml else [])]),
        "fuzz": Part("a search for requests that the parser misreads", [PYTHON, *fuzz]),
    }


def main(arguments: Sequence[str]) -> int:
    """Run the parts; return 1 if one has failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", nargs="*", help=f"of {', '.join(parts(1, uml=False))}")
    parser.add_argument("--factor", type=int, default=10)
    parser.add_argument("--uml", action="store_true")
    options = parser.parse_args(arguments)
    known = parts(options.factor, uml=options.uml)
    if unknown := set(options.part) - known.keys():
        parser.error(f"no part {', '.join(sorted(unknown))}: use {', '.join(known)}")
    results = {}
    for name, part in known.items():
        if options.part and name not in options.part:
            continue
        print(f"== {name}: {part.text}", flush=True)
        if name == "fuzz":
            install = ["-m", "pip", "install", "--quiet", "-e", ".[fuzz]"]
            subprocess.run([PYTHON, *install], cwd=ROOT, check=True)
        env = {**os.environ, **part.env}
        results[name] = subprocess.run(part.command, cwd=ROOT, env=env, check=False).returncode
        subprocess.run([PYTHON, "-m", "tests.harness.netns"], cwd=ROOT, check=False)
    for name, status in results.items():
        print(f"{name}: {'passed' if status == 0 else f'failed ({status})'}")
    return 1 if any(results.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
