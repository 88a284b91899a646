"""Registry of evaluators by id: built-in modules, plugins, library metrics, and their serialized form.

Metric objects of other libraries are recognised by the module and name of their class, so that no library is imported
unnecessarily. Their required arguments are read from the library, which is already imported if such an object exists.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from spanwise.evaluators.interface import argument_binding
from spanwise.evaluators.interface.adapters import (
    AdaptedMetric,
    adapt_autoevals_scorer,
    adapt_deepeval_metric,
    adapt_pydantic_evaluator,
    adapt_ragas_metric,
)
from spanwise.evaluators.interface.argument_binding import read_call_fields
from spanwise.evaluators.interface.evaluator_execution import Evaluator
from spanwise.evaluators.interface.evaluator_factory import make_evaluator
from spanwise.evaluators.interface.evaluator_spec import DOCUMENT_METRICS, FIRST_VERSION, EvaluatorSpec, Metric
from spanwise.evaluators.interface.fingerprint import compute_version, to_stable_text
from spanwise.evaluators.interface.outcomes import decode_infinity
from spanwise.tracer.suggestions import did_you_mean

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


_IDS_BY_MODULE = {  # module in `spanwise.evaluators` → ids that it registers
    "builtin.agents": "agent_sanity has_span step_limit tool_calls trajectory_match",
    "builtin.classification": "classification",
    "builtin.human": "human_feedback",
    "builtin.json": "is_json json_schema",
    "builtin.looping": "looping",
    "builtin.numbers": "cost latency numeric tokens",
    "builtin.pipeline": "pipeline",
    "builtin.privacy": "encoding_guardrail pii sensitive_data",
    "builtin.retrieval": "document_recall hit_at_k ir_map ir_mrr ir_ndcg precision_at_k",
    "builtin.text": "bleu contains exact fuzzy length levenshtein not_empty regex rouge",
    "builtin.text_matching": "text_matching",
    "judges.user_defined_judge": "judge",
    "judges.conversations": "conversation_complete goal_reached tool_choice user_frustrated",
    "judges.databricks": "chunk_relevance context_sufficiency correctness custom_judge global_guideline_adherence "
    "groundedness_judge guideline_adherence relevance_to_query safety",
    "judges.h2o": "byop contact_information fact_check fairness_bias language_mismatch sexism stereotypes "
    "summarization_judge",
    "judges.haystack_judges": "haystack_context_relevance haystack_faithfulness",
    "judges.pipeline_judge": "pipeline_judge",
    "judges.ragas": "answer_correctness answer_relevancy context_precision context_recall context_relevancy "
    "faithfulness ragas",
    "judges.step_alignment": "step_alignment",
    "models.content_safety": "profanity toxicity",
    "models.embedding_metrics": "answer_relevancy_sent answer_sem_sent_similarity answer_semantic_similarity context_mrr "
    "context_relevancy_soft groundedness sas semantic_similarity",
    "models.likelihood_metrics": "gptscore_mt gptscore_qa gptscore_sum_noref gptscore_sum_ref perplexity",
    "models.factual_consistency": "faithfulness_nli hallucination summarization_cf",
}
BUILTIN_MODULES: Mapping[str, str] = {
    id: f"spanwise.evaluators.{module}" for module, ids in _IDS_BY_MODULE.items() for id in ids.split()
}


C = TypeVar("C", bound=type)


@dataclass(frozen=True, slots=True)
class Registration:
    """Class registered as an evaluator, and its facts."""

    spec: EvaluatorSpec
    factory: type


_registrations: dict[str, Registration] = {}  # registrations by id, of the modules imported so far


def register_builtin(id: str, *, metrics: tuple[Metric, ...], **facts: Any) -> Callable[[C], C]:
    """Register a frozen dataclass as an evaluator: `@register_builtin("exact", metrics=(…), source="…")`.

    Its instances are the evaluator functions. `facts` are fields of `EvaluatorSpec`. Raises `ValueError` if
    `_IDS_BY_MODULE` does not list the id under this module.
    """

    def register(cls: C) -> C:
        if BUILTIN_MODULES.get(id) != cls.__module__:
            raise ValueError(
                f"evaluator {id!r} is in {cls.__module__}: add it to _IDS_BY_MODULE in spanwise/evaluators/interface/evaluator_registry.py"
            )
        group = cls.__module__.rpartition(".")[2]
        needs, uses = read_call_fields(cls)
        named = tuple(map(_add_document, metrics))
        _registrations[id] = Registration(
            EvaluatorSpec(id=id, group=group, metrics=named, needs=needs, uses=uses, **facts), cls
        )
        return cls

    return register


def _add_document(metric: Metric) -> Metric:
    """Return a metric with its entry in the source document and the display name; unchanged if it has no entry."""
    document = DOCUMENT_METRICS.get(metric.key)
    if document is None:
        return metric
    return dataclasses.replace(metric, display_name=document.display_name, document=document)


def get_registration(id: str) -> Registration | None:
    """Return the registration of an id, after importing its module; None if the id is not built in."""
    if id not in _registrations and id in BUILTIN_MODULES:
        importlib.import_module(BUILTIN_MODULES[id])
    return _registrations.get(id)


def find_registration(instance: object) -> Registration | None:
    """Return the registration of an instance's class; None for any other object."""
    return next((known for known in list(_registrations.values()) if known.factory is type(instance)), None)


