"""Thresholds: infinite ones on their way through JSON and stores, and whose they are."""

from __future__ import annotations

from contextlib import contextmanager
from math import inf

import orjson
import pytest

from looped_cases import loop_over
from spanwise.collector.client import HTTPStore
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.evaluators import Experiment, Metric, evaluate, evaluator, from_dict, get_evaluator, monitor
from spanwise.evaluators.monitors.rule_loading import rule_from_data


@contextmanager
def sqlite(folder):
    with SQLiteStore(folder / "spanwise.db") as store:
        yield store


@contextmanager
def http(folder):
    with SQLiteStore(folder / "spanwise.db") as kept, Server(kept) as server, HTTPStore(server.url) as store:
        yield store


def through_json(value):
    return orjson.loads(orjson.dumps(value))


@pytest.mark.parametrize("threshold", [inf, -inf, 0.5, None])
def test_a_threshold_survives_json(threshold):
    metric = Metric("loss", (-inf, inf), higher_is_better=False, threshold=threshold)
    again = Metric.from_dict(through_json(metric.to_dict()))
    assert (again.key, again.threshold, again.higher_is_better) == ("loss", threshold, False)


@pytest.mark.parametrize("option", ["threshold", "metric_threshold"])
def test_an_evaluator_with_an_infinite_threshold_is_made_again_from_json(option):
    plain = through_json(get_evaluator("latency", **{option: inf}).to_dict())
    assert plain["init_parameters"] == {option: "Infinity"}
    assert from_dict(plain).metrics[0].threshold == inf


def test_a_parameter_that_is_infinite_survives_json_and_a_text_that_says_infinity_stays_a_text():
    limited = from_dict(through_json(get_evaluator("has_span", max_seconds=inf).to_dict()))
    assert limited.origin["init_parameters"] == {"max_seconds": inf}
    assert from_dict(through_json(get_evaluator("contains", text="Infinity").to_dict())).function.text == "Infinity"


@pytest.mark.parametrize("opened", [sqlite, http])
def test_of_an_experiment_that_is_read_back_all_scores_are_below_infinity(opened, tmp_path):
    loss = evaluator(lambda outputs: len(outputs), key="loss", range=(0, inf), higher_is_better=False, threshold=inf)
    with opened(tmp_path) as store:
        made = evaluate([{"inputs": {"text": "a"}}], lambda text: text, evaluators=[loss], store=store, progress=False)
        assert made.record.evaluators[0]["metrics"][0]["threshold"] == "Infinity"
        assert Experiment.load(store, made.id).summary()["loss"].passed == 1.0


@pytest.mark.parametrize("opened", [sqlite, http])
def test_a_rule_of_data_has_its_infinite_threshold(opened, tmp_path):
    rule = monitor("fast", evaluators=[get_evaluator("latency", threshold=inf)]).record
    with opened(tmp_path) as store:
        store.save_rule(rule)
        [read] = store.rules()
    assert rule_from_data(read).evaluators[0].metrics[0].threshold == inf
    assert read.version == rule.version != monitor("fast", evaluators=[get_evaluator("latency")]).record.version


@evaluator(key="long", min_cases=3)
def long(outputs):
    return len(outputs) > 1


@pytest.mark.parametrize(("count", "few"), [(2, {"long": 3}), (3, {})])
def test_fewer_scores_than_it_takes_are_told_below_the_mean(count, few, tmp_path):
    rows = [{"inputs": {"text": "a" * (place + 1)}} for place in range(count)]
    with sqlite(tmp_path) as store:
        made = evaluate(rows, lambda text: text, evaluators=[long], store=store, progress=False)
        again = Experiment.load(store, made.id)
    assert made.summary().few == again.summary().few == few
    assert ("long has too few scores: it requires 3 (min_test_cases)" in str(again)) == bool(few)


@pytest.mark.parametrize("least", [-1, 2.5, True, "many"])
def test_how_many_it_takes_is_a_whole_number(least):
    with pytest.raises(ValueError, match="min_cases must be an integer >= 0"):
        get_evaluator("exact", min_test_cases=least)


def modelled():
    from spanwise.evaluators import interface

    return [spec for spec in interface.list_specs() if spec.model and not spec.judge]  # judges embed by `embed=`


@loop_over("spec", modelled(), ids=lambda spec: spec.id)
def test_with_another_model_than_the_documents_nothing_passes_until_a_threshold_is_given(spec):
    given = {"similarity": 0.5} if spec.id == "step_alignment" else {}
    made = get_evaluator(spec.id, model=lambda texts: [[1.0]] * len(texts), **given)
    assert {metric.threshold for metric in made.metrics} == {None}
    primary = next(metric for metric in made.metrics if metric.primary)
    fitted = get_evaluator(spec.id, model=lambda texts: [[1.0]] * len(texts), threshold=primary.range[1], **given)
    assert {metric.key: metric.threshold for metric in fitted.metrics}[primary.key] == primary.range[1]


@pytest.mark.parametrize("id", ["answer_semantic_similarity", "answer_sem_sent_similarity", "groundedness"])
def test_the_documents_thresholds_are_those_of_its_model(id):
    from spanwise.evaluators import interface

    document = interface.get_factory(id).DOCUMENT
    assert {metric.threshold for metric in get_evaluator(id, model=document).metrics} == {0.75}
    assert {metric.threshold for metric in get_evaluator(id).metrics} == {None}
