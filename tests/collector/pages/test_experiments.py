import re
from dataclasses import replace

import pytest

from collector.making import run
from collector.pages.scene import EXAMPLES, experiment
from spanwise.collector.records import Experiment, Feedback, Target


@pytest.mark.process
def test_a_store_without_experiments_says_how_to_make_one(client):
    assert "evaluate(" in client.get("/experiments").text
    assert "spanwise demo" in client.get("/compare").text
    assert "No datasets yet" in client.get("/datasets").text


def test_the_list_shows_means_with_n_and_failed(store, client):
    experiment(store, "first", (1.0, None))
    text = client.get("/experiments").text
    assert '<span class="mean">100 %</span>' in text
    assert '<span>n 1</span><span class="failed">1 failed</span>' in text


@pytest.mark.process
def test_labels_are_told_beside_the_scores_and_are_no_zeros(store, client):
    made = experiment(store, "first", (1.0, 1.0))
    for summary in store.traces(experiment=made.id):
        target = Target(trace_id=summary.trace_id)
        store.add_feedback([Feedback(target=target, key="exact", label="cannot tell", rule="judge")])
    for address in ("/experiments", "/experiments/id-first"):
        text = client.get(address).text
        assert "<span>n 2</span><span>2 labels</span>" in text
        assert '<span class="mean">100 %</span>' in text


def test_a_key_with_labels_only_shows_how_often_and_no_n_of_nothing(store, client):
    made = experiment(store, "first", (1.0, 1.0))
    summary = store.traces(experiment=made.id).items[0]
    store.add_feedback([Feedback(target=Target(trace_id=summary.trace_id), key="tone", label="kind")])
    text = client.get("/experiments/id-first").text
    assert '<span class="labels"><span>kind <b>1</b></span></span>' in text
    assert '<span class="tally"><span>1 label</span></span>' in text


@pytest.mark.process
def test_one_that_died_is_not_shown_as_running(store, client):
    store.save_experiment(replace(experiment(store, "first", (1.0, 1.0)), status="running", seen_ns=1))
    for address in ("/experiments", "/experiments/id-first"):
        assert "no heartbeat since 1970-01-01" in client.get(address).text


def test_one_experiment_shows_example_by_example(store, client):
    experiment(store, "first", (1.0, 0.0))
    text = client.get("/experiments/id-first").text
    assert text.index("A mutable sequence.") < text.index("An immutable sequence.")
    assert text.count('data-key="reference"') == 2


def test_rows_can_be_sorted_by_a_key(store, client):
    experiment(store, "first", (1.0, 0.0))
    up, down = (client.get(f"/experiments/id-first?sort={sort}").text for sort in ("exact", "-exact"))
    assert up.index("An immutable sequence.") < up.index("A mutable sequence.")
    assert down.index("A mutable sequence.") < down.index("An immutable sequence.")


def test_rows_without_a_value_come_last_either_way(store, client):
    experiment(store, "first", (None, 0.0))
    for sort in ("exact", "-exact"):
        text = client.get(f"/experiments/id-first?sort={sort}").text
        assert text.index("An immutable sequence.") < text.index("A mutable sequence.")


def test_rows_with_a_label_follow_those_with_numbers_either_way(store, client):
    labelled = experiment(store, "first", (None, -0.5))
    first = next(trace for trace in store.traces(experiment=labelled.id) if trace.example_id == EXAMPLES[0].id)
    store.add_feedback([Feedback(target=Target(trace_id=first.trace_id), key="exact", label="unsure")])
    for sort in ("exact", "-exact"):
        text = client.get(f"/experiments/id-first?sort={sort}").text
        assert text.index("An immutable sequence.") < text.index("A mutable sequence.")


def test_rows_can_be_narrowed_to_failures(store, client):
    experiment(store, "first", (1.0, None))
    text = client.get("/experiments/id-first?feedback_key=exact&feedback_op=failed").text
    assert "An immutable sequence." in text
    assert "A mutable sequence." not in text


def test_experiments_are_compared_example_by_example(store, client):
    experiment(store, "first", (1.0, 0.0))
    experiment(store, "second", (1.0, 1.0))
    text = client.get("/compare?ids=id-first,id-second").text
    assert re.search(r'class="delta moved">\+50 points<', text)
    assert "<span>1 higher</span><span>0 lower</span><span>1 same</span>" in text
    assert "1 of 2 examples" in text


def test_a_key_whose_good_side_is_known_is_better_or_worse(store, client):
    first, second = experiment(store, "first", (1.0, 0.0)), experiment(store, "second", (0.0, 0.0))
    metrics = [{"key": "exact", "higher_is_better": False}]
    store.save_experiment(replace(second, evaluators=({"key": "exact", "metrics": metrics},)))
    text = client.get(f"/compare?ids={first.id},{second.id}").text
    assert "<span>0 worse</span><span>1 better</span><span>1 same</span>" in text
    assert 'class="delta moved">−50 points<' in text
    assert '<span class="conclusion inconclusive">inconclusive' in text  # two pairs are too few


