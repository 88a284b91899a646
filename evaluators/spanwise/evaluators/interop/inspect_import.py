"""Import of Inspect logs (`.eval` and JSON): dataset, experiment, scores, errors and token usage."""

from __future__ import annotations

import os
import struct
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from math import isfinite
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import zstandard

from spanwise.collector.records import JSON, Event, Example, Experiment, Feedback, Run, Target, Usage, canonical_json
from spanwise.evaluators.interface import Metric, StoreLocation, open_store_location
from spanwise.evaluators.interop.experiment_import import (
    ExperimentImport,
    ImportReport,
    decode_json,
    derive_id,
    describe_key,
    iterate_members,
    save_dataset,
)

# Reader of Inspect's log files, in the formats `.eval` (a ZIP archive) and JSON.
#
# Nothing is extracted to disk, so names of members cannot leave a folder. Members are decompressed in chunks up to
# `MAX_MEMBER_BYTES`, so that a ZIP bomb is refused before it fills the memory. Inspect compresses members with
# Zstandard, which Python's `zipfile` reads only from version 3.14 on.

MAX_MEMBER_BYTES = 64 << 20
MAX_MEMBERS = 1_000_000
CHUNK_BYTES = 1 << 18
ZSTANDARD = 93  # compression method of ZIP
_LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature, lengths of name and extra field
HEADER, START = "header.json", "_journal/start.json"
SAMPLES = "samples/"


@dataclass(frozen=True)
class InspectLog:
    """Log file of Inspect. `header` has everything except the samples."""

    path: Path
    header: Mapping[str, Any]

    @classmethod
    def open(cls, path: Path) -> InspectLog:
        """Read the header of a log. Raises `ValueError` in one line for a file that is no log, and `OSError`."""
        with path.open("rb") as file:
            is_archive = file.read(2) == b"PK"
        if not is_archive and path.suffix.lower() == ".eval":
            raise ValueError(f"{path.name} is truncated or no ZIP archive, as Inspect's .eval files are")
        if is_archive:
            header = _read_archive_header(path)
        else:
            with path.open("rb") as file:
                header = {key: value for key, value, is_element in iterate_members(file, path.name) if not is_element}
        if not isinstance(header.get("eval"), Mapping) or not isinstance(
            header["eval"].get("eval_id") or header["eval"].get("run_id"), str
        ):
            raise ValueError(f"{path.name} is no log of Inspect: it has no eval with an eval_id")
        return cls(path, header)

    def samples(self, report: ImportReport) -> Iterator[Mapping[str, Any]]:
        """Yield the samples, one in memory at a time. Those that cannot be read are counted in the report."""
        with self.path.open("rb") as file:
            if file.read(2) == b"PK":
                yield from self._iterate_archive(report)
                return
            file.seek(0)
            for key, value, is_element in iterate_members(file, self.path.name):
                if key == "samples" and is_element:
                    if isinstance(value, Mapping):
                        yield value
                    else:
                        report.leave_out("samples", f"a sample must be an object, got {value!r:.100}")

    def _iterate_archive(self, report: ImportReport) -> Iterator[Mapping[str, Any]]:
        with _open_archive(self.path) as archive:
            for member in archive.infolist():
                if not member.filename.startswith(SAMPLES) or not member.filename.endswith(".json"):
                    continue
                try:
                    sample = _read_member(archive, member, self.path.name)
                    if not isinstance(sample, Mapping):
                        raise ValueError(f"{member.filename!r:.200} must be an object, got {sample!r:.100}")
                except ValueError as error:
                    report.leave_out("samples", str(error))
                    continue
                yield sample


def _open_archive(path: Path) -> zipfile.ZipFile:
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        raise ValueError(f"{path.name} is truncated or no ZIP archive: {error}") from None
    if len(archive.infolist()) > MAX_MEMBERS:
        archive.close()
        raise ValueError(f"{path.name} has more than {MAX_MEMBERS:,} members")
    return archive


