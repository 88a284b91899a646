"""Comparison of experiments: paired scores per key, and the conclusion with its interval, test and sentence."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import exp, fsum, isfinite, log
from typing import Generic, Literal, TypeAlias, TypeVar

from spanwise.collector.records import RunScores
from spanwise.collector.statistics.intervals import (
    MAX_EXAMPLES,
    MIN_DISTINCT,
    Interval,
    Moments,
    bhapkar_test,
    binomial_test,
    examples_for_mean,
    examples_for_proportions,
    mcnemar_test,
    mean_interval,
    paired_proportions_interval,
    sign_flip_test,
    tango_statistic,
    z_quantile,
)

# key of the score that tells whether the task ended without an error; computed for every run, not stored
TASK_OK = "task_ok"
ALPHA = 0.05  # joint error probability of all conclusions of a comparison
DIFFERENCE_TOLERANCE = 1e-9  # smaller differences are rounding errors
SMALL_SAMPLE = 30  # pairs below which the interval of clearly skewed differences covers too little
MAX_SCORE = 1e300  # larger scores, infinity and NaN are left out: sums of them would overflow
MIN_CHANGED_LABELS = 10  # changed examples from which Bhapkar's test is used
SHOWN_MOVES = 3  # changes of labels that a sentence names, the most frequent first
_CLEAR_SKEWNESS = 1.0
_MAX_LABEL = 40  # characters of a label in a sentence
_TEST_TOLERANCE = 1e-9  # relative; a p-value that equals its bound counts as significant

# Quantities of a run that are compared like scores, lower being better, and their units
MEASURES: Mapping[str, str] = {"latency": "s", "cost": "$", "tokens": ""}
# Endings of the keys that a boolean evaluator derives from its main key. All of them answer one question
RATE_ENDINGS = ("_fail", "_retrieval_fail", "_generation_fail", "_parse_fail")

Word: TypeAlias = Literal["better", "worse", "higher", "lower", "equivalent", "non-inferior", "inconclusive"]
Kind: TypeAlias = Literal["boolean", "score", "ratio", "labels"]
# `boolean`: 0 and 1 only. `ratio`: a measure whose values are all above 0, compared on the log scale.

Value = TypeVar("Value", float, str)

INCONCLUSIVE: Word = "inconclusive"


@dataclass(frozen=True, slots=True)
class KeyScores:
    """Scores of one key of an experiment: by example their mean over repetitions, or their most frequent label."""

    values: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    averaged: bool = False  # whether an example has several scores
    is_measure: bool = False  # whether the values are a quantity of `MEASURES` and not scores
    unknown: int = 0  # of a measure: runs without an error whose value is unknown

    @property
    def is_boolean(self) -> bool:
        """Return whether all scores are 0 or 1, and none is a mean of several."""
        return not self.averaged and all(value in (0.0, 1.0) for value in self.values.values())

    @property
    def is_recorded(self) -> bool:
        """Return whether it holds scores, or a measure that some run has recorded: a value other than 0."""
        return not self.is_measure or any(self.values.values())


# By key: the scores of an experiment
ExperimentScores: TypeAlias = Mapping[str, KeyScores]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRule:
    """Declared properties of a key that decide its conclusion.

    `rising` tells whether a higher score is better; None if that is unknown. `good_labels` are the labels that count
    as good. `margin` is the largest difference that does not matter, in units of the score.
    """

    rising: bool | None = None
    good_labels: frozenset[str] = frozenset()
    margin: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """Comparison of one key of two experiments over the examples that have a score in both.

    `differences` holds the score after minus the score before, by example, or by cluster of examples. With `kind`
    "ratio" they are differences of logarithms. `family` is the number of questions that are answered together; it is
    1 for an exploratory key (`is_primary` False). `only_before` and `only_after` count the examples that are scored
    in one of the experiments only. `table` counts the examples of a key of labels by (label before, label after).
    """

    key: str
    kind: Kind
    differences: Mapping[str, float]
    before: float | None  # mean over the pairs; of a ratio the geometric mean
    after: float | None
    only_before: int = 0
    only_after: int = 0
    rule: KeyRule = KeyRule()
    family: int = 1
    comparisons: int = 1  # number of comparisons of experiments in the family
    is_primary: bool = True
    table: Mapping[tuple[str, str], int] = field(default_factory=dict)
    unknown: int = 0  # of a measure: runs of both experiments that are left out because their value is unknown

    @property
    def pairs(self) -> int:
        """Return the number of pairs: examples, or clusters of examples."""
        return len(self.differences)

    @property
    def rising(self) -> bool | None:
        """Return whether a higher score is better; None if that is unknown."""
        return self.rule.rising

    @property
    def margin(self) -> float | None:
        """Return the largest difference that does not matter; None if none was given."""
        return self.rule.margin

    @cached_property
    def _directions(self) -> Counter[int]:
        return Counter(map(get_direction, self.differences.values()))

    @property
    def up(self) -> int:
        """Return the number of pairs whose score rose."""
        return self._directions[1]

    @property
    def down(self) -> int:
        """Return the number of pairs whose score fell."""
        return self._directions[-1]

    @property
    def ties(self) -> int:
        """Return the number of pairs whose score, or label, did not change."""
        if self.is_unordered:
            return sum(self.table.values()) - self.changed_labels
        return self._directions[0]

    @property
    def wins(self) -> int | None:
        """Return the number of pairs that improved; None if the better direction is unknown."""
        return None if self.rising is None else self.up if self.rising else self.down

    @property
    def losses(self) -> int | None:
        """Return the number of pairs that got worse; None if the better direction is unknown."""
        return None if self.rising is None else self.down if self.rising else self.up

    @cached_property
    def _values(self) -> list[float]:
        """Return the differences in ascending order, with rounding errors as 0."""
        return sorted(value if get_direction(value) else 0.0 for value in self.differences.values())

    @cached_property
    def _moments(self) -> Moments:
        return Moments.of(self._values)

    @cached_property
    def _step(self) -> float | None:
        """Return d if all differences are −d, 0 or d, so that they can be counted like booleans; else None."""
        if self.kind in ("boolean", "labels"):
            return 1.0
        sizes = {abs(value) for value in self._values if value}
        if self.up + self.down < MIN_DISTINCT or max(sizes) - min(sizes) > DIFFERENCE_TOLERANCE:
            return None
        return max(sizes)

    @property
    def change(self) -> float | None:
        """Return the mean difference, of a ratio the quotient of the geometric means; None without pairs."""
        if not self.differences or self.is_unordered:
            return None
        return exp(self._moments.mean) if self.kind == "ratio" else self._moments.mean

    @property
    def up_on_average(self) -> bool:
        """Return whether the mean difference is above 0."""
        return bool(self.differences) and self._moments.mean > 0

    @property
    def alpha(self) -> float:
        """Return the error probability of this key's conclusion, so that those of the family add up to `ALPHA`."""
        return ALPHA / self.family

    @property
    def level(self) -> float:
        """Return the confidence level of `interval`: 1 − `alpha`."""
        return 1 - self.alpha

    @property
    def interval(self) -> Interval | None:
        """Return the interval of `change` at `level`; None if there are too few pairs that differ."""
        return self._scaled(self._difference_interval(self.level))

    @property
    def equivalence_interval(self) -> Interval | None:
        """Return the interval at 1 − 2 · `alpha`, which decides about equivalence (two one-sided tests)."""
        return self._scaled(self._difference_interval(1 - 2 * self.alpha))

    def _scaled(self, interval: Interval | None) -> Interval | None:
        if interval is None or self.kind != "ratio":
            return interval
        low, high = (exp(min(end, 700.0)) for end in interval)
        return low, high

    def _difference_interval(self, level: float) -> Interval | None:
        if not self.differences or self.is_unordered:
            return None
        if self._step is not None:
            low, high = paired_proportions_interval(self.down, self.up, self.pairs, level)
            return low * self._step, high * self._step
        if self.up + self.down < MIN_DISTINCT:
            return None
        return mean_interval(self._moments, level)

    @property
    def p_text(self) -> str:
        """Return the p-value as text, "<0.001" for a smaller one."""
        return format_p(self.p)

    @cached_property
    def p(self) -> float:
        """Return the p-value for this key alone: exact McNemar for booleans, sign flips for scores, Bhapkar for labels.

        Without pairs it is 1.
        """
        if self.is_unordered:
            return 1.0 if self.p_labels is None else self.p_labels
        if self._step is not None:
            return mcnemar_test(self.down, self.up)
        return sign_flip_test(self._values)

    @property
    def p_labels(self) -> float | None:
        """Return the p-value of Bhapkar's test of the labels.

        It is None for other keys, for clusters of examples, and if fewer than `MIN_CHANGED_LABELS` examples changed:
        the test is then far from its stated level.
        """
        is_clustered = sum(self.table.values()) != self.pairs
        if self.kind != "labels" or is_clustered or 0 < self.changed_labels < MIN_CHANGED_LABELS:
            return None
        return bhapkar_test(self.table)

    @property
    def is_unordered(self) -> bool:
        """Return whether the key has labels of which none is declared good, so that no side can be better."""
        return self.kind == "labels" and not self.rule.good_labels

    @property
    def changed_labels(self) -> int:
        """Return the number of examples whose label changed."""
        return sum(count for (before, after), count in self.table.items() if before != after)

    @property
    def word(self) -> Word:
        """Return the conclusion: equivalent, better or worse (higher or lower), non-inferior, or inconclusive."""
        if self._is_within_margin((True, False)):
            return "equivalent"
        if (moved := self._get_moved_word(self.alpha)) is not None:
            return moved
        if self.rising is not None and self._is_within_margin((not self.rising,)):
            return "non-inferior"
        return INCONCLUSIVE

    def _get_moved_word(self, alpha: float) -> Word | None:
        """Return the word for a difference that both interval and test show at this error probability, else None."""
        interval = self._difference_interval(1 - alpha)
        if interval is None or interval[0] <= 0 <= interval[1] or not self._is_significant(alpha):
            return None
        return self._name_move(interval[0] > 0)

    def _name_move(self, rose: bool) -> Word:
        if self.rising is None:
            return "higher" if rose else "lower"
        return "better" if rose == self.rising else "worse"

    def _is_significant(self, alpha: float) -> bool:
        return self.p <= alpha * (1 + _TEST_TOLERANCE)

    def _is_within_margin(self, ends: Collection[bool]) -> bool:
        """Return whether the ends of the equivalence interval (True: the upper one) are within the margin.

        For booleans, Tango's one-sided score tests must agree. So must the exact binomial test for the case that pairs
        change in one direction only, because Tango's test is too liberal there if n is small.
        """
        interval = self.equivalence_interval
        if self.margin is None or interval is None:
            return False
        bound = z_quantile(1 - self.alpha)
        for is_upper in ends:
            inside = interval[1] < self.margin if is_upper else interval[0] > -self.margin
            if inside and self._step is not None:
                limit = self.margin / self._step * (1 if is_upper else -1)
                statistic = tango_statistic(self.down, self.up, self.pairs, limit)
                inside = statistic <= -bound if is_upper else statistic >= bound
                if inside and abs(limit) < 1:
                    net = max(0, self.up - self.down if is_upper else self.down - self.up)
                    inside = binomial_test(net, self.pairs, abs(limit)) <= self.alpha
            if not inside:
                return False
        return True

    @property
    def further_examples(self) -> int | None:
        """Return the number of further pairs that make the half width of `equivalence_interval` the margin.

        It is None without a margin or without an interval, and 0 if the interval is narrow enough already. It keeps
        its promise in 8 of 10 cases (see `examples_for_mean`).
        """
        interval = self.equivalence_interval
        if self.margin is None or interval is None or self.kind == "ratio":
            return None
        if interval[1] - interval[0] <= 2 * self.margin:
            return 0
        level = 1 - 2 * self.alpha
        if self._step is not None:
            needed = examples_for_proportions(self.down, self.up, self.pairs, self.margin / self._step, level)
        else:
            needed = examples_for_mean(self._values, self.margin, level)
        return max(1, needed - self.pairs)

    # --- the sentence -----------------------------------------------------------------------------------------------

    @property
    def sentence(self) -> str:
        """Return the conclusion as one sentence: the change, its interval, and the reason of an inconclusive result."""
        if not self.differences:
            text = f"No example has a score in both experiments ({self.only_before} and {self.only_after} in one)"
            return "; ".join([text, *self._list_remarks()]) + "."
        parts = [self._describe_change()]
        word = self.word
        if word in ("equivalent", "non-inferior"):
            side = f"within ±{_plain(self.margin or 0)}" if word == "equivalent" else self._describe_bad_end()
            parts.append(
                f"its {_percent(1 - 2 * self.alpha)} interval {self._show(self.equivalence_interval)} is {side}"
            )
            interval = self._difference_interval(self.level)
            if word == "equivalent" and interval is not None and not interval[0] <= 0 <= interval[1]:
                moved = self._name_move(interval[0] > 0)
                is_sure = self._is_significant(self.alpha)
                parts.append(
                    f"the difference is real ({moved}) but smaller than the margin"
                    if is_sure
                    else f"the interval excludes 0 ({moved}), but {self._test_name} does not exclude chance"
                )
        elif word == INCONCLUSIVE:
            parts += self._list_reasons()
        if not self.is_primary:
            parts.append("exploratory")
        return "; ".join([*parts, *self.rule.notes, *self._list_remarks()]) + "."

    def _describe_change(self) -> str:
        pairs = f"{self.pairs:,} pair{'s' * (self.pairs != 1)}"
        if self.is_unordered:
            examples = sum(self.table.values())
            return f"{self.changed_labels:,} of {examples:,} example{'s' * (examples != 1)} changed their label"
        change = self.change or 0.0
        if self.kind == "ratio":
            text = f"{_plain(change)} times over {pairs}"
        elif self.kind == "labels":
            text = f"{self.up:,} of {pairs} changed from bad to good and {self.down:,} from good to bad"
        else:
            text = f"{_signed(change)} over {pairs}"
        if (interval := self.interval) is not None:
            joint = f", 95 % for {self.family} questions together" if self.family > 1 else ""
            text += f", interval {self._show(interval)} ({_percent(self.level)}{joint}), p {self.p_text}"
        return text

    def _describe_bad_end(self) -> str:
        limit = -(self.margin or 0) if self.rising else self.margin or 0
        return f"{'above' if self.rising else 'below'} {_signed(limit)}"

    def _list_reasons(self) -> list[str]:
        """Return the reasons of an inconclusive result, and what would settle it."""
        if self.is_unordered:
            if self.p_labels is None:
                return [
                    f"the labels' frequencies are not tested (fewer than {MIN_CHANGED_LABELS} changed, or clusters), and no label is good"
                ]
            verb = "differ" if self._is_significant(self.alpha) else "may not differ"
            return [f"the frequencies of the labels {verb} (p {self.p_text}), but no label is declared good"]
        interval = self._difference_interval(self.level)
        if interval is None:
            differing = self.up + self.down
            return [
                f"only {differing} of them differ, which is too few for an interval ({MIN_DISTINCT} are needed)"
                if differing
                else f"none of them differs, and an interval of scores needs {MIN_DISTINCT} that do"
            ]
        includes, significant = interval[0] <= 0 <= interval[1], self._is_significant(self.alpha)
        if includes and significant:
            reasons = ["the interval includes 0, although the test alone excludes chance"]
        elif includes:
            reasons = [f"the interval includes {'a ratio of 1' if self.kind == 'ratio' else '0'}, no change"]
        else:
            reasons = [
                f"the interval excludes 0, but {self._test_name} does not exclude chance (p above {_plain(self.alpha)})"
            ]
        is_alone = self.family <= self.comparisons
        if self.is_primary and not is_alone and (alone := self._get_moved_word(ALPHA / self.comparisons)) is not None:
            reasons.append(f"as the only primary key it would be {alone}")
        if (further := self.further_examples) is not None:
            reasons.append(self._describe_further(further))
        elif self.kind != "ratio":
            reasons.append(f"half the interval's width is {_plain((interval[1] - interval[0]) / 2)}")
        return reasons

    @property
    def _test_name(self) -> str:
        return "the exact McNemar test" if self._step is not None else "the sign-flip test of symmetry"

    def _describe_further(self, further: int) -> str:
        """Return how many further examples the margin needs, or why the interval is narrow enough and still decides
        nothing.
        """
        margin, interval = self.margin or 0.0, self.equivalence_interval
        level = _percent(1 - 2 * self.alpha)
        if further:
            number = f"more than {MAX_EXAMPLES:,}" if further + self.pairs >= MAX_EXAMPLES else f"about {further:,}"
            return f"{number} further examples would give a {level} interval of ±{_plain(margin)}"
        shown = f"its {level} interval {self._show(interval)}"
        if interval is not None and -margin < interval[0] and interval[1] < margin:
            return f"{shown} is within ±{_plain(margin)}, but the exact tests do not exclude a difference of that size"
        return f"{shown} is about as narrow as ±{_plain(margin)}, but not within it"

    def _list_remarks(self) -> list[str]:
        moves = {pair: count for pair, count in self.table.items() if pair[0] != pair[1]}
        if moves:
            common = sorted(moves.items(), key=lambda move: (-move[1], move[0]))[:SHOWN_MOVES]
            shown = ", ".join(f"{_quote(before)} → {_quote(after)} {count:,}" for (before, after), count in common)
            more = f" and {len(moves) - SHOWN_MOVES} more" if len(moves) > SHOWN_MOVES else ""
            p = self.p_labels
            return [f"labels: {shown}{more}{'' if p is None else f' (Bhapkar p {format_p(p)})'}"]
        if self.unknown:
            return [f"{self.unknown:,} run{'s' * (self.unknown != 1)} of unknown {self.key} left out"]
        if self._step is None and self.kind != "labels" and self.up + self.down >= MIN_DISTINCT:
            skewness = abs(self._moments.skewness) * self.pairs**0.5
            if self.pairs < SMALL_SAMPLE and skewness > _CLEAR_SKEWNESS:
                return [f"the differences are skewed and fewer than {SMALL_SAMPLE}: the interval may be too narrow"]
        return []

    def _show(self, interval: Interval | None) -> str:
        form = _plain if self.kind == "ratio" else _signed
        return "" if interval is None else f"{form(interval[0])} to {form(interval[1])}"


