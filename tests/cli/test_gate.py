"""`spanwise eval` in CI: red when runs fail, when a mean is too low, and before the first run when it asks for nonsense."""

import re
import shlex
import sys

import pytest
from typer.testing import CliRunner

from looped_cases import loop_over
from spanwise.cli.app import app
from spanwise.cli.quality_gate import parse_allowance, parse_bounds
from spanwise.collector.errors import Refused

TWENTY = 'dataset = [{"inputs": {"q": str(n)}, "reference_outputs": str(n)} for n in range(20)]\n'
CRASHING = (
    TWENTY
    + """
evaluators = ["exact"]
def task(q):
    if q != "4":
        raise ConnectionError("away")
    return q
"""
)
JUDGED = (
    TWENTY
    + """
def judge(outputs):
    if outputs != "4":
        raise PermissionError("429")
    return True
evaluators = ["exact", judge]
def task(q):
    return q
"""
)


@pytest.fixture
def check(tmp_path):
    """Run an evaluation of this text; its exit status, and what it said at the end."""

    def run(text, *arguments, input=None):
        (tmp_path / "check.py").write_text(text)
        command = ["eval", str(tmp_path / "check.py"), "--store", str(tmp_path / "a.db"), *arguments]
        result = CliRunner().invoke(app, command, input=input)
        return result.exit_code, result.output

    return run


def last(output):
    return output.strip().splitlines()[-1]


def test_nineteen_crashes_and_one_right_answer_are_red(check):
    status, said = check(CRASHING, "--fail-under", "exact=0.9")
    told = "19 of 20 runs failed (the task 19 times, as with ConnectionError: away); --allow-failed allows 0"
    assert (status, last(said)) == (1, told)


def test_a_judge_that_fails_on_nineteen_is_red(check):
    status, said = check(JUDGED, "--fail-under", "judge=0.9")
    assert (status, "19 of 20 runs failed (judge 19 times, as with PermissionError: 429)" in last(said)) == (1, True)


@pytest.mark.parametrize(
    ("allow", "status"), [("18", 1), ("19", 0), ("94%", 1), ("95%", 0), ("94.9%", 1), ("100%", 0), ("0", 1), ("0%", 1)]
)
def test_failed_runs_are_allowed_by_number_or_share(check, allow, status):
    assert check(CRASHING, "--allow-failed", allow)[0] == status


@pytest.mark.process
def test_a_run_that_two_evaluators_failed_on_is_one_failed_run(check):
    both = JUDGED.replace('["exact", judge]', "[judge, lambda outputs: judge(outputs)]")
    assert check(both, "--allow-failed", "19")[0] == 0
    assert "judge 19 times, as with PermissionError: 429; <lambda> 19 times" in check(both)[1]


@loop_over("text", ["", "many", "-1", "5 %", "101%", "nan%", "1e2%", "5%%", "٥%", "0x1", "1.5"])
def test_what_is_no_number_of_runs_is_refused(text):
    with pytest.raises(Refused, match="--allow-failed must be a number of runs"):
        parse_allowance(text)


@loop_over("text", ["exact", "exact=", "=0.5", "exact=nan", "exact=inf", "exact=high", ""])
def test_what_is_no_bound_is_refused(text):
    with pytest.raises(Refused, match="--fail-under must be KEY=NUMBER"):
        parse_bounds([text])


def test_the_strictest_of_several_bounds_of_a_key_counts(check):
    text = CRASHING.replace("raise ConnectionError", "return str")
    assert check(text, "--fail-under", "exact=0.9", "--fail-under", "exact=0.01")[0] == 1


def test_a_key_that_was_skipped_everywhere_is_below_every_bound(check):
    text = TWENTY + 'evaluators = ["document_recall"]\ndef task(q): return q\n'
    status, said = check(text, "--fail-under", "document_recall=0")
    assert (status, "document_recall has no mean, below 0: 20 skipped" in last(said)) == (1, True)


