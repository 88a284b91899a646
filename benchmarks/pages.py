"""Sizes of the style sheet and scripts that each kind of page loads, compressed, against their budgets.

python benchmarks/pages.py --sizes --check
"""

from __future__ import annotations

import argparse
import gzip
import sys
from pathlib import Path

PAGES = Path(__file__).parent.parent / "collector/spanwise/collector/pages"
STYLE, EVERYWHERE = PAGES / "static/spanwise.css", PAGES / "bundle/spanwise.js"
# page → files that it loads, and their budget in KB (1,000 bytes)
PAGE_FILES = {
    "list": ((STYLE, EVERYWHERE), 35),
    "trace": ((STYLE, EVERYWHERE, PAGES / "bundle/trace.js"), 60),
}


def measure_sizes() -> list[tuple[str, float, float]]:
    """Return the page, its size in KB, and the budget, of each kind of page."""
    return [
        (page, sum(len(gzip.compress(path.read_bytes())) for path in paths) / 1_000, budget)
        for page, (paths, budget) in PAGE_FILES.items()
    ]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--sizes", action="store_true", help="only the sizes")
    arguments.add_argument("--check", action="store_true", help="fail if a budget is exceeded")
    options = arguments.parse_args()
    if not EVERYWHERE.exists():
        sys.exit("the scripts are not built: run `npm ci && npm run build` in the checkout")
    exceeded = False
    for name, value, budget in measure_sizes():
        exceeded |= value > budget
        print(f"{name}: CSS and JS {value:.1f} KB, budget {budget} KB{'  EXCEEDED' if value > budget else ''}")
    if options.check and exceeded:
        sys.exit(1)


if __name__ == "__main__":
    main()
