#!/usr/bin/env bash
# Install the requirements of the demo and of the tests, on Debian or Ubuntu with Python 3.11 or
# later, as root.
#
#   tools/setup.sh             the common requirements
#   tools/setup.sh --neutron   also Neutron, Nova and OVN, which some tests run, and systemd, whose
#                              analyzer checks dfmeta's units; it starts nothing
#   tools/setup.sh --real      also QEMU, mmdebstrap and, where the release has it, user-mode Linux,
#                              for the machines of tools/real
#   tools/setup.sh --containers
#                              also podman, containerd and dockerd, for the tests of dfmeta-cni, and
#                              mmdebstrap, for that of the image
#   tools/setup.sh --package   also mmdebstrap, for the Debian package
#   tools/setup.sh --clients   also the clients of metadata that tools/soak runs: cloud-init of Debian's
#                              newest release, cloudbase-init, os-collect-config, Ignition, the SDK of
#                              JavaScript, a JDK and Go
#   tools/setup.sh --ovn       also OVN of Debian 13, for tools/soak on another release
#   tools/setup.sh --bench     also nginx, wrk and the CNI project's plugins, for bench/ alone
#
# Packages: a few tools, the libraries that Open vSwitch, PostgreSQL, udev, nft and haproxy link to,
# the Python modules that cloud-init imports. These six programs are unpacked under .cache/root and
# never installed: their packages would start services and enable cloud-init for the next boot.
# OVN is unpacked under .cache/ovn for the same reason, the bench's programs under .cache/bench, the
# container runtimes under .cache/containers, wget and busybox under .cache/programs, Ignition under .cache/ignition, and
# user-mode Linux under .cache/uml. A cloud-init that finds the service over IPv6 is in
# .cache/cloud-init, and a podman whose netavark has plugins in .cache/podman: the release's own or,
# on Debian 12, Debian 13's. The newest cloud-init is in .cache/newest.
# The sources and package lists of the host do not change for it.
# Python: a virtual environment in .venv with this checkout in it, two versions of requests in
# .cache/requests, and environments in .cache/neutron and .cache/nova, so that the dependencies of
# Neutron and Nova do not determine the versions of dfmeta's. uv, or else pip, fills these side by
# side, while apt works in the foreground. A run is quick if everything is installed already, and
# waits for one that is under way.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=$root/.cache
venv=$root/.venv
# Raise this number when the content of .cache/root changes.
layout=5
# The same for .cache/ovn and .cache/bench.
ovn_layout=1
bench_layout=3
# The same for .cache/containers.
containers_layout=2
# The same for user-mode Linux.
uml_layout=1
# The same for wget and busybox, and for Ignition.
programs_layout=1
ignition_layout=1
# The clients of PyPI and of npm.
clients=(cloudbase-init==1.1.9 os-collect-config==14.1.0)
npm_clients=(@aws-sdk/ec2-metadata-service@3.1161.0 @smithy/credential-provider-imds@4.5.2)
# The first cloud-init that finds the metadata service over IPv6, the first netavark with plugins, and
# the Debian release that a host with older ones takes them from.
ipv6_since=24.2
plugins_since=1.6
donor=trixie
# The one with the newest cloud-init.
newest=sid
# The last requests that opens the URL of a link-local address, as in Ubuntu 24.04, and Debian 13's,
# which does not: their versions, and those of urllib3.
requests=(2.31.0:2.0.7 2.32.3:2.3.0)
# SQLite is no database for OVN's driver, which has threads.
neutron=(neutron==29.0.0 psycopg2-binary==2.9.12)
# Its metadata API runs under uWSGI, as devstack's.
nova=(nova==34.0.0 pyuwsgi==2.0.30.post1)
# Installs packages in a sixth of pip's time.
uv=uv==0.13.9
declare -A parts=() # name of each part beside -> its process, a process group

say() { printf '%s\n' "$*"; }
die() {
    printf 'setup: %s\n' "$*" >&2
    exit 1
}

# quietly COMMAND...: run it, and show its output only if it fails. A part beside has its own log.
quietly() {
    local rc=0 log=$cache/setup.$BASHPID.log
    "$@" >"$log" 2>&1 || rc=$?
    if [ "$rc" -ne 0 ]; then
        cat "$log" >&2
    fi
    rm -f "$log"
    return "$rc"
}