def test_a_mean_over_a_part_of_the_runs_is_said_to_be_one(check):
    text = TWENTY.replace('"reference_outputs": str(n)', '**({"reference_outputs": "3"} if n == 3 else {})')
    status, said = check(text + 'evaluators = ["exact"]\ndef task(q): return q\n', "--fail-under", "exact=0.9")
    assert (status, last(said)) == (0, "exact is the mean over 1 of 20 runs: 19 skipped")


def test_task_ok_can_always_be_asked_for(check):
    assert check(CRASHING, "--allow-failed", "100%", "--fail-under", "task_ok=0.05")[0] == 0
    status, said = check(CRASHING, "--allow-failed", "100%", "--fail-under", "task_ok=0.9")
    assert (status, last(said)) == (1, "task_ok is 0.05, below 0.9")


@pytest.mark.process
def test_a_set_level_evaluator_that_fails_fails_on_all_runs(check):
    text = (
        TWENTY
        + "def whole(outputs: list): return 1 / 0\nsummary_evaluators = [whole]\nevaluators = []\ndef task(q): return q\n"
    )
    status, said = check(text, "--allow-failed", "99%")
    assert (status, "all 20 runs failed (whole, as with ZeroDivisionError" in last(said)) == (1, True)
    assert check(text, "--allow-failed", "100%")[0] == 0


def test_a_mistyped_key_is_told_before_anything_runs(check, tmp_path):
    status, said = check(JUDGED, "--fail-under", "jugde=0.9")
    assert (status, "(did you mean 'judge'?); known keys: exact, judge, task_ok" in said) == (3, True)
    assert not (tmp_path / "a.db").exists()


def test_where_all_evaluators_declare_their_keys_an_unlike_one_is_refused_too(check):
    text = CRASHING.replace("raise", "return")
    assert "no evaluator reports this key; known keys: exact, task_ok" in check(text, "--fail-under", "helpful=0.9")[1]


@pytest.mark.process
@pytest.mark.parametrize("key", ["judged", "helpful"])
def test_keys_that_are_known_at_run_time_only_hold_too(check, key):
    text = (
        TWENTY
        + f'def judge(outputs): return [{{"key": "{key}", "score": 0.5}}]\nevaluators = [judge]\ndef task(q): return q\n'
    )
    status, said = check(text, "--fail-under", f"{key}=0.4")
    assert (status, "it is checked after the runs" in said) == (0, True)
    assert last(check(text, "--fail-under", f"{key}=0.6")[1]) == f"{key} is 0.5, below 0.6"


def test_what_the_task_says_of_itself_can_be_held_to_a_bound(check):
    text = "from spanwise.tracer import current_run\n" + CRASHING.replace(
        "raise", 'current_run().feedback("cited", 1.0); return'
    )
    assert check(text, "--fail-under", "cited=1")[0] == 0


def test_every_failed_run_says_how_to_run_it_alone(check, tmp_path):
    text = CRASHING.replace('[{"inputs"', '[{"id": f"it\'s {n}", "inputs"')
    said = check(text)[1]
    assert (
        f"again: spanwise eval {tmp_path / 'check.py'} --store {tmp_path / 'a.db'} '--only=it'\"'\"'s 0' --pdb" in said
    )
    (told,) = re.findall(
        r"… and 14 more runs failed: `(spanwise experiments errors [0-9a-f]{8} --store .*)` shows", said
    )
    shown = CliRunner().invoke(app, shlex.split(told)[1:])
    assert (shown.exit_code, shown.output.count("the task failed on example")) == (0, 19)


def test_nothing_is_said_where_nothing_failed(check):
    status, said = check(CRASHING.replace("raise ConnectionError", "return str"))
    assert (status, "again:" in said, "failed (" in said) == (0, False, False)


