"""What a reply says: JSON as the schema has it, read strictly first, then with patience."""

from __future__ import annotations

from typing import Any

import orjson

from assay.evaluators.judges._ask import Ask, Completion, ParseFailure


def read(ask: Ask, completion: Completion) -> Any:
    """The object that the schema describes, or the text where there is no schema. Raises `ParseFailure`."""
    if ask.schema is None:
        return completion.text
    try:
        return orjson.loads(completion.text)
    except orjson.JSONDecodeError as error:
        raise ParseFailure(f"{error}", completion.text) from error
