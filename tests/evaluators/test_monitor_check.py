"""Before a rule runs: what it would match, take and cost, and what it says of some traces; nothing is stored."""

from __future__ import annotations

import secrets
import time

import pytest

from evaluators.watched import decisions, span, watching, whole
from spanwise.collector.filters import Filter
from spanwise.collector.records import Document, Run
from spanwise.collector.statistics import get_sampling_position
from spanwise.evaluators import evaluator, get_evaluator, judge, monitor, scripted
from spanwise.evaluators.monitors import check
from spanwise.evaluators.monitors.rule_analysis import DAYS_PER_MONTH

HOUR = 3_600_000_000_000


@evaluator
def short(outputs: str) -> bool:
    return len(outputs) < 5


def run(name="answer", hours=1.0, **fields):
    start = time.time_ns() - int(hours * HOUR)
    ids = {"trace_id": secrets.token_hex(16), "span_id": secrets.token_hex(8)}
    return Run(name=name, start_ns=start, end_ns=start + 1, inputs="?", outputs="long answer", **{**ids, **fields})


def test_it_counts_what_passed_the_filter_in_the_last_day(store):
    store.append([run(), run(), run("search"), run(hours=30), run(experiment_id="e"), run(project="other")])
    found = check(monitor("r", evaluators=[short], filter="name=answer"), store)
    assert (found.traces, found.matched, found.sampled, found.exact) == (3, 2, 2, True)


def test_it_takes_what_the_rule_itself_would_take(store):
    runs = [run() for _ in range(60)]
    store.append(runs)
    found = check(monitor("r", evaluators=[short], sample_rate=0.3), store)
    assert found.sampled == sum(get_sampling_position(one.trace_id) < 0.3 for one in runs)


def test_the_first_stratum_that_passes_gives_the_rate(store):
    store.append([run(status="error", error="x") for _ in range(5)] + [run(user_id="u") for _ in range(7)] + [run()])
    strata = [("status=error", 1.0), ({"user": "u"}, 0.0)]
    assert check(monitor("r", evaluators=[short], sample_rate=1.0, strata=strata), store).sampled == 6


def test_a_stratum_may_speak_of_what_the_filter_speaks_of(store):
    store.append([run(tags=("a", "b")), run(tags=("a",))])
    rule = monitor("r", evaluators=[short], filter="tags=a", sample_rate=0.0, strata=[("tags=b", 1.0)])
    assert (check(rule, store).matched, check(rule, store).sampled) == (2, 1)


def test_of_experiments_only_if_asked(store):
    store.append([run(experiment_id="e"), run()])
    counted = {scope: check(monitor("r", evaluators=[short], scope=scope), store) for scope in ("experiments", "both")}
    assert {scope: found.matched for scope, found in counted.items()} == {"experiments": 1, "both": 2}


def test_sessions_are_counted_once(store):
    store.append([run(session_id="s"), run(session_id="s"), run(session_id="t"), run()])
    assert check(monitor("r", evaluators=[short], target="session"), store).matched == 2


def test_calls_are_counted_where_there_is_no_price(store):
    asked = judge("polite", "Polite? {outputs}", judge=scripted({"rationale": "", "rating": 5}))
    store.append([run() for _ in range(10)])
    found = check(monitor("r", evaluators=[asked]), store)
    assert (found.calls, found.usd, found.paced) == (10, None, None)


def test_a_budget_in_dollars_lowers_the_rate(store):
    from spanwise.evaluators import Judge

    polite = judge("polite", "Polite? {outputs}", judge=Judge(model="m", base_url="http://127.0.0.1:9", price=(1, 1)))
    store.append([run() for _ in range(10)])
    found = check(monitor("r", evaluators=[polite], budget={"usd_per_day": 0.00001}), store)
    assert found.usd > 0.00001
    assert found.paced == pytest.approx(0.00001 / found.usd)
    month = {"usd_per_month": 0.00001 * DAYS_PER_MONTH}
    assert check(monitor("r", evaluators=[polite], budget=month), store).paced == pytest.approx(found.paced)
    both = {**month, "usd_per_day": 0.000005}
    assert check(monitor("r", evaluators=[polite], budget=both), store).paced == pytest.approx(found.paced / 2)


