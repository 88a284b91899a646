"""Judges and the process that they live in: other people's instrumentation, forks, ends."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from openinference.instrumentation.openai import OpenAIInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from evaluators.judge_server import serving
from lazy_modules import LazyModule
from spanwise.evaluators import Judge
from spanwise.evaluators.judges import Ask, make_judge

openai = LazyModule("openai")

ASK = Ask(messages=({"role": "user", "content": "Is it?"},))


def run_alone(code, url):
    """A script with an address, in a process of its own."""
    folders = [str(Path(__file__).parents[2] / folder) for folder in ("tracer", "collector", "evaluators", "cli")]
    environment = {**os.environ, "SPANWISE_CACHE": "off", "PYTHONPATH": os.pathsep.join(folders)}
    command = [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", code, url]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240)


@pytest.fixture
def spans():
    """What somebody else's instrumentation of openai has seen."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    OpenAIInstrumentor().instrument(tracer_provider=provider)
    yield exporter.get_finished_spans
    OpenAIInstrumentor().uninstrument()


def test_an_instrumented_client_makes_no_span_of_a_judges_call(spans):
    with serving(lambda request: "yes") as server:
        asyncio.run(Judge(model="m", base_url=server.url).ask(ASK))
        assert spans() == ()
        with openai.OpenAI(base_url=server.url, api_key="k") as client:
            client.chat.completions.create(model="m", messages=list(ASK.messages))
    assert len(spans()) == 1


def test_nor_of_a_call_that_a_function_makes_for_a_judge(spans):
    with serving(lambda request: "yes") as server, openai.OpenAI(base_url=server.url, api_key="k") as client:

        def llm(messages):
            return client.chat.completions.create(model="m", messages=messages)

        assert asyncio.run(make_judge(llm).ask(ASK)).value == "yes"
    assert spans() == ()


FORKED = """
import asyncio, os, sys
from spanwise.evaluators import Judge
from spanwise.evaluators.judges import Ask
judge = Judge(model="m", base_url=sys.argv[1])
ask = lambda: asyncio.run(judge.ask(Ask(messages=({"role": "user", "content": "?"},)))).value
said = [ask()]
child = os.fork()
said.append(ask())
if not child:
    sys.exit(0 if said == ["yes", "yes"] else 3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said)
"""


@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")
def test_a_forked_child_asks_through_a_client_of_its_own_and_nobody_complains():
    with serving(lambda request: "yes") as server:
        done = run_alone(FORKED, server.url)
    assert done.stdout.strip() == "0 ['yes', 'yes']"
    assert done.stderr == ""


@pytest.mark.process
def test_as_many_endpoints_as_you_like_keep_a_bounded_number_of_connections():
    async def ask(judge):
        return (await judge.ask(ASK)).value

    with serving(lambda request: "yes") as server:
        judges = [Judge(model="m", base_url=server.url, api_key=f"key {number}") for number in range(80)]

        async def all_of_them():
            return await asyncio.gather(*map(ask, judges))

        assert asyncio.run(all_of_them()) == ["yes"] * 80
        keys = {request.headers["authorization"] for request in server.requests}
    assert len(keys) == 80


SLOWLY = """
import asyncio, sys, time
from spanwise.evaluators import Judge
from spanwise.evaluators.judges import Ask
class Slow:
    def find_spec(self, name, *args):
        if name == "openai":
            time.sleep(2.6)
sys.meta_path.insert(0, Slow())
judge = Judge(model="m", base_url=sys.argv[1], deadline=5.0)
print(asyncio.run(judge.ask(Ask(messages=({"role": "user", "content": "?"},)))).calls)
"""


@pytest.mark.process
def test_the_time_that_the_client_takes_to_be_imported_is_nobodys():
    with serving(lambda request: "yes") as server:
        done = run_alone(SLOWLY, server.url)
    assert done.stdout.strip() == "1"
