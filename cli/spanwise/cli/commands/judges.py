"""`spanwise judges`: label cases in the terminal, calibrate judges against the labels."""

from __future__ import annotations

import getpass
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.text import Text

from spanwise.cli.command_io import (
    JsonOption,
    StoreOption,
    WhereOption,
    build_filter,
    console,
    emit,
    error_console,
    open_store,
    print_note,
    print_table,
    shorten,
)
from spanwise.cli.evaluation_files import is_evaluator_file, print_judge_endpoints, resolve_evaluator
from spanwise.collector.errors import Refused
from spanwise.collector.filters import Filter
from spanwise.collector.records import Document, Feedback, Target, iterate_pages
from spanwise.collector.statistics import (
    DRAWN_METADATA,
    LabelSample,
    SampledCase,
    draw_label_sample,
    get_feedback_value,
)
from spanwise.collector.stores import Store, list_human_feedback
from spanwise.collector.terminal_escaping import escape_text, truncate_text

if TYPE_CHECKING:
    from spanwise.collector.records import Case
    from spanwise.evaluators import Evaluator


LabelValue = float | bool | str  # value of a label: a score, or a text

MAX_VALUE_CHARACTERS = 4_000  # characters shown per value
SHOWN_FIELDS = ("history", "inputs", "documents", "outputs", "reference_outputs")
_YES_NO: Mapping[str, tuple[str, LabelValue]] = {"y": ("yes", True), "n": ("no", False)}


@dataclass(frozen=True, slots=True)
class LabelKeys:
    """Keys on the keyboard for the labels: {key: (text, value)}. In addition, `s` skips, `b` goes back, `q` quits."""

    votes: Mapping[str, tuple[str, LabelValue]]

    def __str__(self) -> str:
        labels = [f"{key} {label}" if key != label else key for key, (label, _) in self.votes.items()]
        return " · ".join([*labels, "s skip", "b back", "q quit"])


def make_label_keys(scores: Mapping[str | int, Any] | None) -> LabelKeys:
    """Return the keyboard keys for the labels of a scale: y and n for boolean values, otherwise one digit per label.

    Raises `ValueError` for more than nine labels.
    """
    if scores is None or all(isinstance(value, bool) for value in scores.values()):
        labels = [str(label) for label in scores] if scores else ["yes", "no"]
        return LabelKeys(
            {key: (label, value) for label, (key, (_, value)) in zip(labels, _YES_NO.items(), strict=True)}
        )
    if len(scores) > 9:
        raise ValueError(
            f"cannot label with single keys: the scale has {len(scores)} labels, but there are only the digits 1 to 9"
        )
    digits = all(isinstance(label, int) and 0 <= label <= 9 for label in scores)
    return LabelKeys(
        {
            str(label) if digits else str(number): (str(label), str(label) if value is None else value)
            for number, (label, value) in enumerate(scores.items(), 1)
        }
    )


