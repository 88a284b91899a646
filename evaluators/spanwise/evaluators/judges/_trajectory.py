"""The run tree of a trace as text of bounded length."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from spanwise.collector.records import Run, Trace
from spanwise.evaluators.judges._fences import Shortened, cut
from spanwise.evaluators.judges._json import as_json

LONGEST = 30_000  # characters of a run tree
_LEAST, _MOST = 80, 2_000  # characters of what went into a run, of what came out, of its error
_DEEPEST = 12  # levels that are shown by indentation
_LINE = 200  # characters of a run's name


def trajectory(trace: Trace, most: int = LONGEST) -> str:
    """Which runs a trace has, by start time, the deeper ones indented below those that called them: kind, name, inputs,
    outputs, error. Long values are cut; of many runs those in the middle are left out, and counted.

    Runs whose parent is not there stand at the top, as do those that are below each other in a circle. Runs of
    evaluators are left out.
    """
    runs = list(_in_order(trace))
    share = min(_MOST, max(_LEAST, most // (3 * max(1, len(runs)))))
    blocks = [_block(number, depth, run, share) for number, (depth, run) in enumerate(runs, 1)]
    kept = _fitting(blocks, most)
    left_out = sum(max(0, len(text) - share) for _, run in runs for _, text in _values(run))
    if len(kept) < len(blocks):
        left_out += sum(map(len, blocks)) - sum(map(len, kept))
    return Shortened("\n".join(kept), left_out)


def _in_order(trace: Trace) -> Iterator[tuple[int, Run]]:
    """Each run once, with its depth: after the run that it is below, and by start time among those beside it."""
    runs = sorted(trace.runs, key=lambda run: (run.start_ns, run.span_id))
    there = {run.span_id for run in runs}
    below: dict[str, list[Run]] = {}
    for run in runs:
        below.setdefault(run.parent_id if run.parent_id in there else "", []).append(run)
    waiting = [(0, run) for run in reversed(below.pop("", []))]
    while waiting or below:
        if not waiting:  # all that is left is below itself
            first = next(iter(below))
            waiting = [(0, run) for run in reversed(below.pop(first))]
        depth, run = waiting.pop()
        if run.kind == "evaluator":
            _without(run, below)
            continue
        yield depth, run
        waiting += [(depth + 1, under) for under in reversed(below.pop(run.span_id, []))]


def _without(run: Run, below: dict[str, list[Run]]) -> None:
    """Take out of `below` all that is below a run."""
    waiting = [run]
    while waiting:
        waiting += below.pop(waiting.pop().span_id, [])


def _block(number: int, depth: int, run: Run, share: int) -> str:
    indent = "  " * min(depth, _DEEPEST)
    deep = f" (level {depth})" if depth > _DEEPEST else ""
    lines = [f"{number}. {run.kind} {cut(run.name, _LINE)!r}{deep}{' failed' if run.status == 'error' else ''}"]
    lines += [f"   {name}: {cut(text, share)}" for name, text in _values(run)]
    return "\n".join(f"{indent}{line}" for text in lines for line in text.splitlines())


def _fitting(blocks: list[str], most: int) -> list[str]:
    """The first and the last blocks that have room, and between them how many have not."""
    if sum(map(len, blocks)) + len(blocks) <= most or len(blocks) < 3:
        return blocks
    first, last, left = 0, len(blocks), most
    while first < last:
        ahead = first <= len(blocks) - last
        left -= len(blocks[first if ahead else last - 1]) + 1
        if left < 0:
            break
        first, last = (first + 1, last) if ahead else (first, last - 1)
    return [*blocks[:first], f"[… {last - first:,} runs left out …]", *blocks[last:]]


def _values(run: Run) -> list[tuple[str, str]]:
    """Return (name, text) of what went into a run, of what came out and of its error."""
    values: tuple[tuple[str, Any], ...] = (("inputs", run.inputs), ("outputs", run.outputs), ("error", run.error))
    return [
        (name, value if isinstance(value, str) else as_json(value, indent=False))
        for name, value in values
        if value is not None
    ]