# Parameters of every registered evaluator, and the options of `make_evaluator` that they set.
COMMON_PARAMETERS = {
    "key": "key",
    "threshold": "threshold",
    "metric_threshold": "threshold",
    "timeout": "timeout",
    "retries": "retries",
    "retry_on": "retry_on",
    "map": "map",
    "prepare_data": "prepare_data",
    "save_llm_result": "details",
    "max_dataset_rows": "max_cases",
    "min_test_cases": "min_cases",
    "primary": "primary",
    "good_labels": "good_labels",
}
DOCUMENT_THRESHOLD = "document"  # value of `metric_threshold` that selects the thresholds of the source document

# Prefixes of H2O's parameters that name a connection to h2oGPTe, a model or a collection on it → the parameters that
# replace them, of which the first that an evaluator has applies.
H2O_CONNECTION_PREFIXES: Mapping[str, tuple[str, ...]] = {
    "agent_": ("agent", "judge"),
    "h2ogpte_": ("judge", "agent"),
}

# Haystack's names and defaults. They are not listed, because they are aliases.
HAYSTACK_ALIASES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "AnswerExactMatch": ("exact", {}),
    "ContextRelevance": ("haystack_context_relevance", {}),
    "DocumentMAP": ("ir_map", {"by": "content"}),
    "DocumentMRR": ("ir_mrr", {"by": "content"}),
    "DocumentNDCG": ("ir_ndcg", {"by": "content"}),
    "DocumentRecall": ("document_recall", {"mode": "single_hit", "by": "content"}),
    "Faithfulness": ("haystack_faithfulness", {}),
    "SAS": ("sas", {"model": "paraphrase-multilingual-mpnet-base-v2"}),
}


