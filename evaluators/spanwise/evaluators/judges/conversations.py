"""What an agent did, and how a conversation went: judges that read run trees and sessions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from spanwise.collector.records import Case, Trace
from spanwise.evaluators.judges._base import Judged
from spanwise.evaluators.judges._rating import yes_or_no
from spanwise.evaluators.judges._values import said, text_of, texts_of, whole
from spanwise.evaluators.protocol import Metric, Skip, builtin
from spanwise.evaluators.protocol.standards import VALID

_SOURCE = "a judgement in our words; agents and sessions are in none of the documents"
_TALK = '[{"role": "assistant", "content": "Which one?"}, {"role": "user", "content": "I said it twice: number 7!"}]'


def _metric(id: str, higher_is_better: bool = True) -> tuple[Metric, ...]:
    return (Metric(id, (0.0, 1.0), higher_is_better, 0.5, primary=True),)


@builtin(
    "goal_reached",
    metrics=_metric("goal_reached"),
    standards=(VALID,),
    source=_SOURCE,
    judge=True,
    kind="model",
    example='get("goal_reached", judge=scripted({"rationale": "Nothing was booked.", "rating": "no"})), trace, '
    'inputs="Tell Ann about the cats.", outputs="I have looked for cats."',
)
@dataclass(frozen=True, slots=True, kw_only=True)
class GoalReached(Judged):
    """Whether an agent did what it was asked to do, by what its runs show rather than by what it says it did.

    The judge sees the request, the run tree and the answer, where there is one: an agent that failed is judged, too.
    """

    PROMPT: ClassVar[str] = "goal_reached"

    async def __call__(self, case: Case, inputs: Any, trace: Trace, outputs: Any = None) -> dict[str, Any]:
        values = texts_of(case, self._prompt.asked, optional={"outputs": "(it gave no answer)"})
        return await yes_or_no("goal_reached", self._judge, self._prompt, case, values)


@builtin(
    "tool_choice",
    metrics=_metric("tool_choice"),
    standards=(VALID,),
    source=_SOURCE,
    judge=True,
    kind="model",
    example='get("tool_choice", judge=scripted({"rationale": "Both were needed.", "rating": "yes"})), trace, '
    'inputs="Tell Ann about the cats."',
)
@dataclass(frozen=True, slots=True, kw_only=True)
class ToolChoice(Judged):
    """Whether an agent called the right tools, with arguments that make sense, and none in vain.

    `tools` says which tools there were, as texts or as their schemas; without it the judge knows those that were
    called. An agent that needed no tool and called none has chosen well.
    """

    PROMPT: ClassVar[str] = "tool_choice"
    NAMES: ClassVar[tuple[str, ...]] = (*Judged.NAMES, "tools")

    tools: Sequence[Any] = ()

    async def __call__(self, case: Case, inputs: Any, trace: Trace) -> dict[str, Any]:
        names = [name for name in self._prompt.asked if name != "tools"]
        values = {**texts_of(case, names), "tools": text_of(self.tools) if self.tools else "(not said)"}
        return await yes_or_no("tool_choice", self._judge, self._prompt, case, values)

    def _identity(self) -> list[Any]:
        return [*Judged._identity(self), text_of(list(self.tools))]


@builtin(
    "conversation_complete",
    metrics=_metric("conversation_complete"),
    standards=(VALID,),
    source=_SOURCE,
    judge=True,
    kind="model",
    example='get("conversation_complete", judge=scripted({"rationale": "The parcel is still lost.", "rating": "no"})), '
    f'history={_TALK}, outputs="Let me see."',
)
@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationComplete(Judged):
    """Whether everything that the user wanted in a conversation was dealt with by its end.

    It reads all turns: those of a session, of `history`, or of inputs that are messages, with the last answer. What the
    assistant could not do, said so, and the user let go is dealt with; what it ignored or promised for later is not.
    """

    PROMPT: ClassVar[str] = "conversation_complete"

    async def __call__(
        self, case: Case, history: Any = None, inputs: Any = None, outputs: Any = None
    ) -> dict[str, Any]:
        return await _of_conversation("conversation_complete", self, case)


@builtin(
    "user_frustrated",
    metrics=_metric("user_frustrated", higher_is_better=False),
    standards=(VALID,),
    source=_SOURCE,
    judge=True,
    kind="model",
    example='get("user_frustrated", judge=scripted({"rationale": "They had to say it twice.", "rating": "yes"})), '
    f"history={_TALK}",
)
@dataclass(frozen=True, slots=True, kw_only=True)
class UserFrustrated(Judged):
    """Whether the user shows frustration with the assistant in a conversation: lower is better.

    Anger at the assistant, sarcasm about it, saying the same again because it was not understood, giving up. Trouble
    that the user brought along is not meant, nor is a user who is short. It reads what `conversation_complete` reads.
    """

    PROMPT: ClassVar[str] = "user_frustrated"

    async def __call__(
        self, case: Case, history: Any = None, inputs: Any = None, outputs: Any = None
    ) -> dict[str, Any]:
        return await _of_conversation("user_frustrated", self, case)


async def _of_conversation(id: str, judged: Judged, case: Case) -> dict[str, Any]:
    """A judgement of all that was said, under `history`. Raises `Skip` where nothing was."""
    prompt = judged.prompts[0]
    spoken = whole(case)
    if not spoken:
        raise Skip("needs history; the case has none, nor has it inputs")
    others = texts_of(case, [name for name in prompt.asked if name != "history"])
    return await yes_or_no(id, judged._judge, prompt, case, {**others, "history": said(spoken)})