def _read_archive_header(path: Path) -> Mapping[str, Any]:
    """Return the header. A log whose evaluation was killed has only the one written at its start."""
    with _open_archive(path) as archive:
        for name in (HEADER, START):
            if name in archive.NameToInfo:
                header = _read_member(archive, archive.getinfo(name), path.name)
                if isinstance(header, Mapping):
                    return header
    raise ValueError(f"{path.name} is no log of Inspect: it has no {HEADER}")


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, where: str) -> Any:
    """Return the JSON value of a member. Raises `ValueError` in one line for damaged, encrypted and too large members."""
    name = f"{member.filename!r:.200} in {where}"
    data = bytearray()
    try:
        with _open_member(archive, member) as stream:
            while chunk := stream.read(CHUNK_BYTES):
                data += chunk
                if len(data) > MAX_MEMBER_BYTES:
                    raise ValueError(f"{name} is larger than {MAX_MEMBER_BYTES:,} bytes")
    except (zipfile.BadZipFile, zstandard.ZstdError, NotImplementedError, RuntimeError, OSError, EOFError) as error:
        raise ValueError(f"{name} is damaged: {' '.join(str(error).split())}") from None
    except Exception as error:
        if isinstance(error, ValueError):
            raise
        raise ValueError(f"{name} is damaged: {error}") from None  # errors of zlib and lzma have no common base
    if len(data) != member.file_size:
        raise ValueError(f"{name} is damaged: it has {len(data)} bytes instead of {member.file_size}")
    return decode_json(bytes(data), name)


def _open_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> IO[bytes]:
    if member.compress_type != ZSTANDARD:
        return archive.open(member)
    file = cast(BinaryIO, archive.fp)
    file.seek(member.header_offset)
    header = file.read(_LOCAL_HEADER.size)
    if len(header) < _LOCAL_HEADER.size or not header.startswith(b"PK\x03\x04"):
        raise zipfile.BadZipFile("its local header is missing")
    _, name_length, extra_length = _LOCAL_HEADER.unpack(header)
    file.seek(name_length + extra_length, 1)
    limited = _Limited(file, member.compress_size)
    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 27)
    return cast(IO[bytes], decompressor.stream_reader(cast(Any, limited), read_size=CHUNK_BYTES, closefd=False))


class _Limited:
    """Reader of the next bytes of a file, up to a number of bytes."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._left = file, size

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes, or all that are left."""
        data = self._file.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(data)
        return data


# Import of Inspect logs: dataset, experiment, scores, errors and token usage.

# values of Inspect's scorers, as its metrics convert them to numbers
_VALUES: Mapping[str, float] = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}
_LABELS: Mapping[str, str] = {"C": "correct", "I": "incorrect", "P": "partial", "N": "no answer"}


def import_inspect_log(
    store: StoreLocation, path: str | os.PathLike[str], *, dataset: str | None = None
) -> ImportReport:
    """Import a log of Inspect (`.eval` or `.json`) as a dataset and an experiment.

    - Every sample becomes an example with its input, target, metadata and choices. `dataset` is the name of the
      dataset; None is the name in the log.
    - Every epoch of a sample becomes a run with output, error, model and tokens. Epochs are repetitions.
    - Every score becomes feedback. C, I, P and N are the scores 1, 0, 0.5 and 0 with a label. A score with several
      values has a key per value, such as `several_length`.

    Importing again changes nothing. What cannot be imported is counted in the report, with reasons. Raises `ValueError`
    for a file that is no log or is truncated, and `OSError`.
    """
    log, report = InspectLog.open(Path(path)), ImportReport()
    spec = log.header["eval"]
    source = spec.get("dataset")
    found = source.get("name") if isinstance(source, Mapping) else None
    name = dataset or next((each for each in (found, spec.get("task")) if isinstance(each, str) and each), "inspect")
    # Reads the whole file once, so that a truncated one is refused before anything is stored
    samples = log.samples(ImportReport())
    keys = list(dict.fromkeys(key for sample in samples for key, *_ in _iterate_values(sample)))
    with open_store_location(store) as opened:
        examples = (example for sample in log.samples(ImportReport()) for example in _make_examples(sample))
        version = save_dataset(opened, name, examples, report)
        record = _make_record(log, name, version, keys)
        importing = ExperimentImport(opened, record, report)
        with importing.saved():
            seen = set[str]()
            for sample in log.samples(report):
                identity = f"{sample.get('id')!r} epoch {sample.get('epoch')!r}"
                example = next(_make_examples(sample), None)
                if example is None or identity in seen:
                    problem = "has no input" if example is None else "occurs twice; the first counts"
                    report.leave_out("samples", f"sample {identity} {problem}")
                    continue
                seen.add(identity)
                runs = _read_sample(log, sample, example, record, importing.next_repetition(example.id))
                importing.add(runs, _read_scores(sample, runs[0], report))
    return report


