"""A service's sandbox as systemd makes it from its unit, as far as possible without systemd.

Run as ``python -IS sandbox.py UNIT WRITABLE COMMAND...``: the process becomes COMMAND. Everything
except the directory WRITABLE is read-only, including /tmp. Not implemented: User=, PrivateTmp=
(which has the tests' own files), RestrictNamespaces=, the limits of control groups, and home
directories that contain the interpreter. The filters of system calls are made with libseccomp, as
systemd's own.
"""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_MS_RDONLY, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 4096, 16384, 1 << 18
_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000
_SYS_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE, _MOUNT_ATTR_RDONLY = 442, -100, 0x8000, 1
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAPBSET_READ = 24, 38, 23
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_EPERM, _EAFNOSUPPORT = 1, 97
_EQ, _MASKED_EQ = 4, 7
_PROT_WRITE, _PROT_EXEC = 2, 4
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_NAMES = (
    "chown dac_override dac_read_search fowner fsetid kill setgid setuid setpcap linux_immutable "
    "net_bind_service net_broadcast net_admin net_raw ipc_lock ipc_owner sys_module sys_rawio "
    "sys_chroot sys_ptrace sys_pacct sys_admin sys_boot sys_nice sys_resource sys_time "
    "sys_tty_config mknod lease audit_write audit_control setfcap mac_override mac_admin syslog "
    "wake_alarm block_suspend audit_read perfmon bpf checkpoint_restore"
)
_CAPABILITIES = tuple(_NAMES.split())
"""Names of the capabilities, by number (capabilities(7))."""
_FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16}
_FAMILIES_MAX = 46

Unit = dict[str, list[str]]
"""Directive → its values, in their order."""


def prefix(unit: Path, writable: Path) -> list[str]:
    """Return the words before a command that run it in the sandbox of *unit*."""
    return [sys.executable, "-IS", __file__, str(unit), str(writable)]


def read_unit(path: Path) -> Unit:
    """Return the directives of a unit file."""
    unit: Unit = {}
    for line in path.read_text().splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith(("#", ";")):
            unit.setdefault(name, []).append(value)
    return unit


def capabilities(unit: Unit) -> int:
    """Return CapabilityBoundingSet= as a mask."""
    names = " ".join(unit["CapabilityBoundingSet"]).lower().split()
    return sum(1 << _CAPABILITIES.index(name.removeprefix("cap_")) for name in names)


def system_calls(unit: Unit) -> set[str]:
    """Return the names that SystemCallFilter= allows (systemd.exec(5): a later word wins)."""
    groups = _groups()
    allowed: set[str] = set(groups["@default"])
    for value in unit["SystemCallFilter"]:
        names = {call for word in value.lstrip("~").split() for call in groups.get(word, {word})}
        allowed = allowed - names if value.startswith("~") else allowed | names
    return allowed


