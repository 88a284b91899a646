"""The table of our own evaluators is true, and nothing is imported before it is used."""

import json
import subprocess
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest

import assay.evaluators
from assay.evaluators.protocol import Metric, builtin
from assay.evaluators.protocol._own import _entries
from assay.evaluators.protocol._table import TABLE

ROOMS = [room for room in ("builtin", "judges", "models") if (Path(assay.evaluators.__path__[0]) / room).is_dir()]
HEAVY = (
    "bm25s detoxify jsonschema nltk numpy openai phonenumbers py3langid rapidfuzz regex rouge_score sacrebleu scipy"
    " sentence_transformers sklearn torch transformers yaml"
)


def modules():
    rooms = [import_module(f"assay.evaluators.{room}") for room in ROOMS]
    return [f"{room.__name__}.{module.name}" for room in rooms for module in iter_modules(room.__path__)]


@cache
def loaded_by(code):
    """The modules that a fresh interpreter has loaded after some code."""
    script = f"import json, sys\n{code}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def own(loaded):
    """Those of the modules that register evaluators."""
    return {name.rpartition(".")[2] for name in loaded & set(TABLE.values())}


def test_the_table_says_what_the_modules_register():
    for module in modules():
        import_module(module)
    assert {id: entry.factory.__module__ for id, entry in _entries.items()} == dict(TABLE)


def test_an_evaluator_that_the_table_does_not_know_is_told_where_to_write_it():
    register = builtin("no_such", metrics=(Metric("no_such", primary=True),))
    with pytest.raises(
        ValueError, match=r"'no_such' is in .*test_lazy: say so in assay/evaluators/protocol/_table\.py"
    ):
        register(type("NoSuch", (), {"__module__": __name__, "__call__": lambda self, outputs: 1}))


def test_an_evaluator_in_another_module_than_the_table_says_is_refused():
    with pytest.raises(ValueError, match="'exact' is in"):
        builtin("exact", metrics=())(type("Exact", (), {"__module__": __name__}))


def test_naming_all_evaluators_imports_none():
    assert own(loaded_by("from assay.evaluators import names; names()")) == set()


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("from assay.evaluators import get; get('ir_map')", {"retrieval"}),
        ("from assay.evaluators import protocol; protocol.spec('tool_calls')", {"agents", "json"}),  # which it reads
        ("from assay.evaluators import as_evaluator; as_evaluator({'type': 'latency'})", {"numbers"}),
        ("from assay.evaluators import get; get('DocumentMRR')", {"retrieval"}),
    ],
)
def test_one_evaluator_imports_its_own_module(code, wanted):
    assert own(loaded_by(code)) == wanted


def test_texts_import_no_more_than_the_functions_that_their_module_offers():
    assert own(loaded_by("from assay.evaluators import get; get('exact')")) == {"text", "looping", "overlap"}


def test_not_even_all_of_them_load_a_heavy_package():
    loaded = loaded_by("from assay.evaluators import get, protocol; get('exact'); protocol.specs()")
    assert {name.partition(".")[0] for name in loaded} & set(HEAVY.split()) == set()


def test_an_instance_is_its_evaluator_before_anything_was_got():
    code = "from assay.evaluators.builtin.text import Exact; from assay.evaluators import as_evaluator as e; e(Exact())"
    assert "retrieval" not in own(loaded_by(code))
