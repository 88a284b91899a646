"""Functions, Haystack's generators and scripts as judges."""

import asyncio
import threading
from types import SimpleNamespace

import pytest

from looped_cases import loop_over
from spanwise.evaluators.interface import Unjudged
from spanwise.evaluators.judges import Ask, Completion, make_judge, scripted
from spanwise.evaluators.judges.ratings import YES_NO_SCHEMA

YES = {"rationale": "It is.", "rating": "yes"}
ASK = Ask(
    messages=({"role": "system", "content": "You judge."}, {"role": "user", "content": "Is it?"}), schema=YES_NO_SCHEMA
)


def answer(given, ask=ASK):
    return asyncio.run(make_judge(given).ask(ask))


def test_a_function_of_a_text_gets_the_prompt_and_the_form_of_the_reply():
    seen = []

    def llm(prompt):
        seen.append(prompt)
        return '{"rationale": "It is.", "rating": "yes"}'

    came = answer(llm)
    assert (came.value, came.model, came.cost) == (YES, "llm", None)
    assert seen[0].startswith("You judge.\n\nIs it?\n\n")
    assert '"enum":["yes","no"]' in seen[0]


def by_name(messages):
    return YES if messages[-1]["role"] == "user" else "?"


def by_annotation(chat: list[dict]):
    return by_name(chat)


def by_text_of_it(chat: "list[dict[str, str]]"):
    return by_name(chat)


async def by_awaiting(messages):
    await asyncio.sleep(0)
    return by_name(messages)


class Callable:
    def __call__(self, messages):
        return by_name(messages)


class AsyncCallable:
    async def __call__(self, messages):
        return by_name(messages)


@loop_over("function", [by_name, by_annotation, by_text_of_it, by_awaiting, Callable(), AsyncCallable()])
def test_a_function_of_messages_gets_a_list_of_them(function):
    assert answer(function).value == YES


def test_where_a_function_is():
    assert make_judge(by_name).where.endswith("test_judge_function.by_name in this process")
    assert make_judge(by_name) == make_judge(by_name)
    assert make_judge(lambda prompt: "").model == "lambda"


PARTS = [{"type": "text", "text": '{"rationale": "It is.", '}, {"type": "text", "text": '"rating": "yes"}'}]


TEXT = '{"rationale": "It is.", "rating": "yes"}'
OPENAI = {
    "choices": [{"message": {"content": TEXT}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 4},
}


def chat_message(*arguments, **options):
    from haystack.dataclasses import ChatMessage

    return ChatMessage.from_assistant(*arguments, **options)


@loop_over(
    "reply",
    [
        TEXT,
        YES,
        OPENAI,
        SimpleNamespace(choices=[], model_dump=lambda: OPENAI),
        {"replies": [TEXT], "meta": [{}]},
        lambda: {"replies": [chat_message(TEXT, meta={"usage": {"prompt_tokens": 3}})]},
        lambda: chat_message(TEXT),
        SimpleNamespace(content=PARTS),
        SimpleNamespace(model_dump=lambda: YES),
        Completion(text=TEXT),
    ],
    ids=[
        "text",
        "dict",
        "OpenAI's dict",
        "OpenAI's object",
        "replies",
        "chat replies",
        "chat",
        "LangChain",
        "model",
        "completion",
    ],
)
def test_replies_of_many_forms(reply):
    if callable(reply):  # a value whose class is imported here
        reply = reply()
    assert answer(lambda prompt: reply).value == YES


@pytest.mark.parametrize("reply", [None, object(), b"yes", {1, 2}, [object()]])
def test_what_is_no_reply_is_said(reply):
    with pytest.raises(Unjudged, match="the judge function returned"):
        answer(lambda prompt: reply)


@pytest.mark.parametrize("reply", [7, True, [YES], {}, "yes"])
def test_a_value_that_is_not_the_object_is_a_parse_failure(reply):
    with pytest.raises(Unjudged, match="parse failure"):
        answer(lambda prompt: reply)


def test_an_error_of_the_function_is_its_own():
    def broken(prompt):
        raise KeyError("no such thing")

    with pytest.raises(KeyError, match="no such thing"):
        answer(broken)


@pytest.mark.parametrize("kind", [StopIteration, StopAsyncIteration])
def test_replies_that_run_out_are_an_error_like_others(kind):
    def spent(prompt):
        raise kind

    with pytest.raises((RuntimeError, StopAsyncIteration)):
        answer(spent)


def test_a_function_that_ends_the_process_does_not_end_the_other_judges():
    def ends(prompt):
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        answer(ends)
    assert answer(by_name).value == YES


def test_plain_functions_work_side_by_side():
    together = threading.Barrier(3, timeout=60)

    def waits(prompt):
        together.wait()
        return YES

    async def three():
        return await asyncio.gather(*[make_judge(waits).ask(ASK) for _ in range(3)])

    assert len(asyncio.run(three())) == 3


def test_a_haystack_generator_is_a_judge():
    from haystack.components.generators.chat import MockChatGenerator

    generator = MockChatGenerator(responses=[TEXT])
    came = answer(generator)
    assert came.value == YES
    assert "Haystack's MockChatGenerator" in make_judge(generator).where


def test_a_haystack_generator_of_texts_is_one_too():
    class Generator:
        model = "small"
        warm = 0

        def warm_up(self):
            self.warm += 1

        def run(self, prompt: str):
            assert prompt.startswith("You judge.")
            return {
                "replies": [TEXT],
                "meta": [{"model": "small-1", "usage": {"prompt_tokens": 9, "completion_tokens": 2}}],
            }

    generator = Generator()
    came = answer(generator)
    assert (came.value, came.model, came.usage.input_tokens) == (YES, "small-1", 9)
    assert generator.warm == 1


def test_a_script_says_when_it_has_run_out_and_what_it_was_asked():
    judge = scripted(TEXT, YES)
    assert [answer(judge).value for _ in range(2)] == [YES, YES]
    with pytest.raises(Unjudged, match="the script of the judge has no more replies: it had 2"):
        answer(judge)
    assert [ask.messages for ask in judge.asked] == [ASK.messages] * 3


@pytest.mark.parametrize("error", [ValueError("bad"), ValueError])
def test_a_script_may_raise(error):
    with pytest.raises(ValueError):
        answer(scripted(error))


def test_a_script_may_be_a_function_of_the_question():
    judge = scripted(lambda ask: {**YES, "rationale": ask.messages[1]["content"]})
    assert answer(judge).value["rationale"] == "Is it?"


def test_a_script_gives_each_reply_once_to_many_threads():
    judge = scripted(*({**YES, "rationale": str(number)} for number in range(40)))
    seen = []
    threads = [
        threading.Thread(target=lambda: seen.extend(answer(judge).value["rationale"] for _ in range(10)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(int, seen)) == list(range(40))
