"""Lists of traces whose roots are large: what is shown of each is little, and no more is in memory."""

from __future__ import annotations

import random
import tracemalloc

from collector.making import child, run
from spanwise.collector.records import Run
from spanwise.collector.stores.sqlite import SQLiteStore

LARGE = 1_000_000  # characters


def test_a_list_holds_one_payload_at_a_time(tmp_path):
    with SQLiteStore(tmp_path / "a.db") as store:
        store._behind.close()  # which would hold texts for the index
        for n in range(40):
            store.append(
                [Run(trace_id=f"{n + 1:032x}", span_id="1" * 16, name="a", start_ns=1, end_ns=2, inputs="x" * LARGE)]
            )
        store.traces(limit=40)
        tracemalloc.start()
        try:
            items = store.traces(limit=40).items
            assert tracemalloc.get_traced_memory()[1] < 20 * LARGE  # to parse one takes fifteen times its size
        finally:
            tracemalloc.stop()
    assert [len(item.inputs) for item in items] == [300] * 40


def test_previews_of_a_large_root_follow_its_trace(tmp_path):
    """They are kept between lists, but runs that arrive later may provide what the root lacks."""
    words = random.Random(1)
    large = {"question": "Why?", "context": [f"{words.getrandbits(256):x}" for _ in range(2_000)]}
    with SQLiteStore(tmp_path / "a.db") as store:
        root = run(inputs=large)
        store.append([root])
        for _ in range(2):
            [summary] = store.traces()
            assert (summary.inputs, summary.outputs, summary.derived) == ("Why?", "", ())
        store.append([child(root, "last", outputs="Because.")])
        for _ in range(2):
            [summary] = store.traces()
            assert (summary.inputs, summary.outputs, summary.derived) == ("Why?", "Because.", ("outputs",))
