"""Sums of one key by block and label, and their records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from spanwise.collector.records import ScoreSums
from spanwise.collector.stores.sqlite.score_sums.contributions import ScoreAmounts
from spanwise.collector.stores.sqlite.score_sums.sum_tables import ALL_LABELS_ID, FIRST_LABEL_ID, SCORES_ID

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
