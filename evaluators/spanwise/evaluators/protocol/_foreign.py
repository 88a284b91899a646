"""Evaluators that other packages offer by entry points: found, loaded, described."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spanwise.evaluators.protocol._binding import asked_by
from spanwise.evaluators.protocol._evaluator import Evaluator
from spanwise.evaluators.protocol._make import make
from spanwise.evaluators.protocol._metric import Metric
from spanwise.evaluators.protocol._spec import Spec

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "spanwise.evaluators"  # id = "package.module:name", of a callable, a class or an Evaluator


def points() -> dict[str, EntryPoint]:
    """What installed packages offer, by id."""
    from importlib.metadata import entry_points  # a tenth of what importing all of this costs

    return {point.name: point for point in entry_points(group=GROUP)}


def load(point: EntryPoint) -> Any:
    """What the entry point names. Raises `ValueError` where it cannot be imported."""
    try:
        return point.load()
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise ValueError(
            f"evaluator {point.name!r} ({point.value} of {package(point)}) cannot be loaded: {why}"
        ) from error


def package(point: EntryPoint) -> str:
    """The name of the distribution that offers it."""
    return point.dist.name if point.dist is not None else "another package"


def made(point: EntryPoint, own: dict[str, Any], options: dict[str, Any]) -> Evaluator:
    """An evaluator with its own parameters and the options of `make`. Raises `ValueError`."""
    offered = load(point)
    if isinstance(offered, Evaluator):
        if given := ", ".join(name for name in (*own, *options) if name != "origin"):
            raise ValueError(f"evaluator {point.name!r} is a finished one and takes no parameters, got {given}")
        return offered
    if isinstance(offered, type):
        offered = _instance(point, offered, own)
    elif own:
        raise ValueError(f"evaluator {point.name!r} of {point.value!r} takes no parameters, got {', '.join(own)}")
    if not callable(offered):
        raise ValueError(f"evaluator {point.name!r} of {point.value!r} is no callable: {offered!r:.200}")
    return make(offered, name=point.name, parameters=own, **options)


def describe(point: EntryPoint) -> Spec:
    """What can be read off it without parameters. Raises `ValueError` where it cannot be loaded."""
    offered = load(point)
    if isinstance(offered, type):
        needs, uses = asked_by(offered)
        return _spec(point, needs, metrics=_metrics(point, offered), uses=uses)
    evaluator = made(point, {}, {})
    return _spec(
        point,
        evaluator.needs,
        metrics=evaluator.metrics,
        uses=evaluator.uses,
        version=evaluator.version,
        standards=evaluator.standards,
        summary=evaluator.summary,
        kind=evaluator.make.source,
    )


def _spec(point: EntryPoint, needs: tuple[str, ...], **facts: Any) -> Spec:
    source = f"{point.value} of {package(point)}"
    return Spec(id=point.name, group=package(point), needs=needs, llm="documents" not in needs, source=source, **facts)


def _instance(point: EntryPoint, kind: type, own: dict[str, Any]) -> Any:
    try:
        return kind(**own)
    except TypeError as error:
        raise ValueError(f"evaluator {point.name!r} of {point.value!r}: {error}") from error


def _metrics(point: EntryPoint, kind: type) -> tuple[Metric, ...]:
    declared = getattr(kind, "metrics", None)
    return declared if isinstance(declared, tuple) else (Metric(point.name, None, primary=True),)
