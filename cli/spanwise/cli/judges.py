"""`spanwise judges`: how far to trust judges, by people's votes on cases that were drawn at random."""

from __future__ import annotations

import getpass
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spanwise.cli._common import conditions, console, emit, harmless, notes, opened, short, table
from spanwise.cli._judges import is_file, judge, tell
from spanwise.cli._options import JsonOption, StoreOption, WhereOption
from spanwise.collector.errors import Refused
from spanwise.collector.filters import Filter
from spanwise.collector.records import Feedback, Target, paged
from spanwise.collector.statistics import DRAWN, Sample, draw, value_of
from spanwise.collector.stores import Store, votes_of

if TYPE_CHECKING:
    from spanwise.evaluators import Evaluator

app = typer.Typer(
    help="Judges: people's votes on what they judge, and how far the two agree.",
    no_args_is_help=True,
    epilog="Example: `spanwise judges label evals/mine.py:polite -n 40`",
)

Named = Annotated[
    str, typer.Argument(help="A judge of a file, evals/mine.py:polite, or the key of a judge's feedback.")
]
Count = Annotated[int, typer.Option("-n", "--cases", min=1, help="How many cases the sample has in all.")]
OfExperiment = Annotated[str | None, typer.Option("--experiment", help="Only its runs: an id, or a name.")]
Sessions = Annotated[bool, typer.Option("--sessions", help="Vote on whole sessions.")]
Balance = Annotated[bool, typer.Option("--balance", help="As many cases of each verdict of the judge.")]
Seed = Annotated[int, typer.Option(help="Another seed draws other cases; the same draws the same again.")]
Author = Annotated[str | None, typer.Option(help="Who votes; else the name of the account.")]
Under = Annotated[str | None, typer.Option("--votes", help="The key of people's votes, if it is another.")]
Version = Annotated[str | None, typer.Option(help="A version of the judge; else that of the file, or the newest.")]
Missing = Annotated[bool, typer.Option("--missing", help="Let the judge look at voted cases that it has not judged.")]
Differing = Annotated[int, typer.Option(help="Also show so many cases on which judge and people differ.")]

_PAGE = 5_000


