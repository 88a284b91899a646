"""Traces that a rule has decided on and scored, as a monitor leaves them."""

from spanwise.collector.records import Claim, ClaimResult, Decision, DecisionBatch, Feedback, Run, Target

KEY = "quality"


def make_run(number, start_ns, **fields):
    """Return the root run of a trace of one millisecond."""
    values = {"trace_id": f"{number:032x}", "span_id": "1" * 16, "name": "answer", **fields}
    return Run(**{"start_ns": start_ns, "end_ns": start_ns + 1_000_000, **values})


def score_traces(store, rule, traces, *, key=KEY):
    """Decide and score traces: (run, score or label, probability) each."""
    store.append([run for run, _, _ in traces])
    lease = store.acquire(f"decide {rule.name}", "me", 600)
    rows = tuple(
        Decision(
            project=rule.project,
            rule=rule.name,
            version=rule.version,
            target=Target(trace_id=run.trace_id),
            verdict="waiting",
            probability=probability,
            change=10**9,
        )
        for run, _, probability in traces
    )
    batch = DecisionBatch(
        project=rule.project,
        rule=rule.name,
        version=rule.version,
        after=store.cursor(rule.name, rule.version, project=rule.project),
        upto=str(store.latest_change()),
        rows=rows,
        token=lease.token,
    )
    assert store.decide(batch) == [True]
    by_id = {run.trace_id: score for run, score, _ in traces}
    while claimed := store.claim(rule.name, rule.version, "me", 600, project=rule.project, limit=500):
        store.finish(*(_finish(rule, row, by_id[row.target.trace_id], key) for row in claimed))


def _finish(rule, row, score, key):
    given = {"label": score} if isinstance(score, str) else {"score": score}
    return ClaimResult(
        claim=Claim(project=rule.project, rule=rule.name, version=rule.version, target=row.target, number=row.claim),
        verdict="scored",
        states={key: {"state": "scored"}},
        reported=(key,),
        feedback=(Feedback(target=row.target, key=key, rule=rule.name, claim=row.claim, **given),),
        read_change=10**9,
    )
