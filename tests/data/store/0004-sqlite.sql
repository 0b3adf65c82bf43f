CREATE TABLE addresses (
	network TEXT NOT NULL,
	record_id TEXT NOT NULL,
	prefix INTEGER NOT NULL,
	position INTEGER NOT NULL,
	CONSTRAINT pk_addresses PRIMARY KEY (network),
	CONSTRAINT fk_addresses_record_id FOREIGN KEY(record_id) REFERENCES records (id) ON DELETE CASCADE
);
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL,
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0004');
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
	rest DOUBLE,
	created DOUBLE NOT NULL,
	changed DOUBLE NOT NULL,
	CONSTRAINT pk_attachments PRIMARY KEY (id),
	CONSTRAINT fk_attachments_trunk FOREIGN KEY(trunk) REFERENCES trunks (parent)
);
CREATE TABLE records (
	id TEXT NOT NULL,
	project_id TEXT,
	metadata TEXT,
	userdata BLOB,
	password BLOB,
	seed BLOB NOT NULL,
	created_at DATETIME NOT NULL,
	updated_at DATETIME NOT NULL,
	http_tokens TEXT,
	metadata_fetched_at DATETIME,
	userdata_fetched_at DATETIME,
	CONSTRAINT pk_records PRIMARY KEY (id)
);
CREATE TABLE rests (
	trunk TEXT NOT NULL,
	vid INTEGER NOT NULL,
	until DOUBLE NOT NULL,
	CONSTRAINT pk_rests PRIMARY KEY (trunk, vid),
	CONSTRAINT fk_rests_trunk FOREIGN KEY(trunk) REFERENCES trunks (parent) ON DELETE CASCADE
);
CREATE TABLE trunks (
	parent TEXT NOT NULL,
	host TEXT NOT NULL,
	port_name TEXT NOT NULL,
	instance_id TEXT NOT NULL,
	project_id TEXT NOT NULL,
	mac TEXT NOT NULL,
	last_vid INTEGER NOT NULL,
	absent_since DOUBLE,
	CONSTRAINT pk_trunks PRIMARY KEY (parent)
);
CREATE INDEX ix_addresses_record_id ON addresses (record_id);
CREATE UNIQUE INDEX ix_attachments_key ON attachments (trunk, container, ifname);
CREATE UNIQUE INDEX ix_attachments_mac ON attachments (network, mac);
CREATE UNIQUE INDEX ix_attachments_ip ON attachments (network, ip);
CREATE INDEX ix_attachments_host ON attachments (host);
CREATE UNIQUE INDEX ix_attachments_vid ON attachments (trunk, vid);