def as_evaluator(judge: Any) -> Evaluator:
    """Return an `Evaluator` for any of the accepted forms:

    - an evaluator, a callable, or the id of a registered evaluator
    - the dict of `to_dict`, or the `Path` of a JSON or YAML file with it
    - a metric object of autoevals, deepeval, ragas or pydantic-evals

    Raises `TypeError` for anything else, and the errors of `get_evaluator`, `from_dict` and `evaluator`.
    """
    if isinstance(judge, Evaluator):
        return judge
    if isinstance(judge, str):
        return get_evaluator(judge)
    if isinstance(judge, Mapping):
        return from_dict(judge)
    if isinstance(judge, Path):
        return from_dict(read_definition(judge))
    if not isinstance(judge, type) and (metric := adapt_library_metric(judge)):
        return _wrap_library_metric(metric, judge)
    if isinstance(judge, type) or not callable(judge):
        raise TypeError(
            f"an evaluator must be a callable or a registered id (see spanwise.evaluators.list_evaluators()), got {judge!r}"
        )
    known = find_registration(judge)
    if known is None:
        return make_evaluator(judge)
    # an instance of a registered class, such as `Exact()`
    parameters = _list_changed_parameters(judge)
    options = {COMMON_PARAMETERS[name]: value for name, value in parameters.items() if name in COMMON_PARAMETERS}
    return _make_registered(known, judge, {"type": known.spec.id, "init_parameters": parameters}, options)


def list_evaluators() -> list[str]:
    """Return the ids of all evaluators that `get_evaluator` knows, in alphabetical order."""
    return sorted({*BUILTIN_MODULES, *_list_entry_points()})


def get_spec(id: str) -> EvaluatorSpec:
    """Return the facts of an evaluator. Raises `ValueError` that lists the closest ids."""
    if registration := get_registration(id):
        return registration.spec
    return _describe_plugin(_find_entry_point(id))


def list_specs() -> list[EvaluatorSpec]:
    """Return the facts of all built-in evaluators, by id."""
    return [get_spec(id) for id in sorted(BUILTIN_MODULES)]


def get_factory(id: str) -> Any:
    """Return the class registered under an id. Its docstring defines the evaluator, and its fields are the parameters.

    For a plugin, return the object of its entry point: a class, a function, or an evaluator's function. Raises
    `ValueError` that lists the closest ids.
    """
    if registration := get_registration(id):
        return registration.factory
    loaded = _load_entry_point(_find_entry_point(id))
    return loaded.function if isinstance(loaded, Evaluator) else loaded


def get_evaluator(id: str, **parameters: Any) -> Evaluator:
    r"""Return a registered evaluator with its parameters: `get_evaluator("regex", pattern=r"\d+", key="has_number")`.

    Every evaluator accepts `key`, `threshold` (or `metric_threshold`), `timeout`, `retries`, `retry_on`, `map`,
    `prepare_data`, `max_dataset_rows`, `min_test_cases`, `save_llm_result`, `primary` and `good_labels`.

    - `metric_threshold="document"` gives every metric the threshold of the document that defines the evaluator.
    - `save_llm_result=True` saves the dataset with the evaluator's metrics at the end of an experiment (see
      `Experiment.save_results`). With False, the metadata of scores is not stored.

    Raises `ValueError` for an unknown id or parameter, and for `metric_threshold="document"` if the document gives no
    threshold.
    """
    id, defaults = HAYSTACK_ALIASES.get(id, (id, {}))
    parameters = {**defaults, **parameters}
    registered = get_registration(id)
    if registered is not None:
        parameters = argument_binding.decode_infinite_parameters(registered.factory, parameters)
    origin = {"type": id, "init_parameters": parameters}
    options = {COMMON_PARAMETERS[name]: value for name, value in parameters.items() if name in COMMON_PARAMETERS}
    if options.get("threshold") == DOCUMENT_THRESHOLD:
        if registered is None or not any(metric.document for metric in registered.spec.metrics):
            raise ValueError(
                f"evaluator {id!r} has no threshold in a source document: give a number, as in metric_threshold=0.5"
            )
        options |= {"threshold": None, "document_threshold": True}
    elif "threshold" in options:
        options["threshold"] = decode_infinity(options["threshold"])
    fields = _list_field_names(registered.factory) if registered else ()
    own_parameters = {
        name: value for name, value in parameters.items() if name not in COMMON_PARAMETERS or name in fields
    }
    if registered is None:
        return _make_plugin_evaluator(_find_entry_point(id), own_parameters, {**options, "origin": origin})
    _check_parameters(id, registered.factory, own_parameters)
    return _make_registered(registered, registered.factory(**own_parameters), origin, options)


