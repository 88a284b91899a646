"""Evaluators that other packages offer by entry points: found, loaded, described."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from assay.evaluators.protocol._binding import asked_by
from assay.evaluators.protocol._evaluator import Evaluator
from assay.evaluators.protocol._make import make
from assay.evaluators.protocol._metric import Metric
from assay.evaluators.protocol._spec import Spec

GROUP = "assay.evaluators"  # name = "package.module:thing", a callable, a class or an Evaluator


def points() -> dict[str, EntryPoint]:
    """What installed packages offer, by id."""
    return {point.name: point for point in entry_points(group=GROUP)}


def load(point: EntryPoint) -> Any:
    """The thing itself. Raises `ValueError` where it cannot be imported."""
    try:
        return point.load()
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        raise ValueError(
            f"evaluator {point.name!r} ({point.value} of {package(point)}) cannot be loaded: {said}"
        ) from error


def package(point: EntryPoint) -> str:
    """The name of the distribution that offers it."""
    return point.dist.name if point.dist is not None else "another package"


def made(point: EntryPoint, own: dict[str, Any], options: dict[str, Any]) -> Evaluator:
    """An evaluator with its own parameters and those of `make`. Raises `ValueError`."""
    thing = load(point)
    if isinstance(thing, Evaluator):
        if given := ", ".join(name for name in (*own, *options) if name != "origin"):
            raise ValueError(f"evaluator {point.name!r} is a finished one and takes no parameters, got {given}")
        return thing
    if isinstance(thing, type):
        thing = _instance(point, thing, own)
    elif own:
        raise ValueError(f"evaluator {point.name!r} of {point.value!r} takes no parameters, got {', '.join(own)}")
    if not callable(thing):
        raise ValueError(f"evaluator {point.name!r} of {point.value!r} is no callable: {thing!r:.200}")
    return make(thing, name=point.name, **options)


def describe(point: EntryPoint) -> Spec:
    """What can be read off it without parameters. Raises `ValueError` where it cannot be loaded."""
    thing = load(point)
    if isinstance(thing, type):
        needs, uses = asked_by(thing)
        return _spec(point, needs, metrics=_metrics(point, thing), uses=uses)
    found = made(point, {}, {})
    return _spec(
        point,
        found.needs,
        metrics=found.metrics,
        uses=found.uses,
        version=found.version,
        standards=found.standards,
        summary=found.summary,
        kind=found.make.source,
    )


def _spec(point: EntryPoint, needs: tuple[str, ...], **said: Any) -> Spec:
    source = f"{point.value} of {package(point)}"
    return Spec(id=point.name, group=package(point), needs=needs, llm="documents" not in needs, source=source, **said)


def _instance(point: EntryPoint, kind: type, own: dict[str, Any]) -> Any:
    try:
        return kind(**own)
    except TypeError as error:
        raise ValueError(f"evaluator {point.name!r} of {point.value!r}: {error}") from error


def _metrics(point: EntryPoint, kind: type) -> tuple[Metric, ...]:
    said = getattr(kind, "metrics", None)
    return said if isinstance(said, tuple) else (Metric(point.name, None, primary=True),)
