"""Rule loading: Python files and API data, file watching, description of the loaded rules."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from spanwise.collector.errors import SpanwiseError
from spanwise.collector.records import JSON, Alert, Rule
from spanwise.evaluators.interface import Evaluator, from_dict, list_evaluators
from spanwise.evaluators.interface.evaluator_registry import get_registration
from spanwise.evaluators.models.model_resolution import PRESETS, PRESETS_BY_HUB, URL_VARIABLES, is_configured_url
from spanwise.evaluators.monitors.alert_definition import alerts_being_loaded
from spanwise.evaluators.monitors.monitored_rule import (
    API_OWNER,
    MonitoredRule,
    check_evaluators,
    rules_being_loaded,
)
from spanwise.evaluators.monitors.rule_spending import find_unpriced_judge
from spanwise.tracer.module_loading import UncachedSourceLoader
from spanwise.tracer.suggestions import did_you_mean


class BrokenRules(SpanwiseError, ValueError):
    """Error for a rule file that cannot be used.

    The file fails when executed, has no rule or two rules of one name, or a rule whose budget cannot be enforced.
    """


class RulesFile(NamedTuple):
    """Rules and alerts of a file. Its path, as given, is their owner."""

    rules: list[MonitoredRule]
    alerts: list[Alert]


def load(file: str | os.PathLike[str]) -> list[MonitoredRule]:
    """Return the rules of a file. See `load_file`."""
    return load_file(file).rules


def load_file(file: str | os.PathLike[str]) -> RulesFile:
    """Return the rules and alerts of a file. Raises `BrokenRules`, with the file's own exception as the cause.

    The file is executed as a module. As with `python FILE`, modules in its folder can be imported.
    """
    path = Path(file)
    rules: list[MonitoredRule] = []
    alerts: list[Alert] = []
    token, alerts_token = rules_being_loaded.set(rules), alerts_being_loaded.set(alerts)
    try:
        _execute_file(path)
    except (BrokenRules, KeyboardInterrupt):
        raise
    except BaseException as error:  # `BaseException` includes `SystemExit`
        raise BrokenRules(f"{str(path)!r} does not run: {type(error).__name__}: {error}") from error
    finally:
        rules_being_loaded.reset(token)
        alerts_being_loaded.reset(alerts_token)
    if not rules and not alerts:
        raise BrokenRules(f"{str(path)!r} defines no rule; call spanwise.evaluators.monitor(…) in it")
    for kind, names in (
        ("rules", [(rule.record.project, rule.record.name) for rule in rules]),
        ("alerts", [(alert.project, alert.name) for alert in alerts]),
    ):
        if duplicate := next((name for name in names if names.count(name) > 1), None):
            raise BrokenRules(f"{str(path)!r} defines two {kind} named {duplicate[1]!r} in project {duplicate[0]!r}")
    for rule in rules:
        if reason := find_unpriced_judge(rule.record.settings.budget, rule.evaluators):
            raise BrokenRules(f"{str(path)!r}: rule {rule.record.name!r}: {reason}")
    owner = path.as_posix()
    return RulesFile(
        [MonitoredRule(replace(rule.record, owner=owner), rule.evaluators) for rule in rules],
        [replace(alert, owner=owner) for alert in alerts],
    )


def _execute_file(path: Path) -> None:
    loader = UncachedSourceLoader(path.stem, str(path))
    spec = importlib.util.spec_from_file_location(path.stem, path, loader=loader)
    if not path.exists():
        raise BrokenRules(f"there is no file {str(path)!r}")
    if spec is None or spec.loader is None:
        raise BrokenRules(f"{str(path)!r} is not a Python file")
    folder = str(path.parent.resolve())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)


def load_rule(record: Rule, file: str | None = None) -> MonitoredRule | None:
    """Return a stored rule with its evaluators, from its rules file or from its data.

    Returns None if they cannot be loaded here, or if the file has another version of the rule.
    """
    try:
        if record.owner == API_OWNER:
            return rule_from_data(record)
        if file is None and not Path(record.owner).is_file():
            return None
        found = load(file or record.owner)
    except ValueError:
        return None
    name = record.project, record.name, record.version
    return next((one for one in found if (one.record.project, one.record.name, one.record.version) == name), None)


_ENTRY_FIELDS = ("type", "init_parameters", "parameters", "key", "version", "source")
_MODEL_PARAMETERS = ("model", "embed", "embedding")  # parameters that name a model to load
_JUDGE_PARAMETERS = ("judge", "agent")  # parameters of judges: their `model` is a name at an endpoint and is not loaded
_COMPARISON_PARAMETERS = ("json_schema", "attributes", "inputs", "expected", "expectations", "tools", "examples", "map")
_CODE_PARAMETERS, _PATH_PARAMETERS = ("pickle", "remote_code"), ("directory", "conv")
_FILE_HINT = "define the rule in a file instead"


def rule_from_data(rule: Rule) -> MonitoredRule:
    """Build a rule with its evaluators from stored data.

    Raises `ValueError` for definitions that are not allowed in data; the message contains the remedy.
    """
    evaluators = tuple(_evaluator_from_data(entry) for entry in rule.evaluators)
    check_evaluators(evaluators)
    return MonitoredRule(rule, evaluators)


def _evaluator_from_data(entry: Mapping[str, JSON]) -> Evaluator:
    id, parameters = entry.get("type"), entry.get("init_parameters", entry.get("parameters")) or {}
    if unknown := next((name for name in entry if name not in _ENTRY_FIELDS), None):
        raise ValueError(f"unknown field {unknown!r} of an evaluator; expected type and init_parameters")
    if not isinstance(id, str) or id not in list_evaluators():
        # data may name only registered evaluators, because a dotted name would import a module
        hint = did_you_mean(str(id), list_evaluators(), 3) or "; `spanwise evaluators list` shows all"
        raise ValueError(f"{id!r} is not a registered evaluator{hint}")
    if not isinstance(parameters, Mapping):
        raise ValueError(f"init_parameters of {id!r} must be an object, got {parameters!r:.100}")
    _check_parameters(id, parameters)
    try:
        return from_dict({"type": id, "init_parameters": dict(parameters)})
    except Exception as error:  # an evaluator of another package may raise anything
        raise ValueError(f"evaluator {id!r}: {error}") from error


def _check_parameters(id: str, parameters: Mapping[str, Any]) -> None:
    """Raise `ValueError` for parameters that run code, name files, send text to unconfigured addresses or contain keys.

    A user who may save a rule need not have access to the monitor's machine. Keys would be visible to all readers of
    the rule.
    """
    for name, value in _machine_parameters(id, parameters):
        if name in ("api_key", "token"):
            raise ValueError(
                f"{id!r} must not contain {name}, because everyone who can read the rule would see it; the key of the "
                f"monitor's environment is used for its own endpoints; for others, {_FILE_HINT}"
            )
        if name in _CODE_PARAMETERS and value:
            raise ValueError(f"{id!r}: {name}={value!r} would run code on the monitor's machine; {_FILE_HINT}")
        if (name in _PATH_PARAMETERS and value) or (name == "cache" and isinstance(value, str)):
            raise ValueError(f"{id!r}: {name}={value!r} is a path on the monitor's machine; {_FILE_HINT}")
        if name == "base_url" and value is not None and not is_configured_url(value):
            raise ValueError(
                f"{id!r} would send text to {value!r:.200}, which is not configured in the monitor's environment "
                f"({', '.join(URL_VARIABLES)}); {_FILE_HINT}"
            )
        if (
            name in _MODEL_PARAMETERS
            and isinstance(value, str)
            and value not in PRESETS
            and value not in PRESETS_BY_HUB
        ):
            raise ValueError(
                f"{id!r}: {name}={value!r:.200} is not one of the models that rules of the API may use "
                f"({', '.join(PRESETS)}); {_FILE_HINT}"
            )


def _machine_parameters(id: str, parameters: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the parameters, including nested ones, that must be checked because they control what the machine does.

    Parameters that only describe expected answers and spans are not searched. For evaluators of other packages, model
    parameters are left out, because their meaning is unknown.
    """
    if get_registration(id) is None:
        yield from ((name, value) for name, value in _nested_items(parameters) if name not in _MODEL_PARAMETERS)
        return
    for name, value in parameters.items():
        yield name, value
        if name not in _COMPARISON_PARAMETERS:
            at_an_address = name in _JUDGE_PARAMETERS or (
                isinstance(value, Mapping) and value.get("base_url") is not None
            )
            nested = _nested_items(value)
            yield from ((name, value) for name, value in nested if not (at_an_address and name == "model"))


