"""What goes over the wire in several requests is cut where nothing that belongs together is parted."""

from collector.making import child, run
from spanwise.collector.client.http_client import split_by_trace
from spanwise.collector.records import Feedback, Target


def said(root, count=1):
    return [Feedback(target=Target(trace_id=root.trace_id), key=f"k{n}", score=1) for n in range(count)]


def test_what_fits_is_one_lot_as_it_came():
    root = run()
    runs, feedback = [root, child(root)], said(root)
    assert list(split_by_trace(runs, feedback, 3)) == [(runs, feedback)]
    assert list(split_by_trace([], [], 3)) == []


def test_traces_stay_whole_with_their_feedback():
    roots = [run() for _ in range(5)]
    sent = list(split_by_trace(roots, [one for root in roots for one in said(root)], 4))
    assert [len(runs) for runs, _ in sent] == [2, 2, 1]
    for runs, feedback in sent:
        assert {run.trace_id for run in runs} == {one.target.trace_id for one in feedback}


def test_the_root_of_a_huge_trace_comes_last_with_its_feedback():
    root = run()
    sent = list(split_by_trace([root, *(child(root) for _ in range(7))], said(root, 2), 3))
    assert [len(runs) for runs, _ in sent] == [3, 3, 2]
    assert root in sent[-1][0]
    assert [len(feedback) for _, feedback in sent] == [0, 0, 2]


def test_feedback_alone_comes_through():
    outcomes = [Feedback(target=Target(session_id="s"), key=f"k{n}", score=1) for n in range(5)]
    assert [one for _, feedback in split_by_trace([], outcomes, 2) for one in feedback] == outcomes
