"""What fails should be one line with the name of the error, on stderr and in the log."""

import json
import logging
import os
import re
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from dfmeta.cli import ctl
from dfmeta.cmd import central, daemon
from dfmeta.errors import ConfigError, HostError, StoreError
from dfmeta.runtime.throttle import LogThrottle
from dfmeta.wiring import process
from dfmeta.wiring.logs import DaemonFormatter

Said = tuple[int, str]


@pytest.fixture
def dfmeta(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Said]:
    """Run ``dfmeta`` here: its exit status and what is on stderr."""

    def run(*words: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["dfmeta", *words])
        with pytest.raises(SystemExit) as ended:
            ctl.main()
        return int(ended.value.code or 0), capsys.readouterr().err

    return run


def test_defect_is_one_line(dfmeta: Callable[..., Said], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ctl.COMMANDS, "ports", ctl.LazyCommand("json", ""))
    monkeypatch.delenv(process.DEBUG, raising=False)
    status, said = dfmeta("ports")
    assert status == 1
    assert said.startswith("dfmeta: AttributeError in dfmeta/cli/ctl.py:")
    assert said.endswith("the traceback that DFMETA_DEBUG=1 prints [unexpected]\n")
    assert said.count("\n") == 1


@pytest.mark.parametrize(("value", "shown"), [("1", True), ("0", False), ("", False)])
def test_traceback_is_printed_on_request(
    dfmeta: Callable[..., Said], monkeypatch: pytest.MonkeyPatch, value: str, shown: bool
) -> None:
    monkeypatch.setitem(ctl.COMMANDS, "ports", ctl.LazyCommand("json", ""))
    monkeypatch.setenv(process.DEBUG, value)
    _status, said = dfmeta("ports")
    assert said.startswith("Traceback (most recent call last):\n") == shown
    assert said.endswith(" [unexpected]\n")


@pytest.mark.parametrize("module", [daemon, central], ids=["agent", "store"])
def test_unknown_argument_is_one_line(module: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert module.run(["--hold-timeout"]) == 2
    assert capsys.readouterr().err == (
        f"{module.PROG}: unrecognized arguments: --hold-timeout. "
        f"See {module.PROG} --help [wrong-usage]\n"
    )


def test_a_line_is_one_line_and_moves_no_cursor() -> None:
    error = StoreError(cause="a\n b\x1b[2J\udc80", remedy="Do c")
    assert error.line == "store: a b\\x1b[2J\\udc80. Do c [store]"


def test_a_value_of_any_length_is_cut() -> None:
    error = ConfigError(option="[a] b", value="x" * 5000, cause="d", remedy="Do e")
    assert len(error.line) < 300
    assert len(str(error.fields["value"])) == 5000


def test_a_file_that_the_system_refuses_is_no_fault_of_dfmetas(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="missing") as caught:
        (tmp_path / "missing").open()
    assert process.unexpected_error(caught.value).line.startswith(
        f"{tmp_path}/missing: No such file"
    )
    assert process.unexpected_error(OSError("odd")).name == "unexpected"


ERROR = HostError(what="route add", device="tap-metadata", cause="Operation not permitted")
JOURNAL = DaemonFormatter(journal=True)
TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}"
JSON = DaemonFormatter(journal=False, use_json=True)


def record(message: str, *args: object, exc_info: object = None) -> logging.LogRecord:
    return logging.LogRecord(
        *("dfmeta", logging.WARNING, __file__, 1, message, args, exc_info)  # type: ignore[arg-type]  # as sys.exc_info() gives it
    )


def test_an_error_in_a_line_is_named() -> None:
    line = JOURNAL.format(record("Not restored: %s; again in %d s", ERROR, 2))
    assert line == f"<4>WARNING dfmeta Not restored: {ERROR}; again in 2 s [{ERROR.name}]"


@pytest.mark.parametrize("args", [(), ("50 % [x]",), (OSError("gone"),)])
def test_other_lines_stay_as_they_are(args: tuple[object, ...]) -> None:
    message = "%s" if args else "50 % is plain"
    text = str(args[0] if args else message)
    assert JOURNAL.format(record(message, *args)) == f"<4>WARNING dfmeta {text}"
    assert json.loads(JSON.format(record(message, *args)))["message"] == text


def test_record_stays_as_it_is_and_its_traceback_is_shown() -> None:
    try:
        raise ERROR
    except HostError:
        line = record("Lost: %s\nfor good", ERROR, exc_info=sys.exc_info())
    text = f"Lost: {ERROR}\nfor good [{ERROR.name}]"
    lines = JOURNAL.format(line).splitlines()
    assert {shown[:3] for shown in lines} == {"<4>"}
    assert lines[2] == "<4>Traceback (most recent call last):"
    timed, *rest = DaemonFormatter(journal=False).format(line).splitlines()
    assert re.fullmatch(rf"{TIME} WARNING dfmeta Lost: .*", timed)
    assert rest == [shown[3:] for shown in lines[1:]]
    (shown,) = JSON.format(line).splitlines()
    fields = json.loads(shown)
    assert "".join(fields.pop("traceback")).splitlines() == rest[1:]
    at = datetime.fromisoformat(fields.pop("asctime")).timestamp()
    assert at == pytest.approx(line.created, abs=0.001)
    names = {"levelname": "WARNING", "name": "dfmeta", "process": os.getpid(), "message": text}
    assert fields == names
    assert line.args == (ERROR,)


def test_the_last_line_has_the_form_of_the_log() -> None:
    error = KeyError("ofport")
    trace, last = JOURNAL.last("dfmeta-agent", error).splitlines()
    assert (trace, last[:39]) == (
        "<3>KeyError: 'ofport'",
        "<3>dfmeta-agent: KeyError in an unknown",
    )
    fields = json.loads(JSON.last("dfmeta-store", error))
    assert (fields["name"], fields["levelname"]) == ("dfmeta-store", "ERROR")
    assert fields["traceback"] == ["KeyError: 'ofport'\n"]
    assert "traceback" not in json.loads(JSON.last("dfmeta-store", ERROR))


LOGGER = logging.getLogger("tests.quiet")


def test_a_line_that_repeats_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    moments = iter((0.0, 1.0, 59.0, 60.0, 61.0))
    seldom = LogThrottle(clock=lambda: next(moments))
    for _ in range(5):
        seldom.warn(LOGGER, "%s is away", "it")
    assert caplog.messages == [
        "it is away",
        "it is away (and 2 more like it since it was last logged)",
    ]
