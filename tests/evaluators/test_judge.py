"""Who a judge is: resolved from an argument or the environment, checked when it is made, said as data without its key."""

import asyncio
import pickle
import re
import subprocess
import sys

import pytest

from evaluators.judge_server import serving
from spanwise.evaluators import Judge, as_evaluator, from_dict, get_evaluator
from spanwise.evaluators.judges import Ask, make_judge, scripted
from spanwise.evaluators.judges.llm_client.chat_completions import NoJudge
from spanwise.evaluators.testing import scripted as public

ASK = Ask(messages=({"role": "user", "content": "?"},))


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch):
    for name in ("SPANWISE_JUDGE", "SPANWISE_JUDGE_URL", "SPANWISE_JUDGE_KEY", "OPENAI_BASE_URL", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def test_a_name_is_a_model_at_openai():
    judge = make_judge("gpt-4o-mini")
    assert (judge.model, judge.base_url) == ("gpt-4o-mini", "https://api.openai.com/v1")
    assert judge.where == "gpt-4o-mini at https://api.openai.com/v1"


def test_what_is_given_wins_over_the_judges_variables_and_these_over_openais(monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", "http://one/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "first")
    assert (make_judge("m").base_url, make_judge("m").api_key) == ("http://one/v1", "first")
    monkeypatch.setenv("SPANWISE_JUDGE_URL", "http://two/v1/")
    monkeypatch.setenv("SPANWISE_JUDGE_KEY", "second")
    assert (make_judge("m").base_url, make_judge("m").api_key) == ("http://two/v1", "second")
    given = Judge(model="m", base_url="http://three/v1", api_key="third")
    assert (given.base_url, given.api_key) == ("http://three/v1", "third")


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("http://two/v1", "second"),
        ("http://two/v1/", "second"),
        ("http://one/v1", "first"),
        ("https://api.openai.com/v1", None),  # where the environment's requests do not go
        ("http://two/v1/further", None),
        ("http://two.evil/v1", None),
    ],
)
def test_the_environments_key_goes_to_the_environments_address_alone(url, key, monkeypatch):
    for name, value in {"OPENAI_BASE_URL": "http://one/v1", "OPENAI_API_KEY": "first"}.items():
        monkeypatch.setenv(name, value)
    for name, value in {"SPANWISE_JUDGE_URL": "http://two/v1", "SPANWISE_JUDGE_KEY": "second"}.items():
        monkeypatch.setenv(name, value)
    assert Judge(model="m", base_url=url).api_key == make_judge({"model": "m", "base_url": url}).api_key == key


def test_an_address_in_data_is_asked_without_the_environments_key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-mine")
    with serving(["yes"]) as server:
        asyncio.run(make_judge({"model": "m", "base_url": server.url, "cache": False}).answering.complete(ASK))
    assert "sk-mine" not in str(server.requests[0].headers)


def test_a_model_comes_from_the_environment_or_from_nowhere(monkeypatch):
    assert make_judge().where == "none (no judge is configured)"
    with pytest.raises(NoJudge, match=r"no judge is configured: .*SPANWISE_JUDGE.*no default model"):
        asyncio.run(make_judge().ask(ASK))
    monkeypatch.setenv("SPANWISE_JUDGE", "llama")
    assert make_judge().model == "llama"


def test_openai_needs_a_key_others_may_not():
    with pytest.raises(NoJudge, match="needs a key: set OPENAI_API_KEY"):
        Judge(model="m").check()
    Judge(model="m", base_url="http://localhost:1/v1").check()


def test_an_evaluator_without_a_judge_can_be_made_and_shown():
    assert get_evaluator("relevance_to_query").to_dict() == {"type": "relevance_to_query", "init_parameters": {}}


def test_the_key_is_shown_nowhere():
    judge = Judge(model="m", api_key="sk-secret", base_url="http://h/v1")
    told = f"{judge!r} {judge.to_dict()} {judge.identity} {judge.where} {judge.answering!r} {as_evaluator(get_evaluator('relevance_to_query', judge=judge))!r}"
    assert "sk-secret" not in told