def test_the_debugger_opens_where_an_evaluator_raised(check):
    status, said = check(JUDGED, "--pdb", "--limit", "1", input="p outputs\nq\n")
    assert "PermissionError: 429\n> " in said
    assert "(Pdb) '0'" in said
    assert status == 1


def test_the_debugger_opens_where_an_async_evaluator_raised(check):
    status, said = check(
        JUDGED.replace("def judge", "async def judge"), "--pdb", "--limit", "1", input="p outputs\nq\n"
    )
    assert ("(Pdb) '0'" in said, status) == (True, 1)


@pytest.mark.process
def test_one_example_is_run_alone_and_looked_at(check):
    text = CRASHING.replace('[{"inputs"', '[{"id": f"example-{n}", "inputs"')
    status, said = check(text, "--only", "example-7", "--pdb", input="p q\nq\n")
    assert (status, "(Pdb) '7'" in said, "ConnectionError: away" in said) == (1, True, True)
    assert check(text, "--only", "example-4")[0] == 0
    assert "1 of 2 runs failed" in last(check(text, "--only", "example-4", "--only", "example-5")[1])


def test_a_debugger_that_is_left_leaves_coverage_its_tracing(check):
    before, tracing = sys.gettrace(), lambda *_: None
    sys.settrace(tracing)
    try:
        _, said = check(CRASHING, "--pdb", input="q\n")
        assert ("(Pdb)" in said, sys.gettrace()) == (True, tracing)
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("raised", ["SystemExit(q)", "pytest.fail.Exception(q)"])
def test_the_debugger_opens_for_what_is_no_plain_exception_too(check, raised):
    text = "import pytest\n" + CRASHING.replace("ConnectionError('away')", raised)
    status, said = check(text, "--pdb", input="p q + 'x'\nq\n")
    assert (status, "(Pdb) '" in said) == (1, True)


def test_an_example_that_there_is_not_needs_no_debugger(check):
    status, said = check(CRASHING, "--only", "nowhere", "--pdb")
    assert (status, "(Pdb)" in said) == (3, False)


LOOPING = (
    TWENTY.replace('"reference_outputs"', '"outputs"').replace("str(n)} for", "'yes ' * 30} for")
    + 'evaluators = ["looping"]\ntask = None\n'
)


def test_a_lower_bound_of_a_key_of_which_lower_is_better_is_refused_with_the_remedy(check):
    status, said = check(LOOPING, "--fail-under", "looping_longest_repeat=0.2")
    assert status == 3
    assert last(said) == (
        "spanwise: --fail-under looping_longest_repeat=0.2: lower is better for this key, so this would fail good "
        "runs; use --fail-if 'looping_longest_repeat.mean > 0.2'"
    )


def test_an_upper_bound_of_a_key_of_which_higher_is_better_is_refused_too(check):
    status, said = check(LOOPING, "--fail-over", "looping_unique_sentences=0.2")
    assert (status, "higher is better for this key" in said) == (3, True)
    assert last(said).endswith("use --fail-if 'looping_unique_sentences.mean < 0.2'")
    assert "task_ok" in check(LOOPING, "--fail-over", "task_ok=0.2")[1]


@pytest.mark.process
def test_a_mean_above_its_upper_bound_is_red(check):
    status, said = check(LOOPING, "--fail-over", "looping_longest_repeat=0.2")
    assert status == 1
    assert last(said).startswith("looping_longest_repeat is ")
    assert last(said).endswith(", above 0.2")
    assert check(LOOPING, "--fail-over", "looping_longest_repeat=1000")[0] == 0


@pytest.mark.process
def test_a_key_without_a_direction_may_have_either_bound(check):
    text = TWENTY + "def size(outputs): return 3\nevaluators = [size]\ndef task(q): return q\n"
    assert check(text, "--fail-under", "size=1")[0] == 0
    assert check(text, "--fail-under", "size=4")[0] == 1
    assert check(text, "--fail-over", "size=4")[0] == 0
    assert check(text, "--fail-over", "size=1")[0] == 1