def many(store, name, scores, *, failing=0, rising=True):
    """An experiment over as many examples as there are scores; the last so many failed, and have none."""
    metrics = [{"key": "k", "higher_is_better": rising}]
    store.save_experiment(made := Experiment(id=name, name=name, dataset="d", evaluators=({"metrics": metrics},)))
    for n, score in enumerate(scores):
        failed = n >= len(scores) - failing
        status = {"status": "error", "error": "ValueError: no"} if failed else {}
        store.append([root := run(experiment_id=name, example_id=str(n), **status)])
        if not failed:
            store.add_feedback([Feedback(target=Target(trace_id=root.trace_id), key="k", score=score)])
    return made


@pytest.mark.parametrize(("rising", "word"), [(True, "better"), (False, "worse")])
def test_what_is_more_than_chance_has_a_colour_an_arrow_and_a_word(store, client, rising, word):
    many(store, "a", [0.0] * 10, rising=rising), many(store, "b", [1.0] * 10, rising=rising)
    text = client.get("/compare?ids=a,b").text
    assert f'class="delta moved {word}">+100 points<' in text
    assert re.search(f'<span class="conclusion {word}"><span aria-hidden="true">▲</span> {word}\\s*</span>', text)
    assert f"<span>over 10 pairs</span><span>10 {word}</span>" in text
    assert "<span>p 0.002</span>" in text


def test_tasks_that_failed_are_compared_too(store, client):
    many(store, "a", [0.5] * 12), many(store, "b", [0.5] * 12, failing=8)
    text = client.get("/compare?ids=a,b").text
    table = text[text.index("<tbody>") :]
    row = table[table.index(">task_ok<") : table.index(">k<")]
    assert 'class="delta moved worse">−66.7 points<' in row
    assert "<span>over 12 pairs</span><span>0 better</span><span>8 worse</span>" in row
    assert "8 of 12 examples" in text


@pytest.mark.process
def test_where_no_task_failed_there_is_no_row_of_them(store, client):
    many(store, "a", [0.5] * 3), many(store, "b", [1.0] * 3)
    assert ">task_ok<" not in client.get("/compare?ids=a,b").text


def test_experiments_of_one_name_are_told_apart(store, client):
    first = many(store, "aaaaaaaaaa", [0.0])
    (
        store.save_experiment(replace(first, name="ci")),
        store.save_experiment(replace(many(store, "b" * 9, [1.0]), name="ci")),
    )
    assert "ci (aaaaaaaa) vs ci (bbbbbbbb)" in client.get(f"/compare?ids={first.id},{'b' * 9}").text


def test_settings_that_differ_are_shown(store, client):
    for name, k in (("first", 1), ("second", 5)):
        made = experiment(store, name, (1.0, 1.0))
        store.save_experiment(replace(made, metadata={"k": k, "same": "x", "setup": {"deep": k}}))
    text = client.get("/compare?ids=id-first,id-second").text
    assert '<th scope="row">k</th>' in text
    assert ">same</th>" not in text
    assert "<dt>deep</dt>" in client.get("/experiments/id-first").text


def test_failures_take_no_part_in_differences(store, client):
    experiment(store, "first", (1.0, None))
    experiment(store, "second", (1.0, 1.0))
    text = client.get("/compare?ids=id-first,id-second").text
    assert "<span>0 higher</span><span>0 lower</span><span>1 same</span>" in text
    assert "No differences" in text


def test_examples_that_one_side_alone_has_scored_are_counted(store, client):
    experiment(store, "first", (1.0, None))
    experiment(store, "second", (1.0, 1.0))
    assert "<span>1 same</span>" in (text := client.get("/compare?ids=id-first,id-second").text)
    assert ">1 unpaired</span>" in text


def test_an_interval_and_a_p_stand_beside_what_moved(store, client):
    experiment(store, "first", (1.0, 0.0))
    experiment(store, "second", (1.0, 1.0))
    text = client.get("/compare?ids=id-first,id-second").text
    assert "<span>95 %: −56.3 points to +100 points</span><span>p 1.000</span>" in text
    assert "unpaired" not in text


def test_two_sides_without_a_common_example_have_no_difference(store, client):
    experiment(store, "first", (1.0, None))
    experiment(store, "second", (None, 1.0))
    text = client.get("/compare?ids=id-first,id-second").text
    assert '<td class="c-change" data-key="difference"><span class="muted">–</span></td>' in text


def test_the_most_different_example_comes_first_by_the_share_of_each_keys_range(store, client):
    first, second = experiment(store, "first", (0.0, 0.0)), experiment(store, "second", (0.4, 0.0))
    for made, score in ((first, 0.0), (second, 100.0)):
        ids = {trace.example_id: trace.trace_id for trace in store.traces(experiment=made.id)}
        for example, length in zip(EXAMPLES, (1000.0, score), strict=False):
            store.add_feedback([Feedback(target=Target(trace_id=ids[example.id]), key="length", score=length)])
    text = client.get(f"/compare?ids={first.id},{second.id}").text.split("Examples that differ")[1]
    assert "2 of 2 examples" in text
    assert text.index("A mutable sequence.") < text.index("An immutable sequence.")


