"""Fixtures of the tier of virtual machines, and what a failed test of it shows."""

import os
import shutil
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from functools import partial

import pytest

from tests.harness import netns
from tests.harness.fixtures import shown
from tests.soak.real import emulators, images, libvirt_images
from tests.soak.real.domains import ADDRESSES, CONFIGURATION
from tests.soak.real.images import Disk
from tests.soak.real.libvirt import Libvirt
from tests.soak.real.machine import Machine
from tests.soak.real.node import Node
from tools import package

DISTRIBUTION = os.environ.get("DFMETA_TEST_DISTRIBUTION", images.USUAL.name)
EMULATOR = os.environ.get("DFMETA_TEST_MACHINE", emulators.USUAL.name)


def pytest_configure(config: pytest.Config) -> None:
    """``long``: ``tools/real`` runs it, and ``tools/test`` does not."""
    if DISTRIBUTION not in images.DISTRIBUTIONS:
        known = ", ".join(images.DISTRIBUTIONS)
        raise pytest.UsageError(f"{DISTRIBUTION!r} is no known distribution; these are: {known}")
    if EMULATOR not in emulators.EMULATORS:
        known = ", ".join(emulators.EMULATORS)
        raise pytest.UsageError(f"{EMULATOR!r} is no known emulator; these are: {known}")
    config.addinivalue_line("markers", "long: takes too long for every run of tools/test")


@pytest.fixture(scope="session")
def disk() -> Iterator[Disk]:
    """What machines of the session boot from."""
    folder = netns.temporary_folder("disk")
    emulator = emulators.EMULATORS[EMULATOR]
    yield images.disk(images.DISTRIBUTIONS[DISTRIBUTION], folder, emulator)
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def machine(disk: Disk) -> Iterator[Machine]:
    """A machine that has booted."""
    with Machine(disk) as machine:
        yield machine.start()


@pytest.fixture(scope="module")
def node_without_ipv6(disk: Disk) -> Iterator[Node]:
    """A compute node of its own, booted with ``ipv6.disable=1``, with dfmeta-agent ready."""
    with Machine(disk, arguments="ipv6.disable=1") as machine:
        node = Node(machine.start())
        node.install()
        yield node


@pytest.fixture(scope="module")
def node_of_package() -> Iterator[Node]:
    """A compute node without dfmeta, with its Debian package in /srv in two versions."""
    distribution = images.DISTRIBUTIONS[DISTRIBUTION]
    with ExitStack() as stack:
        folder = netns.temporary_folder("package")
        stack.callback(shutil.rmtree, folder)
        first = package.build(DISTRIBUTION, images.wheel_of_checkout(folder), folder)
        second = images.next_version(first)
        emulator = emulators.EMULATORS[EMULATOR]
        disk = images.disk_without_dfmeta(distribution, folder, emulator, first, second)
        yield Node(stack.enter_context(Machine(disk)).start())


@pytest.fixture(scope="session")
def _installed(machine: Machine) -> Node:
    node = Node(machine)
    node.install()
    return node


@pytest.fixture
def node(_installed: Node) -> Node:
    """A compute node with dfmeta-agent under systemd, which is ready."""
    _installed.wait_ready()
    return _installed


@pytest.fixture(scope="module")
def host() -> Iterator[Libvirt]:
    """The libvirt host of the page, with dfmeta-agent and no guest."""
    distribution = images.DISTRIBUTIONS[DISTRIBUTION]
    with ExitStack() as stack:
        folder = netns.temporary_folder("libvirt")
        stack.callback(shutil.rmtree, folder)
        tree = libvirt_images.host(distribution, folder)
        libvirt = stack.enter_context(Libvirt(tree, libvirt_images.guest(distribution)))
        libvirt.shell(ADDRESSES)
        libvirt.configure(CONFIGURATION)
        libvirt.start_agent()
        yield libvirt


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach consoles, the journal of the machine, and the daemon's log of a libvirt host."""
    report = yield
    if report.failed:
        for value in getattr(item, "funcargs", {}).values():
            if isinstance(value, Machine):
                report.sections.append(("the machine's console", shown(value.console)))
            if isinstance(value, Node) and value.machine.running:
                report.sections.append(("the journal", shown(value.journal)[-6000:]))
            if isinstance(value, Libvirt):
                report.sections.append(("dfmeta-agent", shown(value.agent_log)[-6000:]))
                report.sections.append(("consoles of domains", shown(partial(_consoles, value))))
    return report


def _consoles(libvirt: Libvirt) -> str:
    return "\n".join(f"{name}:\n{libvirt.console(name)[-6000:]}" for name in libvirt.consoles())
