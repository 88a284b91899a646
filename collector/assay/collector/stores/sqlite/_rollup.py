"""What a list of traces shows of a trace, computed from the facts of all its spans. Pure.

- Root: the earliest span without a parent, else the earliest whose parent has not arrived.
- Tokens and cost are counted once: those of a span count unless a span below it carries its own. A chain that repeats
  the sum of its model calls, or a framework's span around a client's span of the same call, so adds nothing.
- Start and end span the whole trace; session, user and metadata are the root's, else the first that any span has.
- Complete (`1`, `0`, or None where only a quiet period can tell), dropped, calls sent: see `_counted`. What was dropped
  counts as arrived there: such a trace is settled, and no list calls it complete.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from assay.collector.filters import EVALUATOR
from assay.collector.stores.sqlite._codec import Counts, Fact
from assay.collector.stores.sqlite._values import dumps


class RollUp(NamedTuple):
    """Columns of `traces`, under their names."""

    span_count: int
    error_count: int
    project: str
    environment: str
    name: str
    kind: str
    status: str
    error: str | None
    start_ns: int
    end_ns: int
    input_tokens: int
    output_tokens: int
    cost: float | None
    session_id: str | None
    user_id: str | None
    experiment_id: str | None
    example_id: str | None
    repetition: int
    complete: int | None
    names: str
    kinds: str
    models: str | None
    tags: str | None
    metadata: str | None
    size: int  # bytes of all payloads before compression
    probability: float | None  # of having been kept by head sampling, as the root says
    partial: bool
    rooted: bool  # a span without a parent is here
    judgement: bool  # an evaluator's own, or marked as a monitor's anywhere
    dropped: int  # spans that their sender has dropped, as far as it could say so
    calls_sent: int  # with the trace's context in them
    running: int = 0  # open runs: no facts of theirs are here, see `_running`


def roll_up(facts: Sequence[Fact]) -> tuple[RollUp, int]:
    """The roll-up of a trace, and the position of its root in `facts` (at least one).

    Once per trace and request: one loop over the facts, and nothing looked into that no fact has.
    """
    by_id: dict[str, Fact] = {}
    names: dict[str, None] = {}
    kinds: dict[str, None] = {}
    with_tokens: list[Fact] = []
    with_cost: list[Fact] = []
    with_model: list[Fact] = []
    errors = size = 0
    start_ns, end_ns = facts[0].start_ns, facts[0].end_ns
    tagged = counted = marked = rooted = False
    for fact in facts:
        by_id[fact.span_id] = fact
        names[fact.name] = kinds[fact.kind] = None
        errors += fact.status == "error"
        size += fact.size
        start_ns, end_ns = min(start_ns, fact.start_ns), max(end_ns, fact.end_ns)
        if fact.input_tokens is not None:
            with_tokens.append(fact)
        if fact.cost is not None:
            with_cost.append(fact)
        if fact.model is not None:
            with_model.append(fact)
        tagged = tagged or bool(fact.tags)
        counted = counted or fact.local_root is not None
        marked = marked or fact.said.judgement
        rooted = rooted or fact.parent_id is None
    position = _root(facts, by_id)
    root = facts[position]
    experiment_id = root.experiment_id or next((f.experiment_id for f in facts if f.experiment_id), None)
    tokens, costs = _lowest(with_tokens, by_id), _lowest(with_cost, by_id)
    complete, dropped, calls_sent = _counted(facts, by_id) if counted else (None, 0, 0)
    rolled = RollUp(
        span_count=len(facts),
        error_count=errors,
        project=root.project,
        environment=root.environment,
        name=root.name,
        kind=root.kind,
        status=root.status,
        error=root.error,
        start_ns=start_ns,
        end_ns=end_ns,
        input_tokens=sum([fact.input_tokens or 0 for fact in tokens]),
        output_tokens=sum([fact.output_tokens or 0 for fact in tokens]),
        cost=sum([fact.cost or 0.0 for fact in costs]) if costs else None,
        session_id=root.session_id or next((fact.session_id for fact in facts if fact.session_id), None),
        user_id=root.user_id or next((fact.user_id for fact in facts if fact.user_id), None),
        experiment_id=experiment_id,
        example_id=root.example_id or next((fact.example_id for fact in facts if fact.example_id), None),
        repetition=root.repetition,
        complete=complete,
        names=dumps(list(names)),
        kinds=dumps(list(kinds)),
        models=_models(with_model, tokens, costs) if with_model else None,
        tags=dumps(list(dict.fromkeys(tag for fact in facts for tag in fact.tags))) if tagged else None,
        metadata=root.metadata or next((fact.metadata for fact in facts if fact.metadata), None),
        size=size,
        probability=root.said.probability,
        partial=root.said.partial,
        rooted=rooted,
        judgement=marked or (root.kind == EVALUATOR and experiment_id is None),
        dropped=dropped,
        calls_sent=calls_sent,
    )
    return rolled, position


def _root(facts: Sequence[Fact], by_id: Mapping[str, Fact]) -> int:
    if len(facts) == 1:
        return 0
    tops = [i for i, fact in enumerate(facts) if fact.parent_id is None]
    tops = tops or [i for i, fact in enumerate(facts) if fact.parent_id not in by_id]
    return min(tops or range(len(facts)), key=lambda i: (facts[i].start_ns, facts[i].span_id))


def _lowest(facts: list[Fact], by_id: Mapping[str, Fact]) -> list[Fact]:
    """Those of the facts that have none of the others below them."""
    if len(facts) < 2:
        return facts
    above: set[str] = set()
    for fact in facts:
        parent = fact.parent_id
        while parent is not None and parent not in above and parent in by_id:
            above.add(parent)
            parent = by_id[parent].parent_id
    return [fact for fact in facts if fact.span_id not in above] or facts[:1]


def _models(facts: Sequence[Fact], tokens: Sequence[Fact], costs: Sequence[Fact]) -> str:
    """`{model: [calls, input tokens, output tokens, cost]}`; tokens and cost that were counted, under their model."""
    by_model: dict[str | None, list[float]] = {}
    for fact in facts:
        by_model.setdefault(fact.model, [0, 0, 0, 0.0])[0] += 1
    for fact in tokens:
        if fact.model is not None:
            by_model[fact.model][1] += fact.input_tokens or 0
            by_model[fact.model][2] += fact.output_tokens or 0
    for fact in costs:
        if fact.model is not None:
            by_model[fact.model][3] += fact.cost or 0.0
    return dumps(by_model)


def _counted(facts: Sequence[Fact], by_id: Mapping[str, Fact]) -> tuple[int | None, int, int]:
    """Whether every span that was started has arrived or was dropped; how many were dropped; how many calls went out.

    Every local root says how many spans were started below it and are still open; a span that ends after its local
    root says it anew. 1: for each local root the latest counts have arrived, nothing is open and as many spans are
    here. 0: some are known to be missing. None: no counts tell, as in foreign traces, below a parent that has not
    arrived, or where calls went out of which nothing has come (a service that traces nothing, or one that is on its
    way); then only a quiet period can.
    """
    groups = _groups(facts, by_id)
    named = [members for root, members in groups.items() if root is not None]
    latest = [_latest(members) for members in named]
    dropped, calls_sent = sum([counts.dropped for counts in latest]), sum([counts.calls_sent for counts in latest])
    if not all(map(_has_arrived, named, latest)):
        return 0, dropped, calls_sent
    untold = None in groups or any(fact.parent_id is not None and fact.parent_id not in by_id for fact in facts)
    untold = untold or (calls_sent > 0 and _waits_for_calls(facts, named, latest))
    return None if untold else 1, dropped, calls_sent


_NOT_SAID = Counts(started=0, open=1)


def _latest(members: Sequence[Fact]) -> Counts:
    """What was said last; counts never fall, but for that of the open ones."""
    counts = [fact.counts for fact in members if fact.counts is not None]
    return max(counts, key=lambda c: (c.started, -c.open, c.dropped, c.calls_sent)) if counts else _NOT_SAID


def _has_arrived(members: Sequence[Fact], counts: Counts) -> bool:
    return counts.open == 0 and len(members) + counts.dropped >= counts.started


def _waits_for_calls(facts: Sequence[Fact], named: Sequence[Sequence[Fact]], latest: Sequence[Counts]) -> bool:
    """Whether some local root has sent out more calls than local roots of other processes have arrived below it."""
    callers = [fact.parent_id for fact in facts if fact.local_root == fact.span_id and fact.parent_id is not None]
    for members, counts in zip(named, latest, strict=True):
        if counts.calls_sent:
            ours = {fact.span_id for fact in members}
            if sum(caller in ours for caller in callers) < counts.calls_sent:
                return True
    return False


def _groups(facts: Sequence[Fact], by_id: Mapping[str, Fact]) -> dict[str | None, list[Fact]]:
    """Facts by local root: the one that they name, else that of the nearest span above that names one."""
    groups: dict[str | None, list[Fact]] = {}
    for fact in facts:
        groups.setdefault(_local_root(fact, by_id), []).append(fact)
    return groups


def _local_root(fact: Fact, by_id: Mapping[str, Fact]) -> str | None:
    seen: set[str] = set()
    current: Fact | None = fact
    while current is not None and current.local_root is None and current.span_id not in seen:
        seen.add(current.span_id)
        current = by_id.get(current.parent_id) if current.parent_id is not None else None
    return current.local_root if current is not None else None
