"""Random odd traces with feedback, and random questions about them, for comparing one store with another."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any, NamedTuple

from collector.making import SECOND, START, child, run
from spanwise.collector.filters import NEGATABLE_CONDITIONS, SESSION_COLUMNS, TRACE_COLUMNS, Filter
from spanwise.collector.records import Document, Feedback, Run, Target, Usage, iterate_pages
from spanwise.collector.stores import Store

HOUR = 3_600 * SECOND
# Text that means something in SQL, JSON, LIKE patterns, query parameters or the wire format
HOSTILE = (
    *("it's", '"quoted"', "a\\b", "\\N", "100 %_", "x' OR '1'='1", "'; DROP TABLE traces; --", "{p0:String}", "{p0}"),
    *("tab\there", "line\nbreak", "$$", "/*", "null", "0", "true", "é", "É", "e\u0301", "語", "😀", "ß"),
)
NAMES = ("answer", "search", "chat", *HOSTILE)
WORDS = (
    *"where is my parcel it left the depot in oslo on monday payment paid pay refund e-mail 42 3.5 x1 under_score".split(),
    *(
        "Dépôt",
        "ÉCOLE",
        "naïve",
        "straße",
        "ﬁne",
        "Σίσυφος",
        "Москва",
        "返品の方法を教えて",
        "电池安全吗",
        "환불은 언제",
        "RAG检索",
    ),
    *("don't", "a/b", "“curly”", "<b>", "100%", "…"),
)
SEARCHES = (
    *("parcel", "pay*", "pay", "refund oslo", '"left the"', '"the left"', '"in osl', "e-mail", "42", "3.5", "depot"),
    *(
        "ecole",
        "naive",
        "STRASSE",
        "straße",
        "москва",
        "返品",
        "方法",
        "电池",
        "환불",
        "rag检索",
        "under score",
        "don't",
    ),
    *('"on monday"', "par", "monday parcel pay*", "a/b", "curly", "absent", "x1 42"),
)
KEYS = ("good", "tone", "it's", "k.1", "語")
KINDS = ("chain", "llm", "tool", "retriever", "agent", "evaluator")


class Odd(NamedTuple):
    """Traces and feedback on them."""

    runs: list[Run]
    feedback: list[Feedback]


def make_odd(count: int, seed: int) -> Odd:
    """Return traces that start at different times, with few and odd values, of which many are missing."""
    pick = random.Random(seed)
    runs: list[Run] = []
    feedback: list[Feedback] = []
    for number in range(count):
        root = _make_root(pick, number)
        of_trace = [root]
        for place in range(pick.choice((0, 0, 1, 1, 2, 5))):
            of_trace.append(_make_child(pick, pick.choice(of_trace), place))
        pick.shuffle(of_trace)
        if pick.random() < 0.05 and len(of_trace) > 1:
            of_trace = [each for each in of_trace if each is not root]  # the root never arrives
        runs += of_trace
        feedback += [_make_feedback(pick, pick.choice(of_trace)) for _ in range(pick.choice((0, 0, 1, 2, 4)))]
    return Odd(runs, feedback)


def _maybe(pick: random.Random, values: Any, share: float = 0.4) -> Any:
    return pick.choice(values) if pick.random() < share else None


def _some_text(pick: random.Random) -> str:
    return " ".join(pick.choices(WORDS, k=pick.randrange(1, 8)))


def _content(pick: random.Random) -> Any:
    text = _some_text(pick)
    return pick.choice(
        (None, text, text, {"question": text, "n": pick.randrange(50)}, [text, {"more": _some_text(pick)}])
    )


def _labels(pick: random.Random) -> dict[str, Any]:
    return {
        "status": pick.choice(("ok", "ok", "ok", "unset", "cancelled")),
        "tags": tuple(pick.sample(HOSTILE, pick.choice((0, 0, 1, 2)))),
        "inputs": _content(pick),
        "outputs": _content(pick),
        "prompt_name": _maybe(pick, ("greet", "it's"), 0.2),
        "prompt_version": _maybe(pick, ("1", "2", "é"), 0.2),
        "agent_name": _maybe(pick, ("planner", "{p0:String}"), 0.2),
        "finish_reasons": pick.choice(((), (), ("stop",), ("stop", "a,b"))),
        "time_to_first_token_ms": _maybe(pick, (0.0, 99.9, 100.0, 250.5, 1e4), 0.3),
        **({"status": "error", "error": pick.choice(_ERRORS)} if pick.random() < 0.15 else {}),
    }


_ERRORS = (
    *(
        "Timeout: it's late",
        "Timeout 100 %_",
        "ValueError: at 0x7f12ab34cd\nline 2",
        "ValueError: at 0x7f99ab34cd\nline 3",
    ),
    *("ÄRGER", "é\\", "Task-17 failed", "Task-18 failed"),
)


def _make_root(pick: random.Random, number: int) -> Run:
    start = START + number * 97 * SECOND + pick.randrange(SECOND)
    metadata = {
        key: pick.choice(("t1", "it's", 1, 1.5, True, None, "", 1e20, -0.0))
        for key in pick.sample(("a", "b", "é.x"), pick.choice((0, 1, 2)))
    }
    return run(
        pick.choice(NAMES),
        trace_id=f"{pick.getrandbits(128):032x}",
        start_ns=start,
        end_ns=start + pick.choice((0, 1, 250_000_000, SECOND, 90 * SECOND)),
        kind=pick.choice(KINDS),
        project=pick.choice(("default", "default", "shop", "it's")),
        environment=pick.choice(("default", "prod", "{p0}")),
        metadata=metadata,
        session_id=_maybe(pick, ("s1", "s2", "s3", *HOSTILE[:5])),
        user_id=_maybe(pick, ("ann", "bob", *HOSTILE[5:9])),
        experiment_id=_maybe(pick, ("e1", "e2"), 0.1),
        example_id=_maybe(pick, ("x1", "x2"), 0.1),
        resource={"service.version": pick.choice(("1.0", "it's", ""))} if pick.random() < 0.5 else {},
        **_labels(pick),
    )


def _make_child(pick: random.Random, parent: Run, place: int) -> Run:
    usage = Usage(pick.randrange(100), pick.randrange(10)) if pick.random() < 0.5 else None
    return child(
        parent,
        pick.choice(NAMES),
        kind=pick.choice(KINDS),
        start_ns=parent.start_ns + place + 1,
        end_ns=parent.start_ns + pick.choice((place + 1, SECOND // 2, 100 * SECOND)),
        project=parent.project,
        environment=parent.environment,
        session_id=parent.session_id,
        user_id=parent.user_id,
        model=_maybe(pick, ("m-1", "m'2", "語"), 0.5),
        usage=usage,
        cost=_maybe(pick, (0.0, 0.1, 0.2, 0.30000000000000004, 0.000001), 0.4),
        documents=(Document("a", "1", 0.5, {}),) if pick.random() < 0.2 else (),
        **_labels(pick),
    )


def _make_feedback(pick: random.Random, about: Run) -> Feedback:
    target = Target(trace_id=about.trace_id)
    if pick.random() < 0.4:
        target = replace(target, span_id=about.span_id, document=_maybe(pick, (0, 1), 0.5))
    outcome = pick.choice(("score", "score", "score", "score", "error", "skip"))
    score = pick.choice((0.0, 1.0, 0.5, True, False, 0.1 + 0.2, None)) if outcome == "score" else None
    label = (
        pick.choice(("kind", "it's", "yes", "no"))
        if outcome == "score" and (score is None or pick.random() < 0.3)
        else None
    )
    source = pick.choice(("code", "model", "human"))
    return Feedback(
        target=target,
        key=pick.choice(KEYS),
        score=score,
        label=label,
        outcome=outcome,
        error="failed" if outcome == "error" else None,
        source=source,
        author=_maybe(pick, ("ann", "bob"), 0.6) if source == "human" else None,
        rule=_maybe(pick, ("r1", "r2"), 0.3) if source != "human" else None,
        created_ns=START + pick.randrange(10**9),
        id=f"{pick.getrandbits(128):032x}",
    )


# Questions


def make_filter(pick: random.Random) -> dict[str, Any]:
    """Return one to three random conditions."""
    chosen = pick.sample(list(_CONDITIONS), pick.choice((1, 1, 2, 3)))
    return {name: _CONDITIONS[name](pick) for name in chosen}


_OPERATORS = ("<", "<=", "=", "!=", ">=", ">")


def _feedback_condition(pick: random.Random) -> tuple[tuple[str, str, float | str], ...]:
    if pick.random() < 0.4:
        return ((pick.choice(KEYS), pick.choice(("=", "!=")), pick.choice(("kind", "it's", "yes", "no"))),)
    return ((pick.choice(KEYS), pick.choice(_OPERATORS), pick.choice((0.0, 0.5, 1.0, 0.3, 0.1 + 0.2))),)


def _compare(*numbers: float) -> Any:
    return lambda pick: (pick.choice(_OPERATORS), pick.choice(numbers))


def _one_of(*values: Any) -> Any:
    return lambda pick: pick.choice(values)


_CONDITIONS: dict[str, Any] = {
    "project": _one_of("default", "shop", "it's", "none"),
    "environment": _one_of("default", "prod", "{p0}"),
    "since_ns": lambda pick: START + pick.randrange(80 * HOUR),
    "until_ns": lambda pick: START + pick.randrange(80 * HOUR),
    "name": _one_of(*NAMES),
    "kind": _one_of(*KINDS),
    "any_name": _one_of(*NAMES),
    "any_kind": _one_of(*KINDS),
    "status": _one_of("ok", "error", "unset", "cancelled"),
    "error": _one_of("timeout", "TIMEOUT late", "%_", "it's", "ärger", "Ä", "\\", "0x7f"),
    "model": _one_of("m-1", "m'2", "語", "m"),
    "prompt": _one_of("greet", "it's"),
    "prompt_version": _one_of("1", "2", "é"),
    "agent": _one_of("planner", "{p0:String}"),
    "finish_reason": _one_of("stop", "a,b", "a"),
    "version": _one_of("1.0", "it's"),
    "latency_ms": _compare(0.0, 1000.0, 250.0, 0.000001),
    "time_to_first_token_ms": _compare(99.9, 100.0, 0.0),
    "tokens": _compare(0.0, 50.0, 51.5),
    "cost": _compare(0.1, 0.3, 0.30000000000000004, 0.0),
    "tags": lambda pick: tuple(pick.sample(HOSTILE, pick.choice((1, 1, 2)))),
    "metadata": lambda pick: {
        pick.choice(("a", "b", "é.x")): pick.choice(("t1", "it's", "1", "1.5", "true", "", "1.0e+20", "0.0"))
    },
    "session": _one_of("s1", "s2", *HOSTILE[:5]),
    "user": _one_of("ann", *HOSTILE[5:9]),
    "feedback": _feedback_condition,
    "document_feedback": _feedback_condition,
    "missing": lambda pick: tuple(pick.sample(KEYS, pick.choice((1, 2)))),
    "untried": lambda pick: tuple(pick.sample(KEYS, pick.choice((1, 2)))),
    "failed": lambda pick: (pick.choice(KEYS),),
    "skipped": lambda pick: (pick.choice(KEYS),),
    "text": _one_of(*SEARCHES),
    "experiment": _one_of("e1", "", "none"),
    "experiments": _one_of(("e1", "e2"), ("e2", "none")),
    "example": _one_of("x1", "none"),
    "excluded": lambda pick: tuple(
        (name, pick.choice(_NEGATED[name])) for name in pick.sample(NEGATABLE_CONDITIONS, pick.choice((1, 2)))
    ),
}
_NEGATED: dict[str, Any] = {
    "status": ("ok", "error", "unset"),
    "kind": KINDS,
    "any_kind": KINDS,
    "model": ("m-1", "m'2"),
    "tags": HOSTILE,
    "project": ("default", "it's"),
    "environment": ("prod",),
    "session": ("s1", *HOSTILE[:5]),
    "user": ("ann",),
    "name": NAMES,
    "any_name": NAMES,
}
assert {field.name for field in fields(Filter)} - {*_CONDITIONS} == {"dataset", "complete", "trace_ids"}


def ask_lists(store: Store, pick: random.Random, conditions: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield questions about the traces that pass, each with its answer."""
    limit = pick.choice((60, 300, 1000))
    page = lambda cursor: store.traces(limit=limit, cursor=cursor, **conditions)  # noqa: E731
    yield f"traces, {limit} at a time", list(map(summarize, iterate_pages(page)))
    column = pick.choice((*TRACE_COLUMNS, *(f"feedback.{key}" for key in KEYS)))
    sort = pick.choice(("", "-")) + column
    by_number = lambda cursor: store.traces(sort=sort, limit=limit, cursor=cursor, **conditions)  # noqa: E731
    yield f"sorted by {sort}, {limit} at a time", [each.trace_id for each in iterate_pages(by_number)]
    sessions = lambda cursor: store.sessions(limit=limit, cursor=cursor, **conditions)  # noqa: E731
    yield "sessions", [_rounded(each) for each in iterate_pages(sessions)]
    by = pick.choice(("", "-")) + pick.choice(
        [column for column in SESSION_COLUMNS if column != "cost"]
    )  # equal costs may differ by rounding
    yield f"sessions by {by}", [_rounded(each) for each in store.sessions(sort=by, limit=1000, **conditions)]
    yield (
        "feedback",
        sorted(
            each.id for each in iterate_pages(lambda cursor: store.feedbacks(limit=limit, cursor=cursor, **conditions))
        ),
    )


