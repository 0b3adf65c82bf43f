# shellcheck shell=bash
#
# devstack's plugin of dfmeta. devstack sources it in these phases:
#
#   stack pre-install    check that dfmeta can work with the settings
#   stack install        install dfmeta with devstack's Python and upper constraints
#   stack post-config    write dfmeta.conf, and dfmeta's settings of Nova and Neutron
#   stack extra          start the daemon
#   stack test-config    wait until guests are served
#   unstack              stop the daemon, restore the bridge and the host
#   clean                remove the configuration and the state
#
# Each phase may run again, and then changes nothing. With devstack's errexit a command that fails
# ends stack.sh; `die` ends it with a line that names the reason.

# dfmeta_check: end stack.sh if dfmeta cannot work with these settings.
function dfmeta_check {
    if is_service_enabled dfmeta-agent; then
        if [[ "${Q_AGENT:-}" != openvswitch ]] && ! _dfmeta_with_ovn; then
            die $LINENO "dfmeta needs OVN or Neutron's Open vSwitch agent: set Q_AGENT=ovn or" \
                "Q_AGENT=openvswitch in local.conf (it is '${Q_AGENT:-}')"
        fi
        _dfmeta_check_release
    fi
    case $DFMETA_NOVA_METADATA_PROTOCOL in
    http | https) ;;
    *)
        die $LINENO "DFMETA_NOVA_METADATA_PROTOCOL is '$DFMETA_NOVA_METADATA_PROTOCOL':" \
            "set it to http or https in local.conf"
        ;;
    esac
    if [[ ! "$DFMETA_NOVA_METADATA_PORT" =~ ^[1-9][0-9]{0,4}$ ]]; then
        die $LINENO "DFMETA_NOVA_METADATA_PORT is '$DFMETA_NOVA_METADATA_PORT':" \
            "set it to the TCP port of Nova's metadata API in local.conf"
    fi
    if _dfmeta_asks_neutron && [[ -z "${SERVICE_PASSWORD:-}" ]]; then
        die $LINENO "DFMETA_IDENTITY_SOURCES has neutron, which needs an account:" \
            "set SERVICE_PASSWORD in local.conf"
    fi
}

# _dfmeta_check_release: end stack.sh if the Python or the upper constraints of this devstack are
# too old for setup.cfg. pip would say it after half of stack.sh. Of the requirements, click is the
# one for which a release is too old: it can have a line for each Python, the newest at the end.
function _dfmeta_check_release {
    local setup=$DFMETA_DIR/setup.cfg python lowest click
    python=$(sed -n 's/^python_requires = >=//p' "$setup")
    if _dfmeta_older "$PYTHON3_VERSION" "$python"; then
        die $LINENO "dfmeta needs Python $python or newer (PYTHON3_VERSION is $PYTHON3_VERSION):" \
            "install it and set PYTHON3_VERSION in local.conf, or use a newer distribution"
    fi
    lowest=$(sed -n 's/^ *click>=\([0-9.]*\).*/\1/p' "$setup")
    click=$(sed -n 's/^click===\([0-9.]*\).*/\1/p' "$REQUIREMENTS_DIR/upper-constraints.txt" | tail -1)
    if _dfmeta_older "$click" "$lowest"; then
        die $LINENO "dfmeta needs click $lowest or newer (OpenStack's constraints have $click):" \
            "use devstack's branch stable/2025.2 or a newer one"
    fi
}

# _dfmeta_older VERSION LOWEST
function _dfmeta_older {
    ! printf '%s\n' "$2" "$1" | sort --check=quiet --version-sort
}

# dfmeta_install: install the checkout of enable_plugin, editable as devstack's projects are.
function dfmeta_install {
    if _dfmeta_asks_neutron; then
        setup_develop "$DFMETA_DIR" neutron
    else
        setup_develop "$DFMETA_DIR"
    fi
}

