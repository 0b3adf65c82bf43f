"""Vendor data that brings :mod:`dfmeta.guest.tag_devices` into a guest and runs it at each boot.

A script and no cloud-config: of a list that both have cloud-init takes the user's alone
(cloudinit/helpers.py, ``ConfigMerger``), so that a guest with ``write_files`` or ``runcmd`` in its
user-data would have no roles. The script leaves the program to ``scripts-per-boot``, which comes
after ``scripts-vendor`` in the same boot, and runs in each that follows.
"""

import base64
import gzip
import textwrap
from pathlib import Path

PROGRAM = "/var/lib/dfmeta/tag_devices.py"
PER_BOOT = "/var/lib/cloud/scripts/per-boot/50-dfmeta-tag-devices"
_SCRIPT = """\
#!/bin/sh
# Device roles: {program} runs at each boot and writes udev rules.
set -e
umask 022
mkdir -p "$(dirname {program})" "$(dirname {per_boot})"
base64 -d <<'END' | gzip -d > {program}.new
{source}
END
mv {program}.new {program}
cat > {per_boot}.new <<'END'
#!/bin/sh
# A guest without roles, or without udev, boots as well as any: what is wrong is in the log alone.
for python in python3 /usr/libexec/platform-python; do
    if command -v "$python" > /dev/null; then
        "$python" -I {program} || true
        exit 0
    fi
done
echo "dfmeta-tag-devices: no Python here" >&2
END
chmod 755 {per_boot}.new
mv {per_boot}.new {per_boot}
"""


def vendor_data() -> str:
    """Return the vendor data, a script for cloud-init; a guest needs a shell and any Python 3.6.

    It is the same text for all guests, and changes with the program alone.
    """
    source = Path(__file__).with_name("tag_devices.py").read_bytes()
    packed = base64.b64encode(gzip.compress(source, mtime=0)).decode("ascii")
    lines = "\n".join(textwrap.wrap(packed, 76))
    return _SCRIPT.format(program=PROGRAM, per_boot=PER_BOOT, source=lines)
