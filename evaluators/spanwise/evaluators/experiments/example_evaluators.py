"""Evaluators per example: which evaluators score an example, and how many examples each of them scores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from spanwise.collector.records import JSON, Example, Trace
from spanwise.evaluators.experiments.experiment_plan import PlannedRun
from spanwise.evaluators.interface import Evaluator, check_keys, find_by_name, get_evaluator, list_evaluators
from spanwise.evaluators.scoring import get_parts
from spanwise.tracer.suggestions import did_you_mean


class ExampleEvaluators:
    """Evaluators of an experiment, and the choice of those that score an example.

    An example that names evaluators is scored by these. An example that names none is scored by all evaluators of the
    call. `all` holds the evaluators of the call, and those that `add` has created for names in the examples.
    """

    def __init__(self, evaluators: Sequence[Evaluator], set_evaluators: Sequence[Evaluator] = ()) -> None:
        self.all = tuple(evaluators)
        self._of_call = tuple(evaluators)
        self._set_evaluators = tuple(set_evaluators)
        self._selections: dict[tuple[str, ...], tuple[Evaluator, ...]] = {}
        self._counts: Counter[tuple[str, ...]] = Counter()  # number of examples by the names that they have

    def add(self, examples: Iterable[Example]) -> None:
        """Count the examples, and create from the registry the evaluators that only they name.

        Raises `ValueError`, which names the example, for a name that is neither a key of the call nor a usable id.
        """
        for example in examples:
            if example.evaluators not in self._selections:
                self._add_names(example)
            self._counts[example.evaluators] += 1
        self._selections.clear()
        for names in filter(None, self._counts):
            self.select(Example(inputs=None, evaluators=names))
        check_keys((*self.all, *self._set_evaluators))

    def select(self, example: Example) -> tuple[Evaluator, ...] | None:
        """Return the evaluators that score an example; None for all.

        Raises `ValueError`, which names the example, for an unknown name.
        """
        names = example.evaluators
        if not names:
            return None if len(self.all) == len(self._of_call) else self._of_call
        selected = self._selections.get(names)
        if selected is None:
            found = [each for name in names for each in self._find(name, example)]
            selected = self._selections[names] = self._in_order(found)
        return selected

    def _in_order(self, found: Sequence[Evaluator]) -> tuple[Evaluator, ...]:
        """Return evaluators in the order of the call, with the parts of composites among them."""
        keys, waiting = set[str](), list(found)
        while waiting:
            evaluator = waiting.pop()
            if evaluator.key not in keys:
                keys.add(evaluator.key)
                waiting += [each for part in get_parts(evaluator) for each in find_by_name(self.all, part)]
        return tuple(each for each in self.all if each.key in keys)

    def select_known(self, example: Example, *, count: bool) -> tuple[Evaluator, ...]:
        """Return the evaluators that score an example, without an error for names of other evaluators.

        Those have scored the example in an earlier call. With `count`, count the example.
        """
        self._counts[example.evaluators] += count
        selected = self._selections.get(example.evaluators)
        if selected is None:
            found = [each for name in example.evaluators for each in find_by_name(self.all, name)]
            selected = self._in_order(found) if example.evaluators else self.all
            self._selections[example.evaluators] = selected
        return selected

    def name_all(self, case: Example | Trace) -> Example | Trace:
        """Return an example with the keys of all evaluators that score it; a trace unchanged."""
        if isinstance(case, Trace) or (selected := self.select(case)) is None:
            return case
        return replace(case, evaluators=tuple(each.key for each in selected))

    def assign(self, items: Iterable[PlannedRun], *, counting: bool) -> Iterator[PlannedRun]:
        """Yield planned runs with the evaluators of their examples. With `counting`, count the examples, too."""
        for item in items:
            names = item.example.evaluators
            if counting and item.repetition == 0:
                self._counts[names] += 1
            selected = self.select(item.example)
            yield item if selected is None else replace(item, evaluators=selected)

    def describe(self, recorded: Sequence[Mapping[str, JSON]]) -> tuple[Mapping[str, JSON], ...]:
        """Return the recorded evaluators. Those that score only some examples have the numbers of these examples and of
        all, as `examples`.
        """
        if not any(self._counts) and len(self.all) == len(self._of_call):
            return tuple(recorded)
        total, counted = self._counts.total(), Counter[str]()
        for names, count in self._counts.items():
            selected = self._selections.get(names, ()) if names else self._of_call
            counted.update({evaluator.key: count for evaluator in selected})
        keys = {evaluator.key for evaluator in self.all}
        return tuple(
            {**record, "examples": [counted[record["key"]], total]}
            if record["key"] in keys and counted[record["key"]] < total
            else record
            for record in recorded
        )

    def _add_names(self, example: Example) -> None:
        for name in example.evaluators:
            if not find_by_name(self.all, name):
                self._check_not_set_level(name, example)
                try:
                    created = get_evaluator(name)
                    if created.asking is not None and not created.summary:
                        created.asking.ready()
                except Exception as error:  # the constructor of an evaluator may raise anything
                    raise ValueError(self._describe_unknown(name, example, str(error))) from error
                if created.summary:
                    raise ValueError(_describe_set_level(name, example))
                self.all = (*self.all, created)
        self._selections[example.evaluators] = ()

    def _find(self, name: str, example: Example) -> Sequence[Evaluator]:
        found = find_by_name(self.all, name)
        if not found:
            self._check_not_set_level(name, example)
            raise ValueError(self._describe_unknown(name, example, "pass it in evaluators=[…]"))
        return found

    def _check_not_set_level(self, name: str, example: Example) -> None:
        if any(name in (each.key, each.make.name, *each.make.keys) for each in self._set_evaluators):
            raise ValueError(_describe_set_level(name, example))

    def _describe_unknown(self, name: str, example: Example, reason: str) -> str:
        keys = [key for each in self.all for key in (each.key, *each.make.keys)]
        hint = "" if "did you mean" in reason else did_you_mean(name, [*keys, *list_evaluators()], 3)
        return (
            f"example {example.id} names the evaluator {name!r}, which is not among the evaluators of the call: "
            f"{reason}{hint}"
        )


def _describe_set_level(name: str, example: Example) -> str:
    return (
        f"example {example.id} names the evaluator {name!r}, which scores all examples together: remove the name, and "
        "pass the evaluator in evaluators=[…]"
    )