def _make_examples(sample: Mapping[str, Any]) -> Iterator[Example]:
    """Yield the example of a sample, unless it has no input."""
    given, target = sample.get("input"), sample.get("target")
    if given is None:
        return
    metadata = sample.get("metadata")
    fields: dict[str, JSON] = {"sample_id": sample.get("id")}
    fields |= {name: sample[name] for name in ("choices", "files", "setup") if sample.get(name)}
    content = [given, target, sample.get("id"), sample.get("choices")]
    yield Example(
        id=derive_id("inspect", canonical_json(content)),
        inputs={"input": given},
        reference_outputs=target if target not in ("", []) else None,
        metadata={**(metadata if isinstance(metadata, Mapping) else {}), "inspect": fields},
    )


def _make_record(log: InspectLog, dataset: str, version: int | None, keys: list[str]) -> Experiment:
    header, spec = log.header, log.header["eval"]
    stats = header.get("stats")
    stats = stats if isinstance(stats, Mapping) else {}
    model = spec.get("model")
    config = spec.get("config")
    epochs = config.get("epochs") if isinstance(config, Mapping) else None
    repetitions = epochs if type(epochs) is int and epochs > 0 else 1
    started_ns = _to_ns(stats.get("started_at")) or _to_ns(spec.get("created"))
    facts = {
        name: spec[name] for name in ("task", "task_version", "task_args", "model", "config", "tags") if spec.get(name)
    }
    facts |= {name: header[name] for name in ("plan", "results", "error") if header.get(name)}
    return Experiment(
        id=derive_id("inspect", spec.get("eval_id") or spec.get("run_id"), spec.get("task_id")),
        name=str(spec.get("task") or dataset),
        dataset=dataset,
        dataset_version=version,
        status="finished" if header.get("status") == "success" else "interrupted",
        evaluators=tuple(describe_key(Metric(key, primary=True), "inspect") for key in keys),
        metadata={
            "inspect": {
                "eval_id": spec.get("eval_id"),
                "task_id": spec.get("task_id"),
                "status": header.get("status", "started"),
                **facts,
            },
            "setup": {
                "dataset": dataset,
                "dataset_version": version,
                "task": str(model) if model else None,
                **({"repetitions": repetitions} if repetitions > 1 else {}),
            },
        },
        started_ns=started_ns,
        ended_ns=_to_ns(stats.get("completed_at")) or started_ns,
    )


def _read_sample(
    log: InspectLog, sample: Mapping[str, Any], example: Example, record: Experiment, repetition: int
) -> tuple[Run, ...]:
    """Return a root run with the task's output, and a model run with messages and tokens per model."""
    identity = (record.id, repr(sample.get("id")), repr(sample.get("epoch")))
    output = sample.get("output")
    output = output if isinstance(output, Mapping) else {}
    error, events = _read_error(sample)
    start_ns = _to_ns(sample.get("started_at")) or record.started_ns
    end_ns = max(start_ns, _to_ns(sample.get("completed_at")))
    common: dict[str, Any] = {
        "trace_id": derive_id(*identity),
        "start_ns": start_ns,
        "end_ns": end_ns,
        "experiment_id": record.id,
        "example_id": example.id,
        "repetition": repetition,
    }
    root_id = derive_id(*identity, "root", digits=16)
    facts = {"sample_id": sample.get("id"), "epoch": sample.get("epoch"), "uuid": sample.get("uuid")}
    root = Run(
        span_id=root_id,
        name=record.name,
        inputs=example.inputs,
        outputs=None if error is not None else _read_completion(output),
        status="ok" if error is None else "error",
        error=error,
        events=tuple(Event(event.name, end_ns, event.attributes) for event in events),
        metadata={"inspect": {name: value for name, value in facts.items() if value is not None}},
        **common,
    )
    usages = sample.get("model_usage")
    usages = usages if isinstance(usages, Mapping) else {}
    main = output.get("model") or log.header["eval"].get("model")
    names = dict.fromkeys([*([main] if isinstance(main, str) and output.get("choices") else []), *map(str, usages)])
    given = sample.get("messages")
    messages = [each for each in given if isinstance(each, Mapping)] if isinstance(given, list) else []
    if messages and messages[-1].get("role") == "assistant":
        messages.pop()  # the reply is the output
    shown = [{name: value for name, value in each.items() if name not in ("id", "source")} for each in messages]
    calls = [
        Run(
            span_id=derive_id(*identity, "model", name, digits=16),
            parent_id=root_id,
            kind="llm",
            name=name,
            model=name,
            inputs={"messages": shown} if name == main else None,
            outputs=root.outputs if name == main else None,
            status="ok",
            usage=_read_usage(usages.get(name)),
            **common,
        )
        for name in names
    ]
    return (root, *calls)


