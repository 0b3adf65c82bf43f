#!/bin/sh
# Set the address of a lease, and the routes of option 121 (RFC 3442); udhcpc calls it for each event
# with the values in the environment. The routes are words.
# shellcheck disable=SC2154,SC2086
[ "$1" = bound ] || exit 0
ip addr replace "$ip/$mask" dev "$interface"
set -- $staticroutes
while [ $# -ge 2 ]; do
    ip route replace "$1" via "$2" dev "$interface"
    shift 2
done
