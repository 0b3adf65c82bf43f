"""The references should have every option and command of the code, with examples that run."""

from __future__ import annotations

import json
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import dfmeta.conf
from dfmeta.cli.ctl import cli
from dfmeta.cli.store_choice import TOKEN
from dfmeta.cmd import daemon
from dfmeta.conf import attachments, neutron
from dfmeta.conf.daemons import AGENT, EVERY, READS, RELOADED, STORE, Changes
from dfmeta.exceptions import ConfigError
from dfmeta.guest import tag_devices
from dfmeta.proxy.tokens import KEY_FILE
from dfmeta.state import FILE
from tests.core.docs.built import SOURCE, Pages
from tests.harness.domains import definition
from tests.harness.poll import wait_for
from tests.host.e2e.support import KEY

CONFIGURATION = (SOURCE / "configuration.rst").read_text(encoding="utf-8")
COMMANDS = (SOURCE / "commands.rst").read_text(encoding="utf-8")
INSTANCE = "6a7b1c1e-0d5f-4e0e-8d61-1f5b1f6f3f10"
PROGRAMS = ("dfmeta-agent", "dfmeta-store", "dfmeta-tag-devices")
GROUPS = [name or "DEFAULT" for name, _options in dfmeta.conf.own_opts()]
# What takes a daemon on a bridge; tests/host/e2e runs these.
ON_A_HOST = {"doctor", "flows", "ports", "trace", "trunk", "subport", "attachment"}
# These read no configuration.
WITHOUT_ONE = {"help", "version"}
# Each is there once what it needs is.
ORDER = ("put", "get", "list", "backup", "schema", "restore", "import", "devices", "token")


def words(text: str) -> str:
    """A text without line breaks."""
    return " ".join(text.split())


def commands(
    command: click.Command = cli, path: tuple[str, ...] = ("dfmeta",)
) -> Iterator[tuple[str, click.Command]]:
    """Every command with its subcommands, by what is typed."""
    yield " ".join(path), command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found
            yield from commands(found, (*path, name))


ALL = dict(commands())
LEAVES = {path: one for path, one in ALL.items() if not isinstance(one, click.Group)}


def examples(command: click.Command) -> list[str]:
    """The examples in a command's help."""
    block = (command.epilog or "").partition("Examples:\n")[2].partition("\n\n")[0]
    return [line.strip() for line in block.splitlines()]


# Options


@pytest.mark.parametrize(("group", "name"), sorted(EVERY))
def test_an_option_is_on_the_page_with_all_that_is_said_of_it(
    pages: Pages, group: str, name: str
) -> None:
    option = next(
        one
        for found, options in dfmeta.conf.own_opts()
        for one in options
        if (found or "DEFAULT", one.dest) == (group, name)
    )
    text = pages.text("configuration")
    start = text.index(words(option.help))
    entry = text[start : start + len(option.help) + 1500].partition("At SIGHUP:")
    assert entry[1], name
    assert "Not set by default." in entry[0] or "Default: " in entry[0]
    assert ("Secret:" in entry[0]) == option.secret
    first = entry[2].strip().partition(".")[0]
    assert first.startswith("reloaded") == ((group, name) in RELOADED[AGENT] | RELOADED[STORE])


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_has_its_section_and_an_example_before_its_options(group: str) -> None:
    heading = f"\n[{group}]\n{'=' * (len(group) + 2)}\n"
    section = CONFIGURATION.partition(heading)[2]
    introduction = section.partition(f".. dfmeta-options:: {group}\n")[0]
    assert len(introduction.split()) > 30
    assert introduction.count(".. code-block:: ini") == 1
    assert f"    [{group}]\n" in introduction


@pytest.mark.parametrize(
    "text",
    re.findall(r"\.\. code-block:: ini\n\n((?:    .*\n|\n)+)", CONFIGURATION),
    ids=lambda text: words(text)[:40],
)
def test_an_example_of_a_configuration_loads(text: str, tmp_path: Path) -> None:
    file = tmp_path / "dfmeta.conf"
    file.write_text(re.sub("^    ", "", text, flags=re.MULTILINE))
    conf = dfmeta.conf.load([str(file)], prog=AGENT)
    if "neutron" in conf.df_metadata.identity_sources:
        neutron.session(conf)
    named = set(re.findall(r"^    (\w+) = ", text, re.MULTILINE))
    own = {name for _group, name in EVERY} | {one.dest for one in attachments.NETWORK_OPTS}
    assert named - own <= {"auth_type", *(one.dest for one in neutron.sample_opts())}


