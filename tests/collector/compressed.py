"""Dictionaries by which a store compresses, made without the spans that it would take."""

from __future__ import annotations

import zstandard

from spanwise.collector.stores.sqlite import SQLiteStore


def dictionary(number: int) -> bytes:
    samples: list[bytes | bytearray | memoryview] = [b'{"inputs":"%d words of %d"}' % (n, number) for n in range(2000)]
    return zstandard.train_dictionary(4096, samples, k=64, d=8, dict_id=number).as_bytes()


def adopt(store: SQLiteStore, number: int) -> None:
    """Have a store compress by another dictionary from now on."""
    file, data = store._behind._file, dictionary(number)
    file.write(lambda db: db.execute("INSERT INTO dictionaries VALUES (?, ?, ?)", (number, data, number)))
    file.appender.adopt(number, data)


def dictionaries_of(store: SQLiteStore) -> set[int]:
    """By which the payloads in the file are compressed; 0 for none."""
    with store._behind._file.read() as reader:
        blobs = reader.db.execute("SELECT payload FROM spans").fetchall()
    return {zstandard.get_frame_parameters(blob).dict_id for (blob,) in blobs}