class LabelingSession:
    """Labeling session of one person on a sample. Every label is stored at once."""

    def __init__(
        self, store: Store, key: str, author: str, sample: LabelSample, drawn: Mapping[str, Any], out: Console
    ) -> None:
        self._store = store
        self._key = key
        self._author = author
        self._sample = sample
        self._drawn = drawn
        self._out = out
        self.votes: dict[Target, Feedback] = {}

    def run(self, waiting: Sequence[SampledCase], keys: LabelKeys) -> None:
        """Show the cases one by one until all have been shown, the person quits, or the input ends."""
        index = 0
        while index < len(waiting):
            if not self._show(waiting[index].target, f"case {index + 1} of {len(waiting)}"):
                index += 1
                continue
            pressed = ""
            while pressed not in keys.votes and pressed not in ("s", "b", "q"):
                self._out.print(Text(f"{keys}: "), end="")
                pressed = read_key()
                self._out.print(Text(pressed if pressed.isprintable() else ""))
            if pressed == "q":
                return
            if pressed in keys.votes:
                self._store_label(waiting[index], keys.votes[pressed][1])
            index = max(0, index - 1) if pressed == "b" else index + 1

    def _store_label(self, case: SampledCase, label: LabelValue) -> None:
        planned = sum(stratum == case.stratum for stratum in self._sample.of.values())
        drawn: dict[str, Any] = {"probability": self._sample.probability(case.stratum, planned), **self._drawn}
        if case.stratum:
            drawn["among"] = case.stratum
        value: dict[str, Any] = {"label": label} if isinstance(label, str) else {"score": label}
        vote = Feedback(
            target=case.target,
            key=self._key,
            source="human",
            author=self._author,
            metadata={DRAWN_METADATA: drawn},
            **value,
        )
        self._store.add_feedback([vote])
        self.votes[case.target] = vote

    def _show(self, target: Target, title: str) -> bool:
        """Show a case, and return False if it no longer exists."""
        case = load_case(self._store, target)
        if case is None:
            return False
        self._out.rule(Text(f"{title} · {escape_text(target.trace_id or target.session_id or '')}"))
        for name in SHOWN_FIELDS:
            if (value := getattr(case, name)) not in (None, (), []):
                self._out.print(Text(name, "bold"))
                self._out.print(
                    Text(truncate_text(escape_text(_format_case_value(value)), MAX_VALUE_CHARACTERS)), soft_wrap=True
                )
        return True


def read_key() -> str:
    """Return the next key pressed in a terminal, or the next non-space character of a pipe. At the end of the input,
    return "q".
    """
    if sys.stdin.isatty():
        pressed: str = typer.getchar()
        return "q" if pressed in ("\x03", "\x04") else pressed.lower()
    while (letter := sys.stdin.read(1)) and letter.isspace():
        pass
    return letter.lower() or "q"


def load_case(store: Store, target: Target) -> Case | None:
    """Return the case that an evaluator would get for a target, or None if the target no longer exists."""
    from spanwise.evaluators import make_case

    if target.trace_id is not None:
        traces = store.many([target.trace_id])
        return make_case(traces[0]) if traces else None
    ids = [trace.trace_id for trace in store.traces(session=target.session_id, limit=200)]
    traces = store.many(ids)
    return make_case(traces) if traces else None


def _format_case_value(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, tuple) and value and isinstance(value[0], Document):
        return "\n\n".join(f"[{number}] {document.content}" for number, document in enumerate(value, 1))
    if isinstance(value, list) and all(isinstance(message, dict) and "role" in message for message in value):
        turns = [(message["role"], message.get("content")) for message in value]
        return "\n".join(
            f"{role}: {content if isinstance(content, str) else _format_case_value(content)}" for role, content in turns
        )
    return orjson.dumps(value, default=repr, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS).decode()


app = typer.Typer(
    help="Judges: collect human labels, and measure how well judges agree with them.",
    no_args_is_help=True,
    epilog="Example: `spanwise judges label evals/mine.py:polite -n 40`",
)

Named = Annotated[
    str, typer.Argument(help="Judge of a file, such as evals/mine.py:polite, or the key of a judge's feedback.")
]
Count = Annotated[int, typer.Option("-n", "--cases", min=1, help="Total number of cases in the sample.")]
OfExperiment = Annotated[str | None, typer.Option("--experiment", help="Only runs of this experiment: its id or name.")]
Sessions = Annotated[bool, typer.Option("--sessions", help="Label whole sessions.")]
Balance = Annotated[
    bool, typer.Option("--balance", help="Sample the same number of cases for each score of the judge.")
]
Seed = Annotated[int, typer.Option(help="Random seed; the same seed draws the same cases.")]
Author = Annotated[str | None, typer.Option(help="Name of the person who labels. Default: name of the account.")]
Under = Annotated[
    str | None, typer.Option("--votes", help="Key of the human labels, if it differs from the key of the judge.")
]
Version = Annotated[
    str | None, typer.Option(help="Version of the judge. Default: the version of the file, or the newest.")
]
Missing = Annotated[bool, typer.Option("--missing", help="Run the judge on labelled cases that it has not scored.")]
Differing = Annotated[
    int, typer.Option(help="Also show this number of cases on which the judge and the labels differ.")
]

