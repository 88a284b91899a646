"""Latencies in bins: the same whatever form a blob has, added to and taken from, and where a percentile lies."""

from __future__ import annotations

from array import array
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.collector.statistics import percentile
from assay.collector.stores.sqlite._latencies import (
    NOTHING,
    added,
    all_of,
    between,
    bin_of,
    bounds,
    ordered,
    packed,
    unpacked,
)
from assay.collector.stores.sqlite._ranks import Ranks

TOP = bin_of(2**63 - 1)
BINS = st.one_of(st.integers(NOTHING, TOP), st.integers(500, 560), st.sampled_from([NOTHING, 0, TOP]))
COUNTS = st.one_of(st.integers(1, 3), st.sampled_from([255, 256, 65_535, 65_536, 2**30]))
SOME = st.dictionaries(BINS, COUNTS, max_size=80)


def older(bins: dict[int, int]) -> bytes:
    """As files have them that were written before bins had a form of their own."""
    return array("q", [number for pair in sorted(bins.items()) for number in pair]).tobytes()


@given(st.lists(SOME, max_size=5))
def test_what_was_packed_comes_back_added_up(many):
    together = sum(map(Counter, many), Counter())
    assert unpacked(map(packed, many)) == together
    assert unpacked(map(older, many)) == together
    assert unpacked([form(bins) for bins in many for form in (packed, older)]) == together + together


@given(SOME, SOME)
def test_what_was_added_can_be_taken_away(bins, more):
    for blob in (packed(bins), older(bins)):
        both = added(blob, more)
        assert unpacked([both]) == Counter(bins) + Counter(more)
        assert unpacked([added(both, {bin: -count for bin, count in more.items()})]) == Counter(bins)


@given(SOME.filter(bool))
def test_less_than_nothing_is_refused(bins):
    bin, count = next(iter(bins.items()))
    with pytest.raises(ValueError, match="fewer"):
        added(packed(bins), {bin: -count - 1})


@pytest.mark.parametrize("blob", [b"\x01", b"\x07\x01\x00\x05", b"\x02\x01\x00\x05\x00\x05", b"\x00\x01", b"abc"])
def test_what_is_no_blob_is_refused(blob):
    with pytest.raises(ValueError):
        unpacked([blob])


def test_many_latencies_that_lie_together_take_a_byte_a_bin():
    assert len(packed(dict.fromkeys(range(1_000, 1_100), 200))) == 103


def test_few_that_lie_far_apart_take_four_bytes_each():
    assert len(packed({NOTHING: 1, 1_000: 2, 2_000: 3})) == 13


@given(st.lists(st.one_of(st.integers(0, 10**12), st.sampled_from([0, 1, 2**53 + 1, 2**63 - 1])), min_size=1))
def test_percentiles_are_found_among_the_latencies_of_two_bins(latencies):
    ranks, half = Ranks(Counter(map(bin_of, latencies))), len(latencies) // 2
    ranks.add(latencies[:half])
    ranks.add_ordered(ordered(latencies[half:]))
    assert ranks.found() == {percent: percentile(sorted(latencies), percent) for percent in (50, 95)}


@given(st.lists(st.one_of(st.integers(0, 2**63 - 1), st.integers(0, 400).map(lambda n: n * 10**6)), min_size=1))
def test_latencies_in_order_come_back(latencies):
    blob, middle = ordered(latencies), latencies[len(latencies) // 2]
    assert all_of(blob) == sorted(latencies)
    for least, most in ((0, middle), (middle, 2**63 - 1), (-5, -1), (middle - 1, middle + 1)):
        assert between(blob, [(least, most)]) == [[one for one in sorted(latencies) if least <= one <= most]]


def test_latencies_of_whole_milliseconds_take_a_byte_each():
    assert len(ordered(range(2_400_000_000, 3_400_000_000, 7_000_000))) == 17 + 142


@pytest.mark.parametrize("blob", [b"", b"\x01", b"\x03" + bytes(20), b"\x04" + bytes([1] * 18), b"\x01" + bytes(20)])
def test_what_are_no_latencies_in_order_is_refused(blob):
    with pytest.raises(ValueError, match="no latencies"):
        all_of(blob)


@given(st.integers(NOTHING, TOP))
def test_a_bin_holds_what_lies_within_its_bounds(bin):
    least, most = bounds(bin)
    assert least > most or (bin_of(least), bin_of(most)) == (bin, bin)
    assert most == 2**63 - 1 or bin_of(most + 1) > bin


def test_rows_that_are_not_as_the_bins_say_are_not_believed():
    ranks = Ranks(Counter({bin_of(10**9): 2}))
    assert ranks.found() is None
    ranks.add([10**9])
    assert ranks.found() is None