# dfmeta_configure: write dfmeta.conf on a host with guests, and Nova's and Neutron's files on the
# hosts where these run.
function dfmeta_configure {
    local xtrace secret
    # With xtrace the secret would be in stack.sh's log.
    xtrace=$(set +o | grep xtrace)
    set +o xtrace

    # stack.sh may still be writing nova.conf in the background. A second wait is not an error.
    if declare -F async_wait >/dev/null; then
        async_wait configure_neutron_nova
    fi
    secret=$(_dfmeta_secret)
    if [[ -z "$secret" ]]; then
        die $LINENO "Nova's metadata API is on another host, so its secret has to be given: set" \
            "METADATA_PROXY_SHARED_SECRET in local.conf, the same on each host"
    fi
    if is_service_enabled dfmeta-agent; then
        _dfmeta_write_conf "$secret"
    fi
    if is_service_enabled n-api n-api-meta; then
        # devstack sets service_metadata_proxy only if Neutron's own agent is enabled.
        iniset "$NOVA_CONF" neutron service_metadata_proxy True
        iniset "$NOVA_CONF" neutron metadata_proxy_shared_secret "$secret"
    fi
    if is_service_enabled q-l3 neutron-l3; then
        # Without this there is one haproxy for each router, which gets no request. The DHCP agent's
        # enable_isolated_metadata and force_metadata stay unchanged: guests without a router get
        # their route to the metadata address from it.
        iniset "$Q_L3_CONF_FILE" DEFAULT enable_metadata_proxy False
    fi
    if _dfmeta_with_ovn && is_service_enabled q-svc neutron-api; then
        # devstack sets it to False without an agent of its own, and then neither DHCP nor a router
        # gives guests a route to the metadata address. The next hop needs no agent: OVN answers
        # its ARP.
        iniset "/$Q_PLUGIN_CONF_FILE" ovn ovn_metadata_enabled True
    fi
    $xtrace
}

# dfmeta_start: start the daemon as root, because it adds a port, addresses, rules and routes.
function dfmeta_start {
    run_process dfmeta-agent "$(_dfmeta_program) --config-file $DFMETA_CONF" "" root
}

# dfmeta_wait: wait until OVSDB is read, the flows are confirmed and the proxy listens.
function dfmeta_wait {
    test_with_retry "curl --noproxy '*' -sf http://$DFMETA_ADMIN_LISTEN/healthz/readiness" \
        "dfmeta-agent is not ready: see journalctl -u devstack@dfmeta-agent, and dfmeta doctor" \
        "${SERVICE_TIMEOUT:-60}"
}

# dfmeta_stop: stop the daemon; remove flows, port, rules and routes while there is a bridge. After
# this, unstack.sh deletes br-int, and with OVN it stops Open vSwitch first.
function dfmeta_stop {
    local program
    stop_process dfmeta-agent
    program=$(_dfmeta_program)
    if [[ -e "$DFMETA_CONF" && -x "$program" ]] &&
        ! sudo "$program" --config-file "$DFMETA_CONF" --cleanup; then
        warn $LINENO "dfmeta-agent --cleanup failed, see above: run unstack.sh again"
        return 0
    fi
    sudo rm -f "$DFMETA_CONF"
}

function dfmeta_clean {
    sudo rm -f "$DFMETA_CONF"
    sudo rm -rf "${DFMETA_STATE_PATH:?}"
    if [[ -d "$DFMETA_CONF_DIR" ]]; then
        sudo rmdir --ignore-fail-on-non-empty "$DFMETA_CONF_DIR"
    fi
}

function _dfmeta_program {
    echo "$(get_python_exec_prefix)/dfmeta-agent"
}

function _dfmeta_with_ovn {
    [[ "${Q_AGENT:-}" == ovn ]]
}

function _dfmeta_asks_neutron {
    [[ ",${DFMETA_IDENTITY_SOURCES// /}," == *,neutron,* ]]
}

