"""A private PostgreSQL server for tests: one cluster per process, one database per test."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from polling import until

# Ends the server and removes its folder ($0) if the process of the tests is killed, which closes the pipe
WATCHER = 'cat > /dev/null; kill -INT "$(head -n 1 "$0/data/postmaster.pid")"; sleep 2; rm -rf "$0"'
PORT = 5432  # of the socket's name; nothing listens on TCP
# Tests that kill the server keep the default (fsync)
FAST = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}
SETTINGS = {
    "listen_addresses": "",
    "port": str(PORT),
    "max_connections": "60",
    "shared_buffers": "32MB",
    "deadlock_timeout": "100ms",
    "log_min_messages": "fatal",
}


def find_binaries() -> Path:
    """The folder with initdb and postgres; the newest version of Debian's package, or what is on the path."""
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if versions:
        return versions[-1].parent
    if found := shutil.which("initdb"):
        return Path(found).parent
    pytest.skip("PostgreSQL is not installed: apt-get install postgresql")


class PostgresServer:
    """A cluster in a new temporary folder, reached through a Unix socket in it."""

    def __init__(self, namespace: str = "", **settings: str) -> None:
        pytest.importorskip("psycopg", reason="psycopg is not installed: pip install '.[postgres]'")
        self._binaries = find_binaries()
        # Root may not run PostgreSQL, and the user postgres may not enter the folders of tests
        self._prefix = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        self._in_namespace = ["ip", "netns", "exec", namespace] if namespace else []
        temporary = tempfile.gettempdir()
        place = temporary if len(temporary) < 20 else "/tmp"  # a socket's path must be short
        self.folder = Path(tempfile.mkdtemp(prefix="spanwise-pg-", dir=place))
        if self._prefix:
            shutil.chown(self.folder, "postgres")
        os.chmod(self.folder, 0o755)
        self._watcher = subprocess.Popen(
            ["sh", "-c", WATCHER, str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._settings = {**SETTINGS, **settings, "unix_socket_directories": str(self.folder)}
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count()
        self._run(
            "initdb", "-D", str(self.data), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync", "--locale=C"
        )
        with open(self.data / "pg_hba.conf", "a") as access:
            access.write("host all all 10.0.0.0/8 trust\n")
        self.start()

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def _run(self, program: str, *arguments: str) -> None:
        command = [*self._prefix, str(self._binaries / program), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, cwd="/", timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr

    def start(self) -> None:
        options = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        command = [*self._in_namespace, *self._prefix, str(self._binaries / "postgres"), "-D", str(self.data), *options]
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd="/", start_new_session=True)
        until(self._answers, 30)

    def _answers(self) -> bool:
        import psycopg

        with contextlib.suppress(psycopg.OperationalError), self.connect():
            return True
        return False

    def connect(self, database: str = "postgres"):  # type: ignore[no-untyped-def]
        """A connection of psycopg, for what tests do beside the store."""
        import psycopg

        return psycopg.connect(self.url(database), autocommit=True)

    def url(self, database: str, user: str = "postgres", password: str = "") -> str:
        return f"postgresql://{user}{password and f':{quote(password)}'}@/{database}?host={self.folder}&port={PORT}"

    def create_database(self, options: str = "TEMPLATE template0") -> str:
        """The URL of a new, empty database."""
        name = f"test_{next(self._numbers)}"
        with self.connect() as db:
            db.execute(f"CREATE DATABASE {name} {options}")
        return self.url(name)

    def empty_database(self, url: str) -> None:
        """Delete the rows of all tables of a store."""
        with self.connect(url.split("/")[3].split("?")[0]) as db:
            db.execute(
                "DO $$ DECLARE name text; BEGIN FOR name IN SELECT tablename FROM pg_tables"
                " WHERE schemaname = 'spanwise' AND tablename <> 'schema_version'"
                " LOOP EXECUTE 'DELETE FROM spanwise.' || name; END LOOP;"
                " PERFORM setval(('spanwise.' || sequencename)::regclass, 1, false) FROM pg_sequences; END $$"
            )

    def copy_database(self, url: str) -> str:
        """The URL of a copy, made by pg_dump and psql as for a backup."""
        copy, dump = self.create_database(), str(self.folder / "dump.sql")
        self._run("pg_dump", "--file", dump, url)
        self._run("psql", "--quiet", "--no-psqlrc", "--set", "ON_ERROR_STOP=1", "--file", dump, copy)
        return copy

    def drop_database(self, url: str) -> None:
        name = url.split("/")[3].split("?")[0]
        with self.connect() as db:
            db.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    @property
    def pid(self) -> int:
        return int((self.data / "postmaster.pid").read_text().split("\n")[0])

    def kill(self) -> None:
        """kill -9 of the server and of all its processes, as when the machine loses power (but for the disk's cache)."""
        postmaster = self.pid
        children = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(postmaster)], capture_output=True, text=True
        ).stdout
        os.kill(postmaster, signal.SIGKILL)
        for child in map(int, children.split()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        assert self._process is not None
        self._process.wait(30)
        until(lambda: not any(_exists(pid) for pid in map(int, children.split())), 30)
        (self.data / "postmaster.pid").unlink()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                os.kill(self.pid, signal.SIGINT)  # at once, without waiting for clients
            self._process.wait(30)

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._watcher.kill()
        self._watcher.communicate()


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


@contextlib.contextmanager
def running_server(namespace: str = "", **settings: str) -> Iterator[PostgresServer]:
    server = PostgresServer(namespace, **settings)
    try:
        yield server
    finally:
        server.remove()
