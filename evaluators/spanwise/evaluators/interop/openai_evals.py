"""Import of OpenAI Evals from exported files or from the API: dataset, graders and past runs.

The API's objects are read as they are: an eval (`object: "eval"`), its runs, their output items, pages of its list
endpoints, the items of data files (`{"item": …}`), and stored chat completions. Files are read three times, one object
at a time: for eval and runs, for examples, and for results.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spanwise.collector.errors import Refused
from spanwise.collector.records import JSON, Example, Experiment, Feedback, Run, Source, Target, Usage, canonical_json
from spanwise.collector.stores import Store
from spanwise.evaluators.interface import Evaluator, Metric, Skip, StoreLocation, open_store_location
from spanwise.evaluators.interop.experiment_import import (
    LINE_FORMATS,
    ExperimentImport,
    ImportReport,
    derive_id,
    describe_key,
    iterate_file,
    save_dataset,
)
from spanwise.evaluators.interop.grader_templates import list_variables, make_sample, split_path
from spanwise.evaluators.interop.openai_graders import (
    MODEL_TYPES,
    UnconfirmedCode,
    compute_version,
    digest_source,
    list_grader_variables,
    make_key,
    make_metric,
    openai_grader,
    score_without_judge,
)

if TYPE_CHECKING:
    from openai import OpenAI

_FILES = (".json", *LINE_FORMATS)
_TOLERANCE = 1e-6
_RUN_FACTS = ("status", "model", "result_counts", "report_url", "per_testing_criteria_results", "metadata", "error")


@dataclass
class OpenAIEval:
    """Eval with its graders and runs, and the report of its import.

    `graders` are the definitions by metric key. `evaluators` are made of them, except graders with Python code that is
    not confirmed, whose digests are in `unconfirmed`.
    """

    id: str
    name: str
    graders: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    runs: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    evaluators: list[Evaluator] = field(default_factory=list)
    unconfirmed: dict[str, str] = field(default_factory=dict)
    report: ImportReport = field(default_factory=ImportReport)
    schema: Mapping[str, JSON] | None = None  # JSON Schema of `item`, from the data source config
    reference_fields: frozenset[str] = frozenset()

    @property
    def dataset(self) -> str | None:
        """Return the name of the imported dataset, None if there are no examples."""
        return self.report.dataset and self.report.dataset.rpartition("@")[0]


def import_openai_evals(
    store: StoreLocation,
    *paths: str | os.PathLike[str],
    name: str | None = None,
    reference_fields: Iterable[str] | None = None,
    judge: Any = None,
    embedder: Any = None,
    confirm_code: Iterable[str] = (),
) -> OpenAIEval:
    """Import an eval from files or folders of files: `.json` and `.jsonl` with the objects of OpenAI's API.

    - The items become a dataset, called `name` (None: the name of the eval). Item fields that graders compare with, and
      prompts do not use, become its reference outputs. `reference_fields` names them instead.
    - Every run becomes an experiment with its outputs, errors, model, tokens and scores.
    - The graders become evaluators; see `openai_grader` for `judge` and `embedder`. `confirm_code` has the digests of
      Python code that may be executed.

    Importing again changes nothing. What cannot be imported is counted in `report`, with reasons. Raises `ValueError`
    for a file that is not JSON or is truncated, `Refused` for files of several evals or of none, and `OSError`.
    """
    files = list(_list_files(paths))
    imported = _read_eval(files, name)
    _make_evaluators(imported, judge, embedder, frozenset(confirm_code))
    if reference_fields is not None:
        imported.reference_fields = frozenset(reference_fields)
    with open_store_location(store) as opened:
        metadata = {"openai_evals": {"eval_id": imported.id, "schema": imported.schema}}
        version = save_dataset(
            opened, imported.name, _iterate_examples(imported, files), imported.report, metadata=metadata
        )
        _import_runs(opened, imported, files, version)
    return imported


def _list_files(paths: Sequence[str | os.PathLike[str]]) -> Iterator[Path]:
    """Yield the files, and those in folders by name. Raises `Refused` if there are none or one has another extension."""
    if not paths:
        raise Refused("name the files of an eval, or a folder with them")
    for path in map(Path, paths):
        if path.is_dir():
            found = sorted(each for each in path.iterdir() if each.suffix.lower() in _FILES and each.is_file())
            if not found:
                raise Refused(f"folder {str(path)!r} has no file that ends with {', '.join(_FILES)}")
            yield from found
        elif path.suffix.lower() not in _FILES:
            raise Refused(f"unknown extension of {path.name!r}; expected one of: {', '.join(_FILES)}")
        else:
            yield path


def _iterate_objects(files: Iterable[Path], report: ImportReport | None = None) -> Iterator[Mapping[str, Any]]:
    """Yield the JSON objects of all files. With a report, lines that are no JSON objects are counted there."""

    def refuse(reason: str) -> None:
        if report is not None:
            report.leave_out("lines", reason)

    for path in files:
        for value in iterate_file(path, refuse):
            if isinstance(value, Mapping):
                yield value
            else:
                refuse(f"{path.name} has a value that is no object: {value!r:.100}")


_SOURCE_SETTINGS = ("type", "model", "input_messages", "sampling_params")  # of a run's data source


def _read_eval(files: Sequence[Path], name: str | None) -> OpenAIEval:
    """Return the eval and its runs. Raises `Refused` if the files belong to several evals or have nothing of one."""
    report, definition, runs = ImportReport(), dict[str, Any](), dict[str, Mapping[str, Any]]()
    ids, kinds = dict[str, None](), Counter[str]()
    for value in _iterate_objects(files, report):
        kind = str(value.get("object"))
        if kind not in ("eval", "eval.run", "eval.run.output_item"):
            kind = "item" if _read_item(value) is not None else "unknown"
        kinds[kind] += 1
        if kind == "eval":
            ids[str(value.get("id"))] = None
            definition = dict(value)
        elif kind == "eval.run":
            ids[str(value.get("eval_id"))] = None
            source = value.get("data_source")
            source = source if isinstance(source, Mapping) else {}
            kept = {name: source[name] for name in _SOURCE_SETTINGS if name in source}  # not the items
            runs[str(value.get("id"))] = {**value, "data_source": kept}
        elif kind == "eval.run.output_item":
            ids[str(value.get("eval_id"))] = None
            run_id = str(value.get("run_id"))
            runs.setdefault(run_id, {"id": run_id, "status": "completed", "created_at": value.get("created_at")})
        elif kind == "unknown":
            report.leave_out("objects", f"an object is neither an item nor part of an eval: {sorted(value)!r:.200}")
    if len(ids) > 1:
        raise Refused(f"the files belong to {len(ids)} evals: {', '.join(list(ids)[:5])}; import one at a time")
    if not ids and not kinds["item"]:
        raise Refused(f"{', '.join(path.name for path in files[:5])}: nothing of OpenAI Evals in {len(files)} files")
    eval_id = next(iter(ids), "items")
    given = name or definition.get("name")
    imported = OpenAIEval(
        eval_id, given if isinstance(given, str) and given.strip() else eval_id, runs=runs, report=report
    )
    criteria = definition.get("testing_criteria")
    for grader in criteria if isinstance(criteria, list) else ():
        if isinstance(grader, Mapping):
            imported.graders[make_key(str(grader.get("name") or grader.get("type")), imported.graders)] = grader
        else:
            imported.report.leave_out("graders", f"a grader must be an object, got {grader!r:.100}")
    config = definition.get("data_source_config")
    schema = config.get("schema") if isinstance(config, Mapping) else None
    if isinstance(schema, Mapping):
        properties = schema.get("properties")
        imported.schema = properties.get("item", schema) if isinstance(properties, Mapping) else schema
    imported.reference_fields = _choose_reference_fields(imported)
    return imported


def _choose_reference_fields(imported: OpenAIEval) -> frozenset[str]:
    """Return the item fields that graders compare with and that no prompt uses."""
    prompted, compared, graded = set[str](), set[str](), set[str]()
    has_prompt = False
    for run in imported.runs.values():
        messages = run.get("data_source", {}).get("input_messages")
        if messages:
            has_prompt = True
            text = json.dumps(messages, default=str)
            prompted |= _list_fields([*list_variables(text), *re.findall(r"\"(item\.[^\"]*)\"", text)])
    for definition in imported.graders.values():
        try:
            graded |= _list_fields(list_grader_variables(definition))
        except ValueError:
            continue  # such a grader is left out, with this reason
        if isinstance(reference := definition.get("reference"), str):
            compared |= _list_fields(list_variables(reference))
    return frozenset((compared | graded if has_prompt else compared) - prompted)


def _list_fields(variables: Iterable[str]) -> set[str]:
    """Return the fields of items among variables. Invalid variables are ignored."""
    fields = set()
    for variable in variables:
        try:
            namespace, name, *_ = split_path(variable)
        except ValueError:
            continue
        if namespace == "item":
            fields.add(str(name))
    return fields


def _make_evaluators(imported: OpenAIEval, judge: Any, embedder: Any, confirmed: frozenset[str]) -> None:
    for key, definition in imported.graders.items():
        try:
            digest = digest_source(definition)
            confirm = digest if digest in confirmed else None
            evaluator = openai_grader(definition, key=key, judge=judge, embedder=embedder, confirm_code=confirm)
        except ValueError as error:
            imported.report.leave_out("graders", str(error))
            if isinstance(error, UnconfirmedCode):
                imported.unconfirmed[key] = error.digest
            continue
        imported.evaluators.append(evaluator)
        imported.report.imported["graders"] += 1


def _read_item(value: Mapping[str, Any]) -> tuple[Mapping[str, Any], JSON] | None:
    """Return the item and the outputs of a row of a data file, an output item or a stored completion; None for others."""
    kind = value.get("object")
    item: Any
    sample: Any
    if kind == "eval.run.output_item":
        item, sample = value.get("datasource_item"), None
        if isinstance(item, Mapping) and set(item) <= {"item", "sample"} and isinstance(item.get("item"), Mapping):
            item = item["item"]
    elif kind == "chat.completion":
        metadata = value.get("metadata")
        messages = value.get("messages") or value.get("input")
        item = {**(metadata if isinstance(metadata, Mapping) else {}), **({"input": messages} if messages else {})}
        sample = {"output": [each.get("message") for each in value.get("choices") or () if isinstance(each, Mapping)]}
    else:
        item, sample = value.get("item"), value.get("sample")
    if not isinstance(item, Mapping) or not item:
        return None
    return item, _read_outputs(sample)


def _read_outputs(sample: Any) -> JSON:
    """Return the output of a sample: a text, or a list of messages if it has several or one with more than a text."""
    if not isinstance(sample, Mapping):
        return None
    if isinstance(text := sample.get("output_text"), str):
        return text
    output = sample.get("output")
    messages = [each for each in output if isinstance(each, Mapping)] if isinstance(output, list) else []
    if len(messages) == 1 and isinstance(messages[0].get("content"), str) and not messages[0].get("tool_calls"):
        return messages[0]["content"]
    return messages or None


def _make_example(imported: OpenAIEval, item: Mapping[str, Any], outputs: JSON = None) -> Example:
    """Return the example of an item. Its id is derived from the item, so that it is the same in every run."""
    reference = {name: value for name, value in item.items() if name in imported.reference_fields}
    inputs = {name: value for name, value in item.items() if name not in reference}
    if not inputs:
        inputs, reference = dict(item), {}
    id = derive_id("openai-evals", canonical_json(item))
    return Example(id=id, inputs=inputs, reference_outputs=reference or None, outputs=outputs)


def _iterate_examples(imported: OpenAIEval, files: Sequence[Path]) -> Iterator[Example]:
    for value in _iterate_objects(files):
        rows: Iterable[Any] = (value,)
        if value.get("object") == "eval.run":
            source = value.get("data_source")
            source = source.get("source") if isinstance(source, Mapping) else None
            content = source.get("content") if isinstance(source, Mapping) else None
            rows = content if isinstance(content, list) else ()
        for row in rows:
            found = _read_item(row) if isinstance(row, Mapping) else None
            if found is not None:
                yield _make_example(imported, *found)


def _import_runs(store: Store, imported: OpenAIEval, files: Sequence[Path], version: int | None) -> None:
    """Import the output items of all runs. Experiments without any are left out."""
    experiments: dict[str, ExperimentImport] = {}
    check = _ReproductionCheck(imported)
    seen = set[str]()
    with ExitStack() as stack:
        for value in _iterate_objects(files):
            if value.get("object") != "eval.run.output_item":
                continue
            run_id, id = str(value.get("run_id")), str(value.get("id"))
            found = _read_item(value)
            if found is None:
                reason = f"output item {id} has no datasource_item, got {value.get('datasource_item')!r:.100}"
                imported.report.leave_out("output items", reason)
                continue
            if id in seen:
                imported.report.leave_out("output items", f"output item {id} occurs twice; the first counts")
                continue
            seen.add(id)
            if run_id not in experiments:
                record = _make_record(imported, imported.runs[run_id], version)
                experiments[run_id] = ExperimentImport(store, record, imported.report)
                stack.enter_context(experiments[run_id].saved())
            example = _make_example(imported, found[0])
            repetition = experiments[run_id].next_repetition(example.id)
            runs, feedback = _read_output_item(imported, value, example, repetition)
            experiments[run_id].add(runs, feedback)
            check.add(found[0], runs[0].outputs, feedback)
    for run_id, run in imported.runs.items():
        if run_id not in experiments:
            reason = f"run {run.get('name') or run_id} ({run.get('status')}) has no output items in the files"
            imported.report.leave_out("experiments", reason)
    imported.report.notes += check.notes()


def _make_record(imported: OpenAIEval, run: Mapping[str, Any], version: int | None) -> Experiment:
    data_source = run.get("data_source", {})
    model = run.get("model") or data_source.get("model")
    name = run.get("name")
    started_ns = _to_ns(run.get("created_at"))
    return Experiment(
        id=derive_id("openai-evals", imported.id, str(run["id"])),
        name=name if isinstance(name, str) and name.strip() else f"{imported.name}-{str(run['id'])[-8:]}",
        dataset=imported.name,
        dataset_version=version,
        status="finished" if run.get("status") == "completed" else "interrupted",
        evaluators=tuple(_describe_grader(key, definition) for key, definition in imported.graders.items()),
        metadata={
            "openai_evals": {
                "eval_id": imported.id,
                "run_id": run["id"],
                "data_source": data_source,
                **{name: run[name] for name in _RUN_FACTS if run.get(name)},
            },
            "setup": {"dataset": imported.name, "dataset_version": version, "task": model},
        },
        started_ns=started_ns,
        ended_ns=started_ns,
    )


def _describe_grader(key: str, definition: Mapping[str, Any]) -> Mapping[str, JSON]:
    try:
        metric = make_metric(key, definition)
    except ValueError:
        metric = Metric(key, primary=True)
    source: Source = "model" if definition.get("type") in MODEL_TYPES else "code"
    return describe_key(metric, compute_version(definition), source)


def _read_output_item(
    imported: OpenAIEval, value: Mapping[str, Any], example: Example, repetition: int
) -> tuple[tuple[Run, ...], list[Feedback]]:
    """Return a root run with the item, a model run if there was a model call, and the feedback of the graders."""
    sample = value.get("sample")
    sample = sample if isinstance(sample, Mapping) else {}
    run_id = str(value.get("run_id"))
    identity = ("openai-evals", imported.id, run_id, str(value.get("id")))
    outputs, time_ns = _read_outputs(sample), _to_ns(value.get("created_at"))
    error = "error: the item has the status error" if value.get("status") in ("error", "errored") else None
    given = sample.get("error")
    if isinstance(given, Mapping) and (given.get("code") or given.get("message")):
        error = f"{given.get('code') or 'error'}: {given.get('message') or 'no message'}"
    common: dict[str, Any] = {
        "trace_id": derive_id(*identity),
        "start_ns": time_ns,
        "end_ns": time_ns,
        "status": "ok" if error is None else "error",
        "error": error,
        "outputs": outputs,
        "experiment_id": derive_id("openai-evals", imported.id, run_id),
        "example_id": example.id,
        "repetition": repetition,
    }
    root_id = derive_id(*identity, "root", digits=16)
    metadata = {"openai_evals": {"output_item": value.get("id"), "datasource_item_id": value.get("datasource_item_id")}}
    root = Run(span_id=root_id, name=imported.name, inputs=example.inputs, metadata=metadata, **common)
    runs: tuple[Run, ...] = (root,)
    model = sample.get("model")
    if isinstance(model, str) and model:
        call = Run(
            span_id=derive_id(*identity, "model", digits=16),
            parent_id=root_id,
            kind="llm",
            name=model,
            model=model,
            inputs={"messages": sample.get("input")},
            usage=_read_usage(sample.get("usage")),
            metadata={
                name: sample[name]
                for name in ("temperature", "top_p", "seed", "finish_reason")
                if sample.get(name) is not None
            },
            **common,
        )
        runs = (root, call)
    return runs, _read_results(imported, value, root)


def _read_results(imported: OpenAIEval, value: Mapping[str, Any], root: Run) -> list[Feedback]:
    results, feedback = value.get("results"), dict[str, Feedback]()
    for result in results if isinstance(results, list) else ():
        if not isinstance(result, Mapping):
            imported.report.leave_out(
                "scores", f"output item {value.get('id')}: a result must be an object, got {result!r:.100}"
            )
            continue
        key, definition = _find_grader(imported, str(result.get("name")))
        score, kind = result.get("score"), str(definition.get("type") or result.get("type"))
        is_number = isinstance(score, int | float) and isfinite(score)
        if not is_number or key in feedback:
            problem = (
                "has two scores of"
                if is_number
                else f"has no number as the score of grader {result.get('name')!r}: {score!r:.100}, "
            )
            imported.report.leave_out("scores", f"output item {value.get('id')} {problem} {key!r}")
            continue
        feedback[key] = Feedback(
            target=Target(trace_id=root.trace_id),
            key=key,
            score=float(score),  # type: ignore[arg-type]
            label=_read_label(result.get("sample"), definition),
            source="model" if kind.replace("-", "_").startswith(MODEL_TYPES) else "code",
            evaluator=key,
            version=compute_version(definition),
            metadata={"openai_evals": {"grader": result.get("name"), "passed": result.get("passed")}},
            created_ns=root.end_ns,
        )
    return list(feedback.values())


def _find_grader(imported: OpenAIEval, name: str) -> tuple[str, Mapping[str, Any]]:
    """Return key and definition of the grader that a result names: by its id, its name, or its name with a UUID."""
    short = re.sub(r"-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$", "", name)
    for wanted in (name, short):
        for key, definition in imported.graders.items():
            if wanted in (definition.get("id"), definition.get("name")):
                return key, definition
    return make_key(short), {}


def _read_label(sample: Any, definition: Mapping[str, Any]) -> str | None:
    """Return the label in the reply of a label_model grader, if it is one of its labels."""
    labels = definition.get("labels")
    reply = _read_outputs(sample)
    if definition.get("type") != "label_model" or not isinstance(labels, list) or not isinstance(reply, str):
        return None
    try:
        parsed = json.loads(reply)
    except (ValueError, RecursionError):
        parsed = reply.strip()
    found = (
        next((parsed[name] for name in ("result", "label") if name in parsed), None)
        if isinstance(parsed, Mapping)
        else parsed
    )
    return found if isinstance(found, str) and found in labels else None


def _read_usage(given: Any) -> Usage | None:
    if not isinstance(given, Mapping):
        return None
    counts = {name: given.get(name) for name in ("prompt_tokens", "completion_tokens", "cached_tokens")}
    known = {name: count for name, count in counts.items() if type(count) is int and 0 <= count < 2**53}
    if not known:
        return None
    details = {"cache_read": known["cached_tokens"]} if known.get("cached_tokens") else {}
    return Usage(known.get("prompt_tokens", 0), known.get("completion_tokens", 0), details)


def _to_ns(seconds: Any) -> int:
    """Return a Unix time in nanoseconds; 0 if it is no time between 1970 and 2200."""
    is_time = isinstance(seconds, int | float) and 0 < seconds < 7_258_118_400
    return int(seconds) * 1_000_000_000 if is_time else 0


class _ReproductionCheck:
    """Comparison of the scores of past runs with those that the imported graders compute. Judges are not asked."""

    def __init__(self, imported: OpenAIEval) -> None:
        self._graders = {each.key: each.function for each in imported.evaluators if each.asking is None}
        self._graders = {key: function for key, function in self._graders.items() if is_local(imported.graders[key])}
        self._compared, self._different = Counter[str](), Counter[str]()
        self._largest: dict[str, float] = {}

    def add(self, item: Mapping[str, Any], outputs: JSON, feedback: Iterable[Feedback]) -> None:
        namespace = {"item": item, "sample": make_sample(outputs)}
        for each in feedback:
            if each.key not in self._graders:
                continue
            try:
                score = score_without_judge(self._graders[each.key], namespace)
            except (Skip, ValueError):
                continue
            self._compared[each.key] += 1
            difference = abs(score - float(each.score or 0.0))
            if difference > _TOLERANCE:
                self._different[each.key] += 1
                self._largest[each.key] = max(difference, self._largest.get(each.key, 0.0))

    def notes(self) -> list[str]:
        """Return a line per grader: how many scores are reproduced."""
        return [
            f"grader {key!r}: {count - self._different[key]} of {count} scores are reproduced"
            + (f"; the largest difference is {self._largest[key]:.3g}" if self._different[key] else "")
            for key, count in self._compared.items()
        ]


def is_local(definition: Mapping[str, Any]) -> bool:
    """Return whether the import may compute a grader's score: it runs no code of the eval and asks no endpoint."""
    text = json.dumps(definition, default=str)
    return '"python"' not in text and '"cosine"' not in text


