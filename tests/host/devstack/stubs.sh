# shellcheck shell=bash
# shellcheck disable=SC2034  # the plugin reads what is set here
#
# What the plugin uses of devstack: the same names and arguments, no effects beyond $ROOT. Calls
# that would have some are written to $CALLS. What is not here ends the script, as errexit is set.

DEST=$ROOT/stack
DATA_DIR=$ROOT/data
REQUIREMENTS_DIR=$ROOT/requirements
PYTHON3_VERSION=${PYTHON3_VERSION-3.11}
STACK_USER=$(id -un)
SERVICE_HOST=192.0.2.10
Q_META_DATA_IP=$SERVICE_HOST
METADATA_SERVICE_PORT=8775
NOVA_CONF=$ROOT/etc/nova/nova.conf
Q_L3_CONF_FILE=$ROOT/etc/neutron/l3_agent.ini
Q_DHCP_CONF_FILE=$ROOT/etc/neutron/dhcp_agent.ini
DFMETA_CONF_DIR=$ROOT/etc/dfmeta
Q_PLUGIN_CONF_FILE=${ROOT#/}/etc/neutron/ml2_conf.ini
OVS_BRIDGE=${OVS_BRIDGE-br-int}
ENABLE_DEBUG_LOG_LEVEL=True
KEYSTONE_SERVICE_URI=http://192.0.2.10/identity
SERVICE_PROJECT_NAME=service
SERVICE_DOMAIN_NAME=Default
REGION_NAME=RegionOne
SSL_BUNDLE_FILE=$ROOT/ca-bundle.pem
Q_AGENT=${Q_AGENT-openvswitch}
SERVICE_PASSWORD=${SERVICE_PASSWORD-for services}
if [[ "$Q_AGENT" == ovn ]]; then
    agents=ovn-controller,ovn-northd,ovs-vswitchd,ovsdb-server,q-ovn-agent
    OVN_AGENT_EXTENSIONS=${OVN_AGENT_EXTENSIONS-metadata}
    OVS_RUNDIR=$ROOT/run
else
    agents=q-agt,q-dhcp,q-l3,q-meta
fi
ENABLED_SERVICES=${ENABLED_SERVICES-n-api,n-api-meta,n-cpu,q-svc,$agents}
DISABLED_SERVICES=${DISABLED_SERVICES-}

call() { printf '%s\n' "$*" >>"$CALLS"; }

die() {
    local line=$1
    shift
    [[ "$line" =~ ^[0-9]+$ ]]
    printf '[ERROR] %s\n' "$*" >&2
    exit 1
}

warn() {
    [[ "$1" =~ ^[0-9]+$ ]]
    shift
    call "warn $*"
}

echo_summary() { printf '%s\n' "$1"; }

define_plugin() { [[ "$1" == dfmeta ]]; }

is_service_enabled() {
    local service
    for service; do
        [[ ",$ENABLED_SERVICES," == *",$service,"* ]] && return 0
    done
    return 1
}

enable_service() {
    local service
    for service; do
        if [[ ",$DISABLED_SERVICES," != *",$service,"* ]] && ! is_service_enabled "$service"; then
            ENABLED_SERVICES+=,$service
        fi
    done
}

disable_service() {
    local service
    for service; do
        ENABLED_SERVICES=,$ENABLED_SERVICES,
        ENABLED_SERVICES=${ENABLED_SERVICES//,$service,/,}
        ENABLED_SERVICES=${ENABLED_SERVICES#,}
        ENABLED_SERVICES=${ENABLED_SERVICES%,}
        DISABLED_SERVICES+=,$service
    done
}

get_python_exec_prefix() { echo "$ROOT/bin"; }

setup_develop() { call "setup_develop $*"; }

# systemd wants a path, and has its own way to another user.
run_process() {
    [[ "$2" == /* && "$2" != *sudo* ]]
    is_service_enabled "$1" && call "run_process service=$1 command=$2 group=$3 user=$4"
}

stop_process() { call "stop_process $1"; }

test_with_retry() { call "test_with_retry command=$1 message=$2 seconds=$3"; }

async_wait() { call "async_wait $1"; }

sudo() {
    call "sudo $*"
    "$@"
}

iniset() { "$PYTHON" -IS "$INI" set "$@"; }

iniget() { "$PYTHON" -IS "$INI" get "$@"; }
