"""Every kind of callable, and what is left of it for callers and type checkers."""

from __future__ import annotations

import asyncio
import functools
import inspect
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from spanwise.tracer import current_run, span, trace
from spanwise.tracer.testing import Spans


class Bot:
    @trace
    def method(self, x: int, *rest: int, y: int = 2, **more: int) -> int:
        return x + y

    @trace
    @classmethod
    def above(cls, x: int) -> str:
        return cls.__name__

    @classmethod
    @trace
    def below(cls, x: int) -> str:
        return cls.__name__

    @trace
    @staticmethod
    def static(x: int) -> int:
        return x

    def __call__(self, x: int) -> int:
        return x * 2


@trace
def by_name() -> str:
    return "pickled"


def test_methods_leave_self_out_and_name_all_arguments(traced: Spans) -> None:
    assert Bot().method(1, 5, 6, z=3) == 3
    assert traced.inputs("method") == {"x": 1, "rest": [5, 6], "y": 2, "more": {"z": 3}}


def test_classmethods_and_staticmethods_either_way_round(traced: Spans) -> None:
    assert (Bot.above(1), Bot().below(1), Bot.static(3)) == ("Bot", "Bot", 3)
    assert [traced.inputs(n) for n in ("above", "below", "static")] == [{"x": 1}, {"x": 1}, {"x": 3}]


def test_objects_with_call_and_partials(traced: Spans) -> None:
    def add(x: int, y: int = 2) -> int:
        return x + y

    assert trace(Bot())(4) == 8
    assert trace(functools.partial(add, 1))(y=5) == 6
    assert traced.inputs("Bot") == {"x": 4}
    assert traced.inputs("add") == {"y": 5}


def test_a_coroutine_from_a_plain_function_keeps_its_span_open(traced: Spans) -> None:
    async def work() -> str:
        with span("inside"):
            return "done"

    assert asyncio.run(trace(lambda: work())()) == "done"
    assert traced.parent("inside") == "<lambda>"
    assert traced.outputs("<lambda>") == "done"


def test_async_functions_stay_coroutine_functions(traced: Spans) -> None:
    @trace(kind="tool")
    async def work(x: int) -> int:
        """Its docstring."""
        return x

    assert asyncio.run(work(3)) == 3
    assert inspect.iscoroutinefunction(work)
    assert (work.__name__, work.__doc__) == ("work", "Its docstring.")
    assert dict(traced.one("work").attributes or {})["openinference.span.kind"] == "TOOL"


def test_wrong_arguments_raise_what_they_would(traced: Spans) -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        Bot().method()  # type: ignore[call-arg]
    assert traced.one("method").status.description is not None


def test_options(traced: Spans) -> None:
    @trace(name="n", capture_inputs=False, capture_outputs=False, tags=["t"], metadata={"m": 1}, attributes={"a": 2})
    def work(secret: str) -> str:
        return secret

    work("s")
    attributes = dict(traced.one("n").attributes or {})
    assert (attributes["tag.tags"], attributes["metadata"], attributes["a"]) == (("t",), '{"m":1}', 2)
    assert not {"input.value", "output.value"} & attributes.keys()


def test_decorating_what_cannot_be_traced_says_so() -> None:
    with pytest.raises(TypeError, match="got 5"):
        trace(5)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="kind must be one of chain"):
        trace(kind="banana")(by_name)


def test_a_mistyped_option_is_named_with_the_nearest_one() -> None:
    with pytest.raises(TypeError, match=r"@trace has no option 'nme' \(did you mean 'name'\?\); it takes name, kind"):
        trace(nme="x")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="@trace has no option 'zzz'; it takes"):
        trace(by_name, zzz=1)  # type: ignore[call-overload]


def test_a_traced_function_can_be_pickled(traced: Spans) -> None:
    assert pickle.loads(pickle.dumps(Bot)).static(2) == 2


