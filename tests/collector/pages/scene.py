"""Traces and experiments as an application leaves them."""

from __future__ import annotations

from collector.making import child, run
from spanwise.collector.records import Document, Event, Example, Experiment, Feedback, Run, Target, Usage
from spanwise.collector.stores import Store

EXAMPLES = (
    Example(inputs={"question": "What is a list?"}, reference_outputs="A mutable sequence."),
    Example(inputs={"question": "What is a tuple?"}, reference_outputs="An immutable sequence."),
)
STACK = 'Traceback (most recent call last):\n  File "answer.py", line 4, in read\nTimeoutError: too slow\n'


def rag(store: Store, *, failing: bool = False, **fields: object) -> Run:
    """One answered question: answer → retrieve, read. Returns the root."""
    error = "TimeoutError: too slow" if failing else None
    status = "error" if failing else "ok"
    root = run(
        inputs={"question": "Why?"}, outputs=None if failing else "Because.", status=status, error=error, **fields
    )
    found = (Document("First passage.", "doc-1", 0.9), Document("Second passage.", "doc-2", 0.4, {"page": 3}))
    below = {name: fields[name] for name in ("experiment_id", "example_id", "session_id") if name in fields}
    retrieve = child(root, "retrieve", kind="retriever", documents=found, **below)
    events = (Event("exception", root.start_ns, {"exception.stacktrace": STACK}),) if failing else ()
    read = child(
        root,
        "read",
        kind="llm",
        model="gpt-4o-mini",
        usage=Usage(100, 20),
        cost=0.002,
        events=events,
        error=error,
        status=status,
        start_ns=root.start_ns + 2,
        inputs={"messages": [{"role": "user", "content": "Why?"}]},
        **below,
    )
    store.append([root, retrieve, read])
    return root


def outcomes(store: Store, trace_id: str) -> None:
    """One score, one error and one skip."""
    target = Target(trace_id=trace_id)
    store.add_feedback(
        [
            Feedback(target=target, key="concise", score=0.25, comment="rather long"),
            Feedback(target=target, key="grounded", outcome="error", error="RuntimeError: judge is away"),
            Feedback(target=target, key="recall", outcome="skip", comment="no expected documents"),
        ]
    )


def experiment(store: Store, name: str, scores: tuple[float | None, ...]) -> Experiment:
    """An experiment over two examples; None stands for an evaluator that failed."""
    store.save_examples("sequences", EXAMPLES)
    made = Experiment(id=f"id-{name}", name=name, dataset="sequences", dataset_version=1, status="finished")
    store.save_experiment(made)
    for example, score in zip(EXAMPLES, scores, strict=True):
        root = rag(store, experiment_id=made.id, example_id=example.id)
        target = Target(trace_id=root.trace_id)
        failed = {"outcome": "error", "error": "ValueError: no answer"} if score is None else {"score": score}
        store.add_feedback([Feedback(target=target, key="exact", **failed)])  # type: ignore[arg-type]
    return made