# beside NAME COMMAND...: run it in the background; see finish.
beside() {
    local name=$1
    shift
    set -m
    (
        trap - EXIT
        "$@"
    ) 2>"$cache/setup.$name.err" &
    parts[$name]=$!
    set +m
}

# finish: wait for the parts beside, and show the errors of those that have failed.
finish() {
    local name failed=0
    for name in "${!parts[@]}"; do
        if ! wait "${parts[$name]}"; then
            cat "$cache/setup.$name.err" >&2
            failed=1
        fi
        rm -f "$cache/setup.$name.err"
        unset "parts[$name]"
    done
    return "$failed"
}

# abandon: end the parts beside, when the foreground has failed or is interrupted.
abandon() {
    local name
    for name in "${!parts[@]}"; do
        kill -TERM -- "-${parts[$name]}" 2>/dev/null || true
        wait "${parts[$name]}" || true
    done
    rm -f "$cache"/setup.*.log "$cache"/setup.*.err
}

apt() { DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o DPkg::Lock::Timeout=120 "$@"; }

# with_lists COMMAND...: run it with the current package lists; if it fails, update them and retry.
with_lists() {
    "$@" >/dev/null 2>&1 && return 0
    quietly apt update || die "apt-get update failed, see above"
    quietly "$@"
}

installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

# install PACKAGE...: install those that are missing.
install() {
    local package missing=()
    for package; do
        installed "$package" || missing+=("$package")
    done
    [ "${#missing[@]}" -eq 0 ] && return 0
    say "Installing ${missing[*]}"
    with_lists apt install --no-install-recommends "${missing[@]}" ||
        die "apt-get install ${missing[*]} failed, see above"
}

# dependencies DEB PATTERN: print the first alternatives in Depends whose names match PATTERN.
dependencies() {
    dpkg-deb -f "$1" Depends | tr ',' '\n' |
        sed -E 's/^[[:space:]]*([^[:space:]|(:]+).*$/\1/' | { grep -E "$2" || true; }
}

unpack() {
    local folder=$cache/deb new=$cache/root.new deb name packages=$cache/packages.new
    local wanted=(openvswitch-switch openvswitch-common cloud-init postgresql udev nftables haproxy)
    say "Unpacking ${wanted[*]} under .cache (not installed)"
    rm -rf "$folder" "$new"
    mkdir -p "$folder" "$new"
    cd "$folder"
    with_lists apt download "${wanted[@]}" || die "apt-get download ${wanted[*]} failed, see above"
    # Newer releases split cloud-init. The package postgresql depends on the server of the release.
    for name in $(
        dependencies cloud-init_*.deb '^cloud-init-'
        dependencies postgresql_*.deb '^postgresql-[0-9]+$'
    ); do
        with_lists apt download "$name" || die "apt-get download $name failed, see above"
    done
    : >"$packages"
    for deb in *.deb; do
        dpkg-deb -x "$deb" "$new"
        case $deb in
        cloud-init*) dependencies "$deb" '^python3-' ;;
        # PostgreSQL uses the time zones of the system. It needs LLVM only to compile queries, which
        # the tests do not use.
        postgresql*) dependencies "$deb" '^(lib|zlib|tzdata)' | grep -v '^libllvm' || true ;;
        *) dependencies "$deb" '^lib' ;;
        esac >>"$packages"
    done
    cd "$root"
    rm -rf "$cache/root" "$folder"
    mv "$new" "$cache/root"
    sort -u -o "$cache/packages" "$packages"
    rm -f "$packages"
    printf '%s\n' "$layout" >"$cache/root/layout"
}

# donor_apt FOLDER COMMAND...: apt-get with FOLDER's sources and lists, and none of the host's.
donor_apt() {
    local folder=$1
    shift
    apt -o Dir::Etc::SourceList="$folder/sources.list" -o Dir::Etc::SourceParts=/dev/null \
        -o Dir::Etc::Preferences=/dev/null -o Dir::Etc::PreferencesParts=/dev/null \
        -o Dir::State::Lists="$folder/lists" -o Dir::Cache="$folder/cache" \
        -o Acquire::Languages=none -o APT::Default-Release= -o APT::Sandbox::User=root "$@"
}

