"""User cache directory: spooled spans, caches of judges and embeddings, downloaded models."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

# a directory `assay` that contains one of these belongs to Spanwise
_FORMER_CONTENT = ("spill", "judges.db", "vectors.db")


def cache_folder() -> Path:
    """Return `$XDG_CACHE_HOME/spanwise` or `~/.cache/spanwise`. The directory may not exist.

    If only the directory of the product's former name exists, it is renamed.
    """
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder, former = Path(base, "spanwise"), Path(base, "assay")
    with suppress(OSError):
        if not folder.exists() and any((former / name).exists() for name in _FORMER_CONTENT):
            former.rename(folder)
    return folder
