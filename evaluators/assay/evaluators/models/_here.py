"""What of the presets is on this machine: in a package, or in the cache of the hub's client."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from assay.evaluators.models._find import find
from assay.evaluators.models._presets import PRESETS, Preset


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """A preset, the folder in which it lies, and what it takes there; None, 0: it is not here."""

    preset: Preset
    folder: str | None
    bytes: int


def here() -> Iterator[Here]:
    """All presets, in their order. Nothing is loaded, and no network asked."""
    for preset in PRESETS.values():
        place = find(preset.name)
        folder = place.where if place.local else _cached(preset.hub)
        yield Here(preset=preset, folder=folder, bytes=_size(folder))


def _cached(hub: str) -> str | None:
    """The snapshot that a download has left."""
    if find_spec("huggingface_hub") is None:
        return None
    from huggingface_hub import try_to_load_from_cache

    file = try_to_load_from_cache(hub, "config.json")
    return str(Path(file).parent) if isinstance(file, str) else None


def _size(folder: str | None) -> int:
    return sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file()) if folder else 0