def fetch_openai_eval(eval_id: str, folder: str | os.PathLike[str], client: OpenAI | None = None) -> list[Path]:
    """Download an eval, its runs and their output items from OpenAI's API to a folder, and return the files.

    `import_openai_evals` reads the folder. `client` None uses OPENAI_API_KEY and OPENAI_BASE_URL. Each file has a
    temporary name until it is complete. Raises `ValueError` in one line if the API refuses a request.
    """
    from openai import OpenAI, OpenAIError

    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    try:
        client = client or OpenAI()
        definition = client.evals.retrieve(eval_id)
        runs = [run.to_dict(mode="json", warnings=False) for run in client.evals.runs.list(eval_id)]
        files = [_write_lines(target / "eval.jsonl", [definition.to_dict(mode="json", warnings=False)])]
        files.append(_write_lines(target / "runs.jsonl", runs))
        items = (
            item.to_dict(mode="json", warnings=False)
            for run in runs
            for item in client.evals.runs.output_items.list(str(run["id"]), eval_id=eval_id)
        )
        files.append(_write_lines(target / "output_items.jsonl", items))
    except OpenAIError as error:
        message = " ".join(str(error).split())
        raise ValueError(f"eval {eval_id!r} could not be downloaded: {message[:500]}") from None
    return files


def _write_lines(path: Path, rows: Iterable[Any]) -> Path:
    temporary = path.with_name(f"{path.name}.part")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.writelines(f"{json.dumps(row)}\n" for row in rows)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path