def get_direction(difference: float) -> int:
    """Return 1 for an increase, −1 for a decrease, and 0 for a difference that is only a rounding error."""
    return (difference > DIFFERENCE_TOLERANCE) - (difference < -DIFFERENCE_TOLERANCE)


def _plain(value: float) -> str:
    return f"{value:.3g}"


def _signed(value: float) -> str:
    return f"{value:+.3g}".replace("-", "−")


def _percent(share: float) -> str:
    return f"{100 * share:.4g} %"


def format_p(p: float) -> str:
    """Return a p-value as text, "<0.001" for a smaller one."""
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def _quote(label: str) -> str:
    """Return a label for a sentence, shortened."""
    text = " ".join(label.split())
    return repr(text if len(text) <= _MAX_LABEL else f"{text[:_MAX_LABEL]}…")


# --- scores of an experiment ------------------------------------------------------------------------------------------


def collect_scores(runs: Iterable[RunScores], *, tasks: bool = False, measures: bool = False) -> dict[str, KeyScores]:
    """Return the scores of an experiment's runs by key, in order of first occurrence.

    Repetitions of an example are averaged; of labels the most frequent one counts. Errors, skips and numbers that are
    not finite are left out. With `tasks`, the key `task_ok` holds 1 for a run without an error and else 0; feedback
    under this key is then left out. With `measures`, the keys of `MEASURES` hold the duration (seconds), cost (US
    dollars) and tokens of the runs without an error, unless an evaluator reports such a key; unknown costs are left
    out.
    """
    numbers: defaultdict[str, _Values[float]] = defaultdict(_Values)
    labels: defaultdict[str, _Values[str]] = defaultdict(_Values)
    measured: defaultdict[str, _Values[float]] = defaultdict(_Values)
    unknown: Counter[str] = Counter()
    for run in runs:
        example_id = run.example_id or run.trace_id
        if tasks:
            numbers[TASK_OK].add(example_id, float(run.status != "error"))
        for key, score in run.scores.items():
            if tasks and key == TASK_OK:
                continue
            if isinstance(score, str):
                labels[key].add(example_id, score)
            elif score is not None and abs(score) <= MAX_SCORE:
                numbers[key].add(example_id, float(score))
        if measures and run.status != "error":
            values = (run.duration_ns / 1e9, run.cost, float(run.input_tokens + run.output_tokens))
            for key, value in zip(MEASURES, values, strict=True):
                if value is not None and value >= 0:
                    measured[key].add(example_id, value)
                else:
                    unknown[key] += 1
    used = [
        key for key in MEASURES if key not in numbers and key not in labels and (measured[key].first or unknown[key])
    ]
    numbers.update({key: measured[key] for key in used})
    return {
        key: KeyScores(
            numbers[key].reduce(lambda values: fsum(values) / len(values)) if key in numbers else {},
            labels[key].reduce(lambda values: Counter(values).most_common(1)[0][0]) if key in labels else {},
            key in numbers and bool(numbers[key].repeated),
            key in used,
            unknown[key] if key in used else 0,
        )
        for key in dict.fromkeys([*numbers, *labels])
    }


