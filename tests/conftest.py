"""What holds for all tests."""

import asyncio
import atexit
import fcntl
import gc
import os
import shutil
import signal
import sqlite3
import ssl
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# No deadlines: on a busy machine, an example that the scheduler interrupts would fail.
# Nor is there a limit for the time that data takes to make: oracles load slowly the first time.
unhurried = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("quick", **unhurried, max_examples=25)
settings.register_profile("full", **unhurried)
settings.load_profile("quick")
HOME_SPOOL = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "spanwise", "spill")
MIN_MEMORY_BYTES = 6 * 2**30
at_home_before = set(HOME_SPOOL.glob("*/*"))


def pytest_configure(config: pytest.Config) -> None:
    """Let programs that tests start be interrupted, and keep spool and judges' cache out of the user's home."""
    # A shell's background job ignores SIGINT, and hands that down.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        # options of this run are not those of one that a test starts. Workers of this run still have to read them
        os.environ.pop("PYTEST_ADDOPTS", None)
    temporary_files_in_memory()
    spool_elsewhere()
    no_cache()
    certificates_once()
    try:
        new_files_by_copy()
        servers_end_at_once()
        routes_once()
    except ImportError:  # tests of the tracer alone need no server
        pass


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without garbage collection, and exclude all modules and items from later garbage collections.

    Each full garbage collection would otherwise visit millions of objects that live as long as the process.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)  # after tests were deselected
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with files that have a test marked `long`, then with those of many tests.

    Files of one long test would otherwise come last, and keep one process of pytest-xdist busy while others are idle.
    It must not order them itself: `--no-loadscope-reorder`.
    """
    sizes = Counter(item.path for item in items)
    long = {item.path for item in items if item.get_closest_marker("long")}
    items.sort(key=lambda item: (item.path not in long, -sizes[item.path], item.path))


def temporary_files_in_memory() -> None:
    """Use a file system in memory for temporary files, unless `TMPDIR` is set or there is no large one.

    A disk takes milliseconds to sync a file, and ClickHouse syncs several for each insert. Killed processes lose nothing
    by this, only a loss of power would.
    """
    memory = "/dev/shm"
    if "TMPDIR" in os.environ or not os.path.isdir(memory):
        return
    info = os.statvfs(memory)
    if info.f_bavail * info.f_frsize >= MIN_MEMORY_BYTES and not info.f_flag & os.ST_NOEXEC:
        os.environ["TMPDIR"] = tempfile.tempdir = memory


def spool_elsewhere() -> None:
    """What no collector takes goes to a temporary folder, for this process and every one that a test starts.

    Else the next traced program would send it from the user's cache into the user's own store.
    """
    folder = tempfile.mkdtemp(prefix="spanwise-tests-spool-")
    os.environ["SPANWISE_SPILL_DIR"] = folder
    # Exit handlers run last first: this one comes after those of deliveries, which may still write.
    atexit.register(shutil.rmtree, folder, ignore_errors=True)


def no_cache() -> None:
    """Answers and vectors are kept nowhere but where a test says: not in the user's cache, nor from test to test."""
    os.environ["SPANWISE_CACHE"] = os.environ["SPANWISE_VECTORS"] = "off"


def certificates_once() -> None:
    """Clients share what they trust: most tests make some, and each would read the certificates again for 17 ms."""
    ssl.create_default_context = cache(ssl.create_default_context)  # type: ignore[assignment]


def new_files_by_copy() -> None:
    """A store's new file is a copy of one that was made step by step: thousands of tests have one, of 13 ms each.

    Nor does it wait for the disk: no test cuts the power. Files of an older version, and those of processes that tests
    start, are made as ever.
    """
    from spanwise.collector.stores.sqlite.database import connections, group_commit, schema

    ready = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    ready.execute(f"PRAGMA page_size = {schema.PAGE_SIZE}")
    schema.migrate(ready, "in memory")

    def migrate(db: sqlite3.Connection, path: str, upto: int = schema.FILE_VERSION) -> None:
        if upto < schema.FILE_VERSION or schema.read_version(db, path):
            return schema.migrate(db, path, upto)
        db.execute("PRAGMA synchronous = OFF")
        ready.backup(db)
        db.execute("UPDATE feed SET identity = lower(hex(randomblob(8)))")
        return None

    configure = connections._configure

    def configure_without_sync(db: sqlite3.Connection) -> None:
        db.execute("PRAGMA synchronous = OFF")  # the change to WAL mode waits for the disk too
        configure(db)

    vars(connections)["_configure"] = configure_without_sync
    vars(connections)["migrate"] = migrate
    vars(group_commit)["_fsync"] = lambda descriptor: None


class Hurried:
    """asyncio, in which one sleeps for a twentieth of the time."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    @staticmethod
    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds / 20)


def servers_end_at_once() -> None:
    """uvicorn sleeps for 0.1 s when it ends, which hundreds of tests would wait for."""
    from uvicorn import server

    vars(server)["asyncio"] = Hurried()


def routes_once() -> None:
    """Share the API's routes between servers: FastAPI inspects all handlers in 60 ms, and hundreds of tests start one."""
    from fastapi.applications import FastAPI
    from starlette.routing import BaseRoute

    from spanwise.collector.api import asgi_application

    install, installed = asgi_application.install_routes, list[BaseRoute]()

    def install_routes(app: FastAPI, routes: object) -> None:
        if not installed:
            already = len(app.router.routes)
            install(app, asgi_application.ROUTES)
            installed.extend(app.router.routes[already:])
        else:
            app.router.routes += installed

    vars(asgi_application)["install_routes"] = install_routes


@pytest.fixture
def usual_port() -> Iterator[int]:
    """4318, which is one test's at a time, whatever else is tested on this machine."""
    with open(Path(tempfile.gettempdir(), "spanwise-tests-4318"), "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield 4318


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A warning only: another program of the user's may be at work without a collector meanwhile."""
    new = sorted(set(HOME_SPOOL.glob("*/*")) - at_home_before)
    if new:
        terminalreporter.write_line(
            f"new in {HOME_SPOOL} since the tests began: {len(new)}, as {new[0].name}", red=True
        )