def test_the_table_has_what_each_daemon_does_with_each_option(pages: Pages) -> None:
    text = pages.text("configuration")
    for group, name in EVERY:
        row = text.partition(f"[{group}] {name} ")[2] if f"[{group}] {name} " in text else ""
        row = text[text.rindex(f"[{group}] {name} ") :]
        wanted = [
            "not read"
            if (group, name) not in READS[daemon_]
            else "reloaded"
            if (group, name) in RELOADED[daemon_]
            else "needs a restart"
            for daemon_ in (AGENT, STORE)
        ]
        assert row.startswith(f"[{group}] {name} {' '.join(wanted)}")


def test_an_option_may_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert "OS_DF_METADATA__HOLD_TIMEOUT=4" in CONFIGURATION
    file = tmp_path / "dfmeta.conf"
    file.write_text("[df_metadata]\nhold_timeout = 3\n")
    monkeypatch.setenv("OS_DF_METADATA__HOLD_TIMEOUT", "4")
    assert dfmeta.conf.load([str(file)], prog=AGENT).df_metadata.hold_timeout == 4
    monkeypatch.setenv("OS_DF_METADATA__HOLD_TIMEOUT", "soon")
    with pytest.raises(ConfigError, match=r"\[df_metadata\] hold_timeout = 'soon'"):
        dfmeta.conf.load([str(file)], prog=AGENT)


def test_the_page_has_what_the_log_says_of_a_reload(caplog: pytest.LogCaptureFixture) -> None:
    changes = Changes(taken=("[df_metadata] hold_timeout",), waiting=("[df_metadata] port",))
    with caplog.at_level("INFO"):
        changes.tell(daemon.LOG)
    assert "".join(f"    {line}\n" for line in caplog.messages) in CONFIGURATION


def test_dfmeta_store_looks_at_what_the_page_says(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("", 0)) as two:
        ports = [sock.getsockname()[1] for sock in (one, two)]
    file = tmp_path / "dfmeta.conf"
    file.write_text(
        f"[df_metadata]\nstate_path = {tmp_path}\nadmin_listen = 127.0.0.1:{ports[0]}\n"
        f"[store]\nguest_listen = 127.0.0.1:{ports[1]}\ntoken_file = {tmp_path}/tokens\n"
        "oidc_issuer = https://login.example.org\noidc_audience = dfmeta\n"
        "lookup_base_url = https://store.example.org\n"
        "lookup_issuer = https://login.example.org\nlookup_client_id = a\n"
        "lookup_client_secret = b\n"
    )
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        command = [sys.executable, "-W", "ignore", "-m", "tests.core.docs.option_reads", str(file)]
        process = subprocess.Popen(
            command, cwd=SOURCE.parents[1], stdout=subprocess.PIPE, stderr=stderr
        )
        try:
            wait_for(lambda: "Serving" in log.read_text(), "the store to serve")
            process.send_signal(signal.SIGHUP)
            wait_for(lambda: "Reloaded" in log.read_text(), "the store to reload")
        finally:
            process.send_signal(signal.SIGTERM)
            printed, _ = process.communicate(timeout=20)
    assert process.returncode == 0, log.read_text()
    seen = {(group, name) for group, name in json.loads(printed)} & EVERY
    # A daemon without ports asks for no project, whatever the backend.
    assert seen - {("df_metadata", "backend")} == READS[STORE]


@pytest.mark.parametrize("option", sorted(EVERY - READS[AGENT]))
def test_dfmeta_agent_does_not_look_at_what_is_the_stores_alone(option: tuple[str, str]) -> None:
    package = SOURCE.parents[1] / "dfmeta"
    named = [
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if f".{option[1]}" in path.read_text(encoding="utf-8")
    ]
    # The status page has a part for each daemon.
    assert set(named) <= {"cmd/central.py", "conf/central.py", "cmd/status_page.py"}


# Commands


@pytest.mark.parametrize("path", ALL)
def test_a_command_and_its_options_are_on_the_page(pages: Pages, path: str) -> None:
    command, text = ALL[path], pages.text("commands/dfmeta")
    assert f"{path} [OPTIONS]" in text
    said = (command.help or "").partition("\n\n")[0].partition("\f")[0]
    assert words(said) in text
    for option in command.params:
        if isinstance(option, click.Option):
            assert option.help, option.name
            assert words(option.help) in text or option.name == "version"
            assert all(flag in text for flag in option.opts)


@pytest.mark.parametrize("path", LEAVES)
def test_a_commands_help_says_what_it_does_with_examples_and_statuses(path: str) -> None:
    command = LEAVES[path]
    assert len((command.help or "").split()) > 3
    assert "Exit status: 0, or 1 when " in (command.epilog or "")
    assert examples(command)
    for example in examples(command):
        assert example.startswith(f"{path} ") or example == path


