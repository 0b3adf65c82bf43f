"""Vendor data that installs :mod:`dfmeta.guest.tag_devices` in a guest and runs it at each boot.

It is a script and not a cloud-config: if both vendor data and user-data have a list, cloud-init
uses only the user's (cloudinit/helpers.py, ``ConfigMerger``), so a guest with ``write_files`` or
``runcmd`` in its user-data would have no roles. The script installs the program for
``scripts-per-boot``, which runs after ``scripts-vendor`` in the same boot, and in each later boot.
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
# A failure does not stop the boot, for example without roles or udev: it is only in the log.
for python in python3 /usr/libexec/platform-python; do
    if command -v "$python" > /dev/null; then
        "$python" -I {program} || true
        exit 0
    fi
done
echo "dfmeta-tag-devices: no Python found in this guest" >&2
END
chmod 755 {per_boot}.new
mv {per_boot}.new {per_boot}
"""


def vendor_data() -> str:
    """Return the vendor data, a script for cloud-init.

    A guest needs a shell and Python 3.6 or later. The text is the same for all guests, and changes
    only with the program.
    """
    source = Path(__file__).with_name("tag_devices.py").read_bytes()
    packed = base64.b64encode(gzip.compress(source, mtime=0)).decode("ascii")
    lines = "\n".join(textwrap.wrap(packed, 76))
    return _SCRIPT.format(program=PROGRAM, per_boot=PER_BOOT, source=lines)