# archive: print the URL of the archive that this Debian release itself comes from.
archive() {
    local codename
    codename=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
    apt-get indextargets \
        --format "\$(CREATED_BY) \$(ORIGIN) \$(CODENAME) \$(COMPONENT) \$(REPO_URI)" |
        sed -n "s/^Packages Debian $codename main //p" | sed -n 1p
}

# own VERSION SINCE HOME TARGET: HOME is a link to TARGET, the release's own, if that is new enough.
own() {
    dpkg --compare-versions "$1" ge "$2" || return 1
    [ -L "$3" ] || rm -rf "$3"
    ln -sfn "$4" "$3"
}

# from_donor FOLDER PACKAGE...: unpack packages of the donor's; FOLDER/packages has their modules.
from_donor() {
    local home=$1 folder=$1.deb new=$1.new uri deb
    shift
    [ "$(cat "$home/donor" 2>/dev/null)" != "$donor $*" ] || return 0
    say "Unpacking $1 of Debian $donor under .cache (not installed)"
    install debian-archive-keyring
    uri=$(archive)
    if [ -z "$uri" ]; then
        quietly apt update || die "apt-get update failed, see above"
        uri=$(archive)
    fi
    [ -n "$uri" ] || die "apt's sources do not name an archive of Debian"
    rm -rf "$folder" "$new"
    mkdir -p "$folder/lists/partial" "$folder/cache/archives/partial" "$new"
    printf 'deb [signed-by=%s] %s %s main\n' \
        /usr/share/keyrings/debian-archive-keyring.gpg "$uri" "$donor" >"$folder/sources.list"
    cd "$folder"
    quietly donor_apt "$folder" update || die "apt-get update for $donor failed, see above"
    quietly donor_apt "$folder" download "$@" ||
        die "apt-get download $* of $donor failed, see above"
    for deb in *.deb; do
        dpkg-deb -x "$deb" "$new"
        dependencies "$deb" '^python3-' >>"$new/packages"
    done
    cd "$root"
    rm -rf "$home" "$folder"
    printf '%s\n' "$donor $*" >"$new/donor"
    mv "$new" "$home"
}

# A cloud-init that finds the service over IPv6; the tests of IPv6-only guests boot it.
cloud_init() {
    local version packages
    version=$(sed -n 's/^__VERSION__ = "\(.*\)"/\1/p' \
        "$cache/root/usr/lib/python3/dist-packages/cloudinit/version.py")
    own "$version" "$ipv6_since" "$cache/cloud-init" root && return 0
    from_donor "$cache/cloud-init" cloud-init
    mapfile -t packages <"$cache/cloud-init/packages"
    install "${packages[@]}"
}

recent() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

# The distribution's Python comes first: operators run it, and its compiler has optimised it, which a
# Python that was built by hand often lacks (the tests take a third longer with such a one).
find_python() {
    local name
    for name in /usr/bin/python3 python3 python3.13 python3.12 python3.11; do
        if command -v "$name" >/dev/null && recent "$name"; then
            command -v "$name"
            return 0
        fi
    done
    return 1
}

# stamp: what .venv was made of; with the path, because the scripts in .venv/bin contain it.
stamp() {
    {
        printf '%s\n' "$root"
        cat "$root/setup.cfg" "$root/pyproject.toml"
    } | sha256sum
}

# packages PYTHON ARGUMENT...: install packages for an interpreter, with pip if uv fails: uv does not
# read an index of pip's configuration. No package is compiled to bytecode: the first import of a
# module does it, and most modules are never imported.
packages() {
    local python=$1
    shift
    UV_CACHE_DIR=$cache/uv "$venv/bin/python" -m uv pip install --quiet --python "$python" "$@" \
        >/dev/null 2>&1 && return 0
    quietly "$venv/bin/python" -m pip --python "$python" install --quiet --no-compile \
        --disable-pip-version-check "$@"
}