class _Values(Generic[Value]):
    """Values by example: the first one of each, and all values of those that have several."""

    __slots__ = ("first", "repeated")

    def __init__(self) -> None:
        self.first: dict[str, Value] = {}
        self.repeated: dict[str, list[Value]] = {}

    def add(self, example_id: str, value: Value) -> None:
        if example_id not in self.first:
            self.first[example_id] = value
        else:
            self.repeated.setdefault(example_id, [self.first[example_id]]).append(value)

    def reduce(self, summarize: Callable[[Sequence[Value]], Value]) -> dict[str, Value]:
        """Return one value per example."""
        return {**self.first, **{example_id: summarize(values) for example_id, values in self.repeated.items()}}


# --- all keys of several experiments ----------------------------------------------------------------------------------


def get_question(key: str, keys: Collection[str]) -> str:
    """Return the key that stands for the question a key answers: the main key of a boolean evaluator's rates."""
    mains = [key.removesuffix(ending) for ending in RATE_ENDINGS if key.endswith(ending)]
    return next((main for main in mains if main in keys), key)


def compare_scores(
    experiments: Sequence[ExperimentScores],
    comparisons: Sequence[tuple[int, int]],
    rules: Mapping[str, KeyRule] | Callable[[int, int], Mapping[str, KeyRule]],
    *,
    primary: Collection[str] | None = None,
    clusters: Mapping[str, str] | None = None,
) -> list[dict[str, Contrast]]:
    """Return the contrasts by key, for each comparison of two experiments (positions before and after).

    `primary` names the keys that decide; None stands for all keys but those of `MEASURES`. The family, over which
    Bonferroni's correction is made, counts the questions of the primary keys that have pairs, over all comparisons.
    `clusters` maps example ids to the name of their cluster: the differences of a cluster are averaged, and count
    once. `rules` holds the declared properties of the keys, or returns them for a comparison.
    """
    drafts: list[dict[str, Contrast]] = []
    for first, second in comparisons:
        before, after = experiments[first], experiments[second]
        of_pair = rules(first, second) if callable(rules) else rules
        drafts.append({})
        for key in dict.fromkeys([*before, *after]):
            first_scores, second_scores = before.get(key, KeyScores()), after.get(key, KeyScores())
            present = [side for side in (first_scores, second_scores) if side.values or side.labels or side.is_measure]
            is_measure = all(side.is_measure for side in present)
            if not is_measure:  # a measure of one side is no counterpart of the other side's scores
                first_scores, second_scores = (
                    KeyScores() if side.is_measure else side for side in (first_scores, second_scores)
                )
            if not any(side.is_recorded for side in present):
                continue
            rule = of_pair.get(key, KeyRule(rising=True if key == TASK_OK else False if is_measure else None))
            drafts[-1][key] = _build_contrast(
                key, first_scores, second_scores, rule, clusters or {}, is_measure=is_measure
            )
    scored = {key for scores in experiments for key, of_key in scores.items() if not of_key.is_measure}
    deciding = scored if primary is None else set(primary)
    family = sum(
        len({get_question(key, deciding) for key, contrast in contrasts.items() if key in deciding and contrast.pairs})
        for contrasts in drafts
    )
    return [
        {
            key: replace(
                contrast,
                family=max(1, family) if key in deciding else 1,
                comparisons=len(comparisons),
                is_primary=key in deciding,
            )
            for key, contrast in contrasts.items()
        }
        for contrasts in drafts
    ]


