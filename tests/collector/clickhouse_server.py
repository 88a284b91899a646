"""ClickHouse for tests: the real engine (`chdb`) behind a small server that speaks ClickHouse's HTTP interface.

A process can hold one engine, so each server is a process of its own, with its data in a folder. `ClickHouseServer`
starts, kills and restarts it. `SPANWISE_TEST_CLICKHOUSE=clickhouse://user:password@host:port` uses a real server instead.

The server knows queries with parameters and settings, inserts in any format, compression, `/ping` and exception codes.
It has no authentication, no sessions (each request is one) and no external tables.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from email.parser import BytesParser
from email.policy import HTTP
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

VARIABLE = "SPANWISE_TEST_CLICKHOUSE"
START_SECONDS = 60.0

# The tests' side: a server process, and databases in it.


class ClickHouseServer:
    """Server process, on a port that the system chooses, with data in a new folder. `stop` deletes the folder.

    `namespace` is the network namespace in which it listens on `host`. `kept` is the path of a folder that is used
    instead and not deleted.
    """

    def __init__(self, host: str = "127.0.0.1", namespace: str | None = None, *, kept: str | None = None) -> None:
        self._real = None if namespace else os.environ.get(VARIABLE)
        self._host, self._in_namespace = host, ["ip", "netns", "exec", namespace] if namespace else []
        self._is_kept = kept is not None
        self._folder = "" if self._real else kept or tempfile.mkdtemp(prefix="spanwise-clickhouse-")
        self._numbers = count()
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0
        self.start()

    @property
    def can_be_killed(self) -> bool:
        """Return whether this is a process of the tests, not a real server."""
        return not self._real

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the process, on the port that it had before, if any."""
        if self._real:
            return
        command = [*self._in_namespace, sys.executable, __file__, self._folder, self._host, str(self.port)]
        command.append(str(self._is_kept))
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the ClickHouse engine did not start, exit status {self._process.wait()}")
        self.port = int(line)

    def kill(self) -> None:
        """Kill the process with SIGKILL. `start` continues with its data."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def stop(self) -> None:
        self.kill()
        if self._folder and not self._is_kept:
            shutil.rmtree(self._folder, ignore_errors=True)

    def url(self, database: str) -> str:
        """Return the address of a database for `spanwise.collector.connect`."""
        return f"{(self._real or f'clickhouse://default@{self._host}:{self.port}').rstrip('/')}/{database}"

    def execute(self, sql: str) -> str:
        """Execute a statement, and return its result as tab-separated text."""
        address = urllib.parse.urlsplit(self.url(""))
        query = urllib.parse.urlencode({"user": address.username or "default", "password": address.password or ""})
        request = f"http://{address.hostname}:{address.port or 8123}/?{query}"
        try:
            with urllib.request.urlopen(request, sql.encode(), timeout=60) as response:
                return str(response.read().decode())
        except urllib.error.HTTPError as error:
            raise RuntimeError(error.read().decode()) from None

    @contextlib.contextmanager
    def database(self) -> Iterator[str]:
        """Yield the address of a new database, which is dropped afterwards."""
        name = f"spanwise_test_{os.getpid()}_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name}")
        try:
            yield self.url(name)
        finally:
            with contextlib.suppress(OSError, RuntimeError):  # a test may have killed the server
                self.execute(f"DROP DATABASE IF EXISTS {name} SYNC")

    def empty_database(self, url: str) -> None:
        """Delete the rows of all tables of a store, except for its version and identity."""
        name = urllib.parse.urlsplit(url).path.strip("/")
        condition = f"database = '{name}' AND total_rows > 0 AND name != 'database_facts'"
        for table in self.execute(f"SELECT name FROM system.tables WHERE {condition}").split():
            self.execute(f"TRUNCATE TABLE {name}.{table} SYNC")


# The server's side: requests are parsed and executed by the engine.

# Parameters of a request that are not settings of the engine
_TRANSPORT = frozenset(
    "query database user password session_id session_timeout session_check query_id quota_key role stacktrace"
    " wait_end_of_query client_protocol_version compress decompress buffer_size default_format"
    " send_progress_in_http_headers http_headers_progress_interval_ms enable_http_compression"
    " cancel_http_readonly_queries_on_client_close".split()
)
_INSERT = re.compile(rb"\s*(INSERT\s+INTO\s+[^()]+?(?:\([^()]*\))?)\s*FORMAT\s+(\w+)[ \t;]*\n?", re.IGNORECASE)
_FORMAT = re.compile(r"\bFORMAT\s+(\w+)\s*;?\s*$", re.IGNORECASE)
_CODE = re.compile(r"Code: (\d+)")
_NOT_FOUND, _SYNTAX = ("60", "81"), ("62", "36", "47", "43")


class Query(NamedTuple):
    """Statement with its parameters and settings. `data` is the data of an insert."""

    sql: str
    database: str
    parameters: Mapping[str, str]
    settings: Mapping[str, str]
    data: bytes | None = None
    format: str = "TabSeparated"


class Session:
    """Handle of the engine, and the settings that are applied to it. A handle executes one statement at a time."""

    def __init__(self, folder: str) -> None:
        import chdb  # only the server process loads the engine

        self._handle = chdb.connect(folder)
        self._database, self._settings = "default", dict[str, str]()

    def execute(self, query: Query) -> tuple[bytes, Mapping[str, str]]:
        """Return the result and its statistics. Raise `RuntimeError` or `ChdbError` with the engine's message."""
        self._prepare(query)
        if query.data is None:
            result = self._handle.query(query.sql, query.format, params=dict(query.parameters))
            return result.bytes() or b"", {"read_rows": str(result.rows_read()), "written_rows": "0"}
        with self._handle.send_insert(query.sql, query.format) as inserter:
            if query.data:
                inserter.append(query.data)
            return b"", {"read_rows": "0", "written_rows": str(inserter.finish().rows_written)}

    def _prepare(self, query: Query) -> None:
        """Apply what differs from the previous statement."""
        wanted = query.database or "default"
        if wanted != self._database:
            self._handle.query(f"USE {_quote(wanted, '`')}")
            self._database = wanted
        for name, value in query.settings.items():
            if self._settings.get(name) != value:
                self._handle.query(f"SET {_quote(name, '`')} = {_quote(value, chr(39))}")
                self._settings[name] = value
        for name in self._settings.keys() - query.settings.keys():
            self._handle.query(f"SET {_quote(name, '`')} = DEFAULT")
            del self._settings[name]