def test_some_are_really_scored_and_nothing_is_kept(store):
    asked = judge("polite", "Polite? {outputs}", judge=scripted({"rationale": "it is", "rating": 5}))
    store.append([run() for _ in range(4)])
    before = store.count()
    found = check(monitor("r", evaluators=[short, asked]), store, tries=3)
    assert [[one.key for one in tried.feedback] for tried in found.tried] == [["short", "polite"]] * 3
    assert (store.count(), list(store.feedbacks(Filter()))) == (before, [])


def test_sessions_are_tried_as_sessions(store):
    store.append([run(session_id="s", hours=2), run(session_id="s")])
    found = check(monitor("r", evaluators=[short], target="session"), store, tries=5)
    assert [tried.target.session_id for tried in found.tried] == ["s"]


def test_an_evaluator_that_fails_says_so(store):
    def broken(outputs):
        raise SystemExit(3)

    store.append([run()])
    [tried] = check(monitor("r", evaluators=[broken]), store, tries=1).tried
    assert tried.feedback[0].error == "SystemExit: 3"


def test_an_empty_store_has_nothing_to_say(store):
    found = check(monitor("r", evaluators=[get_evaluator("pii")]), store, tries=5)
    assert (found.traces, found.matched, found.sampled, found.usd, found.tried) == (0, 0, 0, 0.0, ())


def test_more_than_can_be_looked_at_is_extrapolated(store, monkeypatch):
    monkeypatch.setattr("spanwise.evaluators.monitors.rule_analysis.MAX_COUNTED_TRACES", 20)
    store.append([run() for _ in range(80)])
    found = check(monitor("r", evaluators=[short], sample_rate=0.5), store)
    assert (found.matched, found.exact) == (80, False)
    assert found.sampled % 4 == 0


def with_documents(number):
    documents = (Document("a"), Document("long document"))
    return [
        whole(number, started=3),
        span(number, 2, parent=1, kind="retriever", documents=documents),
        span(number, 3, parent=1, kind="llm"),
    ]


@pytest.mark.parametrize(("options", "each"), [({"target": "span", "kind": "llm"}, 1), ({"target": "document"}, 2)])
def test_spans_and_documents_are_counted_and_tried_as_the_worker_takes_them(store, options, each):
    def seen(documents):
        return len(documents) <= 1

    made = monitor("r", evaluators=[seen], **options)
    with watching(store, made) as worker:
        worker.step()
        store.append([one for number in range(1, 7) for one in with_documents(number)])
        worker.step()
    found = check(made, store, tries=100)
    taken = {decision.target for decision in decisions(store)}
    assert (found.sampled, found.targets, len(taken)) == (6, 6 * each, 6 * each)
    assert {tried.target for tried in found.tried} == taken


def test_calls_are_counted_by_target(store):
    asked = judge("polite", "Polite? {outputs}", judge=scripted({"rationale": "", "rating": 5}))
    store.append([one for number in range(1, 61) for one in [whole(number, started=2), span(number, 2, parent=1)]])
    found = check(monitor("r", evaluators=[asked], target="span"), store)
    assert (found.targets, found.priced, found.calls) == (120, 50, 120)


def test_turns_of_another_project_are_no_part_of_a_session(store):
    def turns(history):
        return len(history)

    store.append([run(session_id="s"), run(session_id="s"), run(session_id="s", project="other")])
    of_one = check(monitor("r", evaluators=[turns], target="session"), store, tries=1)
    assert [tried.feedback[0].score for tried in of_one.tried] == [4.0]