def _read_completion(output: Mapping[str, Any]) -> JSON:
    completion = output.get("completion")
    if isinstance(completion, str) and completion:
        return completion
    choices = output.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    message = first.get("message") if isinstance(first, Mapping) else None
    return message.get("content") if isinstance(message, Mapping) else completion


def _read_error(sample: Mapping[str, Any]) -> tuple[str | None, list[Event]]:
    """Return the error of a sample, and an exception event with its traceback."""
    error = sample.get("error")
    if error is None:
        return None, []
    fields = error if isinstance(error, Mapping) else {"message": str(error)}
    message = str(fields.get("message") or "error")
    attributes = {"exception.message": message, "exception.stacktrace": str(fields.get("traceback") or "")}
    return message, [Event("exception", 0, attributes)]


def _read_usage(given: Any) -> Usage | None:
    if not isinstance(given, Mapping):
        return None
    names = {
        "input_tokens_cache_read": "cache_read",
        "input_tokens_cache_write": "cache_creation",
        "reasoning_tokens": "reasoning",
    }
    counts = {name: given.get(name) for name in ("input_tokens", "output_tokens", *names)}
    known = {name: count for name, count in counts.items() if type(count) is int and 0 <= count < 2**53}
    if not known:
        return None
    # Inspect counts cached tokens in addition to input_tokens
    cached = known.get("input_tokens_cache_read", 0) + known.get("input_tokens_cache_write", 0)
    details = {ours: known[name] for name, ours in names.items() if known.get(name)}
    return Usage(known.get("input_tokens", 0) + cached, known.get("output_tokens", 0), details)


def _iterate_values(sample: Mapping[str, Any]) -> Iterator[tuple[str, Any, Mapping[str, Any], Mapping[str, JSON]]]:
    """Yield key, value, score and origin of every score. A score of several values has one key per value."""
    scores = sample.get("scores")
    for name, score in scores.items() if isinstance(scores, Mapping) else ():
        given = score if isinstance(score, Mapping) else {"value": score}
        value = given.get("value")
        if isinstance(value, Mapping):
            parts = list(value.items())
        elif isinstance(value, list):
            parts = list(enumerate(value))
        else:
            yield str(name), value, given, {"scorer": name}
            continue
        for part, each in parts:
            yield f"{name}_{part}", each, given, {"scorer": name, "part": part}


def _read_scores(sample: Mapping[str, Any], root: Run, report: ImportReport) -> list[Feedback]:
    feedback: dict[str, Feedback] = {}
    for key, value, given, origin in _iterate_values(sample):
        score: float | None = None
        label: str | None = None
        if isinstance(value, str):
            score, label = _VALUES.get(value), _LABELS.get(value, value) or None
        elif isinstance(value, int | float) and isfinite(value):
            score = float(value)
        if not key or key in feedback or (score is None and label is None):
            problem = "occurs twice" if key in feedback else f"is {value!r:.100}, which is no number and no text"
            reason = f"sample {sample.get('id')!r}: score {key!r} {problem}"
            report.leave_out("scores", reason)
            continue
        metadata = given.get("metadata")
        facts = {**origin, "value": value, "answer": given.get("answer"), "metadata": metadata or None}
        explanation = given.get("explanation")
        feedback[key] = Feedback(
            target=Target(trace_id=root.trace_id),
            key=key,
            score=score,
            label=label,
            comment=explanation if isinstance(explanation, str) else None,
            evaluator=key,
            version="inspect",
            metadata={"inspect": {name: each for name, each in facts.items() if each is not None}},
            created_ns=root.end_ns,
        )
    return list(feedback.values())


def _to_ns(text: Any) -> int:
    """Return a time in ISO 8601 as nanoseconds since 1970; 0 if it is none."""
    try:
        return max(0, int(datetime.fromisoformat(text).timestamp() * 1e6)) * 1_000
    except (TypeError, ValueError, OverflowError):
        return 0