GROUPS = (
    *(None, "project", "environment", "name", "model", "user", "session", "experiment", "error", "prompt"),
    *("prompt_version", "agent", "finish_reason", "time_to_first_token_ms", "tag", "version"),
)


def ask_sums(store: Store, pick: random.Random, conditions: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield questions about sums over the traces that pass, each with its answer."""
    group_by, bucket_ns = pick.choice(GROUPS), pick.choice((None, None, HOUR, 24 * HOUR, 90 * 60 * SECOND))
    buckets = store.aggregate(group_by=group_by, bucket_ns=bucket_ns, newest="all", **conditions)
    yield f"aggregate by {group_by} in {bucket_ns}", [_rounded_bucket(bucket) for bucket in buckets]


def summarize(summary: Any) -> dict[str, Any]:
    """Return the fields of a summary that do not depend on the order of arrival or the present time."""
    found = {field.name: getattr(summary, field.name) for field in fields(summary) if field.name != "complete"}
    for name in ("tags", "agents", "finish_reasons"):
        found[name] = sorted(found[name])
    found["prompts"] = {name: sorted(map(str, versions)) for name, versions in found["prompts"].items()}
    return found


def _rounded(record: Any) -> dict[str, Any]:
    return {field.name: _round(getattr(record, field.name)) for field in fields(record)}


def _round(value: Any) -> Any:
    return float(f"{value:.8g}") if isinstance(value, float) else value


def _rounded_bucket(bucket: Any) -> dict[str, Any]:
    return {**_rounded(bucket), "feedback": [_rounded(stats) for stats in bucket.feedback], "latency_error": 0}
