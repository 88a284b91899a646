"""The judges' loop: callers of any loop and thread, cancelling, forks, the end of the process."""

import asyncio
import contextvars
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from spanwise.evaluators.judges import Ask, Completion, Judge, scripted
from spanwise.evaluators.judges.llm_client.judge_event_loop import get_loop_singleton, run_on_judge_loop

ASK = Ask(messages=({"role": "user", "content": "good?"},))


class Backend:
    """Answers with a function's value."""

    model = where = "mine"

    def __init__(self, answer):
        self._answer = answer

    async def complete(self, ask):
        return Completion(text=str(await self._answer()))


async def where_am_i():
    return threading.current_thread().name, asyncio.get_running_loop()


def test_callers_of_many_loops_share_one():
    with ThreadPoolExecutor(8) as pool:
        places = list(pool.map(lambda _: asyncio.run(run_on_judge_loop(where_am_i)), range(16)))
    assert set(places) == {("spanwise-judges", places[0][1])}


def test_questions_from_eight_threads_are_all_answered():
    judge = scripted(lambda ask: "yes")
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: asyncio.run(judge.ask(ASK)), range(64)))
    assert [answer.text for answer in answers] == ["yes"] * 64


def test_from_the_loop_itself_it_is_an_ordinary_await():
    async def nested():
        return await run_on_judge_loop(where_am_i)

    assert asyncio.run(run_on_judge_loop(nested))[0] == "spanwise-judges"


def test_context_variables_of_the_caller_are_seen():
    variable = contextvars.ContextVar("colour", default="none")

    async def seen():
        return variable.get()

    async def main():
        variable.set("red")
        return (await Judge(backend=Backend(seen)).ask(ASK)).text

    assert asyncio.run(main()) == "red"


def test_what_is_kept_is_made_once():
    async def get():
        return get_loop_singleton("test_what_is_kept", object)

    assert asyncio.run(run_on_judge_loop(get)) is asyncio.run(run_on_judge_loop(get))


def test_cancelling_the_caller_cancels_the_question():
    started, ended = threading.Event(), threading.Event()

    async def hang():
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    async def main():
        question = asyncio.ensure_future(Judge(backend=Backend(hang)).ask(ASK))
        await asyncio.to_thread(started.wait, 60)
        question.cancel()
        await asyncio.wait([question])
        return question.cancelled()

    assert asyncio.run(main())
    assert ended.wait(60)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_the_loop_survives_whatever_a_backend_raises(error):
    async def fail():
        raise error

    with pytest.raises((type(error), RuntimeError)):
        asyncio.run(Judge(backend=Backend(fail)).ask(ASK))
    assert asyncio.run(scripted("yes").ask(ASK)).text == "yes"


def test_a_backend_that_cancels_itself_is_no_judgement_and_ends_nobody_else():
    async def fail():
        raise asyncio.CancelledError

    with pytest.raises(Exception, match="mine cancelled the question"):
        asyncio.run(Judge(backend=Backend(fail)).ask(ASK))


@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_has_a_loop_of_its_own():
    program = """
import asyncio, os, sys
from spanwise.evaluators.judges import Ask, scripted
ask = Ask(messages=({"role": "user", "content": "good?"},))
judge = scripted(lambda ask: "yes")
assert asyncio.run(judge.ask(ask)).text == "yes"
child = os.fork()
assert asyncio.run(judge.ask(ask)).text == "yes"
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert said_by(program) == ""


@pytest.mark.process
def test_a_process_ends_at_once_while_questions_are_under_way():
    program = """
import asyncio, threading
from spanwise.evaluators.judges import Ask, Completion, Judge
started = threading.Event()
class Backend:
    model = where = "mine"
    async def complete(self, ask):
        started.set()
        await asyncio.sleep(600)
judge = Judge(backend=Backend())
ask = Ask(messages=({"role": "user", "content": "good?"},))
threading.Thread(target=lambda: asyncio.run(judge.ask(ask)), daemon=True).start()
assert started.wait(60)
"""
    assert said_by(program) == ""


def said_by(program: str) -> str:
    """What a program says on stderr, warnings and all, but for what asyncio says of a slow machine."""
    ran = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", program], capture_output=True, text=True, timeout=240
    )
    assert ran.returncode == 0, ran.stderr
    return "".join(line for line in ran.stderr.splitlines(True) if not line.startswith("Executing <"))