def from_dict(data: Mapping[str, Any]) -> Evaluator:
    """Return the evaluator that `to_dict` described: an id with parameters, or the dotted name of a decorated function.

    Only functions under `@evaluator` are found by a dotted name, so that data cannot name arbitrary callables. Raises
    `ValueError`.
    """
    name, parameters = str(data.get("type", "")), dict(data.get("init_parameters") or {})
    if "." not in name:
        return get_evaluator(name, **parameters)
    module, _, attribute = name.rpartition(".")
    try:
        decorated = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"there is no evaluator {name!r}: {error}") from error
    if not isinstance(decorated, Evaluator):
        raise ValueError(f"{name!r} is not an evaluator: decorate it with @evaluator")
    return decorated


def _wrap_library_metric(metric: AdaptedMetric, metric_object: object) -> Evaluator:
    """Return an evaluator for a metric object of another library.

    Its version includes the object's parameters: the attributes that have plain values and the names of its
    constructor's parameters.
    """
    values = {name: getattr(metric_object, name, None) for name in inspect.signature(type(metric_object)).parameters}
    parameters = {
        name: value for name, value in values.items() if value is not None and to_stable_text(value) is not None
    }
    return make_evaluator(
        metric,
        name=metric.name,
        key=metric.name,
        threshold=metric.threshold,
        range=metric.range,
        higher_is_better=metric.higher_is_better,
        source=metric.source,
        version=metric.version
        if metric.versioned
        else f"{metric.version} {compute_version(metric.name, number='', parameters=parameters)}",
        parameters=parameters,
        origin={},
    )


def read_definition(file: Path) -> Mapping[str, Any]:
    """Read the definition of an evaluator from a JSON or YAML file. `from_dict` accepts the result.

    Raises `ValueError` or `OSError`.
    """
    import yaml  # JSON is a subset of YAML

    try:
        definition = yaml.safe_load(file.read_bytes())
    except yaml.YAMLError as error:
        raise ValueError(f"{str(file)!r} is neither JSON nor YAML: {error}") from error
    if not isinstance(definition, Mapping) or not isinstance(definition.get("type"), str):
        raise ValueError(
            f"{str(file)!r} is not the definition of an evaluator; expected {{type: …, init_parameters: …}}"
        )
    return definition


def _make_registered(
    registered: Registration, instance: Any, origin: Mapping[str, Any], options: dict[str, Any]
) -> Evaluator:
    spec = registered.spec
    parameters = _list_changed_parameters(instance)
    # some classes choose an implementation that depends on their parameters
    instance = getattr(instance, "chosen", instance)
    # function that makes parameters serializable, if some are not plain values
    if exported := getattr(instance, "exported", None):
        origin = {**origin, "init_parameters": exported(origin["init_parameters"])}
        parameters = exported(parameters)
    own_version = getattr(instance, "version", None)
    values = origin["init_parameters"].values()
    # a user's function may change its arguments
    has_function = any(
        callable(value) or (isinstance(value, Mapping) and any(map(callable, value.values()))) for value in values
    )
    return make_evaluator(
        instance,
        name=getattr(instance, "named", None) or spec.id,
        version=_compute_builtin_version(spec, own_version, parameters, options),
        revision=own_version or spec.version,
        parameters={name: value for name, value in parameters.items() if name not in ("judge", *COMMON_PARAMETERS)},
        metrics=_get_instance_metrics(spec, instance),
        source=getattr(instance, "said_by", spec.kind),
        summary=spec.summary,
        origin=origin,
        spec=spec,
        shares=not has_function,
        **options,
    )


