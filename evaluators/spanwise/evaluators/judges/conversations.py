"""Judges of agents and conversations: goal reached, tool choice, completeness, user frustration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from spanwise.collector.records import Case, Trace
from spanwise.evaluators.interface import Metric, Skip
from spanwise.evaluators.judges.judge_evaluator import JudgeEvaluator, register_judge
from spanwise.evaluators.judges.prompt_templates import format_messages, read_full_conversation, render_value
from spanwise.evaluators.judges.ratings import ask_yes_no

_DEFINITION_SOURCE = "a judgement in our words; agents and sessions are in none of the documents"
_EXAMPLE_HISTORY = (
    '[{"role": "assistant", "content": "Which one?"}, {"role": "user", "content": "I said it twice: number 7!"}]'
)


@register_judge(
    "goal_reached",
    source=_DEFINITION_SOURCE,
    canonical="",
    example='get_evaluator("goal_reached", judge=scripted({"rationale": "Nothing was booked.", "rating": "no"})), trace, '
    'inputs="Tell Ann about the cats.", outputs="I have looked for cats."',
)
class GoalReached(JudgeEvaluator):
    """Goal completion: the agent did what it was asked to do, judged by its runs rather than by its answer.

    The judge gets the request, the run tree and the answer, if there is one. An agent that failed is also judged.
    """

    PROMPT: ClassVar[str] = "goal_reached"
    OPTIONAL: ClassVar[Mapping[str, str]] = {"outputs": "(it gave no answer)"}

    async def __call__(self, case: Case, inputs: Any, trace: Trace, outputs: Any = None) -> dict[str, Any]:
        return await ask_yes_no(self.PROMPT, self._judge, self._prompt, case, self._values(case))


@register_judge(
    "tool_choice",
    source=_DEFINITION_SOURCE,
    canonical="",
    example='get_evaluator("tool_choice", judge=scripted({"rationale": "Both were needed.", "rating": "yes"})), trace, '
    'inputs="Tell Ann about the cats."',
)
class ToolChoice(JudgeEvaluator):
    """Tool choice: the agent called the right tools with sensible arguments, and made no unnecessary call.

    `tools` lists the available tools, as texts or as their schemas. Without it, the judge only knows the tools
    that were called. An agent that needed no tool and called none passes.
    """

    PROMPT: ClassVar[str] = "tool_choice"
    NAMES: ClassVar[tuple[str, ...]] = (*JudgeEvaluator.NAMES, "tools")

    tools: Sequence[Any] = ()

    async def __call__(self, case: Case, inputs: Any, trace: Trace) -> dict[str, Any]:
        values = self._values(case, {"tools": render_value(self.tools) if self.tools else "(not said)"})
        return await ask_yes_no(self.PROMPT, self._judge, self._prompt, case, values)

    def _settings_identity(self) -> list[Any]:
        return [render_value(list(self.tools))]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationJudge(JudgeEvaluator):
    """Base class of judges of a complete conversation, which their prompts name `{history}`."""

    async def __call__(
        self, case: Case, history: Any = None, inputs: Any = None, outputs: Any = None
    ) -> dict[str, Any]:
        spoken = read_full_conversation(case)
        if not spoken:
            raise Skip("needs history; the case has none, nor has it inputs")
        values = self._values(case, {"history": format_messages(spoken)})
        return await ask_yes_no(self.PROMPT, self._judge, self._prompt, case, values)


@register_judge(
    "conversation_complete",
    source=_DEFINITION_SOURCE,
    canonical="",
    example='get_evaluator("conversation_complete", judge=scripted({"rationale": "The parcel is still lost.", "rating": "no"})), '
    f'history={_EXAMPLE_HISTORY}, outputs="Let me see."',
)
class ConversationComplete(ConversationJudge):
    """Completeness of a conversation: every request of the user was dealt with by its end.

    The judge reads all turns: those of a session, of `history`, or of inputs that are messages, with the last answer.
    A request is dealt with if the assistant said that it could not fulfil it and the user did not insist. A request
    that the assistant ignored or postponed is not.
    """

    PROMPT: ClassVar[str] = "conversation_complete"


@register_judge(
    "user_frustrated",
    metrics=(Metric("user_frustrated", higher_is_better=False, threshold=0.5, primary=True),),
    source=_DEFINITION_SOURCE,
    canonical="",
    example='get_evaluator("user_frustrated", judge=scripted({"rationale": "They had to say it twice.", "rating": "yes"})), '
    f"history={_EXAMPLE_HISTORY}",
)
class UserFrustrated(ConversationJudge):
    """User frustration: the user shows frustration with the assistant in a conversation. Lower is better.

    Signs are anger at the assistant, sarcasm about it, repeating a request that was not understood, and giving up.
    Trouble that the user already had does not count, nor does a terse user. The judge reads the same turns as for
    `conversation_complete`.
    """

    PROMPT: ClassVar[str] = "user_frustrated"