# An environment with pip and uv alone: the parts beside install with them.
virtualenv() {
    local python version
    if [ "$(sed -n 1p "$venv/home" 2>/dev/null)" = "$root" ] && "$venv/bin/python" -c '' 2>/dev/null; then
        return 0
    fi
    if ! python=$(find_python); then
        install python3 python3-venv
        python=$(find_python) || die "Python 3.11 or later is needed; this release does not have it"
    fi
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        version=$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
        install "$version-venv"
    fi
    quietly "$python" -m venv --clear "$venv" || die "cannot make a virtual environment, see above"
    "$venv/bin/python" -m pip install --quiet --no-compile "$uv" >/dev/null 2>&1 || true
    printf '%s\n' "$root" >"$venv/home"
}

# The checkout, and what its tests and pages need.
checkout() {
    [ "$(cat "$venv/stamp" 2>/dev/null)" = "$(stamp)" ] && return 0
    say "Installing dfmeta and its test tools in .venv"
    (cd "$root" && packages "$venv/bin/python" -e '.[test,docs]') ||
        die "pip install failed, see above"
    stamp >"$venv/stamp"
}

# cloud-init imports one of these instead of the release's own, so that the tests of IPv6-only guests
# are the same on each release.
requests() {
    local pair home
    for pair in "${requests[@]}"; do
        home=$cache/requests/${pair%:*}
        [ "$(cat "$home/stamp" 2>/dev/null)" = "$pair" ] && continue
        say "Installing requests ${pair%:*} in .cache/requests"
        rm -rf "$home"
        packages "$venv/bin/python" --no-deps --target "$home" "requests==${pair%:*}" \
            "urllib3==${pair#*:}" ||
            die "pip install requests ${pair%:*} failed, see above"
        printf '%s\n' "$pair" >"$home/stamp"
    done
}

