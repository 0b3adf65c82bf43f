"""What is built of the source should be complete, and work where it is installed."""

import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

from dfmeta import conf
from dfmeta.store.db import HEAD, database
from tests.harness.central import Central
from tests.harness.netns import ROOT, Namespace
from tests.host.e2e.shell import COMPLETION

SOURCES = ("bench", "dfmeta", "devstack", "doc", "etc", "releasenotes", "tests", "tools")
NOT_KEPT = shutil.ignore_patterns("__pycache__", "build", ".*_cache", ".hypothesis")
COMMANDS = {
    "dfmeta",
    "dfmeta-agent",
    "dfmeta-cni",
    "dfmeta-cni-zip",
    "dfmeta-store",
    "dfmeta-tag-devices",
}
ALONE = ("env", "-u", "PYTHONPATH")
INSTALL = (ROOT / "doc/source/install.rst").read_text(encoding="utf-8")
VERSION = "0.1.dev0"
"""That of a copy without git."""
FULL = f"dfmeta-{VERSION}"


def run(*command: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*map(str, command)], cwd=cwd, capture_output=True, text=True, check=False
    )


def run_alone(*command: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """As :func:`run`, without the checkout on Python's path."""
    return run(*ALONE, *command, cwd=cwd)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, in which building leaves its files."""
    folder = tmp_path_factory.mktemp("source")
    for path in ROOT.iterdir():
        if path.is_file() and not path.name.startswith("."):
            shutil.copy(path, folder)
        elif path.name in SOURCES:
            shutil.copytree(path, folder / path.name, ignore=NOT_KEPT)
    return folder


@pytest.fixture(scope="module")
def built(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the source distribution is, and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("dist")
    done = run(sys.executable, "-m", "build", "--no-isolation", "-o", folder, cwd=source)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    return built / f"{FULL}-py3-none-any.whl"


@pytest.fixture(scope="module")
def members(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as opened:
        return set(opened.namelist())


def files(folder: Path, *parts: str) -> set[str]:
    """Files below parts of a folder, without what tools leave there."""
    return {
        str(path.relative_to(folder))
        for part in parts
        for path in (folder / part).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }


def test_the_source_distribution_has_all_of_the_source(source: Path, built: Path) -> None:
    with tarfile.open(built / f"{FULL}.tar.gz") as opened:
        result = {name.removeprefix(f"{FULL}/") for name in opened.getnames()}
    wanted = files(ROOT, "dfmeta", "etc") | files(source, "tests", "tools", "doc", "bench")
    wanted |= {"LICENSE", "README.rst", "MANIFEST.in", "pyproject.toml", "setup.cfg", "tox.ini"}
    assert wanted - result == set()
    assert [name for name in result if "__pycache__" in name or name.endswith(".pyc")] == []


def test_wheel_has_the_package_and_set_up_files_alone(members: set[str]) -> None:
    data = f"{FULL}.data/data/share/"
    code = {name for name in members if name.startswith("dfmeta/")}
    assert code == files(ROOT, "dfmeta")
    placed = {name.removeprefix(data) for name in members if name.startswith(data)}
    # The sample has no folder of its own there: the folder's name is the program's already.
    present = {name.removeprefix("etc/").removeprefix("dfmeta/") for name in files(ROOT, "etc")}
    completion = {f"completion/{file}": f"{to}/{file}" for file, to in COMPLETION.items()}
    assert placed == {
        name if name.startswith("man/") else completion.get(name, f"dfmeta/{name}")
        for name in present
    }
    tool = f"{FULL}.data/scripts/dfmeta-cni-zip"
    assert tool in members
    rest = members - code - {data + name for name in placed} - {tool}
    assert {name.partition("/")[0] for name in rest} == {f"{FULL}.dist-info"}
    assert [name for name in rest if name.endswith("/LICENSE")]


def test_a_tag_is_the_version_and_the_heading_of_the_changelog(
    source: Path, tmp_path: Path
) -> None:
    checkout = tmp_path / "checkout"
    shutil.copytree(source, checkout)
    shutil.copy(ROOT / ".gitignore", checkout)
    git = ("git", "-c", "user.name=name", "-c", "user.email=name@example.org")
    for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "x"), ("tag", "1.2.3")):
        assert run(*git, *words, cwd=checkout).returncode == 0
    options = ("--sdist", "--no-isolation", "-o", tmp_path)
    done = run(sys.executable, "-m", "build", *options, cwd=checkout)
    assert done.returncode == 0, done.stdout + done.stderr
    with tarfile.open(tmp_path / "dfmeta-1.2.3.tar.gz") as opened:
        log = opened.extractfile("dfmeta-1.2.3/CHANGELOG.rst")
        assert log is not None
        assert b"\n1.2.3\n=====\n" in log.read()


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as opened:
        return message_from_bytes(opened.read(f"{FULL}.dist-info/METADATA"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The wheel in an environment of its own; what it needs is lent by the one that runs this."""
    home = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(home, with_pip=False)
    pip = (sys.executable, "-m", "pip", "--python", home / "bin/python", "install", "--quiet")
    done = run(*pip, "--no-deps", "--no-index", "--no-compile", wheel)
    assert done.returncode == 0, done.stderr
    paths = {"base": str(home), "platbase": str(home)}
    own = Path(sysconfig.get_path("purelib", "venv", paths))
    (own / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    yield home
    shutil.rmtree(home)


def test_the_wheel_installs_commands_and_files(installed: Path) -> None:
    assert {path.name for path in (installed / "bin").glob("dfmeta*")} == COMMANDS
    share = installed / "share/dfmeta"
    assert (share / "dfmeta.conf.sample").is_file()
    assert (share / "systemd/dfmeta-agent.service").is_file()


def test_the_units_command_line_finds_it_by_the_path_of_the_drop_in(installed: Path) -> None:
    (drop_in,) = re.findall(r"^    Environment=PATH=(\S+)$", INSTALL, re.MULTILINE)
    path = drop_in.replace("/opt/dfmeta/bin", str(installed / "bin"))
    unit = (installed / "share/dfmeta/systemd/dfmeta-agent.service").read_text()
    (words,) = re.findall(r"^ExecStart=(\S+ \S+) ", unit, re.MULTILINE)
    done = run_alone("env", f"PATH={path}", *words.split(), "--version")
    assert done.stdout.split() == [VERSION], done


def test_the_guests_program_and_the_cni_plugin_run(installed: Path, tmp_path: Path) -> None:
    document = tmp_path / "meta_data.json"
    document.write_text('{"devices": []}')
    done = run_alone(installed / "bin/dfmeta-tag-devices", "--dry-run", "--file", document)
    assert done.returncode == 0, done.stderr
    plugin = tmp_path / "dfmeta-cni"
    done = run_alone(installed / "bin/dfmeta-cni-zip", plugin)
    assert done.returncode == 0, done.stderr
    for program in (installed / "bin/dfmeta-cni", plugin):
        done = run_alone("env", "CNI_COMMAND=VERSION", program)
        assert "supportedVersions" in done.stdout, done


def test_the_store_makes_its_database(installed: Path) -> None:
    with Namespace("packed") as namespace, Central(namespace=namespace) as central:
        central.command = [*ALONE, str(installed / "bin/dfmeta-store")]
        central.start()
        assert database.schema_of(central.url) == HEAD
        central.stop()


def test_the_configuration_that_comes_along_can_be_used_as_it_is(installed: Path) -> None:
    sample = str(installed / "share/dfmeta/dfmeta.conf.sample")
    assert conf.load([sample], prog="dfmeta").df_metadata.backend == "store"