@app.command()
def label(
    named: Named,
    cases: Count = 40,
    experiment: OfExperiment = None,
    where: WhereOption = None,
    sessions: Sessions = False,
    balance: Balance = False,
    seed: Seed = 0,
    author: Author = None,
    at: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Draw cases at random and vote on each with one key, without seeing what the judge has said.

    Drawn is from what the judge has scored, or, if that is nothing, from all traces. Each vote is stored at once, with
    the probability of its case; the same command goes on where it was left, a larger -n adds cases.

    Example: `spanwise judges label evals/mine.py:polite -n 40 --experiment first`
    """
    from spanwise.cli._label import Ballot, keys_of

    key, evaluator = _known(named)
    voter = (author or getpass.getuser()).strip()
    if not voter:
        raise Refused("votes of people without a name are not told apart: give --author")
    if sessions and (where or experiment):
        raise Refused("--sessions are drawn from all: --where and --experiment speak of traces")
    out = notes if as_json else console
    with opened(at) as store:
        terms = _terms(store, where, experiment)
        lot = " ".join([*sorted(terms), *["balanced"] * balance])
        earlier = [vote for vote in votes_of(store, key, most=100_000) if DRAWN in vote.metadata]
        alike = [vote for vote in earlier if _lot(vote) == lot]
        size = (cases, seed)
        sample = _drawn(store, key, evaluator, conditions(terms), size, alike, sessions=sessions, balance=balance)
        mine = {vote.target for vote in earlier if vote.author == voter}
        waiting = [drawn for drawn in sample.drawn if drawn.target not in mine]
        ballot = Ballot(store, key, voter, sample, {"seed": seed, "lot": lot}, out)
        try:
            ballot.hold(waiting, keys_of(_scale(evaluator)))
        finally:
            _settle(store, key, sample, lot)
        done = len(mine & sample.of.keys()) + len(ballot.votes.keys() - mine)
        out.print(f"{len(ballot.votes)} votes kept under {key!r}, {done} of {len(sample.drawn)} cases", markup=False)
    if as_json:
        emit(map(asdict, ballot.votes.values()))


@app.command()
def calibrate(
    named: Named,
    votes: Under = None,
    version: Version = None,
    missing: Missing = False,
    differing: Differing = 0,
    experiment: OfExperiment = None,
    at: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """How far a judge agrees with people, and the mean that people would have given.

    Example: `spanwise judges calibrate evals/mine.py:polite --differing 5`
    """
    from spanwise.evaluators import calibrate, corrected

    key, evaluator = _known(named)
    if missing and evaluator:
        tell([evaluator])
    with opened(at) as store:
        found = calibrate(evaluator or key, votes or key, store=store, version=version, missing=missing)
        try:
            filter = conditions(_terms(store, None, experiment))
            mean: Any = corrected(key, votes or key, store=store, where=filter, version=found.version)
            said, plain = str(mean), asdict(mean)
        except ValueError as error:
            said, plain = f"no corrected mean: {error}", {"why": str(error)}
    if as_json:
        emit([{**found.to_dict(), "corrected": plain}])
        return
    console.print(harmless(str(found)), harmless(said), sep="\n", markup=False, highlight=False, soft_wrap=True)
    if differing and found.differing:
        rows = found.differing[:differing]
        cells = [(_about(it.target), f"{it.judged}", f"{it.people}", short(it.why or "", 200)) for it in rows]
        table(("trace", "judge", "people", "the judge's reasons"), cells)


def _known(named: str) -> tuple[str, Evaluator | None]:
    """The key of a judge, and the judge itself if a file is named."""
    if not is_file(named):
        return named, None
    evaluator = judge(named)
    return evaluator.key, evaluator


def _scale(evaluator: Evaluator | None) -> Any:
    """What a judge may say, {label: worth}; None for yes and no."""
    scale: Any = getattr(evaluator.function, "_scale", None) if evaluator else None
    return getattr(scale, "scores", None)


def _terms(store: Store, where: list[str] | None, experiment: str | None) -> list[str]:
    return [*(where or ()), *([f"experiment={store.experiment(experiment).id}"] if experiment else ())]


def _drawn(
    store: Store,
    key: str,
    evaluator: Evaluator | None,
    filter: Filter,
    size: tuple[int, int],
    earlier: list[Feedback],
    *,
    sessions: bool,
    balance: bool,
) -> Sample:
    """The sample of a size and a seed. Raises `Refused` where there is nothing to draw from."""
    scored = partial(_scored, store, key, evaluator.version if evaluator else None, filter, sessions=sessions)
    there = next(scored(), None) is not None
    if balance and not there:
        raise Refused(f"the judge {key!r} has scored nothing of this, so there are no verdicts to balance")
    strata = sorted({verdict for _, verdict in scored()}) if balance else ()
    if len(strata) > size[0]:
        raise Refused(f"the judge gives {len(strata)} different verdicts, more than {size[0]} cases to draw")
    source = scored() if there else _stored(store, filter, sessions=sessions)
    sample = draw(source, *size, voted=[vote.target for vote in earlier], strata=strata)
    if not sample.drawn:
        raise Refused(f"nothing that is stored passes, so there is nothing to vote on under {key!r}")
    how = f"as many of each of the judge's {len(strata)} verdicts" if balance else "at random"
    what = f"{sum(sample.cases.values())} {'sessions' if sessions else 'cases'}"
    of = f"that {key!r} has scored" if there else f"that are stored; {key!r} has scored none of them"
    notes.print(f"{len(sample.drawn)} drawn {how} from {what} {of}", markup=False, highlight=False, soft_wrap=True)
    return sample


def _scored(
    store: Store, key: str, version: str | None, filter: Filter, *, sessions: bool
) -> Iterator[tuple[Target, str]]:
    """What one version of the judge has scored, once, with its newest verdict. Without a version it is the newest."""
    seen: set[Target] = set()
    ask = partial(store.feedbacks, None if sessions else filter, key=key, source="model", limit=_PAGE)
    for feedback in paged(ask):
        version = feedback.version if version is None else version
        target = feedback.target
        whole = target.session_id is not None if sessions else target.trace_id is not None and target.span_id is None
        if not whole or feedback.version != version or target in seen:
            continue
        seen.add(target)
        if feedback.outcome == "score":
            yield target, str(value_of(feedback))


def _stored(store: Store, filter: Filter, *, sessions: bool) -> Iterator[tuple[Target, str]]:
    if sessions:
        for session in paged(partial(store.sessions, filter, limit=1_000)):
            yield Target(session_id=session.session_id), ""
        return
    for trace in paged(partial(store.traces, filter, limit=1_000)):
        yield Target(trace_id=trace.trace_id), ""


def _settle(store: Store, key: str, sample: Sample, lot: str) -> None:
    """Tell every drawn vote how likely its case was: of a stratum all alike, as many as have a vote among its cases.

    A vote that was drawn from another lot, such as one experiment where this is all of them, may have been likelier
    there: the same seed draws of a part what it draws of the whole, and more, so that the likelier drawing says all.
    """
    votes = [vote for vote in votes_of(store, key, most=100_000) if isinstance(vote.metadata.get(DRAWN), dict)]
    strata = Counter(sample.of[target] for target in {vote.target for vote in votes} if target in sample.of)
    changes = {}
    for vote in votes:
        stratum, drawn = sample.of.get(vote.target), vote.metadata[DRAWN]
        if stratum is None:
            continue
        probability = sample.probability(stratum, strata[stratum])
        if _lot(vote) != lot:
            probability = max(probability, drawn.get("probability") or 0.0)
        if drawn.get("probability") != probability:
            changes[vote.id] = {"metadata": {**vote.metadata, DRAWN: {**drawn, "probability": probability}}}
    if changes:
        store.change_feedback(changes)


def _lot(vote: Feedback) -> str:
    """What a vote's case was drawn from: the conditions of `spanwise judges label`."""
    drawn = vote.metadata[DRAWN]
    return str(drawn.get("lot", "")) if isinstance(drawn, dict) else ""


def _about(target: Target) -> str:
    return target.trace_id or target.session_id or target.experiment_id or ""
