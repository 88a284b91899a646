"""Evaluators that installed packages provide through entry points."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spanwise.evaluators.interface.argument_binding import read_call_fields
from spanwise.evaluators.interface.evaluator_execution import Evaluator
from spanwise.evaluators.interface.evaluator_factory import make_evaluator
from spanwise.evaluators.interface.evaluator_spec import EvaluatorSpec, Metric

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


# entries have the form id = "package.module:name", where `name` is a callable, a class or an Evaluator
ENTRY_POINT_GROUP = "spanwise.evaluators"


def list_entry_points() -> dict[str, EntryPoint]:
    """Return the evaluators of installed packages, by id."""
    # imported here, because it takes a tenth of the time to import this package
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}


def load_entry_point(point: EntryPoint) -> Any:
    """Load the object of an entry point. Raises `ValueError` if it cannot be imported."""
    try:
        return point.load()
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise ValueError(
            f"evaluator {point.name!r} ({point.value} of {get_distribution_name(point)}) cannot be loaded: {why}"
        ) from error


def get_distribution_name(point: EntryPoint) -> str:
    """Return the name of the distribution that provides the entry point."""
    return point.dist.name if point.dist is not None else "another package"


def make_plugin_evaluator(point: EntryPoint, own: dict[str, Any], options: dict[str, Any]) -> Evaluator:
    """Return a plugin's evaluator. `own` holds the plugin's own parameters, `options` those of `make_evaluator`. Raises
    `ValueError`.
    """
    offered = load_entry_point(point)
    if isinstance(offered, Evaluator):
        if given := ", ".join(name for name in (*own, *options) if name != "origin"):
            raise ValueError(f"evaluator {point.name!r} is already configured and takes no parameters, got {given}")
        return offered
    if isinstance(offered, type):
        offered = _instantiate(point, offered, own)
    elif own:
        raise ValueError(f"evaluator {point.name!r} of {point.value!r} takes no parameters, got {', '.join(own)}")
    if not callable(offered):
        raise ValueError(f"evaluator {point.name!r} of {point.value!r} is not callable: {offered!r:.200}")
    return make_evaluator(offered, name=point.name, parameters=own, **options)


def describe_plugin(point: EntryPoint) -> EvaluatorSpec:
    """Return the facts about a plugin's evaluator that are known before it gets parameters.

    Raises `ValueError` if the plugin cannot be loaded.
    """
    offered = load_entry_point(point)
    if isinstance(offered, type):
        needs, uses = read_call_fields(offered)
        return _make_plugin_spec(point, needs, metrics=_read_metrics(point, offered), uses=uses)
    evaluator = make_plugin_evaluator(point, {}, {})
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
    source = f"{point.value} of {get_distribution_name(point)}"
    return EvaluatorSpec(
        id=point.name,
        group=get_distribution_name(point),
        needs=needs,
        llm="documents" not in needs,
        source=source,
        **facts,
    )


def _instantiate(point: EntryPoint, kind: type, own: dict[str, Any]) -> Any:
    try:
        return kind(**own)
    except TypeError as error:
        raise ValueError(f"evaluator {point.name!r} of {point.value!r}: {error}") from error


def _read_metrics(point: EntryPoint, kind: type) -> tuple[Metric, ...]:
    declared = getattr(kind, "metrics", None)
    return declared if isinstance(declared, tuple) else (Metric(point.name, None, primary=True),)