_PAGE_ROWS = 5_000


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
    """Label a random sample of cases with one key each, without seeing the judge's scores.

    The sample is drawn from the cases that the judge has scored, or from all traces if there are none. Each label is
    stored at once, with the inclusion probability of its case. Repeat the command to continue, with a larger -n to
    add cases.

    Example: `spanwise judges label evals/mine.py:polite -n 40 --experiment first`
    """

    key, evaluator = _resolve_judge(named)
    voter = (author or getpass.getuser()).strip()
    if not voter:
        raise Refused("labels need an author; set --author")
    if sessions and (where or experiment):
        raise Refused("--where and --experiment select traces and cannot be combined with --sessions")
    out = error_console if as_json else console
    with open_store(at) as store:
        terms = _filter_terms(store, where, experiment)
        lot = " ".join([*sorted(terms), *["balanced"] * balance])
        earlier = [vote for vote in list_human_feedback(store, key, most=100_000) if DRAWN_METADATA in vote.metadata]
        same_source = [vote for vote in earlier if _sample_source(vote) == lot]
        size = (cases, seed)
        sample = _draw_sample(
            store, key, evaluator, build_filter(terms), size, same_source, sessions=sessions, balance=balance
        )
        labeled = {vote.target for vote in earlier if vote.author == voter}
        waiting = [drawn for drawn in sample.drawn if drawn.target not in labeled]
        session = LabelingSession(store, key, voter, sample, {"seed": seed, "lot": lot}, out)
        scale: Any = getattr(evaluator.function, "_scale", None) if evaluator else None
        try:
            session.run(waiting, make_label_keys(getattr(scale, "scores", None)))
        finally:
            _update_probabilities(store, key, sample, lot)
        done = len(labeled & sample.of.keys()) + len(session.votes.keys() - labeled)
        out.print(
            f"{len(session.votes)} labels stored with key {key!r}, {done} of {len(sample.drawn)} cases", markup=False
        )
    if as_json:
        emit(map(asdict, session.votes.values()))


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
    """Measure a judge's agreement with human feedback, and estimate the mean that people would have given.

    Example: `spanwise judges calibrate evals/mine.py:polite --differing 5`
    """
    from spanwise.evaluators import calibrate, corrected_mean

    key, evaluator = _resolve_judge(named)
    if missing and evaluator:
        print_judge_endpoints([evaluator])
    with open_store(at) as store:
        found = calibrate(evaluator or key, votes or key, store=store, version=version, missing=missing)
        try:
            filter = build_filter(_filter_terms(store, None, experiment))
            mean: Any = corrected_mean(key, votes or key, store=store, where=filter, version=found.version)
            text, plain = str(mean), asdict(mean)
        except ValueError as error:
            text, plain = f"no corrected mean: {error}", {"why": str(error)}
    if as_json:
        emit([{**found.to_dict(), "corrected": plain}])
        return
    console.print(escape_text(str(found)), escape_text(text), sep="\n", markup=False, highlight=False, soft_wrap=True)
    if differing and found.differing:
        rows = []
        for case in found.differing[:differing]:
            target = case.target.trace_id or case.target.session_id or case.target.experiment_id or ""
            rows.append((target, f"{case.judged}", f"{case.people}", shorten(case.why or "", 200)))
        print_table(("trace", "judge", "people", "the judge's reasons"), rows)


def _resolve_judge(named: str) -> tuple[str, Evaluator | None]:
    """Return the key of a judge, and the judge itself if a file is named."""
    if not is_evaluator_file(named):
        return named, None
    evaluator = resolve_evaluator(named)
    return evaluator.key, evaluator


def _filter_terms(store: Store, where: list[str] | None, experiment: str | None) -> list[str]:
    return [*(where or ()), *([f"experiment={store.experiment(experiment).id}"] if experiment else ())]


