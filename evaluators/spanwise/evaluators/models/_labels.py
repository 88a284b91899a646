"""Names of labels as people mean them: whatever their capitals, dashes and underscores."""

from __future__ import annotations

from collections.abc import Mapping


def plain_label(label: str, also: Mapping[str, str] | None = None) -> str:
    """ "Severe_Toxic" is "severe toxic", or what `also` has under that."""
    name = " ".join(str(label).lower().replace("_", " ").replace("-", " ").split())
    return (also or {}).get(name, name)
