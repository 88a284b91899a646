"""The table of our own evaluators is true, and nothing is imported before it is used."""

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest

import spanwise.evaluators
from spanwise.evaluators.interface import Metric, register_builtin
from spanwise.evaluators.interface.evaluator_registry import BUILTIN_MODULES, _registrations

ROOMS = [room for room in ("builtin", "judges", "models") if (Path(spanwise.evaluators.__path__[0]) / room).is_dir()]
HEAVY = (
    "bm25s detoxify jsonschema nltk numpy openai phonenumbers py3langid rapidfuzz regex rouge_score sacrebleu scipy"
    " sentence_transformers sklearn torch transformers yaml"
)


def modules():
    rooms = [import_module(f"spanwise.evaluators.{room}") for room in ROOMS]
    return [f"{room.__name__}.{module.name}" for room in rooms for module in iter_modules(room.__path__)]


STEPS = {  # in this order, in one interpreter, and the modules with evaluators that each of them imports
    "list_evaluators()": set(),
    "get_evaluator('ir_map')": {"retrieval"},
    "interface.get_spec('tool_calls')": {"agents", "json", "text_matching"},  # which it reads JSON with
    "as_evaluator({'type': 'latency'})": {"numbers"},
    "get_evaluator('DocumentMRR')": set(),
    "get_evaluator('exact')": {"text", "looping"},  # whose functions it offers, too
    "as_evaluator(import_module('spanwise.evaluators.builtin.human').HumanFeedback('good'))": {"human"},
}
SCRIPT = """
import json, sys
from importlib import import_module
from spanwise.evaluators import as_evaluator, get_evaluator, list_evaluators, interface
for step in json.loads(sys.argv[1]):
    before = set(sys.modules)
    eval(step)
    print(json.dumps(sorted(set(sys.modules) - before)))
interface.list_specs()
print(json.dumps(sorted(sys.modules)))
"""


@pytest.fixture(scope="module")
def loaded():
    """What each step has loaded, and last all that is loaded when all evaluators are."""
    command = [sys.executable, "-c", SCRIPT, json.dumps(list(STEPS))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [set(json.loads(line)) for line in done.stdout.splitlines()]


def test_the_table_says_what_the_modules_register():
    for module in modules():
        import_module(module)
    assert {id: entry.factory.__module__ for id, entry in _registrations.items()} == dict(BUILTIN_MODULES)


def test_an_evaluator_that_the_table_does_not_know_is_told_where_to_write_it():
    register = register_builtin("no_such", metrics=(Metric("no_such", primary=True),))
    with pytest.raises(
        ValueError,
        match=r"'no_such' is in .*test_lazy: add it to _IDS_BY_MODULE in spanwise/evaluators/interface/evaluator_registry\.py",
    ):
        register(type("NoSuch", (), {"__module__": __name__, "__call__": lambda self, outputs: 1}))


def test_an_evaluator_in_another_module_than_the_table_says_is_refused():
    with pytest.raises(ValueError, match="'exact' is in"):
        register_builtin("exact", metrics=())(type("Exact", (), {"__module__": __name__}))


@pytest.mark.process
@pytest.mark.process
@pytest.mark.parametrize(("place", "wanted"), list(enumerate(STEPS.values())), ids=list(STEPS))
def test_what_is_asked_for_is_imported_and_no_more(loaded, place, wanted):
    assert {name.rpartition(".")[2] for name in loaded[place] & set(BUILTIN_MODULES.values())} == wanted


@pytest.mark.process
def test_not_even_all_of_them_load_a_heavy_package(loaded):
    assert {name.partition(".")[0] for name in loaded[-1]} & set(HEAVY.split()) == set()
    assert set(BUILTIN_MODULES.values()) <= loaded[-1]