def _quote(text: str, mark: str) -> str:
    return mark + text.replace("\\", "\\\\").replace(mark, "\\" + mark) + mark


class Engine:
    """Pool of sessions. Statements of different sessions run at the same time."""

    def __init__(self, folder: str) -> None:
        self._folder, self._lock = folder, threading.Lock()
        self._idle = [Session(folder)]

    def execute(self, query: Query) -> tuple[bytes, Mapping[str, str]]:
        with self._lock:
            session = self._idle.pop() if self._idle else Session(self._folder)
        result = session.execute(query)  # a session that failed is not used again
        with self._lock:
            self._idle.append(session)
        return result


class Handler(BaseHTTPRequestHandler):
    """Requests of ClickHouse's HTTP interface."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    engine: Engine

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.path.partition("?")[0] == "/ping":
            self._answer(200, b"Ok.\n", {})
        else:
            self.do_POST()

    def do_POST(self) -> None:
        query = self._parse()
        try:
            body, statistics = self.engine.execute(query)
        except Exception as error:
            self._answer_error(str(error))
            return
        headers = {"X-ClickHouse-Summary": json.dumps(statistics), "X-ClickHouse-Timezone": "UTC"}
        if body:
            match = _FORMAT.search(query.sql)
            headers["X-ClickHouse-Format"] = match[1] if match else query.format
        accepted = self.headers.get("Accept-Encoding", "") if self._compresses else ""
        if "gzip" in accepted and len(body) > 10_000:
            body = gzip.compress(body, 1)
            headers["Content-Encoding"] = "gzip"
        self._answer(200, body, headers)

    def _parse(self) -> Query:
        body = self._read_body()
        pairs = urllib.parse.parse_qsl(self.path.partition("?")[2], keep_blank_values=True)
        fields = dict(pairs)
        content_type = self.headers.get("Content-Type", "")
        if content_type.startswith("multipart/form-data"):
            fields |= _read_form(content_type, body)
            body = b""
        elif content_type.startswith("application/x-www-form-urlencoded") and self.headers.get("X-ClickHouse-Form"):
            fields |= dict(urllib.parse.parse_qsl(body.decode(), keep_blank_values=True))
            body = b""
        self._compresses = fields.get("enable_http_compression") == "1"
        parameters = {name.removeprefix("param_"): text for name, text in fields.items() if name.startswith("param_")}
        settings = {
            name: text for name, text in fields.items() if name not in _TRANSPORT and not name.startswith("param_")
        }
        database = fields.get("database", "") or self.headers.get("X-ClickHouse-Database", "")
        statement = fields.get("query", "").encode()
        whole = statement + b"\n" + body if statement else body
        if match := _INSERT.match(whole):
            sql, format = match[1].decode(), match[2].decode()
            return Query(sql, database, parameters, settings, whole[match.end() :], format)
        format = fields.get("default_format", "TabSeparated")
        return Query(whole.decode("utf-8", "surrogateescape"), database, parameters, settings, None, format)

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            parts = list[bytes]()
            while size := int(self.rfile.readline().partition(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            body = b"".join(parts)
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        encoding = self.headers.get("Content-Encoding", "")
        if encoding == "gzip":
            return gzip.decompress(body)
        if encoding == "zstd":
            import zstandard

            return zstandard.ZstdDecompressor().decompressobj().decompress(body)
        if encoding == "lz4":
            import lz4.frame

            return bytes(lz4.frame.decompress(body))
        return body

    def _answer_error(self, message: str) -> None:
        match = _CODE.search(message)
        code = match[1] if match else "1002"
        status = 404 if code in _NOT_FOUND else 400 if code in _SYNTAX else 500
        self._answer(status, message[match.start() if match else 0 :].encode(), {"X-ClickHouse-Exception-Code": code})

    def _answer(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _read_form(content_type: str, body: bytes) -> dict[str, str]:
    """Return the fields of a form, in which clients send long parameters."""
    message = BytesParser(policy=HTTP).parsebytes(b"Content-Type: " + content_type.encode() + b"\r\n\r\n" + body)
    return {
        str(part.get_param("name", header="content-disposition")): part.get_payload(decode=True).decode("utf-8")
        for part in message.iter_parts()
    }


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


def serve(folder: str, host: str, port: int, is_kept: bool) -> None:
    """Serve until standard input ends, which it does when the process that started this one ends. Then delete the data,
    unless it is kept.
    """
    Handler.engine = Engine(folder)
    server = Server((host, port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.buffer.read()
    if not is_kept:
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


if __name__ == "__main__":
    serve(str(Path(sys.argv[1])), sys.argv[2], int(sys.argv[3]), sys.argv[4] == "True")