def _nested_items(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield str(name), inner
            yield from _nested_items(inner)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for inner in value:
            yield from _nested_items(inner)


_FileStamps: TypeAlias = dict[str, tuple[int, int, int]]
MAX_WATCHED_FILES = 500  # maximum number of watched files
_COARSE_CLOCK_NS = 2 * 10**9  # nanoseconds; the resolution of modification times may be this coarse


def source_files(file: Path) -> list[str]:
    """Return the paths of the rule file and of the modules that it has loaded from its folder."""
    folder, own = file.parent.resolve(), str(file.resolve())
    paths = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    imported = {path for path in paths if path and Path(path).is_relative_to(folder) and "site-packages" not in path}
    return [own, *sorted(imported - {own})[: MAX_WATCHED_FILES - 1]]


def content_digest(files: Iterable[str]) -> str:
    """Return a digest of the files' contents. Unreadable files are left out."""
    digest = hashlib.sha256()
    for file in sorted(files):
        with suppress(OSError):
            digest.update(file.encode() + b"\0" + hashlib.sha256(Path(file).read_bytes()).digest())
    return digest.hexdigest()


class FileWatch:
    """Watch on the rule file and its modules. Call `changed` to poll it.

    A change counts only after two consecutive polls have seen the same state, because editors write in several steps
    or replace the file. While the rule file is missing, no change is reported.
    """

    def __init__(self, file: Path) -> None:
        self._file = str(file.resolve())
        self.follow([self._file], content_digest([self._file]))

    @property
    def missing(self) -> bool:
        """Return whether the rule file is missing."""
        return not os.path.exists(self._file)

    def follow(self, files: Iterable[str], known: str) -> None:
        """Watch these files from now on. `known` is the digest of the content that is loaded."""
        self._files = sorted({self._file, *files})
        self._stamp: _FileStamps = {}  # files' state at the last poll
        self._digested: _FileStamps = {}  # files' state when their content was last digested
        self.known = known

    def follow_folder(self) -> None:
        """Watch all Python files in the folder too, because one of them may later supply a missing import."""
        modules = sorted(map(str, Path(self._file).parent.glob("*.py")))
        files = [*self._files, *modules][:MAX_WATCHED_FILES]
        self.follow(files, content_digest(files))

    def changed(self) -> bool:
        """Return whether the content has changed since the last known content. The new content then counts as known."""
        stamp = {file: found for file in self._files if (found := _file_stamp(file))}
        before, self._stamp = self._stamp, stamp
        if self._file not in stamp or stamp != before:
            return False
        is_recent = max(changed for changed, _, _ in stamp.values()) > time.time_ns() - _COARSE_CLOCK_NS
        if stamp == self._digested and not is_recent:
            return False
        self._digested = stamp
        if (now := content_digest(self._files)) == self.known:
            return False
        self.known = now
        return True


def _file_stamp(file: str) -> tuple[int, int, int] | None:
    with suppress(OSError):
        status = os.stat(file)
        return status.st_mtime_ns, status.st_size, status.st_ino
    return None


def describe_rules(rules: Iterable[MonitoredRule]) -> list[dict[str, Any]]:
    """Describe each rule: evaluators, target, sample rates, budget, and the addresses that receive text."""
    return [
        {
            "project": rule.record.project,
            "name": rule.record.name,
            "version": rule.record.version,
            "target": rule.record.target,
            "rate": rule.record.settings.sample_rate,
            "strata": [stratum.rate for stratum in rule.record.settings.strata],
            "budget": dict(rule.record.settings.budget),
            "evaluators": [evaluator.key for evaluator in rule.evaluators],
            "where": list(
                dict.fromkeys(
                    where for evaluator in rule.evaluators if evaluator.asking for where in evaluator.asking.where
                )
            ),
        }
        for rule in rules
    ]
