"""What of the presets is on this machine: in a package, or in the cache of the hub's client."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from spanwise.evaluators.models._find import find, snapshot
from spanwise.evaluators.models._presets import PRESETS, Preset


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """A preset, the folder in which it lies, and what it takes there; None, 0: it is not here."""

    preset: Preset
    folder: str | None
    bytes: int


def here() -> Iterator[Here]:
    """All presets, in their order. Nothing is loaded, and no network asked."""
    for preset in PRESETS.values():
        folder = snapshot(find(preset.name))
        yield Here(preset=preset, folder=folder, bytes=_size(folder))


def _size(folder: str | None) -> int:
    return sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file()) if folder else 0