@pytest.mark.parametrize(
    "example",
    [one for path, command in LEAVES.items() for one in examples(command)],
)
def test_an_example_is_a_command_line_that_is_taken(example: str) -> None:
    command: click.Command = cli
    words = shlex.split(example)[1:]
    while isinstance(command, click.Group):
        found = command.get_command(click.Context(command), words.pop(0))
        assert found
        command = found
    command.make_context("dfmeta", words)


def test_the_examples_run_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    scene(tmp_path)
    run = [
        one
        for path, command in LEAVES.items()
        if path.split()[1] not in ON_A_HOST
        for one in examples(command)
    ]
    run.sort(key=lambda one: next((n for n, word in enumerate(ORDER) if word in one.split()), 9))
    assert len(run) > 15
    for example in run:
        arguments = shlex.split(example)[1:]
        if arguments[0] not in WITHOUT_ONE:
            arguments += ["--config-file", "dfmeta.conf"]
        done = CliRunner().invoke(cli, arguments, prog_name="dfmeta")
        assert done.exit_code == 0, f"{example}: {done.output}"


def scene(folder: Path) -> None:
    """Files that the examples name."""
    domains = folder / "domains"
    domains.mkdir()
    disk = "<disk type='file'><target dev='vda' bus='virtio'/><serial>1</serial></disk>"
    nic = (
        "<interface type='network'><mac address='52:54:00:00:00:01'/>"
        "<source network='default'/><target dev='vnet0'/></interface>"
    )
    xml = definition(INSTANCE, domain="web").replace("<devices>", f"<devices>{disk}{nic}")
    for file in (domains / "web.xml", folder / "web.xml"):
        file.write_text(xml)
    (folder / "dfmeta.conf").write_text(
        f"[df_metadata]\nstate_path = {folder}/state\nlibvirt_xml_path = {domains}\n"
        f"[store]\ntoken_file = {folder}/tokens\n"
    )
    (folder / "id.pub").write_text(f"{KEY}\n")
    (folder / "user-data.yaml").write_text("#cloud-config\n")
    seed = folder / "seeds" / INSTANCE
    seed.mkdir(parents=True)
    (seed / "meta-data").write_text(f"instance-id: {INSTANCE}\nlocal-hostname: web\n")
    (seed / "user-data").write_text("#cloud-config\n")
    line = {"id": INSTANCE, "ipAddresses": [], "metadata": {"hostname": "web"}}
    (folder / "records.jsonl").write_text(f"{json.dumps(line)}\n")
    drive = folder / "drive/openstack/latest"
    drive.mkdir(parents=True)
    (drive / "meta_data.json").write_text(json.dumps({"uuid": INSTANCE}))


# Other programs, and what holds for all


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_and_its_options_are_on_its_page(pages: Pages, program: str) -> None:
    module = {
        "dfmeta-agent": "dfmeta.cmd.agent",
        "dfmeta-store": "dfmeta.cmd.store",
        "dfmeta-tag-devices": "dfmeta.guest.tag_devices",
    }[program]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", module, "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    flags = set(re.findall(r"(?<![\w-])--[a-z_-]+", done.stdout.partition("options:")[2]))
    text = pages.text(f"commands/{program}")
    assert {"--help"} < flags
    assert [one for one in sorted(flags) if not one.startswith("--no") and one not in text] == []
    assert "Exit status" in done.stdout
    assert "Example" in done.stdout


def test_what_is_said_of_cleanup_is_the_daemons_own() -> None:
    (option,) = daemon.CLI
    text = (SOURCE / "_ext/dfmeta_reference.py").read_text(encoding="utf-8")
    assert f'CLEANUP = "{option.help}"' in text


def test_the_variables_and_files_are_the_codes() -> None:
    for name in (TOKEN, KEY_FILE, FILE, tag_devices.RULES, *dfmeta.conf.DEFAULT_FILES):
        assert f"``{name}``" in COMMANDS
    assert f"closes the rest after {daemon.GRACE:g} seconds" in (
        SOURCE / "commands/dfmeta-agent.rst"
    ).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "page", ["dfmeta.1", "dfmeta-agent.8", "dfmeta-store.8", "dfmeta-tag-devices.8"]
)
def test_a_manual_page_has_its_sections_and_leads_nowhere(pages: Pages, page: str) -> None:
    text = (pages.man / page).read_text(encoding="utf-8")
    assert ".SH Name" in text or ".SH NAME" in text
    assert "\\-\\-help" in text or "--help" in text
    assert "Exit status" in text or "EXIT STATUS" in text
    assert ".UR" not in text
    assert "<#" not in text
