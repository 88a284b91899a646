"""Parts of a supervised monitor: words for deaths, rules that rest, messages over a pipe, rules made of data."""

import os

import pytest

from looped_cases import loop_over
from spanwise.collector.records import Rule
from spanwise.evaluators.monitors import worker_process
from spanwise.evaluators.monitors.rule_loading import FileWatch, rule_from_data
from spanwise.evaluators.monitors.supervisor import RuleQuarantine
from spanwise.evaluators.monitors.worker_process import ClaimedTarget, MessageReceiver, MessageSender


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "exit code 0"),
        (75, "exit code 75 (hanging evaluators occupied all slots of a rule)"),
        (-11, "killed by SIGSEGV (invalid memory access)"),
        (-64, "killed by SIGRTMAX"),
        (-200, "killed by signal 200"),
    ],
)
def test_an_end_in_words(code, words):
    assert worker_process.describe_exit(code) == words


def test_the_place_of_a_crash_is_the_users_innermost_line():
    crash = ["Thread 0x1 (most recent call first):", f'  File "{os.__file__}", line 1 in walk']
    assert worker_process.find_crash_location(crash) is None
    crash += ['  File "/home/me/rules.py", line 7 in bad', '  File "/home/me/rules.py", line 9 in outer']
    assert worker_process.find_crash_location(crash) == "bad, rules.py:7"


def test_what_was_held_is_told_in_part():
    claims = [ClaimedTarget("p", "r", f"trace {n}") for n in range(5)]
    assert worker_process.describe_claims(claims[:1]) == "rule 'r' on trace 0"
    assert (
        worker_process.describe_claims(claims)
        == "rule 'r' on trace 0 and rule 'r' on trace 1 and rule 'r' on trace 2 and 2 more"
    )


def test_a_rule_that_alone_ended_three_workers_rests_longer_each_time():
    told = []
    rest = RuleQuarantine(told.append)
    for seconds in (60, 120, 240):
        for _ in range(3):
            assert rest.names() == []
            rest.blame([ClaimedTarget("p", "bad", "trace 1")])
        assert rest.names() == [("p", "bad")]
        assert f"is quarantined for {seconds} s" in told[-1]
        assert not rest.advance(seconds - 1)
        assert rest.advance(2)


def test_no_rule_is_blamed_where_several_ran():
    rest = RuleQuarantine(print)
    for _ in range(9):
        rest.blame([ClaimedTarget("p", "bad", "trace 1"), ClaimedTarget("p", "good", "trace 1")])
    assert rest.names() == []


def test_messages_come_whole_and_what_is_none_is_a_crash():
    reading, writing = os.pipe()
    listener, teller = MessageReceiver(reading), MessageSender(writing)
    try:
        os.write(writing, b"Fatal Python error: Segmentation fault\n")
        teller.send("say", text="x" * 5000)
        os.write(writing, b'{"kind": "be')
        assert [len(message["text"]) for message in listener.messages()] == [5000]
        os.write(writing, b'at"}\n')
        assert [message["kind"] for message in listener.messages()] == ["beat"]
    finally:
        listener.close()
        os.close(writing)
    assert listener.crash == ["Fatal Python error: Segmentation fault"]


def looked(watch):
    """What several looks in a row say of a change."""
    return [watch.changed() for _ in range(4)].count(True)


def test_a_change_is_told_once_and_one_that_is_taken_back_at_once_is_none(tmp_path):
    file = tmp_path / "rules.py"
    file.write_text("a")
    watch = FileWatch(file)
    assert looked(watch) == 0
    file.write_text("b")
    assert looked(watch) == 1
    file.write_text("c")
    assert not watch.changed()
    file.write_text("b")
    assert looked(watch) == 0


def test_a_file_that_is_away_or_replaced_by_its_like_has_not_changed(tmp_path):
    file = tmp_path / "rules.py"
    file.write_text("a")
    watch = FileWatch(file)
    file.rename(tmp_path / "rules.py~")
    assert watch.missing
    assert looked(watch) == 0
    file.write_text("a")
    assert looked(watch) == 0


def test_what_is_half_written_waits_for_the_rest(tmp_path):
    file = tmp_path / "rules.py"
    file.write_text("")
    watch = FileWatch(file)
    for part in ("a", "ab", "abc"):
        file.write_text(part)
        os.utime(file, ns=(1, len(part)))
        assert not watch.changed()
    assert looked(watch) == 1


def of(type="regex", **parameters):
    return rule_from_data(Rule(name="r", version="1", evaluators=({"type": type, "init_parameters": parameters},)))


def test_a_rule_of_data_names_registered_evaluators():
    assert [evaluator.key for evaluator in of(pattern="a", key="has_a").evaluators] == ["has_a"]


