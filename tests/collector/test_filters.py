import pytest

from assay.collector.filters import Filter, combined


def test_conditions_in_short_forms():
    found = combined(Filter(project="p"), {"feedback": ("k", "<", 1), "tags": "a", "latency_ms": 5, "name": "n"})
    assert found == Filter(project="p", feedback=(("k", "<", 1.0),), tags=("a",), latency_ms=("=", 5.0), name="n")


def test_several_conditions_on_feedback():
    conditions = [("a", ">=", 0.5), ("b", "=", "polite")]
    assert combined(None, {"feedback": conditions}).feedback == (("a", ">=", 0.5), ("b", "=", "polite"))


def test_none_takes_a_condition_away():
    assert combined(Filter(name="n", tags=("a",)), {"name": None, "tags": None}) == Filter()


@pytest.mark.parametrize(
    ("conditions", "told"),
    [({"nmae": 1}, "did you mean 'name'"), ({"latency_ms": ("~", 1)}, "'~' is not one of"), ({"feedback": ("a", "<")}, "(key, operator, value)")],
)  # fmt: skip
def test_a_typo_is_named(conditions, told):
    with pytest.raises(ValueError) as caught:
        combined(None, conditions)
    assert told in str(caught.value)