def get_default_metrics(spec: EvaluatorSpec) -> tuple[Metric, ...]:
    """Return the metrics of an evaluator with its default parameters; those of `spec` if a parameter is required.

    They differ from those of `spec` if the default model is not the one for which the thresholds were chosen.
    """
    registered = get_registration(spec.id)
    if registered is None or _list_required(registered.factory):
        return spec.metrics
    instance = registered.factory()
    return _get_instance_metrics(spec, getattr(instance, "chosen", instance))


def _get_instance_metrics(spec: EvaluatorSpec, instance: Any) -> tuple[Metric, ...]:
    """Return the metrics of an instance of a registered class. Some of them depend on its parameters."""
    own: tuple[Metric, ...] | None = getattr(instance, "metrics", None)
    if not own:
        return spec.metrics
    documented = {metric.key for metric in spec.metrics if metric.document is not None}
    return tuple(_add_document(metric) if metric.key in documented else metric for metric in own)


def _compute_builtin_version(
    spec: EvaluatorSpec, own: str | None, parameters: Mapping[str, Any], options: Mapping[str, Any]
) -> str:
    """Return the version of a built-in evaluator.

    Evaluators with a judge or a model compute their own version (`own`) from their parameters. This version is kept
    unchanged, so that stored scores and labels stay valid, unless the number in `spec` or the arguments have changed.
    """
    preparing = {
        name: options[name] for name in ("map", "prepare_data") if options.get(name) and name not in parameters
    }
    if own is None:
        return compute_version(spec.id, number=spec.version, parameters={**parameters, **preparing})
    if spec.version == FIRST_VERSION and not preparing:
        return own
    return compute_version(own, number=spec.version, parameters=preparing)


def _check_parameters(id: str, factory: type, parameters: Mapping[str, Any]) -> None:
    """Raise `ValueError` for an unknown, missing or wrongly typed parameter."""
    known = _list_field_names(factory)
    for name in parameters:
        if name not in known:
            raise ValueError(
                f"evaluator {id!r} has no parameter {name!r}; {_suggest_parameter(name, known)}it has "
                f"{', '.join(dict.fromkeys([*known, *COMMON_PARAMETERS]))}"
            )
    required = _list_required(factory)
    if missing := required - parameters.keys():
        raise ValueError(
            f"evaluator {id!r} needs {', '.join(sorted(missing))}: get_evaluator({id!r}, {min(missing)}=…)"
        )
    argument_binding.check_parameter_types(id, factory, parameters)


def _suggest_parameter(name: str, known: Sequence[str]) -> str:
    """Return the parameter that replaces one of H2O's connection parameters, as "use judge=…; ", or ""."""
    for prefix, parameters in H2O_CONNECTION_PREFIXES.items():
        if name.startswith(prefix) and (ours := next((each for each in parameters if each in known), None)):
            return f"use {ours}=, which names the {ours} and its connection; "
    return ""


def _list_required(factory: type) -> set[str]:
    """Return the names of the parameters without a default."""
    return {
        field.name
        for field in dataclasses.fields(factory)
        if field.init and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }


def _list_field_names(factory: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(factory) if field.init)


def _list_changed_parameters(instance: Any) -> dict[str, Any]:
    """Return the parameters of an instance that differ from their defaults."""
    changed = {}
    for field in dataclasses.fields(instance):
        if not field.init:
            continue
        value, factory = getattr(instance, field.name), field.default_factory
        if value != (field.default if factory is dataclasses.MISSING else factory()):
            changed[field.name] = value
    return changed


# entries have the form id = "package.module:name", where `name` is a callable, a class or an Evaluator
ENTRY_POINT_GROUP = "spanwise.evaluators"


def _list_entry_points() -> dict[str, EntryPoint]:
    """Return the evaluators of installed packages, by id."""
    # imported here, because it takes a tenth of the time to import this package
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}


def _load_entry_point(point: EntryPoint) -> Any:
    """Load the object of an entry point. Raises `ValueError` if it cannot be imported."""
    try:
        return point.load()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(
            f"evaluator {point.name!r} ({point.value} of {_get_distribution_name(point)}) cannot be loaded: {reason}"
        ) from error