# _dfmeta_secret: print the user's secret, else the configured one, else a new one if Nova's
# metadata API runs here and can be configured with it.
function _dfmeta_secret {
    local secret=${METADATA_PROXY_SHARED_SECRET:-}
    if [[ -z "$secret" && -r "${NOVA_CONF:-}" ]]; then
        secret=$(iniget "$NOVA_CONF" neutron metadata_proxy_shared_secret)
    fi
    if [[ -z "$secret" ]] && is_service_enabled n-api n-api-meta; then
        secret=$(od -An -v -tx1 -N32 /dev/urandom | tr -d ' \n')
    fi
    echo "$secret"
}

# _dfmeta_write_conf SECRET: write the whole file. iniset is not used, because every user of the
# host can read its arguments in the process list. [[post-config|$DFMETA_CONF]] of local.conf is
# merged later.
function _dfmeta_write_conf {
    local new=$DFMETA_CONF.new bridge=${OVS_BRIDGE:-br-int}
    if _dfmeta_with_ovn; then
        # devstack writes external_ids:ovn-bridge=br-int, whatever OVS_BRIDGE is.
        bridge=br-int
    fi
    sudo install -d -m 0750 -o "$STACK_USER" "$DFMETA_CONF_DIR"
    rm -f "$new"
    (
        umask 0077
        cat >"$new" <<END
[DEFAULT]
debug = ${ENABLE_DEBUG_LOG_LEVEL:-False}
nova_metadata_host = $DFMETA_NOVA_METADATA_HOST
nova_metadata_port = $DFMETA_NOVA_METADATA_PORT
nova_metadata_protocol = $DFMETA_NOVA_METADATA_PROTOCOL
metadata_proxy_shared_secret = $1
$(_dfmeta_nova_ca)
[df_metadata]
backend = nova
integration_bridge = $bridge
ovsdb_connection = unix:${OVS_RUNDIR:-/var/run/openvswitch}/db.sock
identity_sources = $DFMETA_IDENTITY_SOURCES
admin_listen = $DFMETA_ADMIN_LISTEN
state_path = $DFMETA_STATE_PATH
$(_dfmeta_neutron_account)
END
    )
    mv -f "$new" "$DFMETA_CONF"
}

# devstack's own authority signs the certificate of tls-proxy; clients find the authority in the
# bundle.
function _dfmeta_nova_ca {
    if [[ "$DFMETA_NOVA_METADATA_PROTOCOL" == https && -n "${SSL_BUNDLE_FILE:-}" ]]; then
        echo "auth_ca_cert = $SSL_BUNDLE_FILE"
    fi
}

function _dfmeta_neutron_account {
    if ! _dfmeta_asks_neutron; then
        return 0
    fi
    cat <<END

[neutron]
auth_type = password
auth_url = $KEYSTONE_SERVICE_URI
username = ${Q_ADMIN_USERNAME:-neutron}
password = $SERVICE_PASSWORD
project_name = $SERVICE_PROJECT_NAME
user_domain_name = $SERVICE_DOMAIN_NAME
project_domain_name = $SERVICE_DOMAIN_NAME
region_name = $REGION_NAME
END
    if is_service_enabled tls-proxy && [[ -n "${SSL_BUNDLE_FILE:-}" ]]; then
        echo "cafile = $SSL_BUNDLE_FILE"
    fi
}

case "${1:-} ${2:-}" in
"stack pre-install") dfmeta_check ;;
"stack post-config") dfmeta_configure ;;
"clean "*) dfmeta_clean ;;
esac

if is_service_enabled dfmeta-agent; then
    case "${1:-} ${2:-}" in
    "stack install")
        echo_summary "Installing dfmeta"
        dfmeta_install
        ;;
    "stack extra")
        echo_summary "Starting dfmeta-agent"
        dfmeta_start
        ;;
    "stack test-config") dfmeta_wait ;;
    "unstack "*) dfmeta_stop ;;
    esac
fi
