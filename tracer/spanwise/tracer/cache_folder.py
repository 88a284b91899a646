"""The user's cache folder: the spool of spans, the caches of judges and embeddings, downloaded models."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_FORMER_CONTENT = ("spill", "judges.db", "vectors.db")  # by one of these a folder `assay` is known to be ours


def cache_folder() -> Path:
    """Return `$XDG_CACHE_HOME/spanwise`, or `~/.cache/spanwise`, which need not exist.

    If only the folder of the product's former name exists, it is renamed.
    """
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder, former = Path(base, "spanwise"), Path(base, "assay")
    with suppress(OSError):
        if not folder.exists() and any((former / name).exists() for name in _FORMER_CONTENT):
            former.rename(folder)
    return folder
