"""A rule on live traces, from the feed to the feedback."""

from __future__ import annotations

from assay.collector.stores import Store

from evaluators.watched import decisions, rule, scores, verdicts, watching, whole


def test_a_trace_is_scored_once(store: Store) -> None:
    with watching(store, rule()) as monitor:
        monitor.step()
        store.append([whole(1)])
        assert monitor.step() > 0
        assert monitor.step() == 0
    assert scores(store, 1) == {"length": 2.0}
    (kept,) = store.feedbacks(key="length")
    (decision,) = decisions(store)
    assert (kept.rule, kept.claim, kept.evaluator) == ("r", decision.claim, "length")
    assert verdicts(store) == {"1": "scored"}
