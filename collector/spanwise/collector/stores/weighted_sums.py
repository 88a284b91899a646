"""Weighted sums of rules' scores by block of time, over a trace backend and a control backend of any kind.

A score belongs to the time at which its trace started, and weighs the inverse of its sampling probability. The SQLite
store keeps such sums up to date in tables (`stores.sqlite.score_sums`). All other stores compute them here, from the
scores of a window.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import NamedTuple, TypeAlias, TypeVar

from spanwise.collector.errors import Refused
from spanwise.collector.records import Bucket, FeedbackStats, ScoreSums, split_batches
from spanwise.collector.statistics import GRAIN_S, SampledMean, estimate_sums
from spanwise.collector.stores.backends import (
    BucketScore,
    ControlBackend,
    RuleScore,
    ScoreProbability,
    ScoreQuery,
    TraceBackend,
)

_NS = 1_000_000_000
GRAIN_NS = GRAIN_S * 1_000_000_000

# Scores beyond these limits are left out, because sums of squares could exceed the range of numbers
MAX_SCORE, MIN_PROBABILITY = 1e100, 1e-30

# Values of `SeriesKey.label`: scores, all labels, and one label with a prefix
SCORES, ALL_LABELS, LABEL_PREFIX = "", "*", "="


# Ids of labels: scores, all labels, and the first of single labels
SCORES_ID, ALL_LABELS_ID, FIRST_LABEL_ID = 0, 1, 2
MAX_BLOCKS = 100_000  # blocks of one query


class ScoreAmounts(NamedTuple):
    """Amounts of the scores of one trace or cluster in one series. `total` is Σw·y."""

    n: int = 0
    weight: float = 0.0
    total: float = 0.0
    graded: int = 0
    failed: int = 0
    skipped: int = 0
    left_out: int = 0
    left_out_total: float = 0.0

    def plus(self, other: ScoreAmounts) -> ScoreAmounts:
        """Return the sum of both amounts."""
        return ScoreAmounts._make(a + b for a, b in zip(self, other, strict=True))


def score_amounts(
    outcome: str, score: float | None, label: str | None, probability: float | None
) -> list[tuple[str, ScoreAmounts]]:
    """Return the amounts of one score by the label of their series. A probability of 0 does not count."""
    if outcome != "score":
        return [(SCORES, ScoreAmounts(failed=int(outcome == "error"), skipped=int(outcome == "skip")))]
    if probability == 0:
        return []
    is_bounded = score is None or abs(score) <= MAX_SCORE
    if probability is None or probability < MIN_PROBABILITY or not is_bounded:
        plain = score if score is not None and is_bounded else 0.0
        left_out = [(SCORES, ScoreAmounts(left_out=1, left_out_total=plain))] if score is not None else []
        return left_out if label is None else [*left_out, (ALL_LABELS, ScoreAmounts(left_out=1))]
    weight = 1 / probability
    found = []
    if score is not None:
        graded = int(score not in (0.0, 1.0))
        found.append((SCORES, ScoreAmounts(n=1, weight=weight, total=weight * score, graded=graded)))
    if label is not None:
        found.append((ALL_LABELS, ScoreAmounts(n=1, weight=weight)))
        found.append((LABEL_PREFIX + label, ScoreAmounts(total=weight)))
    return found


# Fields by whose values sums can be grouped, besides metadata.KEY
GROUP_FIELDS = ("tag", "model", "environment", "prompt_version", "agent", "name", "user")
METADATA_PREFIX = "metadata."


def check_grouping(by: str) -> str:
    """Return a field by which sums can be grouped. Raise `Refused` for another."""
    if by in GROUP_FIELDS or (by.startswith(METADATA_PREFIX) and by != METADATA_PREFIX):
        return by
    raise Refused(f"unknown field {by!r}; expected one of: {', '.join(GROUP_FIELDS)}, metadata.KEY")


# Prefix of a field (or the whole field) whose sums have the probabilities of live traffic, without those of backfills
LIVE = "live"
LIVE_PREFIX = f"{LIVE}:"


def make_live_field(by: str | None) -> str:
    """Return the name under which the sums of live traffic are kept, in total or by the values of a field."""
    return LIVE if by is None else LIVE_PREFIX + by


class SumsQuery(NamedTuple):
    """Query for the sums of a rule over the blocks of a window.

    If `joined`, a session in several blocks of the window is one cluster, otherwise one per block.
    """

    rule: str
    project: str
    since_ns: int
    until_ns: int
    block_s: int
    key: str | None = None
    version: str | None = None
    by: str | None = None
    groups: Collection[str] = ()  # empty: all
    joined: bool = True
    live: bool = False  # without backfills

    @property
    def field(self) -> str:
        """Return the field of the series; "" for those without groups."""
        return make_live_field(self.by) if self.live else self.by or ""

    def check(self) -> None:
        """Raise `Refused` for a window or a block that does not consist of whole grains, and for an unknown field."""
        if self.block_s <= 0 or self.block_s % GRAIN_S:
            raise Refused(f"block_s must be a multiple of {GRAIN_S}, got {self.block_s}")
        for name in ("since_ns", "until_ns"):
            if getattr(self, name) % GRAIN_NS:
                raise Refused(f"{name} must be a multiple of {GRAIN_S} seconds, got {getattr(self, name)}")
        if (self.until_ns - self.since_ns) // (self.block_s * _NS) > MAX_BLOCKS:
            raise Refused(f"the window has more than {MAX_BLOCKS:,} blocks of {self.block_s} s; choose longer blocks")
        if self.by is not None:
            check_grouping(self.by)
        elif self.groups:
            raise Refused("groups were named without the field that they are values of; name it with by=")

    def start_ns(self, block: int) -> int:
        """Return the start of a block of the window."""
        return self.since_ns + block * self.block_s * _NS


def hash_session(session: str) -> int:
    """Return the cluster id of a session: 63 bits of a hash, so that all tables know it by a number."""
    digest = blake2b(session.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


P = TypeVar("P", bound=Hashable)

# Positions of the sums of a block
_N, _GRADED, _FAILED, _SKIPPED, _LEFT_OUT = range(5)
_WEIGHT, _TOTAL, _WEIGHT_SQUARES, _PRODUCTS, _TOTAL_SQUARES, _LEFT_OUT_TOTAL = range(5, 11)
_NONE = (0.0,) * 11
ClusterPart: TypeAlias = tuple[int, Mapping[int, tuple[float, float]]]  # block, Σw and Σw·y by label


class LabelledSums:
    """Sums of one key by number of the block and id of the label.

    The sums of a label have its totals only. Counts and weights are those of all labels.
    """

    def __init__(self) -> None:
        self._blocks: dict[tuple[int, int], list[float]] = {}

    @property
    def label_ids(self) -> set[int]:
        """Return the ids of all labels."""
        return {label for _, label in self._blocks if label >= FIRST_LABEL_ID}

    def add(self, block: int, label: int, sums: Sequence[float]) -> None:
        """Add the sums of a row of `score_sums`."""
        before = self._blocks.get((block, label))
        self._blocks[block, label] = (
            list(sums) if before is None else [a + b for a, b in zip(before, sums, strict=True)]
        )

    def add_cluster(self, block: int, labels: Mapping[int, ScoreAmounts]) -> None:
        """Add the part of a cluster within one block."""
        all_labels = labels[ALL_LABELS_ID].weight if ALL_LABELS_ID in labels else 0.0
        for label, amounts in labels.items():
            weight, total = amounts.weight, amounts.total
            counts = (amounts.n, amounts.graded, amounts.failed, amounts.skipped, amounts.left_out)
            products = (weight if label == SCORES_ID else all_labels) * total
            squares = (weight * weight, products, total * total)
            self.add(block, label, (*counts, weight, total, *squares, amounts.left_out_total))

    def add_products(self, parts: Sequence[ClusterPart], *, joined: bool) -> None:
        """Add the products of the parts of one cluster, which are in the order of their blocks, to the later block.

        Unless the cluster is `joined`, only products within a block are added.
        """
        earlier: dict[int, tuple[float, float]] = {}
        last = None
        for block, labels in parts:
            if not joined and block != last:
                earlier = {}
            last = block
            all_labels, all_earlier = (part.get(ALL_LABELS_ID, (0.0, 0.0))[0] for part in (labels, earlier))
            # a label that only earlier parts have still has products with the weight of all labels of this part
            for label in {*labels, *(label for label in earlier if label >= FIRST_LABEL_ID and all_labels)}:
                weight, total = labels.get(label, (0.0, 0.0))
                weight_before, total_before = earlier.get(label, (0.0, 0.0))
                is_scores = label == SCORES_ID
                products = (weight if is_scores else all_labels) * total_before
                products += (weight_before if is_scores else all_earlier) * total
                added = list(_NONE)
                added[_WEIGHT_SQUARES:_LEFT_OUT_TOTAL] = 2 * weight * weight_before, products, 2 * total * total_before
                self.add(block, label, added)
                earlier[label] = weight_before + weight, total_before + total

    def records(
        self, key: str, group: str | None, names: Mapping[int, str], start_ns: Callable[[int], int]
    ) -> list[ScoreSums]:
        """Return the records of all blocks that have scores, labels, errors or skips. `start_ns` is that of a block."""
        blocks = self._blocks
        found = [
            _make_record(key, group, None, start_ns(block), blocks[block, SCORES_ID], blocks[block, SCORES_ID])
            for block in sorted(block for block, label in blocks if label == SCORES_ID)
        ]
        labelled = sorted(block for block, label in blocks if label == ALL_LABELS_ID)
        for id in sorted(self.label_ids, key=lambda id: names[id]):
            for block in labelled:
                own, counts = blocks.get((block, id), _NONE), blocks[block, ALL_LABELS_ID]
                outcomes = blocks.get((block, SCORES_ID), _NONE)
                combined = [*counts[:_FAILED], outcomes[_FAILED], outcomes[_SKIPPED], *counts[_LEFT_OUT:]]
                found.append(_make_record(key, group, names[id], start_ns(block), combined, own))
        return found


def _make_record(
    key: str, group: str | None, label: str | None, start_ns: int, sums: Sequence[float], own: Sequence[float]
) -> ScoreSums:
    """Return a record with the counts and weights of `sums`, and the totals of `own`."""
    return ScoreSums(
        key=key,
        label=label,
        group=group,
        start_ns=start_ns,
        n=int(sums[_N]),
        weight=sums[_WEIGHT],
        total=own[_TOTAL],
        weight_squares=sums[_WEIGHT_SQUARES],
        products=own[_PRODUCTS],
        total_squares=own[_TOTAL_SQUARES],
        graded=int(sums[_GRADED]),
        failed=int(sums[_FAILED]),
        skipped=int(sums[_SKIPPED]),
        left_out=int(sums[_LEFT_OUT]),
        left_out_total=sums[_LEFT_OUT_TOTAL],
    )


class ClusterSums(dict[tuple[P, int | str | tuple[int | str]], dict[int, dict[int, ScoreAmounts]]]):
    """Amounts of clusters by place and cluster, then by block and label."""

    def __init__(self) -> None:
        super().__init__()
        self._label_ids = {SCORES: SCORES_ID, ALL_LABELS: ALL_LABELS_ID}

    @property
    def label_names(self) -> dict[int, str]:
        """Return the names of the labels by id. The ids are those of this object, not of the tables."""
        return {id: label.removeprefix(LABEL_PREFIX) for label, id in self._label_ids.items()}

    def add(
        self, place: P, block: int, owner: int | str, session: str | None, label: str, amounts: ScoreAmounts
    ) -> None:
        """Add the amounts of a trace. Its cluster is the session, or the trace if there is none."""
        id = self._label_ids.setdefault(label, len(self._label_ids))
        cluster = (owner,) if session is None else hash_session(session)
        labels = self.setdefault((place, cluster), {}).setdefault(block, {})
        labels[id] = amounts.plus(labels[id]) if id in labels else amounts

    def add_up(self, *, joined: bool) -> dict[P, LabelledSums]:
        """Return the sums of all clusters, by place."""
        found: dict[P, LabelledSums] = defaultdict(LabelledSums)
        for (place, _), blocks in self.items():
            for block, labels in blocks.items():
                found[place].add_cluster(block, labels)
            if len(blocks) > 1:
                parts = [
                    (block, {id: (amounts.weight, amounts.total) for id, amounts in blocks[block].items()})
                    for block in sorted(blocks)
                ]
                found[place].add_products(parts, joined=joined)
        return found


# Sums of a window, and weighted buckets, from the scores of a trace backend and the probabilities of a control backend

SumPlace: TypeAlias = tuple[str | None, str]  # group, key
BucketPlace: TypeAlias = tuple[int, str | None]  # start of the bucket (0 without buckets), group
SCORES_PER_READ = 5_000


def make_sum_records(
    found: Mapping[SumPlace, LabelledSums], names: Mapping[int, str], query: SumsQuery
) -> list[ScoreSums]:
    """Return the records of all groups and keys of a query. `names` are those of the labels, by id."""
    places = sorted(found, key=lambda place: (place[0] or "", place[1]))
    return [record for place in places for record in found[place].records(place[1], place[0], names, query.start_ns)]


def count_groups(sums: Iterable[ScoreSums]) -> dict[str, int]:
    """Return the number of weighted scores (or of labels, if a key has more of them) by group, highest first.

    The sums are those of one block.
    """
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for each in sums:
        place = each.group or "", each.key
        counts[place] = max(counts[place], each.n)
    found: dict[str, int] = defaultdict(int)
    for (group, _), count in counts.items():
        found[group] += count
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def sum_scores(traces: TraceBackend, control: ControlBackend, query: SumsQuery) -> list[ScoreSums]:
    """Return the sums of a window, computed from all scores of the rule in it.

    The cost grows with the number of scores: about 25 microseconds of CPU each with SQLite backends. Raise `Refused` for an
    invalid query.
    """
    query.check()
    sums = ClusterSums[SumPlace]()
    asked = ScoreQuery(
        rule=query.rule,
        project=query.project,
        key=query.key,
        since_ns=query.since_ns,
        until_ns=query.until_ns,
        limit=SCORES_PER_READ,
        labelled=True,
        by=query.by,
    )
    while True:
        page = traces.list_rule_scores(asked)
        decisions = _find_decisions(control, query.rule, query.project, query.version, page.items)
        for score, decision in zip(page.items, decisions, strict=True):
            if not decision.is_own or (query.live and decision.live == 0):
                continue  # another version, or a score that a backfill added
            probability = decision.live if query.live else decision.probability
            block = (score.start_ns - query.since_ns) // (query.block_s * _NS)
            groups = [None] if query.by is None else [g for g in score.groups if not query.groups or g in query.groups]
            for group in groups:
                _add_score(sums, (group, score.feedback.key), block, score, probability)
        if page.next is None:
            return make_sum_records(sums.add_up(joined=query.joined), sums.label_names, query)
        asked = asked._replace(cursor=page.next)


def weigh_buckets(
    buckets: Sequence[Bucket],
    scores: Iterable[BucketScore],
    control: ControlBackend,
    bucket_ns: int | None,
    group_by: str | None,
) -> list[Bucket]:
    """Return buckets in which the means of keys that rules have scored are weighted.

    `scores` are the rules' scores of the traces that the buckets cover.
    """
    clusters = ClusterSums[tuple[BucketPlace, str]]()
    for chunk in split_batches(scores, SCORES_PER_READ):
        by_rule: dict[tuple[str, str], list[BucketScore]] = defaultdict(list)
        for each in chunk:
            by_rule[each.score.feedback.rule or "", each.project].append(each)
        for (rule, project), some in by_rule.items():
            decisions = _find_decisions(control, rule, project, None, [each.score for each in some])
            for each, decision in zip(some, decisions, strict=True):
                place = (each.start_ns, each.group), each.score.feedback.key
                _add_score(clusters, place, 0, each.score, decision.probability)
    sums: dict[BucketPlace, list[ScoreSums]] = defaultdict(list)
    for (of_bucket, key), labelled in clusters.add_up(joined=False).items():
        sums[of_bucket] += labelled.records(key, None, clusters.label_names, lambda _: 0)
    return replace_bucket_means(buckets, sums, bucket_ns, group_by)


def _find_decisions(
    control: ControlBackend, rule: str, project: str, version: str | None, scores: Sequence[RuleScore]
) -> Sequence[ScoreProbability]:
    targets = [(score.feedback.target, score.feedback.claim or 0) for score in scores]
    return control.find_probabilities(rule, project, version, targets) if targets else ()


def _add_score(sums: ClusterSums[P], place: P, block: int, score: RuleScore, probability: float | None) -> None:
    feedback = score.feedback
    value = None if feedback.score is None else float(feedback.score)
    owner = feedback.target.trace_id or str(feedback.target.session_id)
    for label, amounts in score_amounts(feedback.outcome, value, feedback.label, probability):
        sums.add(place, block, owner, score.session_id, label, amounts)


def replace_bucket_means(
    buckets: Sequence[Bucket],
    sums: Mapping[BucketPlace, Sequence[ScoreSums]],
    bucket_ns: int | None,
    group_by: str | None,
) -> list[Bucket]:
    """Return buckets with the weighted means and shares of these sums. Buckets of experiments stay plain."""
    return [
        bucket
        if group_by == "experiment" and bucket.group
        else replace(bucket, feedback=tuple(_weigh(stats, sums.get(place, ())) for stats in bucket.feedback))
        for bucket in buckets
        for place in [(bucket.start_ns if bucket_ns else 0, bucket.group)]
    ]


def _weigh(stats: FeedbackStats, sums: Sequence[ScoreSums]) -> FeedbackStats:
    """Return statistics with the weighted mean and shares of the scores that rules gave, if there are any."""
    own = [each for each in sums if each.key == stats.key] if stats.target == "trace" else []
    shares: dict[str, tuple[float, float | None, float | None]] = {}
    labels: SampledMean | None = None
    for label in {each.label for each in own} - {None}:
        [labels] = estimate_sums(each for each in own if each.label == label)
        if labels.mean:  # labels of other buckets have the share 0
            shares[str(label)] = labels.mean, labels.low, labels.high
    scores = estimate_sums(each for each in own if each.label is None)
    if not scores or not (scores[0].n or scores[0].unknown):
        if labels is None or stats.n:
            return replace(stats, shares=shares)
        return replace(stats, shares=shares, effective=labels.effective, unweighted=labels.unknown)
    [mean] = scores
    return replace(
        stats,
        mean=stats.mean if mean.mean is None else mean.mean,
        low=mean.low,
        high=mean.high,
        effective=mean.effective,
        unweighted=mean.unknown,
        shares=shares,
    )
