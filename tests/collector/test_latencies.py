"""Latencies in bins: the same whatever form a blob has, added to and taken from."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanwise.collector.stores.sqlite.rollups.rollup_delta import (
    ZERO_BIN,
    add_to_bins,
    find_bin,
    pack_bins,
    unpack_bins,
)

TOP = find_bin(2**63 - 1)
BINS = st.one_of(st.integers(ZERO_BIN, TOP), st.integers(500, 560), st.sampled_from([ZERO_BIN, 0, TOP]))
COUNTS = st.one_of(st.integers(1, 3), st.sampled_from([255, 256, 65_535, 65_536, 2**30]))
SOME = st.dictionaries(BINS, COUNTS, max_size=80)


@given(st.lists(SOME, max_size=5))
def test_what_was_packed_comes_back_added_up(many):
    together = sum(map(Counter, many), Counter())
    assert unpack_bins(map(pack_bins, many)) == together
    assert unpack_bins([pack_bins(bins) for bins in many + many]) == together + together


@given(SOME, SOME)
def test_what_was_added_can_be_taken_away(bins, more):
    both = add_to_bins(pack_bins(bins), more)
    assert unpack_bins([both]) == Counter(bins) + Counter(more)
    assert unpack_bins([add_to_bins(both, {bin: -count for bin, count in more.items()})]) == Counter(bins)


@given(SOME.filter(bool))
def test_less_than_nothing_is_refused(bins):
    bin, count = next(iter(bins.items()))
    with pytest.raises(ValueError, match="negative"):
        add_to_bins(pack_bins(bins), {bin: -count - 1})


@pytest.mark.parametrize("blob", [b"\x01", b"\x07\x01\x00\x05", b"\x02\x01\x00\x05\x00\x05", b"\x00\x01", b"abc"])
def test_what_is_no_blob_is_refused(blob):
    with pytest.raises(ValueError):
        unpack_bins([blob])


def test_many_latencies_that_lie_together_take_a_byte_a_bin():
    assert len(pack_bins(dict.fromkeys(range(1_000, 1_100), 200))) == 103


def test_few_that_lie_far_apart_take_four_bytes_each():
    assert len(pack_bins({ZERO_BIN: 1, 1_000: 2, 2_000: 3})) == 13
