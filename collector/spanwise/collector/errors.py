"""Exception hierarchy, and the error message for a missing optional dependency.

SpanwiseError
      StoreError                     a store could not do something
        Refused                      permanent: it can never work as it was asked
          NotFound                   what was named is not there
          Closed                     the store, or this connection to it, was closed
          Forbidden                  the API key does not open this
          TooLarge                   one request holds more than a server takes at once
          TooSlow                    one question takes longer than a server gives it
          Permanent                  a request to the collector can never be kept as it stands
        Unavailable                  may work later; says when to try again
          Halted                     nothing is kept until somebody has looked after the file
          Retryable                  a request to the collector may be kept when it is sent again
      ItemRefused(ValueError)        one span or log record of a request cannot be kept
        BesideRefused                what a span says beside its run cannot be kept, and the span is
      BindingError(TypeError)        an evaluator asks for an argument that no case has
      InvalidResult(TypeError)            an evaluator returned what is no outcome
      Unjudged                       a judge was asked, and no judgement came about
        ParseFailure                 its reply is not what was asked for
        Declined                     it refused, its answer was filtered, or is empty
        CutOff                       its reply ended at the most tokens that it may have
        NoJudge(ValueError)          no judge is named, and none is guessed
        NoModel(ValueError)          a model, or what runs it, is not on this machine
      TaskError(ValueError)          a task cannot be called with the inputs of an example
      CannotResume(ValueError)       the runs that an experiment has stored do not count any more
      BrokenRules(ValueError)        a file of rules does not run, or holds none
      Stuck(RuntimeError)            evaluators that hang hold every slot of a rule in this process
      BadRow(ValueError)             a row of a data file cannot become an example
      SchemaError(ValueError)        an example does not follow its dataset's schema, or the schema is none
      ModelSaid(ValueError)          a model's reply holds no examples
      ConditionError(ValueError)     a condition of an evaluator is malformed
      InvalidJSON(ValueError)        a text is no JSON, or not the JSON that a schema asks for

Those that stand here are the store's; each of the others is defined where it is raised, and is what Python calls such
a thing, too (in brackets). `docs/errors.md` says of each what to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class SpanwiseError(Exception):
    """The root of all errors of ours."""


class StoreError(SpanwiseError):
    """Something that a store could not do."""


class Refused(StoreError):
    """Permanent: what was asked can never work as it stands (bad input, unknown name, a closed store, a newer file)."""


class NotFound(Refused):
    """What was named is not in the store."""


class Closed(Refused):
    """Nothing more goes through this store: open another. A sender of telemetry is told to come again, elsewhere."""


class Forbidden(Refused):
    """The API key is good, but not for this: its scopes do not open it, or it belongs to one project."""


class TooLarge(Refused):
    """One request holds more than a server takes at once: in several it may pass."""


class TooSlow(Refused):
    """One question takes longer than a server gives it: narrowed it may pass, and the same again will not."""


class Unavailable(StoreError):
    """May work later: the queue or the disk is full, the server is away. `retry_after` is in seconds."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Halted(Unavailable):
    """The file is damaged, was removed or replaced, or somebody else writes it: until a person has looked after it and
    the process was started anew nothing more is acknowledged. Senders keep what they have and come again.
    """

    def __init__(self, message: str, retry_after: float = 30.0) -> None:
        super().__init__(message, retry_after)


@contextmanager
def require_extra(extra: str, what: str) -> Iterator[None]:
    """Imports of `what`, which come with an extra: a missing one is told together with what to install.

    Raises `ModuleNotFoundError` with the name of the missing module, as the import itself would.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "spanwise":
            raise
        raise ModuleNotFoundError(
            f"{what} needs {error.name!r}, which is not installed: pip install 'spanwise[{extra}]'", name=error.name
        ) from None
