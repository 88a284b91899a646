"""Live traces scored where they are: the feedback is theirs, and saying it twice is saying it once."""

import pytest

from spanwise.collector import connect
from spanwise.collector.errors import NotFound
from spanwise.collector.filters import Filter
from spanwise.collector.records import Run, Trace, Usage
from spanwise.collector.server import Server
from spanwise.evaluators import evaluate, evaluator, get_evaluator

COUNT = 5


@pytest.fixture
def live(store):
    """Ids of stored traces, the second of which failed."""
    runs = [
        Run(
            trace_id=f"{n:032x}",
            span_id=f"{n:016x}",
            name="answer",
            start_ns=n,
            end_ns=n + 5,
            status="error" if n == 2 else "ok",
            error="ValueError: no" if n == 2 else None,
            inputs={"q": n},
            outputs=None if n == 2 else "a" * n,
            usage=Usage(10, 1),
            cost=0.5,
        )
        for n in range(1, COUNT + 1)
    ]
    store.append(runs)
    return [run.trace_id for run in runs]


@evaluator(key="length", version="1")
def length(outputs):
    return float(len(outputs))


def attached(store, given=None, judges=(length,), **settings):
    given = Filter(name="answer") if given is None else given
    return evaluate(given, None, judges, **{"attach": True, "store": store, "progress": False, **settings})


def scores(store, trace_id):
    return [(one.key, one.outcome, one.score) for one in store.trace(trace_id).feedback]


@pytest.mark.parametrize("listed", [False, True])
def test_feedback_hangs_on_the_very_traces(store, live, listed):
    summary = attached(store, store.traces(name="answer") if listed else None).summary()
    assert (summary.runs, summary.failed, summary["length"].n, summary["length"].mean) == (5, 1, 4, 3.25)
    assert scores(store, live[2]) == [("length", "score", 3.0)]
    assert scores(store, live[1]) == [("length", "skip", None)]
    assert (len(store.traces(limit=100).items), summary.cost, summary.tokens) == (5, 2.5, 55)


def test_no_experiment_is_kept(store, live):
    experiment = attached(store)
    assert store.experiments() == []
    assert {row.trace.trace_id for row in experiment.rows()} == set(live)
    assert [row.scores for row in experiment.rows() if row.outputs == "aaa"] == [{"length": 3.0}]
    with pytest.raises(ValueError, match="attach=True stores no experiment"):
        experiment.evaluate(["exact"])


def test_a_repeat_overwrites_what_was_said(store, live):
    before = {id: store.trace(id).feedback for id in live if attached(store)}
    attached(store)
    assert [[one.id for one in store.trace(id).feedback] for id in live] == [
        [one.id for one in before[id]] for id in live
    ]


def test_with_resume_nobody_looks_again_unless_something_failed_or_changed(store, live):
    looked = []

    def judge(version):
        @evaluator(key="seen", version=version)
        def seen(outputs):
            looked.append(outputs)
            return 1 / 0 if outputs == "aaa" and len(looked) < 5 else True

        return seen

    attached(store, judges=[judge("1")])
    summary = attached(store, judges=[judge("1")], resume=True).summary()
    assert (sorted(looked), summary["seen"].n, summary["seen"].failed) == (["a", "aaa", "aaa", "aaaa", "aaaaa"], 4, 0)
    attached(store, judges=[judge("1"), length], resume=True)
    assert len(looked) == 5
    assert len(scores(store, live[0])) == 2
    attached(store, judges=[judge("2")], resume=True)
    assert len(looked) == 9


def test_two_evaluators_of_one_kind_are_told_apart(store, live):
    attached(store, judges=[get_evaluator("contains", key="a", text="a")])
    both = [get_evaluator("contains", key="a", text="a"), get_evaluator("contains", key="b", text="b")]
    summary = attached(store, judges=both, resume=True).summary()
    assert (summary["a"].n, summary["b"].n) == (4, 4)


def task(q):
    return q


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda store: evaluate(Filter(name="answer"), task, store=store, attach=True), "pass task=None"),
        (lambda store: attached(store, [{"q": 1}]), "requires live traces: a Filter or a list of traces, got"),
        (
            lambda store: attached(store, evaluate([{"q": 1}], task, store=store)),
            "score the runs of an experiment with",
        ),
        (lambda store: attached(store, repetitions=2), "attach=True requires repetitions=1, got 2"),
        (lambda store: attached(store, resume="abc"), "use resume=True, got 'abc'"),
        (
            lambda store: attached(store, summary_evaluators=[evaluator(summary=True)(lambda outputs: 1)]),
            "scores all cases together",
        ),
    ],
)
def test_what_has_no_trace_to_attach_to_is_refused(store, live, call, said):
    with pytest.raises(ValueError, match=said):
        call(store)


def test_a_trace_that_is_not_in_the_store_is_named(store, live):
    run = Run(trace_id="f" * 32, span_id="f" * 16, name="elsewhere")
    with pytest.raises(NotFound, match=f"trace {'f' * 32} is not in the store"):
        attached(store, [store.trace(live[0]), Trace(run, (run,))])


@pytest.mark.parametrize("listed", [True, False])
def test_no_new_traces_are_no_error(store, live, listed):
    given = store.traces(name="nothing") if listed else Filter(name="nothing")
    summary = attached(store, given).summary()
    assert (summary.runs, dict(summary)) == (0, {})


def test_it_stops_and_goes_on_without_an_experiment(store, live, capfd):
    def interrupted(outputs):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attached(store, judges=[interrupted])
    assert "continue with evaluate(…, attach=True, resume=True)" in capfd.readouterr().err
    assert store.experiments() == []


def test_a_server_is_a_store_too(store, live):
    with Server(store) as server, connect(server.url) as there:
        assert attached(there).summary()["length"].n == 4
    assert scores(store, live[4]) == [("length", "score", 5.0)]
