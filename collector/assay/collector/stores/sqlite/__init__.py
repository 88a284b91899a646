"""The store on one SQLite file."""

from assay.collector.extras import needing

with needing("server", __name__):
    from assay.collector.stores.sqlite._codec import Batch, encode
    from assay.collector.stores.sqlite._lock import holder
    from assay.collector.stores.sqlite._store import SQLiteStore, opened

__all__ = ["Batch", "SQLiteStore", "encode", "holder", "opened"]
