"""Names, ranges and thresholds of the source document, next to those of the registry."""

from dataclasses import replace
from math import inf

import pytest

from looped_cases import loop_over
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.evaluators import Experiment, Judge, Metric, evaluate, evaluator, get_evaluator, judge
from spanwise.evaluators.interface import evaluator_registry, get_default_metrics, get_factory, list_specs
from spanwise.evaluators.interface.evaluator_spec import DOCUMENT_METRICS

SOURCE = "H2O Eval Studio: "
OURS = {"faithfulness_nli"}  # a variant that the document does not have
SPECS = [spec for spec in list_specs() if spec.source.startswith(SOURCE) and spec.id not in OURS]
JUDGE = Judge(model="m", base_url="http://127.0.0.1:1/v1", api_key="x")


def unit_vectors(texts):
    return [[1.0]] * len(texts)


def make(spec, **options):
    """An evaluator of the document with its default parameters."""
    options |= {"judge": JUDGE} if spec.judge else {}
    options |= {"prompt": "{outputs}"} if spec.id == "byop" else {}
    return get_evaluator(spec.id, **options)


def test_the_document_has_forty_evaluators_with_130_metrics_and_each_has_an_entry():
    keys = [metric.key for spec in SPECS for metric in spec.metrics]
    assert (len(SPECS), len(keys)) == (40, 130)
    assert sorted(keys) == sorted(DOCUMENT_METRICS)


@loop_over("spec", SPECS, ids=lambda spec: spec.id)
def test_entries_and_registry_agree_or_differ_for_a_stated_reason(spec):
    for metric in spec.metrics:
        entry = DOCUMENT_METRICS[metric.key]
        assert (metric.document, metric.display_name) == (entry, entry.display_name)
        assert metric.higher_is_better == entry.higher_is_better
        assert bool(entry.range_reason) == (metric.range != entry.range)
        without = metric.threshold is None  # with every model
        assert bool(entry.threshold_reason) == without
        assert without or metric.threshold == entry.threshold
        model = getattr(get_factory(spec.id), "DOCUMENT", None)
        assert entry.model == ("" if without else model or "")


def test_twenty_metrics_differ_with_the_documents_models():
    differing = {
        metric.key: sorted({"range", "threshold"} & metric.document_differences.keys())
        for spec in SPECS
        for metric in spec.metrics
        if metric.document_differences
    }
    assert len(differing) == 20
    assert differing["perplexity"] == ["range", "threshold"]


@loop_over("spec", SPECS, ids=lambda spec: spec.id)
def test_what_differs_has_a_reason_with_default_parameters_too(spec):
    metrics = make(spec).metrics
    assert [metric.key for metric in metrics] == [metric.key for metric in spec.metrics]
    if spec.id != "byop":
        assert metrics == get_default_metrics(spec)
    for metric in metrics:
        assert metric.display_name
        differing = metric.document_differences
        assert [differing[name] for name in differing if name.endswith("_reason") and not differing[name]] == []
        assert metric.to_dict().get("document", {}) == differing


@loop_over("spec", SPECS, ids=lambda spec: spec.id)
def test_facts_of_the_document_are_no_part_of_versions(spec, monkeypatch):
    version, chosen = make(spec).version, make(spec, metric_threshold="document").version
    known = evaluator_registry.get_registration(spec.id)
    bare = replace(spec, metrics=tuple(replace(metric, document=None, display_name="") for metric in spec.metrics))
    monkeypatch.setitem(evaluator_registry._registrations, spec.id, replace(known, spec=bare))
    assert make(spec).metrics[0].document is None
    assert make(spec).version == version == chosen


def test_versions_are_those_from_before_the_names():
    versions = {"agent_sanity": "79951a6a", "bleu": "47f36507", "classification": "3a0bb4dc", "pii": "ab0a2eca"}
    versions |= {"encoding_guardrail": "dc9c35f4", "json_schema": "6e25d9d0", "looping": "329f371d"}
    versions |= {"rouge": "e1cc9de3", "sensitive_data": "1f5e3247", "text_matching": "ef8a2e55"}
    assert {id: get_evaluator(id).version for id in versions} == versions


@loop_over("spec", SPECS, ids=lambda spec: spec.id)
def test_the_documents_thresholds_can_be_chosen(spec):
    for metric in make(spec, metric_threshold="document").metrics:
        assert metric.threshold == metric.document.threshold
        assert "threshold" not in metric.document_differences
        assert metric.is_reachable == (metric.key != "perplexity")


