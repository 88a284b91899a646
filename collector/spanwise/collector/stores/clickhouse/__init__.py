"""Trace backend on ClickHouse.

Modules, in the order in which data flows:

- `connection`: Connection to a ClickHouse server: queries, inserts and statements, with the errors of the store.
- `schema`: Tables of the ClickHouse database: definitions for one server and for a cluster, and the schema version.
"""
