"""Judges: models that say whether something is good, and all that it takes to rely on what they say."""

from spanwise.evaluators.judges._ask import (
    Answer,
    Ask,
    Backend,
    Completion,
    CutOff,
    Declined,
    NoJudge,
    ParseFailure,
    Token,
)
from spanwise.evaluators.judges._budget import Amount, Ledger, charged
from spanwise.evaluators.judges._judge import Judge, judge_of
from spanwise.evaluators.judges._judgement import Judgement
from spanwise.evaluators.judges._own import judge
from spanwise.evaluators.judges._panel import panel
from spanwise.evaluators.judges._prompts import Prompt, prompt
from spanwise.evaluators.judges._scripted import scripted

__all__ = [
    "Amount",
    "Answer",
    "Ask",
    "Backend",
    "Completion",
    "CutOff",
    "Declined",
    "Judge",
    "Judgement",
    "Ledger",
    "NoJudge",
    "ParseFailure",
    "Prompt",
    "Token",
    "charged",
    "judge",
    "judge_of",
    "panel",
    "prompt",
    "scripted",
]
