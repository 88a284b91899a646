"""Components of Haystack pipelines: generators, queries and searches with fixed replies."""

from haystack import Document, component, default_from_dict, default_to_dict
from haystack.dataclasses import ChatMessage


@component
class Scribe:
    """A generator of Haystack's that replies to each row what is written down for its question."""

    def __init__(self, replies: dict[str, str], model: str = "scribe"):
        self.replies = replies
        self.model = model

    @component.output_types(replies=list[ChatMessage])
    def run(self, messages: list[ChatMessage]):
        text = messages[-1].text.rpartition("Inputs:")[2]
        said = next((reply for question, reply in self.replies.items() if question in text), None)
        if said is None:
            raise RuntimeError("the scribe is tired")
        meta = {"model": self.model, "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}}
        return {"replies": [ChatMessage.from_assistant(said, meta=meta)]}

    def to_dict(self):
        return default_to_dict(self, replies=self.replies, model=self.model)

    @classmethod
    def from_dict(cls, data):
        return default_from_dict(cls, data)


@component
class Ask:
    @component.output_types(contexts=list[list[str]])
    def run(self, questions: list[str]):
        return {"contexts": [["a"] for _ in questions]}


@component
class Search:
    @component.output_types(documents=list[list[Document]])
    def run(self, questions: list[str]):
        return {"documents": [[Document(content=text) for text in "ba"] for _ in questions]}