@pytest.mark.parametrize("id", ["exact", "faithfulness_nli", "latency"])
@pytest.mark.parametrize("option", ["threshold", "metric_threshold"])
def test_an_evaluator_without_a_document_refuses_its_threshold(id, option):
    with pytest.raises(ValueError, match=rf"evaluator '{id}' has no threshold in a source document"):
        get_evaluator(id, **{option: "document"})


def test_other_texts_are_no_threshold():
    with pytest.raises(ValueError, match="threshold must be a number"):
        get_evaluator("pii", metric_threshold="documents")


def test_a_threshold_that_no_score_can_meet_is_stated_in_the_record(tmp_path):
    made = get_evaluator("perplexity", model=lambda pairs: [[-1.0]] * len(pairs), metric_threshold="document")
    with SQLiteStore(tmp_path / "a.db") as store:
        done = evaluate([{"inputs": "q", "outputs": "a b"}], None, [made], store=store, progress=False)
        again = Experiment.load(store, done.id)
    [metric] = again.record.evaluators[0]["metrics"]
    assert (metric["threshold"], metric["unreachable"], metric["range"]) == (0.5, True, [1.0, None])
    assert metric["document"]["range"] == [0.0, None]
    assert again.record.evaluators[0]["origin"]["init_parameters"]["metric_threshold"] == "document"
    assert "no score of 'perplexity' can meet its threshold of 0.5: scores are at least 1" in str(again)
    assert again.summary()["perplexity"].passed == 0.0


def test_a_threshold_of_another_model_is_stated_in_the_record():
    made = get_evaluator("context_relevancy_soft", model=unit_vectors, metric_threshold="document")
    assert {metric.to_dict()["threshold_model"] for metric in made.metrics} == {"bge-small-en"}
    assert len(made.remarks) == 1
    assert "chosen for bge-small-en, which is not the model in use" in made.remarks[0]
    own = get_evaluator("groundedness", model="bge-small-en", metric_threshold="document")
    assert "threshold_model" not in own.metrics[0].to_dict()
    assert own.remarks == ()


def test_a_given_threshold_is_printed_next_to_the_documents():
    given = get_evaluator("pii", metric_threshold=0.9).metrics[0]
    assert given.to_dict()["document"] == {"threshold": 0.5, "threshold_reason": "another threshold was set"}
    assert "document" not in get_evaluator("pii").metrics[0].to_dict()
    infinite = get_evaluator("gptscore_mt", model=lambda pairs: [[-1.0]] * len(pairs)).metrics[0]
    assert infinite.to_dict()["document"]["threshold"] == "Infinity"


def test_names_follow_renamed_keys_and_belong_to_no_other_evaluator():
    renamed = get_evaluator("pii", key="mine")
    assert [metric.display_name for metric in renamed.metrics][:2] == ["No PII leakages (pass)", "PII leakages (fail)"]
    for own in (evaluator(lambda outputs: 1, key="pii"), judge("pii", "{outputs}", judge=JUDGE)):
        assert own.metrics[0].document is None
        assert "display_name" not in own.metrics[0].to_dict()


def test_a_display_name_survives_the_record():
    metric = Metric("polite", display_name="Politeness", threshold=0.5)
    assert Metric.from_dict(metric.to_dict()).display_name == "Politeness"
    assert metric.to_dict().keys() == {"key", "range", "higher_is_better", "threshold", "primary", "display_name"}


@pytest.mark.parametrize(
    ("threshold", "rising", "reachable"),
    [(None, True, True), (1.0, True, True), (1.5, True, False), (0.0, False, True), (-0.5, False, False)],
)
def test_a_threshold_is_reachable_if_some_score_meets_it(threshold, rising, reachable):
    metric = Metric("k", higher_is_better=rising, threshold=threshold)
    assert metric.is_reachable == reachable
    assert replace(metric, range=None).is_reachable
    assert replace(metric, range=(-inf, inf)).is_reachable


def test_the_html_of_an_experiment_shows_display_names_below_keys(tmp_path):
    evil = evaluator(lambda outputs: 1, metrics=[Metric("evil", display_name="<script>alert(1)</script>")])
    rows = [{"inputs": "q", "outputs": "a", "reference_outputs": "a"}]
    with SQLiteStore(tmp_path / "a.db") as store:
        done = evaluate(rows, None, ["pii", "classification", "exact", evil], store=store, progress=False)
        pages = [done.to_html(), Experiment.load(store, done.id).to_html()]
    for page in pages:
        assert "<td>pii ↑<br><small>No PII leakages (pass)</small></td>" in page
        assert "<th>pii<br><small>No PII leakages (pass)</small></th>" in page
        assert "classification_accuracy (all) ↑<br><small>Accuracy</small>" in page
        assert "<td>exact ↑</td>" in page
        assert "<script" not in page