def _build_contrast(
    key: str,
    before: KeyScores,
    after: KeyScores,
    rule: KeyRule,
    clusters: Mapping[str, str],
    *,
    is_measure: bool,
) -> Contrast:
    kind: Kind = "boolean"
    table: Mapping[tuple[str, str], int] = {}
    first: Mapping[str, float]
    second: Mapping[str, float]
    if (before.labels or after.labels) and not (before.values and after.values):
        kind = "labels"
        common = [id for id in before.labels if id in after.labels]
        table = Counter((before.labels[id], after.labels[id]) for id in common)
        first, second = (
            {id: float(label in rule.good_labels) for id, label in side.labels.items()} for side in (before, after)
        )
    else:
        first, second = before.values, after.values
        common = [id for id in first if id in second and isfinite(second[id] - first[id])]
        if not (before.is_boolean and after.is_boolean):
            kind = "score"
        if is_measure:
            positive = all(side[id] > 0 for side in (first, second) for id in common)
            kind = "ratio" if positive and rule.margin is None else "score"
    scale = log if kind == "ratio" else float
    groups: dict[str, list[str]] = {}
    for id in common:
        groups.setdefault(clusters.get(id, id), []).append(id)
    if kind in ("boolean", "labels") and len(groups) < len(common) and (kind == "boolean" or rule.good_labels):
        kind = "score"  # means of booleans
    means_before, means_after = (
        {
            group: scale(side[ids[0]]) if len(ids) == 1 else fsum(scale(side[id]) for id in ids) / len(ids)
            for group, ids in groups.items()
        }
        for side in (first, second)
    )

    def mean(values: Collection[float]) -> float | None:
        if not values:
            return None
        result = fsum(values) / len(values)
        return exp(result) if kind == "ratio" else result

    is_unordered = kind == "labels" and not rule.good_labels
    return Contrast(
        key=key,
        kind=kind,
        differences={group: means_after[group] - means_before[group] for group in groups},
        before=None if is_unordered else mean(means_before.values()),
        after=None if is_unordered else mean(means_after.values()),
        only_before=len(first) - len(common),
        only_after=len(second) - len(common),
        rule=rule,
        table=table,
        unknown=before.unknown + after.unknown,
    )
