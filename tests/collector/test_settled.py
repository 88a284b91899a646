"""What another thread settles reaches each that waits on a loop, which is woken once for all of it."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import Any

import pytest

from spanwise.collector.dialects import RawSpan, read_run
from spanwise.collector.ingest import CommitWaiter
from spanwise.collector.records import Run
from spanwise.collector.stores.sqlite import SQLiteStore, encode
from spanwise.collector.stores.sqlite.database.group_commit import WriteJob


class Counting(asyncio.SelectorEventLoop):
    """A loop that counts how often threads wake it."""

    woken = 0

    def call_soon_threadsafe(self, *args: Any, **kwargs: Any) -> Any:
        self.woken += 1
        return super().call_soon_threadsafe(*args, **kwargs)


def in_a_thread(work: Any) -> None:
    """Do it, and wait: whatever loop runs here stands still meanwhile."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def settle(futures: list[Future[int]]) -> None:
    for number, future in enumerate(futures):
        if number % 3:
            future.set_result(number)
        else:
            future.set_exception(ValueError(str(number)))


async def waited_for(futures: list[Future[int]]) -> list[Any]:
    settled = CommitWaiter()
    tasks = [asyncio.ensure_future(settled(future)) for future in futures]
    await asyncio.sleep(0)
    in_a_thread(lambda: settle(futures))
    return await asyncio.gather(*tasks, return_exceptions=True)


def test_all_that_is_settled_in_a_row_wakes_the_loop_once_and_each_gets_its_own():
    loop = Counting()
    try:
        found = loop.run_until_complete(waited_for([Future() for _ in range(100)]))
    finally:
        loop.close()
    assert [str(one) for one in found] == [str(number) for number in range(100)]
    assert [isinstance(one, ValueError) for one in found] == [number % 3 == 0 for number in range(100)]
    assert loop.woken == 1


def test_what_is_settled_already_is_not_waited_for():
    future: Future[int] = Future()
    future.set_result(7)
    assert asyncio.run(CommitWaiter()(future)) == 7


def test_whoever_leaves_cancels_its_own_future_alone():
    async def leave() -> tuple[bool, int]:
        settled, first, second = CommitWaiter(), Future[int](), Future[int]()
        gone, stays = asyncio.ensure_future(settled(first)), asyncio.ensure_future(settled(second))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.wait([gone])
        in_a_thread(lambda: second.set_result(2))
        return first.cancelled(), await stays

    assert asyncio.run(leave()) == (True, 2)


def test_one_that_leaves_after_it_was_settled_takes_nobodys_answer_along():
    async def leave() -> int:
        settled, first, second = CommitWaiter(), Future[int](), Future[int]()
        gone, stays = asyncio.ensure_future(settled(first)), asyncio.ensure_future(settled(second))
        await asyncio.sleep(0)
        in_a_thread(lambda: (first.set_result(1), second.set_result(2)))
        gone.cancel()
        return await stays

    assert asyncio.run(leave()) == 2


def test_a_loop_that_is_closed_meanwhile_disturbs_nobody_who_settles(caplog):
    future, loop = Future[int](), asyncio.new_event_loop()
    waiting = loop.create_task(CommitWaiter()(future))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    in_a_thread(lambda: future.set_result(1))
    assert future.result() == 1
    assert not caplog.records
    waiting.get_coro().close()
    waiting._log_destroy_pending = False  # it was left on purpose


def test_one_serves_loops_that_follow_each_other():
    settled = CommitWaiter()

    async def once(number: int) -> int:
        future: Future[int] = Future()
        threading.Timer(0, future.set_result, [number]).start()
        return await settled(future)

    assert [asyncio.run(once(number)) for number in range(3)] == [0, 1, 2]


@pytest.mark.process
def test_none_is_lost_that_many_threads_settle_at_the_same_time():
    async def hammered() -> list[int]:
        settled, futures = CommitWaiter(), [Future[int]() for _ in range(4000)]
        tasks = [asyncio.ensure_future(settled(future)) for future in futures]
        await asyncio.sleep(0)

        def some(start: int) -> None:
            for number in range(start, 4000, 8):
                futures[number].set_result(number)

        for start in range(8):
            threading.Thread(target=some, args=(start,)).start()
        return await asyncio.wait_for(asyncio.gather(*tasks), 60)

    assert asyncio.run(hammered()) == list(range(4000))


def run(number: int) -> Run:
    return read_run(RawSpan(trace_id=f"{number:032x}", span_id="2" * 16, name="s"))


def test_of_one_commit_that_fails_each_gets_what_became_of_its_own(tmp_path):
    """What waits behind the gate is one group: the broken batch in it fails, alone."""

    async def three(store: SQLiteStore) -> list[Any]:
        gate, file, settled = threading.Event(), store._file, CommitWaiter()
        held = file.put(WriteJob(weight=64, action=lambda db: gate.wait(60)))
        batches = [encode([run(1)]), encode([run(2)])._replace(payloads=[]), encode([run(3)])]
        tasks = [asyncio.ensure_future(settled(file.put(WriteJob(weight=1, batch=one)))) for one in batches]
        await asyncio.sleep(0)
        gate.set()
        await settled(held)
        return await asyncio.gather(*tasks, return_exceptions=True)

    with SQLiteStore(tmp_path / "a.db") as store:
        first, broken, last = asyncio.run(three(store))
        assert (first, last) == (None, None)
        assert isinstance(broken, Exception)
        assert {one.trace_id for one in store.traces()} == {f"{number:032x}" for number in (1, 3)}