def _groups() -> dict[str, set[str]]:
    command = ["systemd-analyze", "syscall-filter", "--no-pager"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    listed: dict[str, set[str]] = {}
    for line in text.splitlines():
        if line.startswith("@"):
            mine = listed.setdefault(line.strip(), set())
        elif line.startswith(" ") and not line.strip().startswith("#"):
            mine.add(line.strip())

    def flat(name: str) -> set[str]:
        return {call for m in listed[name] for call in (flat(m) if m.startswith("@") else {m})}

    return {name: flat(name) for name in listed}


def _check(result: int, action: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{action}: {os.strerror(number)}")


def _mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    words = (source.encode(), target.encode(), kind.encode() or None)
    _check(_LIBC.mount(*words, flags, data.encode() or None), f"mount {target}")


def _read_only(target: str, *, on: bool, deep: bool) -> None:
    attributes = (ctypes.c_uint64 * 4)(
        _MOUNT_ATTR_RDONLY if on else 0, 0 if on else _MOUNT_ATTR_RDONLY, 0, 0
    )
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    flags = _AT_RECURSIVE if deep else 0
    call = (_SYS_MOUNT_SETATTR, _AT_FDCWD, target.encode(), flags, ctypes.byref(attributes), size)
    _check(_LIBC.syscall(*call), f"mount_setattr {target}")


def _file_system(unit: Unit, writable: str) -> None:
    _check(_LIBC.unshare(_CLONE_NEWNS), "unshare")
    _mount("none", "/", flags=_MS_REC | _MS_PRIVATE)
    _mount(writable, writable, flags=_MS_BIND)
    if unit["PrivateDevices"] == ["yes"]:
        _devices()
    if unit["ProtectSystem"] == ["strict"]:
        _read_only("/", on=True, deep=True)
        for place in (writable, "/dev", "/proc", "/sys"):
            _read_only(place, on=False, deep=False)
    if unit["ProtectHome"] == ["yes"]:
        here = {os.path.realpath(path) for path in (sys.prefix, sys.base_prefix, __file__)}
        for home in ("/home", "/root", "/run/user"):
            if os.path.isdir(home) and not any(path.startswith(f"{home}/") for path in here):
                _mount("tmpfs", home, "tmpfs", _MS_RDONLY)
    options = f"hidepid={unit['ProtectProc'][0]}"
    if unit.get("ProcSubset") == ["pid"]:
        options += ",subset=pid"
    _mount("proc", "/proc", "proc", data=options)
    if unit.get("ProtectKernelTunables") == ["yes"] and os.path.isdir("/proc/sys"):
        _mount("/proc/sys", "/proc/sys", flags=_MS_BIND)
        _read_only("/proc/sys", on=True, deep=False)


def _devices() -> None:
    kept = {name: os.open(f"/dev/{name}", os.O_PATH) for name in _DEVICES}
    _mount("tmpfs", "/dev", "tmpfs")
    for name, descriptor in kept.items():
        Path("/dev", name).touch()
        _mount(f"/proc/self/fd/{descriptor}", f"/dev/{name}", flags=_MS_BIND)
        os.close(descriptor)


class _Argument(ctypes.Structure):
    """struct scmp_arg_cmp of seccomp.h."""

    _fields_ = [
        ("arg", ctypes.c_uint),
        ("op", ctypes.c_int),
        ("a", ctypes.c_uint64),
        ("b", ctypes.c_uint64),
    ]


class _Filter:
    """A filter of libseccomp."""

    def __init__(self, otherwise: int) -> None:
        self._library = ctypes.CDLL("libseccomp.so.2")
        self._library.seccomp_init.restype = ctypes.c_void_p
        self._context = ctypes.c_void_p(self._library.seccomp_init(ctypes.c_uint32(otherwise)))

    def add(self, name: str, action: int, *arguments: _Argument) -> None:
        """Add a rule for a system call, unless this machine does not have the call."""
        number = self._library.seccomp_syscall_resolve_name(name.encode())
        if number < 0:
            return
        array = (_Argument * len(arguments))(*arguments)
        done = self._library.seccomp_rule_add_array(
            self._context, ctypes.c_uint32(action), number, len(arguments), array
        )
        if done < 0:
            raise OSError(-done, f"{name}: {os.strerror(-done)}")

    def load(self) -> None:
        done = self._library.seccomp_load(self._context)
        if done < 0:
            raise OSError(-done, f"seccomp_load: {os.strerror(-done)}")


def _filters(unit: Unit, allowed: set[str]) -> None:
    few = _Filter(_ERRNO | _EPERM)
    for name in sorted(allowed):
        few.add(name, _ALLOW)
    odd = _Filter(_ALLOW)
    for number in range(_FAMILIES_MAX):
        if number not in {_FAMILIES[word] for word in unit["RestrictAddressFamilies"][0].split()}:
            odd.add("socket", _ERRNO | _EAFNOSUPPORT, _Argument(0, _EQ, number, 0))
    if unit["MemoryDenyWriteExecute"] == ["yes"]:
        both = _PROT_WRITE | _PROT_EXEC
        odd.add("mmap", _ERRNO | _EPERM, _Argument(2, _MASKED_EQ, both, both))
        for name in ("mprotect", "pkey_mprotect"):
            odd.add(name, _ERRNO | _EPERM, _Argument(2, _MASKED_EQ, _PROT_EXEC, _PROT_EXEC))
    odd.load()
    few.load()


def _privileges(unit: Unit) -> None:
    kept = capabilities(unit)
    for number in range(64):
        known = _LIBC.prctl(_PR_CAPBSET_READ, number, 0, 0, 0) >= 0
        if known and not kept >> number & 1:
            _check(_LIBC.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0), f"capability {number}")
    if unit["NoNewPrivileges"] == ["yes"]:
        _check(_LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")


def _users() -> None:
    _check(_LIBC.unshare(_CLONE_NEWUSER), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    for name in ("uid_map", "gid_map"):
        Path("/proc/self", name).write_text("0 0 1")


def main(path: str, writable: str, *command: str) -> None:
    """Become *command* in the sandbox."""
    unit = read_unit(Path(path))
    allowed = system_calls(unit)
    _file_system(unit, writable)
    os.umask(int(unit["UMask"][0], 8))
    if unit.get("PrivateUsers") == ["yes"]:
        _users()
    _privileges(unit)
    _filters(unit, allowed)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