@loop_over(
    ("type", "parameters", "told"),
    [
        ("regx", {}, "'regx' is not a registered evaluator; did you mean 'regex'"),
        ("os.system", {}, "'os.system' is not a registered evaluator"),
        ("regex", {}, "evaluator 'regex' needs pattern"),
        ("regex", {"pattern": "a", "nope": 1}, "has no parameter 'nope'"),
        ("regex", {"pattern": "("}, "evaluator 'regex':"),
        ("agent_sanity", {"directory": "/etc"}, "directory='/etc' is a path on the monitor's machine"),
        (
            "correctness",
            {"judge": {"model": "m", "cache": "/x.db"}},
            "cache='/x.db' is a path on the monitor's machine",
        ),
        ("correctness", {"judge": {"model": "m", "api_key": "sk"}}, "must not contain api_key, because everyone"),
        ("correctness", {"judge": {"model": "m", "base_url": "http://elsewhere/v1"}}, "would send text to"),
        ("fact_check", {"agent": {"model": "m", "base_url": "http://elsewhere/v1"}}, "would send text to"),
        ("fact_check", {"agent": {"model": "m", "api_key": "sk"}}, "must not contain api_key, because everyone"),
        ("semantic_similarity", {"model": {"model": "m", "base_url": "http://elsewhere/v1"}}, "would send text to"),
        ("answer_relevancy", {"embed": {"model": "m", "base_url": "http://elsewhere/v1"}}, "would send text to"),
        ("groundedness", {"model": {"model": "hhem", "remote_code": True}}, "remote_code=True would run code"),
        ("toxicity", {"model": {"model": "detoxify", "pickle": True}}, "pickle=True would run code"),
        ("profanity", {"pickle": True}, "pickle=True would run code"),
        ("sas", {"token": "hf_mine"}, "must not contain token, because everyone"),
        ("sas", {"model": {"model": "nli", "token": "hf_mine"}}, "must not contain token, because everyone"),
        ("summarization_cf", {"conv": "/etc/passwd"}, "conv='/etc/passwd' is a path on the monitor's machine"),
        ("perplexity", {"model": "/srv/model.gguf"}, "model='/srv/model.gguf' is not one of the models"),
        ("perplexity", {"model": {"model": "someone/else/model.gguf"}}, "is not one of the models"),
        ("summarization_cf", {"embedding": "someone/else"}, "embedding='someone/else' is not one of the models"),
        ("sas", {"model": "tests"}, "model='tests' is not one of the models"),  # a folder where the monitor was started
    ],
)
def test_what_data_may_not_say_is_refused_with_the_way_out(type, parameters, told):
    with pytest.raises(ValueError) as caught:
        of(type, **parameters)
    assert told in str(caught.value)


def test_two_evaluators_of_one_key_are_refused():
    entry = {"type": "regex", "init_parameters": {"pattern": "a"}}
    with pytest.raises(ValueError, match="two evaluators have the key 'regex'"):
        rule_from_data(Rule(name="r", version="1", evaluators=(entry, entry)))


def test_a_judge_in_data_is_at_an_address_of_the_environment(monkeypatch):
    monkeypatch.setenv("SPANWISE_JUDGE_URL", "http://elsewhere/v1/")
    monkeypatch.setenv("SPANWISE_JUDGE_KEY", "sk-mine")
    (evaluator,) = of("correctness", judge={"model": "m", "base_url": "http://elsewhere/v1"}).evaluators
    assert evaluator.function._judge.api_key == "sk-mine"


def test_an_embedder_in_data_is_at_an_address_of_the_environment(monkeypatch):
    monkeypatch.setenv("SPANWISE_EMBEDDINGS_URL", "http://elsewhere/v1")
    (evaluator,) = of("groundedness", model={"model": "m", "base_url": "http://elsewhere/v1"}).evaluators
    assert evaluator.function._embedder.name == "m"


@pytest.mark.parametrize(
    "model", [None, "bge-small-en", "BAAI/bge-small-en", {"model": "bge-small-en", "device": "cpu"}]
)
def test_a_model_in_data_is_a_preset(model):
    (evaluator,) = of("groundedness", model=model).evaluators
    assert evaluator.function._embedder.name in ("all-MiniLM-L6-v2", "bge-small-en")


@pytest.mark.parametrize(
    ("type", "parameters"),
    [
        ("json_schema", {"json_schema": {"properties": {"model": {}, "token": {}, "api_key": {}, "directory": {}}}}),
        ("has_span", {"attributes": {"model": "/a", "base_url": "http://a/v1", "cache": "warm", "pickle": True}}),
        ("correctness", {"judge": {"model": "org/name:free"}}),
        ("fact_check", {"agent": {"model": "org/name:free"}}),
    ],
)
def test_what_is_said_of_answers_and_spans_names_nothing_of_the_machine(type, parameters):
    assert len(of(type, **parameters).evaluators) == 1


def test_the_thread_that_crashed_goes_before_others():
    other = ["Thread 0x1 (most recent call first):", '  File "/venv/site-packages/anyio/x.py", line 1 in wait']
    crashed = ["Current thread 0x2 (most recent call first):", '  File "/app/rules.py", line 13 in when_asked']
    assert worker_process.find_crash_location([*other, "", *crashed]) == "when_asked, rules.py:13"
