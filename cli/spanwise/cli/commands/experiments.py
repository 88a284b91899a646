"""`spanwise experiments`: list, show, errors, compare, analyze, score, export, delete."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spanwise.cli.command_io import (
    JsonOption,
    ParametersOption,
    StoreOption,
    YesOption,
    console,
    emit,
    open_store,
    print_line,
    print_table,
    shorten,
)
from spanwise.collector.errors import Refused
from spanwise.collector.filters import Filter
from spanwise.collector.formatting import standing
from spanwise.collector.records import Bucket
from spanwise.collector.records import Experiment as Record

if TYPE_CHECKING:
    from spanwise.evaluators import Experiment


app = typer.Typer(
    help="Experiments: list, show, compare, analyze, export, score again, delete.",
    no_args_is_help=True,
    epilog="Example: `spanwise experiments compare bm25-k3 embeddings`",
)

Id = Annotated[
    str, typer.Argument(help="Id of an experiment, its first characters, or a name (its newest experiment).")
]
Ids = Annotated[list[str], typer.Argument(help="Two or more experiments: ids, first characters of ids, or names.")]
Analyzed = Annotated[list[str], typer.Argument(help="Experiments: ids, first characters of ids, or names.")]
Report = Annotated[
    Path | None, typer.Option(help="Also write the report: an .html file, or a .zip archive with all results.")
]
Dataset = Annotated[str | None, typer.Option(help="Only experiments over this dataset.")]
Limit = Annotated[int, typer.Option(help="Maximum number, newest first.")]
Rows = Annotated[int, typer.Option(help="Also show this number of runs.")]
PerKey = Annotated[bool, typer.Option("--summary", help="With --json, print one line per key instead of per run.")]
Changes = Annotated[int, typer.Option(help="Also show this number of examples whose score changed.")]
Primary = Annotated[
    list[str] | None, typer.Option(help="Key that decides; the others are exploratory. May be repeated.")
]
Margin = Annotated[
    list[str] | None,
    typer.Option(help="Largest difference of a key that does not matter, such as correctness=0.02; may be repeated."),
]
GoodLabel = Annotated[
    list[str] | None, typer.Option(help="Label of a key that counts as good, such as tone=friendly; may be repeated.")
]
Cluster = Annotated[
    str | None, typer.Option(help="Metadata field of the examples: those with an equal value count as one pair.")
]
AllPairs = Annotated[
    bool, typer.Option("--all-pairs", help="Compare each experiment with each, not only the first with the others.")
]
Slices = Annotated[int, typer.Option(help="Also show this number of slices of the examples that changed most.")]
Markdown = Annotated[Path | None, typer.Option(help="Also write the comparison to this file, as Markdown.")]
Evaluators = Annotated[
    list[str],
    typer.Option(
        "--evaluator", help="Id of an evaluator, or function of a file such as evals/mine.py:concise; may be repeated."
    ),
]
To = Annotated[
    Path,
    typer.Argument(
        help="Output file; its extension sets the format: JSONL, CSV, Parquet, HTML, or .eval, a log of Inspect."
    ),
]
Spool = Annotated[Path, typer.Argument(help="Spool file that a failing store left behind: spanwise-spool-….jsonl.")]

Sort = Annotated[
    str | None, typer.Option(help="start, duration_ms or examples; for descending order, such as --sort=-examples.")
]


@app.command("list")
def list_(
    dataset: Dataset = None,
    sort: Sort = None,
    limit: Limit = 50,
    at: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """List experiments, newest first or in another order.

    Example: `spanwise experiments list --dataset parcels`
    """
    with open_store(at) as store:
        records = store.experiments(dataset=dataset, sort=sort, limit=limit)
        unfinished = tuple(record.id for record in records if record.status != "finished")
        totals = (
            store.aggregate(Filter(experiments=unfinished), group_by="experiment", newest="all") if unfinished else []
        )
    if as_json:
        emit(map(asdict, records))
    else:
        by_id = {bucket.group: bucket for bucket in totals}
        rows = [_experiment_cells(record, by_id) for record in records]
        print_table(("id", "name", "dataset", "status", "runs", "failed", "evaluators"), rows)


@app.command()
def show(
    experiment: Id, rows: Rows = 0, summary: PerKey = False, at: StoreOption = None, as_json: JsonOption = False
) -> None:
    """Show the results of an experiment per key; with --json every run, with --json --summary every key.

    Example: `spanwise experiments show bm25-k3 --rows 5`
    """
    from spanwise.evaluators import Experiment

    with open_store(at) as store:
        loaded = Experiment.load(store, experiment)
        if as_json:
            emit(each.to_dict() for each in (loaded.summary().values() if summary else loaded.rows()))
            return
        console.print(loaded)
        cells = [
            (shorten(row.inputs), shorten(row.error or row.outputs), shorten(dict(row.scores)))
            for row in islice(loaded.rows(), rows)
        ]
    if cells:
        print_table(("inputs", "outputs", "scores"), cells)


@app.command()
def errors(experiment: Id, at: StoreOption = None, as_json: JsonOption = False) -> None:
    """List every error of the task and of evaluators, with tracebacks.

    Example: `spanwise experiments errors bm25-k3`
    """
    from spanwise.evaluators import Experiment

    with open_store(at) as store:
        failures = list(Experiment.load(store, experiment).errors())
    if as_json:
        emit(map(asdict, failures))
        return
    for failure in failures:
        print_line(str(failure))
    print_line(f"{len(failures)} errors")


@app.command()
def compare(
    experiments: Ids,
    changes: Changes = 0,
    primary: Primary = None,
    margin: Margin = None,
    good_label: GoodLabel = None,
    cluster: Cluster = None,
    all_pairs: AllPairs = False,
    slices: Slices = 0,
    markdown: Markdown = None,
    at: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare experiments: a conclusion per key, then the regressions. The first one is the baseline.

    With --json, print one object per comparison and key.

    Example: `spanwise experiments compare bm25-k3 embeddings --primary correctness --margin correctness=0.02`
    """
    from spanwise.evaluators import compare as compare_experiments

    labels: dict[str, list[str]] = {}
    for key, label in (split_assignment("--good-label", text) for text in good_label or []):
        labels.setdefault(key, []).append(label)
    with open_store(at) as store:
        try:
            comparison = compare_experiments(
                *experiments,
                store=store,
                primary=primary or None,
                margin=dict(parse_margin(text) for text in margin or []),
                good_labels=labels,
                cluster=cluster,
                all_pairs=all_pairs,
            )
            comparison.contrasts(comparison.comparisons[0][1])
        except ValueError as error:
            raise Refused(str(error)) from error
        if markdown is not None:
            markdown.write_text(comparison.to_markdown(getattr(store, "url", None)), "utf-8")
        if as_json:
            emit(comparison.to_rows())
            return
        console.print(comparison)
        for baseline, other in comparison.comparisons:
            if slices and (found := comparison.slices(other, baseline, limit=slices)):
                rows = [
                    (each.name, each.key, str(each.n), f"{each.change:+.3g}", f"{each.elsewhere:+.3g}")
                    for each in found
                ]
                print_table(("slice", "key", "examples", "change", "elsewhere"), rows)
            if changes:
                shown = [
                    (
                        change.example_id[:12],
                        change.key,
                        f"{change.before:.4g}",
                        f"{change.after:.4g}",
                        "" if change.better is None else "better" if change.better else "worse",
                    )
                    for change in islice(comparison.changes(other, baseline), changes)
                ]
                print_table(("example", "key", comparison.names[baseline], comparison.names[other], ""), shown)


