CREATE TABLE records (
	id TEXT NOT NULL,
	project_id TEXT,
	metadata TEXT,
	userdata BYTEA,
	password BYTEA,
	seed BYTEA NOT NULL,
	created_at TIMESTAMP WITH TIME ZONE NOT NULL,
	updated_at TIMESTAMP WITH TIME ZONE NOT NULL,
	http_tokens TEXT,
	metadata_fetched_at TIMESTAMP WITH TIME ZONE,
	userdata_fetched_at TIMESTAMP WITH TIME ZONE,
	CONSTRAINT pk_records PRIMARY KEY (id)
);
COMMENT ON COLUMN records.id IS 'instance id, lower case; or default:SCOPE';
COMMENT ON COLUMN records.project_id IS 'null: not known';
COMMENT ON COLUMN records.metadata IS 'a JSON object; null: user-data only';
COMMENT ON COLUMN records.userdata IS 'byte for byte; null: none, which is not empty';
COMMENT ON COLUMN records.password IS 'what the guest posted, once; null: not yet';
COMMENT ON COLUMN records.seed IS 'random bytes of this record alone';
COMMENT ON COLUMN records.created_at IS 'UTC';
COMMENT ON COLUMN records.updated_at IS 'UTC';
COMMENT ON COLUMN records.http_tokens IS 'off, optional or required; null: as configured';
COMMENT ON COLUMN records.metadata_fetched_at IS 'null: pushed, or none';
COMMENT ON COLUMN records.userdata_fetched_at IS 'null: pushed, or none';
CREATE TABLE trunks (
	parent TEXT NOT NULL,
	host TEXT NOT NULL,
	port_name TEXT NOT NULL,
	instance_id TEXT NOT NULL,
	project_id TEXT NOT NULL,
	mac TEXT NOT NULL,
	last_vid INTEGER NOT NULL,
	absent_since DOUBLE PRECISION,
	CONSTRAINT pk_trunks PRIMARY KEY (parent)
);
COMMENT ON COLUMN trunks.parent IS 'iface-id of the VM''s untagged port';
COMMENT ON COLUMN trunks.host IS 'whose daemon serves the VM';
COMMENT ON COLUMN trunks.project_id IS 'empty: not known';
COMMENT ON COLUMN trunks.mac IS 'empty: not known';
COMMENT ON COLUMN trunks.last_vid IS 'given last; 0: none yet';
COMMENT ON COLUMN trunks.absent_since IS 'Unix time; null: the port is on the host';
CREATE TABLE addresses (
	network TEXT NOT NULL,
	record_id TEXT NOT NULL,
	prefix INTEGER NOT NULL,
	position INTEGER NOT NULL,
	CONSTRAINT pk_addresses PRIMARY KEY (network),
	CONSTRAINT fk_addresses_record_id FOREIGN KEY(record_id) REFERENCES records (id) ON DELETE CASCADE
);
CREATE INDEX ix_addresses_record_id ON addresses (record_id);
COMMENT ON COLUMN addresses.network IS 'ADDRESS/PREFIX, canonical';
COMMENT ON COLUMN addresses.prefix IS 'its length, bits';
COMMENT ON COLUMN addresses.position IS 'in the list that it was pushed with';
CREATE TABLE attachments (
	id TEXT NOT NULL,
	trunk TEXT NOT NULL,
	host TEXT NOT NULL,
	container TEXT NOT NULL,
	ifname TEXT NOT NULL,
	network TEXT NOT NULL,
	owner TEXT NOT NULL,
	vid INTEGER NOT NULL,
	mac TEXT NOT NULL,
	ip BIGINT NOT NULL,
	port_id TEXT NOT NULL,
	boot_id TEXT NOT NULL,
	instance_id TEXT NOT NULL,
	labels TEXT NOT NULL,
	state TEXT NOT NULL,
	rest DOUBLE PRECISION,
	created DOUBLE PRECISION NOT NULL,
	changed DOUBLE PRECISION NOT NULL,
	CONSTRAINT pk_attachments PRIMARY KEY (id),
	CONSTRAINT fk_attachments_trunk FOREIGN KEY(trunk) REFERENCES trunks (parent)
);
CREATE UNIQUE INDEX ix_attachments_key ON attachments (trunk, container, ifname);
CREATE UNIQUE INDEX ix_attachments_mac ON attachments (network, mac);
CREATE UNIQUE INDEX ix_attachments_ip ON attachments (network, ip);
CREATE INDEX ix_attachments_host ON attachments (host);
CREATE UNIQUE INDEX ix_attachments_vid ON attachments (trunk, vid);
COMMENT ON COLUMN attachments.id IS 'UUID';
COMMENT ON COLUMN attachments.host IS 'that of its trunk';
COMMENT ON COLUMN attachments.vid IS 'VLAN id';
COMMENT ON COLUMN attachments.mac IS 'lower case, with colons';
COMMENT ON COLUMN attachments.ip IS 'the IPv4 address as a number';
COMMENT ON COLUMN attachments.port_id IS 'iface-id of its port';
COMMENT ON COLUMN attachments.boot_id IS 'of the guest; empty: not given';
COMMENT ON COLUMN attachments.instance_id IS 'of the container; empty: none';
COMMENT ON COLUMN attachments.labels IS 'a JSON object';
COMMENT ON COLUMN attachments.state IS 'wanted, made, active or leaving';
COMMENT ON COLUMN attachments.rest IS 'seconds that the VLAN id rests; null: not leaving';
COMMENT ON COLUMN attachments.created IS 'Unix time';
COMMENT ON COLUMN attachments.changed IS 'Unix time, of the state';
CREATE TABLE rests (
	trunk TEXT NOT NULL,
	vid INTEGER NOT NULL,
	until DOUBLE PRECISION NOT NULL,
	CONSTRAINT pk_rests PRIMARY KEY (trunk, vid),
	CONSTRAINT fk_rests_trunk FOREIGN KEY(trunk) REFERENCES trunks (parent) ON DELETE CASCADE
);
COMMENT ON COLUMN rests.until IS 'Unix time';
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL,
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO alembic_version VALUES ('0004');
