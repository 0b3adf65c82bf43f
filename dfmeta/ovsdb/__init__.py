"""Open vSwitch's database: rows, events and transactions. Alone speaks to ovsdb-server."""
