"""Search for bytes that break what tests/fuzz/http1_oracle.py holds; needs the extra ``fuzz``.

    python -m tests.fuzz.fuzz_http1 [LIBFUZZER ARGUMENT...]

New input that reaches something new goes to .cache/fuzz/http1, what breaks a property to a file
beside it. ``-merge=1`` gives back to tests/fuzz/corpus/http1 what is worth keeping.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["dfmeta.http.http1", "h11"]):
    from tests.fuzz.http1_oracle import check

HERE = Path(__file__).parent
CORPUS = HERE / "corpus" / "http1"
WORDS = HERE / "http1.dict"
FOUND = HERE.parents[1] / ".cache" / "fuzz" / "http1"
LONGEST = 12_000
"""Bytes; a little more than the longest head."""


def one_input(data: bytes) -> None:
    """Hold every property for *data*."""
    check(data)


def main(arguments: list[str]) -> None:
    """Run libFuzzer, which does not return."""
    FOUND.mkdir(parents=True, exist_ok=True)
    merging = any(argument.startswith("-merge") for argument in arguments)
    folders = [CORPUS, FOUND] if merging else [FOUND, CORPUS]
    # libFuzzer starts itself again for a merge, with this as its first word.
    program = f"{sys.executable} -m tests.fuzz.fuzz_http1"
    options = [f"-dict={WORDS}", f"-max_len={LONGEST}", f"-artifact_prefix={FOUND.parent}/http1-"]
    given = [] if any(not argument.startswith("-") for argument in arguments) else map(str, folders)
    atheris.Setup([program, *options, *arguments, *given], one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