def test_too_few_or_too_many_or_unknown_experiments(store, client):
    experiment(store, "first", (1.0, 0.0))
    assert "Choose two or more" in client.get("/compare?ids=id-first").text
    assert client.get("/compare?ids=id-first,nope").status_code == 404
    assert client.get("/compare?ids=a,b,c,d,e,f,g,h,i,j,k").status_code == 400


def test_a_dataset_shows_its_examples_and_versions(store, client):
    experiment(store, "first", (1.0, 0.0))
    assert "/datasets/sequences" in client.get("/datasets").text
    text = client.get("/datasets/sequences").text
    for words in ("What is a list?", "An immutable sequence.", "/experiments/id-first"):
        assert words in text
    assert client.get("/datasets/sequences?version=9").status_code == 404
    assert client.get("/datasets/sequences?version=x").status_code == 400


def timed(store, name):
    """An experiment with a latency in seconds, as its evaluator has declared it, and a share."""
    metrics = [{"key": "latency", "higher_is_better": False, "range": [0.0, None]}]
    made = experiment(store, name, (0.25, 0.75))
    evaluators = ({"metrics": metrics, "origin": {"type": "latency"}},)
    store.save_experiment(replace(made, evaluators=evaluators))
    for summary in store.traces(experiment=made.id):
        store.add_feedback([Feedback(target=Target(trace_id=summary.trace_id), key="latency", score=0.0125)])
    return made


@pytest.mark.process
@pytest.mark.parametrize("address", ["/experiments", "/experiments/id-first", "/compare?ids=id-first,id-second"])
def test_a_latency_has_a_unit_and_is_no_bar_of_nought_to_one(store, client, address):
    timed(store, "first"), timed(store, "second")
    text = client.get(address).text
    assert '<span class="mean">12 ms</span>' in text
    assert 'class="fill" width="50.0"' in text  # the mean of what was not declared
    assert 'class="fill" width="1.2"' not in text


def test_a_difference_of_latencies_has_a_unit_too(store, client):
    timed(store, "first"), timed(store, "second")
    (trace, _) = store.traces(experiment="id-second")
    store.add_feedback([Feedback(target=Target(trace_id=trace.trace_id), key="latency", score=0.0325)])
    text = client.get("/compare?ids=id-first,id-second").text
    assert '<span class="delta moved">+10 ms</span>' in text
    assert "<span>no interval</span>" in text  # one of two pairs differs


def test_experiments_to_compare_with_say_when_and_which(store, client):
    first = experiment(store, "first", (1.0, 0.0))
    for id in ("aaaaaaaabbb", "ccccccccddd"):
        store.save_experiment(replace(first, id=id, name="ci"))
    text = client.get("/experiments/id-first").text
    assert '<span class="mono muted">aaaaaaaa</span>' in text
    assert '<span class="mono muted">cccccccc</span>' in text


def test_tasks_that_failed_stand_before_the_scores(store, client):
    many(store, "a", [1.0] * 4, failing=1)
    text = client.get("/experiments/a").text
    assert text.index('<h2 title="task_ok">task_ok</h2>') < text.index('<h2 title="k">')
    assert '<span class="mean">75 %</span>' in text


def test_display_names_are_shown_next_to_keys(store, client):
    made = experiment(store, "first", (1.0, 1.0))
    metric = {"key": "exact", "display_name": "Same answer <script>"}
    store.save_experiment(replace(made, evaluators=({"key": "exact", "metrics": [metric]},)))
    text = client.get("/experiments/id-first").text
    assert '<h2 title="exact">exact</h2><p class="muted small">Same answer &lt;script&gt;</p>' in text
    for address in ("/experiments", "/experiments/id-first", "/compare?ids=id-first,id-second"):
        experiment(store, "second", (1.0, 0.0))
        assert 'title="exact: Same answer &lt;script&gt;"' in client.get(address).text
    for odd in (None, 3, ["a"], {"b": 1}, "n" * 5_000):
        store.save_experiment(
            replace(made, evaluators=({"key": "exact", "metrics": [{"key": "exact", "display_name": odd}]},))
        )
        text = client.get("/experiments/id-first").text
        assert (f'title="exact: {"n" * 100}"' if isinstance(odd, str) else 'title="exact"') in text


def test_what_judges_took_stands_beside_what_the_tasks_took(store, client):
    made = experiment(store, "first", (1.0, 1.0))
    totals = {"judge_calls": 1234, "judge_cached": 2, "judge_input_tokens": 5000, "judge_cost": 0.25, "judge_odd": "x"}
    store.save_experiment(replace(made, metadata={**made.metadata, "totals": totals}))
    text = client.get("/experiments/id-first").text
    assert "1,234 calls, 2 cached, 5,000 tokens, $0.25" in text


@pytest.mark.parametrize("totals", ["text", {"judge_calls": "<b>"}, {"judge_calls": None}, [1]])
def test_totals_that_are_none_are_passed_over(store, client, totals):
    made = experiment(store, "first", (1.0, 1.0))
    store.save_experiment(replace(made, metadata={"totals": totals}))
    assert "Judges" not in client.get("/experiments/id-first").text
