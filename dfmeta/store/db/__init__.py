"""The store's database: records, their owners and addresses, on SQLite or PostgreSQL."""
