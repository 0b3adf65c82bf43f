"""The references should have every option and command of the code, with examples that run."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import dfmeta.conf
from dfmeta.cli.ctl import cli
from dfmeta.cmd import daemon
from dfmeta.conf import attachments, neutron
from dfmeta.conf.values import AGENT, EVERY, READS, Changes
from dfmeta.errors import ConfigError
from tests.core.docs.sources import ROOT
from tests.harness.domains import definition

SOURCE = ROOT / "doc/source"
CONFIGURATION = (SOURCE / "configuration.rst").read_text(encoding="utf-8")
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHdlYi4uLi4uLi4uLi4uLi4uLi4uLi4uLi4uLi4uLi4u key-1"
INSTANCE = "6a7b1c1e-0d5f-4e0e-8d61-1f5b1f6f3f10"
GROUPS = [name or "DEFAULT" for name, _options in dfmeta.conf.own_opts()]
# What takes a daemon on a bridge; tests/host/e2e runs these.
ON_A_HOST = {"doctor", "flows", "ports", "trace", "trunk", "subport", "attachment"}
# These read no configuration.
WITHOUT_ONE = {"help", "version"}
# Each is there once what it needs is.
ORDER = ("put", "get", "list", "backup", "schema", "restore", "import", "devices", "token")


def commands(
    command: click.Command = cli, path: tuple[str, ...] = ("dfmeta",)
) -> Iterator[tuple[str, click.Command]]:
    """Every command with its subcommands, by what is typed."""
    yield " ".join(path), command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            result = command.get_command(context, name)
            assert result
            yield from commands(result, (*path, name))


ALL = dict(commands())
LEAVES = {path: command for path, command in ALL.items() if not isinstance(command, click.Group)}


def examples(command: click.Command) -> list[str]:
    """The examples in a command's help."""
    block = (command.epilog or "").partition("Examples:\n")[2].partition("\n\n")[0]
    return [line.strip() for line in block.splitlines()]


# Options


def test_each_group_has_its_section() -> None:
    for group in GROUPS:
        section = CONFIGURATION.partition(f"\n[{group}]\n{'=' * (len(group) + 2)}\n")[2]
        assert f"    [{group}]\n" in section.partition(f".. dfmeta-options:: {group}\n")[0]


def test_each_example_of_a_configuration_loads(tmp_path: Path) -> None:
    own = {name for _group, name in EVERY} | {
        network_opt.dest for network_opt in attachments.NETWORK_OPTS
    }
    own |= {"auth_type", *(sample_opt.dest for sample_opt in neutron.sample_opts())}
    texts = re.findall(r"\.\. code-block:: ini\n\n((?:    .*\n|\n)+)", CONFIGURATION)
    assert len(texts) >= len(GROUPS)
    for text in texts:
        file = tmp_path / "dfmeta.conf"
        file.write_text(re.sub("^    ", "", text, flags=re.MULTILINE))
        conf = dfmeta.conf.load([str(file)], prog=AGENT)
        if "neutron" in conf.df_metadata.identity_sources:
            neutron.session(conf)
        assert set(re.findall(r"^    (\w+) = ", text, re.MULTILINE)) <= own


def test_environment_may_give_an_option(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "OS_DF_METADATA__HOLD_TIMEOUT=4" in CONFIGURATION
    file = tmp_path / "dfmeta.conf"
    file.write_text("[df_metadata]\nhold_timeout = 3\n")
    monkeypatch.setenv("OS_DF_METADATA__HOLD_TIMEOUT", "4")
    assert dfmeta.conf.load([str(file)], prog=AGENT).df_metadata.hold_timeout == 4
    monkeypatch.setenv("OS_DF_METADATA__HOLD_TIMEOUT", "soon")
    with pytest.raises(ConfigError, match=r"\[df_metadata\] hold_timeout = 'soon'"):
        dfmeta.conf.load([str(file)], prog=AGENT)


def test_page_has_the_lines_that_a_reload_logs(caplog: pytest.LogCaptureFixture) -> None:
    changes = Changes(taken=("[df_metadata] hold_timeout",), waiting=("[df_metadata] port",))
    with caplog.at_level("INFO"):
        changes.log(daemon.LOG)
    assert "".join(f"    {line}\n" for line in caplog.messages) in CONFIGURATION


def test_dfmeta_agent_reads_no_option_of_the_store_alone() -> None:
    package = SOURCE.parents[1] / "dfmeta"
    texts = {path: path.read_text(encoding="utf-8") for path in package.rglob("*.py")}
    for _group, option in EVERY - READS[AGENT]:
        named = {str(path.relative_to(package)) for path in texts if f".{option}" in texts[path]}
        # The status page has a part for each daemon.
        assert named <= {"cmd/central.py", "conf/central.py", "cmd/status_page.py"}, option


# Commands


def test_manual_page_has_each_command_with_its_options() -> None:
    page = (SOURCE.parents[1] / "etc/man/man1/dfmeta.1").read_text(encoding="utf-8")
    parts = page.replace("\\-", "-").split("\n.SS ")
    texts = {part.partition("\n")[0]: part for part in parts}
    assert texts.keys() - {parts[0].partition("\n")[0]} == ALL.keys() - {"dfmeta"}
    for path, command in ALL.items():
        for option in command.params:
            text = texts.get(path, parts[0])
            for name in option.opts:
                if name.startswith("--"):
                    assert re.search(rf"\n\.B (\S+, )?{name}\b", text), (path, name)


def test_help_of_each_command_has_its_statuses_and_examples_that_are_accepted() -> None:
    for path, command in LEAVES.items():
        assert "Exit status: 0, or 1 when " in (command.epilog or ""), path
        assert examples(command), path
        for example in examples(command):
            assert example == path or example.startswith(f"{path} ")
            command.make_context("dfmeta", shlex.split(example)[len(path.split()) :])


def test_examples_run_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    scene(tmp_path)
    run = [
        example
        for path, command in LEAVES.items()
        if path.split()[1] not in ON_A_HOST
        for example in examples(command)
    ]
    run.sort(
        key=lambda example: next((n for n, word in enumerate(ORDER) if word in example.split()), 9)
    )
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


def test_page_has_the_daemons_help_of_cleanup() -> None:
    (option,) = daemon.CLI
    text = (SOURCE / "_ext/dfmeta_reference.py").read_text(encoding="utf-8")
    assert f'CLEANUP = "{option.help}"' in text