# A guest's file system is read-only: each start of cloud-init there would compile its modules again.
compile_cloud_init() {
    local modules
    for modules in "$cache"/{root,cloud-init,newest}/usr/lib/python3/dist-packages/cloudinit \
        "$cache"/requests/*/{requests,urllib3}; do
        [ ! -d "$modules" ] || [ -d "$modules/__pycache__" ] ||
            quietly /usr/bin/python3 -m compileall -q "$modules" ||
            die "cannot compile $modules, see above"
    done
}

# environment REQUIREMENT...: a virtual environment of its own, below .cache; the first is its name.
environment() {
    local home=$cache/${1%%=*}
    if [ "$(cat "$home/stamp" 2>/dev/null)" = "$*" ] && "$home/bin/python" -c '' 2>/dev/null; then
        return 0
    fi
    say "Installing $* in .cache/${1%%=*}"
    quietly "$venv/bin/python" -m venv --clear --without-pip "$home" ||
        die "cannot make a virtual environment, see above"
    packages "$home/bin/python" "$@" || die "pip install $* failed, see above"
    printf '%s\n' "$*" >"$home/stamp"
}

# unpack_programs FOLDER LAYOUT PACKAGE...: unpack packages, and install the libraries that they need.
unpack_programs() {
    local home=$1 layout=$2 folder=$1.deb new=$1.new deb packages=()
    shift 2
    if [ "$(cat "$home/layout" 2>/dev/null)" != "$layout" ]; then
        say "Unpacking $* under .cache (not installed)"
        rm -rf "$folder" "$new"
        mkdir -p "$folder" "$new"
        cd "$folder"
        with_lists apt download "$@" || die "apt-get download $* failed, see above"
        for deb in *.deb; do
            dpkg-deb -x "$deb" "$new"
            dependencies "$deb" '^(lib|zlib)'
        done | sort -u >"$new/packages"
        cd "$root"
        rm -rf "$home" "$folder"
        mv "$new" "$home"
        printf '%s\n' "$layout" >"$home/layout"
    fi
    mapfile -t packages <"$home/packages"
    install "${packages[@]}"
}

# A newer OVN than the release's, with the libraries that differ.
newer_ovn() {
    from_donor "$cache/ovn-$donor" ovn-common ovn-central ovn-host libc6 libcap-ng0 libevent-2.1-7t64 \
        libnghttp2-14 libprotobuf-c1 libssl3t64 libudev1 libunbound8 libzstd1 zlib1g
}

# The programs only; the bench starts them in namespaces of its own.
bench() { unpack_programs "$cache/bench" "$bench_layout" nginx wrk containernetworking-plugins; }

# Programs that the tests start in the namespaces of a VM, and a program for containers.
containers() {
    local version
    install debian-archive-keyring mmdebstrap
    unpack_programs "$cache/containers" "$containers_layout" \
        podman conmon crun netavark containerd runc docker.io busybox-static
    version=$("$cache/containers/usr/lib/podman/netavark" --version)
    own "${version##* }" "$plugins_since" "$cache/podman" containers && return 0
    if ! grep -qx ID=debian /etc/os-release; then
        say "The netavark of this release has no plugins: a test of podman will fail"
        return 0
    fi
    # With the libraries that differ from those of the release.
    from_donor "$cache/podman" podman conmon crun netavark libassuan9 libc6 libcap2 libgcc-s1 \
        libglib2.0-0t64 libgpg-error0 libgpgme11t64 libseccomp2 libsqlite3-0 libsubid5 libsystemd0 \
        libyajl2
}

# Clients of metadata, which the tests start in namespaces of their own.
clients() {
    local home=$cache/clients donor=$newest modules
    from_donor "$cache/newest" cloud-init
    mapfile -t modules <"$cache/newest/packages"
    install "${modules[@]}"
    unpack_programs "$cache/ignition" "$ignition_layout" ignition
    install default-jdk-headless golang-go
    command -v npm >/dev/null || install nodejs npm
    [ "$(cat "$home/stamp" 2>/dev/null)" = "${clients[*]} ${npm_clients[*]}" ] && return 0
    say "Installing ${clients[*]} ${npm_clients[*]} in .cache/clients"
    rm -rf "$home"
    mkdir -p "$home"
    quietly "$venv/bin/python" -m venv --without-pip "$home/python" ||
        die "cannot make a virtual environment, see above"
    packages "$home/python/bin/python" "${clients[@]}" || die "pip install failed, see above"
    quietly npm install --prefix "$home" --no-audit --no-fund --ignore-scripts "${npm_clients[@]}" ||
        die "npm install failed, see above"
    printf '%s\n' "${clients[*]} ${npm_clients[*]}" >"$home/stamp"
}

# A kernel that is a program, which not all releases and architectures have.
user_mode_linux() {
    if [ "$(cat "$cache/uml/layout" 2>/dev/null)" != "$uml_layout" ] &&
        ! with_lists apt-cache show user-mode-linux; then
        say "This release has no user-mode-linux: tools/real uses QEMU"
        return 0
    fi
    unpack_programs "$cache/uml" "$uml_layout" user-mode-linux
}

[ "$(id -u)" -eq 0 ] || die "must be run as root, because it needs network namespaces: sudo $0"
command -v apt-get >/dev/null || die "apt-get not found: only Debian and Ubuntu are supported"
for part; do
    case $part in
    --neutron | --real | --containers | --package | --clients | --ovn | --bench) ;;
    *)
        options="--neutron, --real, --containers, --package, --clients, --ovn or --bench"
        die "$part is not an option: use $options"
        ;;
    esac
done
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
trap abandon EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

virtualenv
beside checkout checkout
beside requests requests
case " $* " in
*" --neutron "* | *" --bench "*) beside neutron environment "${neutron[@]}" ;;
esac
case " $* " in
*" --neutron "*) beside nova environment "${nova[@]}" ;;
esac
[ "$(cat "$cache/root/layout" 2>/dev/null)" = "$layout" ] || unpack
mapfile -t packages <"$cache/packages"
install ca-certificates curl ethtool iproute2 procps sqlite3 tcpdump util-linux python3 "${packages[@]}"
unpack_programs "$cache/programs" "$programs_layout" busybox-static wget
cloud_init
for part; do
    case $part in
    --neutron)
        install libseccomp2 systemd
        unpack_programs "$cache/ovn" "$ovn_layout" ovn-common ovn-central ovn-host
        ;;
    --real)
        install debian-archive-keyring e2fsprogs mmdebstrap openssh-client qemu-system-x86 qemu-utils
        user_mode_linux
        ;;
    --containers) containers ;;
    --package) install debian-archive-keyring mmdebstrap ;;
    --clients) clients ;;
    --ovn) newer_ovn ;;
    --bench) bench ;;
    esac
done
finish || exit 1
compile_cloud_init