def _get_distribution_name(point: EntryPoint) -> str:
    """Return the name of the distribution that provides the entry point."""
    return point.dist.name if point.dist is not None else "another package"


def _make_plugin_evaluator(point: EntryPoint, parameters: dict[str, Any], options: dict[str, Any]) -> Evaluator:
    """Return a plugin's evaluator. `parameters` holds the plugin's own parameters, `options` those of `make_evaluator`. Raises
    `ValueError`.
    """
    loaded = _load_entry_point(point)
    if isinstance(loaded, Evaluator):
        if given := ", ".join(name for name in (*parameters, *options) if name != "origin"):
            raise ValueError(f"evaluator {point.name!r} is already configured and takes no parameters, got {given}")
        return loaded
    if isinstance(loaded, type):
        try:
            loaded = loaded(**parameters)
        except TypeError as error:
            raise ValueError(f"evaluator {point.name!r} of {point.value!r}: {error}") from error
    elif parameters:
        raise ValueError(
            f"evaluator {point.name!r} of {point.value!r} takes no parameters, got {', '.join(parameters)}"
        )
    if not callable(loaded):
        raise ValueError(f"evaluator {point.name!r} of {point.value!r} is not callable: {loaded!r:.200}")
    return make_evaluator(loaded, name=point.name, parameters=parameters, **options)


def _describe_plugin(point: EntryPoint) -> EvaluatorSpec:
    """Return the facts about a plugin's evaluator that are known before it gets parameters.

    Raises `ValueError` if the plugin cannot be loaded.
    """
    loaded = _load_entry_point(point)
    if isinstance(loaded, type):
        needs, uses = read_call_fields(loaded)
        declared = getattr(loaded, "metrics", None)
        metrics = declared if isinstance(declared, tuple) else (Metric(point.name, None, primary=True),)
        return _make_plugin_spec(point, needs, metrics=metrics, uses=uses)
    evaluator = _make_plugin_evaluator(point, {}, {})
    return _make_plugin_spec(
        point,
        evaluator.needs,
        metrics=evaluator.metrics,
        uses=evaluator.uses,
        version=evaluator.version,
        standards=evaluator.standards,
        summary=evaluator.summary,
        kind=evaluator.make.source,
    )


def _make_plugin_spec(point: EntryPoint, needs: tuple[str, ...], **facts: Any) -> EvaluatorSpec:
    source = f"{point.value} of {_get_distribution_name(point)}"
    return EvaluatorSpec(
        id=point.name,
        group=_get_distribution_name(point),
        needs=needs,
        llm="documents" not in needs,
        source=source,
        **facts,
    )


def _find_entry_point(id: str) -> EntryPoint:
    """Return the entry point of a plugin's evaluator. Raises `ValueError` that lists the closest of all ids."""
    points = _list_entry_points()
    if id in points:
        return points[id]
    hint = did_you_mean(id, list_evaluators(), 3) or "; `spanwise evaluators list` shows all"
    raise ValueError(f"there is no evaluator {id!r}{hint}")


_ADAPTERS: Mapping[str, Callable[[Any], AdaptedMetric | None]] = {
    "autoevals": adapt_autoevals_scorer,
    "deepeval": adapt_deepeval_metric,
    "pydantic_evals": adapt_pydantic_evaluator,
    "ragas": adapt_ragas_metric,
}


def adapt_library_metric(metric: Any) -> AdaptedMetric | None:
    """Return the adapter of a metric object whose class belongs to, or derives from, a supported library; None for
    others.

    Raises `ValueError` for a metric that does not score single cases.
    """
    for kind in type(metric).__mro__:
        adapter = _ADAPTERS.get(kind.__module__.partition(".")[0])
        if adapter is not None and (adapted := adapter(metric)) is not None:
            return adapted
    return None
