"""Steps of an answer beside those of its context: the fewest edits that make the one the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from spanwise.evaluators.models._cosine import cosines
from spanwise.evaluators.protocol import Skip

if TYPE_CHECKING:
    from spanwise.evaluators.models._encoding import Vector

Edit: TypeAlias = Literal["same", "mismatch", "insertion", "deletion"]
_Cost: TypeAlias = tuple[int, int, float]  # edits, steps that are not the same, 1 - S of those beside each other

MOST = 500  # steps of a side: their number squared is looked at
SHOWN = 100, 300  # entries of an alignment in metadata, and characters of a step


@dataclass(frozen=True, slots=True)
class Beside:
    """A step of the context beside one of the answer, either of which may be missing; `similarity` is their S."""

    edit: Edit
    context: str | None
    answer: str | None
    similarity: float | None = None

    @property
    def told(self) -> dict[str, Any]:
        """As metadata keep it."""
        known = {"edit": self.edit, "context": _short(self.context), "answer": _short(self.answer)}
        return known if self.similarity is None else {**known, "similarity": round(self.similarity, 4)}


def alignment(
    context: Sequence[str], answer: Sequence[str], vectors: Mapping[str, Vector], same: float
) -> list[Beside]:
    """The alignment with the fewest edits (Levenshtein), where steps of an S of `same` or more are the same step.

    Several may have the fewest: it is one that leaves the most steps the same, and then has the most alike beside each
    other, so that all counts are unique. Raises `ValueError` for very many steps, and `Skip` for vectors of zeros.
    """
    if max(len(context), len(answer)) > MOST:
        raise ValueError(
            f"{len(context)} steps of the context, {len(answer)} of the answer: {MOST} of each can be aligned"
        )
    if not context or not answer:
        return [Beside("insertion", step, None) for step in context] + [Beside("deletion", None, s) for s in answer]
    alike = cosines([vectors[step] for step in context], [vectors[step] for step in answer]).tolist()
    return _walked(_table(alike, same), alike, context, answer, same)


def rows(id: str, context: Sequence[str], answer: Sequence[str], found: Sequence[Beside], details: bool) -> list[Any]:
    """The six metrics, as an evaluator returns them. Raises `Skip` where neither side has a step."""
    if not context and not answer:
        raise Skip("neither the retrieved context nor the answer has steps")
    edits = [one.edit for one in found]
    counts = {
        "edits": len(edits) - edits.count("same"),
        "insertions": edits.count("insertion"),
        "deletions": edits.count("deletion"),
        "mismatches": edits.count("mismatch"),
        "context_steps": len(context),
        "answer_steps": len(answer),
    }
    made: list[dict[str, Any]] = [{"key": f"{id}_{name}", "score": float(count)} for name, count in counts.items()]
    made[0]["comment"] = _comment(found)
    if details:
        made[0]["metadata"] = {"steps": [one.told for one in found[: SHOWN[0]]]}
    return made


def _table(alike: Sequence[Sequence[float]], same: float) -> list[list[_Cost]]:
    """The least costs of the first so many steps of either side."""
    table: list[list[_Cost]] = [[(place, place, 0.0) for place in range(len(alike[0]) + 1)]]
    for number, row in enumerate(alike, 1):
        before, costs = table[-1], [(number, number, 0.0)]
        for place, similarity in enumerate(row):
            ways = (_plus(before[place], similarity, same), _gap(before[place + 1]), _gap(costs[place]))
            costs.append(min(ways))
        table.append(costs)
    return table


def _plus(cost: _Cost, similarity: float, same: float) -> _Cost:
    other = similarity < same
    return cost[0] + other, cost[1] + 2 * other, cost[2] + 1 - similarity


def _gap(cost: _Cost) -> _Cost:
    return cost[0] + 1, cost[1] + 1, cost[2]


def _walked(
    table: Sequence[Sequence[_Cost]],
    alike: Sequence[Sequence[float]],
    context: Sequence[str],
    answer: Sequence[str],
    same: float,
) -> list[Beside]:
    """The way through the table, from its end."""
    found: list[Beside] = []
    left, right = len(context), len(answer)
    while left or right:
        here = table[left][right]
        if left and right and here == _plus(table[left - 1][right - 1], alike[left - 1][right - 1], same):
            left, right = left - 1, right - 1
            similarity = alike[left][right]
            edit: Edit = "same" if similarity >= same else "mismatch"
            found.append(Beside(edit, context[left], answer[right], similarity))
        elif left and here == _gap(table[left - 1][right]):
            left -= 1
            found.append(Beside("insertion", context[left], None))
        else:
            right -= 1
            found.append(Beside("deletion", None, answer[right]))
    return found[::-1]


def _comment(found: Sequence[Beside]) -> str | None:
    first = next((one for one in found if one.edit != "same"), None)
    if first is None:
        return None
    if first.edit == "insertion":
        return f"missing: {_short(first.context)!r}"
    if first.edit == "deletion":
        return f"not in the context: {_short(first.answer)!r}"
    return f"{_short(first.answer)!r} in the place of {_short(first.context)!r}"


def _short(step: str | None) -> str | None:
    return None if step is None else step[: SHOWN[1]]