def test_a_run_describes_itself(traced: Spans) -> None:
    with span("s", kind="llm", inputs={"q": 1}) as run:
        run.set_name("renamed")
        run.set_tags("a")
        run.set_tags("b")
        run.set_metadata({"x": 1}, y=[2])
        run.set_model("m-1")
        run.set_usage(10, 5, cost=0.25)
        run.set_documents(["d1", {"text": "d2", "id": 7}])
        assert current_run().span_id == run.span_id
    attributes = dict(traced.one("renamed").attributes or {})
    assert (attributes["tag.tags"], attributes["metadata"]) == (("a", "b"), '{"x":1,"y":[2]}')
    assert (attributes["gen_ai.usage.input_tokens"], attributes["spanwise.cost"]) == (10, 0.25)
    assert attributes["spanwise.documents"] == '["d1",{"text":"d2","id":7}]'


def test_a_run_records_its_prompt(traced: Spans) -> None:
    with span("s", kind="llm") as run:
        run.set_prompt("greet", version=2, template="Say {x}", variables={"x": [1]})
    with span("named"):
        current_run().set_prompt("greet")
    attributes = dict(traced.one("s").attributes or {})
    prompt = {name: value for name, value in attributes.items() if "prompt" in name}
    assert prompt == {
        "gen_ai.prompt.name": "greet",
        "gen_ai.prompt.version": "2",
        "llm.prompt_template.version": "2",
        "llm.prompt_template.template": "Say {x}",
        "llm.prompt_template.variables": '{"x":[1]}',
    }
    assert [name for name in traced.one("named").attributes or {} if "prompt" in name] == ["gen_ai.prompt.name"]
    current_run().set_prompt("outside of any run")


def test_set_outputs_wins_over_the_return_value(traced: Spans) -> None:
    @trace
    def work() -> str:
        current_run().set_outputs({"answer": 1})
        return "raw"

    work()
    assert traced.outputs("work") == {"answer": 1}


def test_a_handle_outside_of_any_run_does_nothing(traced: Spans) -> None:
    run = current_run()
    run.set_outputs(1)
    run.feedback("k", 1)
    assert run.trace_id == ""
    assert (traced.names(), traced.feedback) == ([], [])


TYPED = """
from collections.abc import AsyncIterator
from typing import assert_type
from spanwise.tracer import trace, span

@trace
def plain(x: int, *, y: str = "") -> float: return 1.0
@trace(kind="tool", tags=["a"])
async def coro(x: int) -> str: return ""
@trace(reduce="".join)
async def stream(x: int) -> AsyncIterator[str]: yield ""
class C:
    @trace
    def method(self, x: int) -> bytes: return b""

async def main() -> None:
    assert_type(plain(1, y="a"), float)
    assert_type(await coro(1), str)
    assert_type(C().method(1), bytes)
    async for item in stream(1):
        assert_type(item, str)
    with span("s") as run:
        assert_type(run.trace_id, str)
    plain("wrong")  # WRONG
    await coro(x="wrong")  # WRONG
"""


def checked(command: list[str], tmp_path: Path) -> str:
    (tmp_path / "typed.py").write_text(TYPED)
    out = subprocess.run([sys.executable, "-m", *command, "typed.py"], cwd=tmp_path, capture_output=True, text=True)
    return out.stdout


@pytest.mark.slow
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_types_survive(checker: str, tmp_path: Path) -> None:
    command = {
        "mypy": ["mypy", "--strict", "--no-incremental"],
        "pyright": ["pyright", "--pythonpath", sys.executable],
    }[checker]
    out = checked(command, tmp_path)
    wrong = [i for i, line in enumerate(TYPED.splitlines(), 1) if "# WRONG" in line]
    errors = [line for line in out.splitlines() if "error" in line and "typed.py" in line and ":" in line]
    assert [int(line.split("typed.py:")[1].split(":")[0]) for line in errors] == wrong, out