def _draw_sample(
    store: Store,
    key: str,
    evaluator: Evaluator | None,
    filter: Filter,
    size: tuple[int, int],
    earlier: list[Feedback],
    *,
    sessions: bool,
    balance: bool,
) -> LabelSample:
    """Draw a random sample of the given size and seed. Raises `Refused` if there are no cases."""
    scored = partial(_list_scored, store, key, evaluator.version if evaluator else None, filter, sessions=sessions)
    has_scores = next(scored(), None) is not None
    if balance and not has_scores:
        raise Refused(f"the judge {key!r} has scored none of these cases, so they cannot be balanced by score")
    strata = sorted({verdict for _, verdict in scored()}) if balance else ()
    if len(strata) > size[0]:
        raise Refused(f"the judge gives {len(strata)} different scores, more than the {size[0]} cases of the sample")
    source = scored() if has_scores else _list_stored(store, filter, sessions=sessions)
    sample = draw_label_sample(source, *size, voted=[vote.target for vote in earlier], strata=strata)
    if not sample.drawn:
        raise Refused(f"no stored case matches, so there is nothing to label for {key!r}")
    method = f"the same number for each of the judge's {len(strata)} scores" if balance else "at random"
    population = f"{sum(sample.cases.values())} {'sessions' if sessions else 'cases'}"
    source_text = f"that {key!r} has scored" if has_scores else f"that are stored; {key!r} has scored none of them"
    print_note(f"{len(sample.drawn)} drawn {method} from {population} {source_text}")
    return sample


def _list_scored(
    store: Store, key: str, version: str | None, filter: Filter, *, sessions: bool
) -> Iterator[tuple[Target, str]]:
    """Yield each target that one version of the judge has scored, with its newest score. The default is the newest
    version.
    """
    seen: set[Target] = set()
    ask = partial(store.feedbacks, None if sessions else filter, key=key, source="model", limit=_PAGE_ROWS)
    for feedback in iterate_pages(ask):
        version = feedback.version if version is None else version
        target = feedback.target
        whole = target.session_id is not None if sessions else target.trace_id is not None and target.span_id is None
        if not whole or feedback.version != version or target in seen:
            continue
        seen.add(target)
        if feedback.outcome == "score":
            yield target, str(get_feedback_value(feedback))


def _list_stored(store: Store, filter: Filter, *, sessions: bool) -> Iterator[tuple[Target, str]]:
    if sessions:
        for session in iterate_pages(partial(store.sessions, filter, limit=1_000)):
            yield Target(session_id=session.session_id, project=session.project), ""
        return
    for trace in iterate_pages(partial(store.traces, filter, limit=1_000)):
        yield Target(trace_id=trace.trace_id), ""


def _update_probabilities(store: Store, key: str, sample: LabelSample, lot: str) -> None:
    """Update the inclusion probability that is stored with each label. All cases of a stratum have the same probability,
    which depends on how many of them are labeled.

    A case may also have been drawn under other conditions, such as from one experiment only. With the same seed, such
    a smaller population includes all cases that the larger one would, and more. Its probability is therefore higher,
    and is kept.
    """
    votes = [
        vote
        for vote in list_human_feedback(store, key, most=100_000)
        if isinstance(vote.metadata.get(DRAWN_METADATA), dict)
    ]
    strata = Counter(sample.of[target] for target in {vote.target for vote in votes} if target in sample.of)
    changes = {}
    for vote in votes:
        stratum, drawn = sample.of.get(vote.target), vote.metadata[DRAWN_METADATA]
        if stratum is None:
            continue
        probability = sample.probability(stratum, strata[stratum])
        if _sample_source(vote) != lot:
            probability = max(probability, drawn.get("probability") or 0.0)
        if drawn.get("probability") != probability:
            changes[vote.id] = {"metadata": {**vote.metadata, DRAWN_METADATA: {**drawn, "probability": probability}}}
    if changes:
        store.change_feedback(changes)


def _sample_source(vote: Feedback) -> str:
    """Return the filter conditions under which `spanwise judges label` drew the case of a label."""
    drawn = vote.metadata[DRAWN_METADATA]
    return str(drawn.get("lot", "")) if isinstance(drawn, dict) else ""
