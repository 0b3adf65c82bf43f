"""What lies in etc/ and stands in the README is what the code has."""

import re
from pathlib import Path

import yaml
from click.shell_completion import get_completion_class
from oslo_config import generator

from dfmeta.cli.ctl import COMMANDS, cli

ROOT = Path(__file__).parents[3]
SAMPLE = ROOT / "etc/dfmeta/dfmeta.conf.sample"
README = ROOT / "README.rst"
NOTES = ROOT / "releasenotes/notes"
SECTIONS = {
    *("prelude", "features", "issues", "upgrade", "deprecations", "critical", "security", "fixes"),
    "other",
}
"""Sections of a release note, by reno's manual."""
UNIT = ROOT / "etc/systemd/dfmeta-agent.service"


def sections(text: str) -> dict[str, str]:
    """Group → its text."""
    parts = re.split(r"^\[(\w+)\]$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_the_sample_configuration_is_that_of_the_options(tmp_path: Path) -> None:
    output = tmp_path / "dfmeta.conf"
    options = ["--namespace", "dfmeta", "--wrap-width", "78", "--output-file", str(output)]
    generator.main(options)
    generated, sample = sections(output.read_text()), sections(SAMPLE.read_text())
    assert sample.keys() == generated.keys()
    # [neutron] has keystoneauth1's own words, which are another release's to change.
    for group in generated.keys() - {"neutron"}:
        assert sample[group] == generated[group], group


def test_the_readme_names_each_command_and_leads_to_files_that_exist() -> None:
    text = README.read_text()
    assert [command for command in COMMANDS if f"``dfmeta {command}``" not in text] == []
    paths = re.findall(r"<([\w./-]+)>`__", text)
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_unit_starts_what_is_installed_and_keeps_the_listener() -> None:
    text = UNIT.read_text()
    assert "dfmeta-agent --config-file /etc/dfmeta/dfmeta.conf" in text
    assert "Type=notify" in text
    assert re.search(r"^FileDescriptorStoreMax=[1-9]", text, re.MULTILINE)


def test_completion_of_each_shell_is_made_by_click() -> None:
    for shell, file in (("bash", "dfmeta"), ("zsh", "_dfmeta"), ("fish", "dfmeta.fish")):
        kind = get_completion_class(shell)
        assert kind is not None
        values = kind(cli, {}, "dfmeta", "_DFMETA_COMPLETE").source_vars()
        made = kind.source_template % values
        assert (ROOT / "etc/completion" / file).read_text() == made, shell


def test_each_release_note_has_sections_of_reno_with_whole_sentences() -> None:
    paths = [*NOTES.iterdir()]
    assert len({path.stem.rpartition("-")[2] for path in paths}) == len(paths)
    for path in paths:
        assert re.fullmatch(r"[a-z0-9-]+-[0-9a-f]{16}\.yaml", path.name), path.name
        note = yaml.safe_load(path.read_text())
        assert note, path.name
        assert note.keys() <= SECTIONS, path.name
        for section, texts in note.items():
            for text in [texts] if section == "prelude" else texts:
                assert re.match(r"[A-Z`].*\.\n\Z", text, re.DOTALL), (path.name, text)