@app.command()
def analyze(experiments: Analyzed, report: Report = None, at: StoreOption = None, as_json: JsonOption = False) -> None:
    """Show leaderboards, problems and insights of one or more experiments, by model. With --json, print the problems.

    Example: `spanwise experiments analyze gpt-small gpt-large --report report.html`
    """
    from spanwise.evaluators.analysis import analyze as analyze_experiments

    with open_store(at) as store:
        analysis = analyze_experiments(*experiments, store=store)
        if report is not None:
            try:
                analysis.report(report)
            except ValueError as error:
                raise Refused(str(error)) from error
        if as_json:
            emit({**asdict(problem), "severe": problem.severe} for problem in analysis.problems)
        else:
            console.print(analysis)


@app.command()
def score(
    experiment: Id,
    evaluators: Evaluators,
    parameters: ParametersOption = None,
    at: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Score the runs of an experiment with more evaluators, without running the task again. With --json, print every
    run.

    Example: `spanwise experiments score bm25-k3 --evaluator evals/mine.py:concise --set longest=200`
    """
    from spanwise.cli.evaluation_files import print_judge_endpoints, resolve_evaluator
    from spanwise.evaluators import Experiment

    if parameters and len(evaluators) > 1:
        raise Refused(
            f"--set applies to a single --evaluator, got {len(evaluators)}; score with one evaluator at a time"
        )
    judges = [resolve_evaluator(named, parameters) for named in evaluators]
    print_judge_endpoints(judges)
    with open_store(at) as store:
        scored = Experiment.load(store, experiment).evaluate(judges)
        if as_json:
            emit(row.to_dict() for row in scored.rows())
        else:
            console.print(scored)


@app.command()
def export(experiment: Id, file: To, at: StoreOption = None) -> None:
    """Export every run with its scores to a file, summary and runs as an HTML page, or a log of Inspect.

    Example: `spanwise experiments export bm25-k3 runs.csv`
    """
    from spanwise.evaluators import Experiment

    with open_store(at) as store:
        count = _write_runs(Experiment.load(store, experiment), file)
    print_line(f"{count} runs in {file}")


@app.command()
def deliver(file: Spool, at: StoreOption = None) -> None:
    """Store the runs that a store did not accept during an experiment, and delete their spool file.

    Example: `spanwise experiments deliver spanwise-spool-1a2b3c4d5e6f.jsonl`
    """
    from spanwise.evaluators.experiments import deliver_spool

    if not file.exists():
        raise Refused(f"there is no file {str(file)!r}")
    with open_store(at, make=True) as store:
        count = deliver_spool(file, store)
    print_line(f"stored {count} spans")


@app.command()
def delete(experiment: Id, yes: YesOption = False, at: StoreOption = None) -> None:
    """Delete an experiment with its traces and feedback.

    Example: `spanwise experiments delete bm25-k3 --yes`
    """
    with open_store(at) as store:
        record = store.experiment(experiment)
        if not yes:
            typer.confirm(f"Remove experiment {record.name} ({record.id[:8]}) with its traces?", abort=True)
        store.delete_experiment(record.id)
    print_line(f"removed {record.name} ({record.id[:8]})")


def _experiment_cells(record: Record, stored_runs: Mapping[str | None, Bucket]) -> tuple[str, ...]:
    """Return the table cells of an experiment. For an unfinished one, `stored_runs` has the totals of its runs."""
    totals: dict[str, Any] = record.metadata.get("totals") or {}
    if record.status != "finished":
        stored = stored_runs.get(record.id) or Bucket(start_ns=0, width_ns=0)
        totals = {"runs": stored.traces, "failed": stored.errors}
    keys = ", ".join(evaluator["key"] for evaluator in record.evaluators)
    dataset = record.dataset if record.dataset_version is None else f"{record.dataset}@{record.dataset_version}"
    runs, failed = str(totals.get("runs", "")), str(totals.get("failed", ""))
    return record.id[:8], record.name, dataset, standing(record), runs, failed, shorten(keys)


def _write_runs(experiment: Experiment, file: Path) -> int:
    """Write the runs in the format of the file's suffix, and return their number."""
    from spanwise.evaluators.datasets import write_rows

    extension = file.suffix.lower()
    if extension == ".html":
        file.write_text(experiment.to_html(), "utf-8")
        return experiment.summary().runs
    if extension == ".eval":
        from spanwise.evaluators.interop import write_inspect_log

        return write_inspect_log(experiment, file)
    if extension not in (".csv", ".jsonl", ".parquet"):
        raise Refused(f"unknown extension of {file.name!r}; expected one of: .jsonl, .csv, .parquet, .html, .eval")
    return write_rows([row.to_dict() for row in experiment.rows()], file)


def split_assignment(option: str, text: str) -> tuple[str, str]:
    """Return key and value of an option such as `tone=friendly`. Raises `Refused`."""
    key, equals, value = text.rpartition("=")
    if not (key and equals and value):
        raise Refused(f"{option} must be KEY=VALUE, got {text!r:.100}")
    return key, value


def parse_margin(text: str) -> tuple[str, float]:
    """Return key and number of `--margin`. Raises `Refused`."""
    key, value = split_assignment("--margin", text)
    try:
        return key, float(value)
    except ValueError:
        raise Refused(f"--margin must be KEY=NUMBER, such as correctness=0.02, got {text!r:.100}") from None