def test_a_judge_is_data_without_its_key_and_is_made_again_from_it(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    judge = Judge(model="m", base_url="http://h/v1", price=(1, 2), max_usd=3, cache=False, seed=None)
    assert judge.to_dict() == {
        "model": "m",
        "base_url": "http://h/v1",
        "price": [1, 2],
        "seed": None,
        "cache": False,
        "max_usd": 3,
    }
    assert make_judge(judge.to_dict()) == judge
    evaluator = get_evaluator("relevance_to_query", judge=judge)
    again = from_dict(evaluator.to_dict())
    assert again.function._judge == judge
    assert again.version == evaluator.version


def test_a_function_is_no_data():
    with pytest.raises(ValueError, match="is not a JSON value"):
        get_evaluator("relevance_to_query", judge=scripted("a")).to_dict()


def test_another_model_or_endpoint_or_parameter_is_another_version():
    judges = [
        {"model": "a"},
        {"model": "b"},
        {"model": "a", "base_url": "http://h/v1"},
        {"model": "a", "temperature": 1.0},
    ]
    versions = {get_evaluator("relevance_to_query", judge=judge).version for judge in judges}
    assert len(versions) == 4
    assert get_evaluator("relevance_to_query", judge={"model": "a", "max_calls": 3, "api_key": "k"}).version in versions


def test_equal_judges_are_equal_and_can_be_pickled():
    one, other = (Judge(model="m", base_url="http://h/v1") for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)
    assert pickle.loads(pickle.dumps(one)) == one


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"model": 3}, "model must be the name of a model, got 3"),
        ({"model": "  "}, "model must be the name of a model, got '  '"),
        (
            {"model": "m", "base_url": "localhost:8000"},
            "base_url (or SPANWISE_JUDGE_URL, OPENAI_BASE_URL) must be an address such as",
        ),
        ({"model": "m", "base_url": "http://"}, "must be an address such as http://localhost:8000/v1, got"),
        ({"model": "m", "base_url": "http://h:x/v1"}, "must be an address such as http://localhost:8000/v1, got"),
        ({"model": "m", "base_url": 7}, "must be an address such as http://localhost:8000/v1, got"),
        ({"model": "m", "base_url": "http://me:pw@h/v1"}, "use api_key"),
        ({"model": "m", "base_url": "http://h/v1?key=3"}, "must not have a query or a fragment"),
        ({"model": "m", "base_url": "http://h/v1/chat/completions"}, "must not include the route /chat/completions"),
        ({"model": "m", "temperature": 3}, "temperature must be a number >= 0 and <= 2, got 3"),
        ({"model": "m", "temperature": float("nan")}, "temperature must be a number"),
        ({"model": "m", "seed": 1.5}, "seed must be an integer, got 1.5"),
        ({"model": "m", "max_tokens": 0}, "max_tokens must be an integer >= 1"),
        ({"model": "m", "concurrency": True}, "concurrency must be an integer"),
        ({"model": "m", "deadline": 0}, "deadline must be a number > 0"),
        ({"model": "m", "max_age": -1}, "max_age must be a number"),
        ({"model": "m", "price": (1,)}, "price must be US dollars per million tokens"),
        ({"model": "m", "price": ("1", "2")}, "price must be US dollars"),
        ({"model": "m", "price": 3}, "price must be US dollars"),
        ({"model": "m", "max_calls": 1.0}, "max_calls must be an integer"),
        ({"model": "m", "max_usd": float("inf")}, "max_usd must be a number"),
        ({"model": "m", "cache": 3}, "cache must be True, False, None or a path"),
        ({"model": "m", "api_key": 3}, "api_key must be a string"),
        ({"model": "m", "max_usd": 1}, "the price of 'm' is unknown; pass price="),
        ({"model": "m", "modle": "x"}, "max_age, max_usd, max_calls; did you mean 'model'"),
        ({"backend": "x"}, "unknown judge setting 'backend'"),
        ("", "judge must be the name of a model"),
        (7, "a judge must be a Judge, a model's name"),
        (str, "a judge must be a Judge, a model's name"),
    ],
)
def test_a_wrong_value_is_one_clear_error(given, told):
    with pytest.raises(ValueError, match=re.escape(told)) as raised:
        make_judge(given)
    assert "\n" not in str(raised.value)
    assert "pw" not in str(raised.value)


def test_a_budget_in_dollars_needs_a_price():
    assert Judge(model="gpt-4o-mini", max_usd=1).prices == pytest.approx((0.15, 0.6))
    assert Judge(model="m", base_url="http://h/v1", price=(1, 2), max_usd=1).prices == (1, 2)
    with pytest.raises(ValueError, match="the price of 'scripted' is unknown"):
        Judge(backend=scripted("a").backend, max_usd=1)


def test_a_base_url_or_a_backend():
    with pytest.raises(ValueError, match="a base_url or a backend, not both"):
        Judge(backend=scripted("a").backend, base_url="http://h/v1")
    with pytest.raises(ValueError, match="must have a method complete"):
        Judge(backend=print)


def test_the_public_names():
    assert public is scripted
    assert make_judge(judge := scripted("a")) is judge


@pytest.mark.process
def test_judges_load_no_client_before_they_are_asked():
    script = (
        "import sys, spanwise.evaluators; assert 'spanwise.evaluators.judges' not in sys.modules; "
        "from spanwise.evaluators import Judge; Judge(model='m', base_url='http://h/v1'); "
        "print(sorted({'openai', 'httpx', 'httpx2', 'jsonschema', 'json_repair', 'genai_prices', 'tenacity'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("key", ["sk-one\nsk-two", "sk-\N{HORIZONTAL ELLIPSIS}secret", "sk-\0secret"])
def test_a_key_that_no_header_can_bear_is_refused_and_not_shown(key):
    with pytest.raises(ValueError, match="api_key contains line breaks or non-ASCII characters") as refused:
        Judge(model="m", api_key=key)
    assert "sk-" not in str(refused.value)


def test_spaces_around_a_key_are_left_out():
    assert Judge(model="m", api_key=" sk-one\n").api_key == "sk-one"
