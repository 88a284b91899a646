"""Exception hierarchy, and the error message for a missing optional dependency.

    SpanwiseError
      StoreError                     a store could not carry out an operation
        Refused                      permanent: repeating the same call cannot succeed
          NotFound                   the named record does not exist
          Closed                     the store, or this connection to it, is closed
          Forbidden                  the API key does not permit this
          TooLarge                   one request holds more than the server accepts
          TooManyBuckets             an aggregate has more buckets than one answer may have
          TooSlow                    a query exceeded the server's time limit
          PermanentError             the collector can never accept this request as it is
        Unavailable                  temporary: carries the delay after which to retry
          Halted                     the store accepts no writes until an operator has repaired the file
          RetryableError             the collector may accept the request when it is sent again
      ItemRefused(ValueError)        one span or log record of a request is refused
        SideRecordRefused            a side record of a span is refused; the span itself is accepted
      BindingError(TypeError)        an evaluator asks for an argument that no case has
      InvalidResult(TypeError)       an evaluator returned a value that is not an outcome
      Unjudged                       a judge was called and gave no judgement
        ParseFailure                 its reply does not have the requested form
        Declined                     it refused, its answer was filtered, or its answer is empty
        CutOff                       its reply ended at the token limit
        Unbilled                     the endpoint did not get or process the question, so it costs nothing
        NoJudge(ValueError)          no judge is configured, and none is guessed
        NoModel(ValueError)          a model, or its runtime, is not installed on this machine
      TaskError(ValueError)          a task cannot be called with the inputs of an example
      CannotResume(ValueError)       the stored runs of an experiment are no longer valid
      BrokenRules(ValueError)        a rules file does not run, or defines no rule
      Stuck(RuntimeError)            hanging evaluators occupy every slot of a rule in this process
      BadRow(ValueError)             a row of a data file cannot become an example
      SchemaError(ValueError)        an example violates its dataset's schema, or the schema is invalid
      ModelSaid(ValueError)          a model's reply contains no examples
      ConditionError(ValueError)     a condition of an evaluator is malformed
      InvalidJSON(ValueError)        a text is not JSON, or not the JSON that a schema requires

This module defines the errors of the store. Each other error is defined in the module that raises it. The class in
brackets is the built-in exception that the error also inherits from. `docs/errors.md` describes how to handle each.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class SpanwiseError(Exception):
    """Base class of all exceptions of Spanwise."""


class StoreError(SpanwiseError):
    """Error of a store operation."""


class Refused(StoreError):
    """Permanent error: the same call can never succeed.

    Causes are invalid input, an unknown name, a closed store, or a file of a newer version.
    """


class NotFound(Refused):
    """Error for a named record that is not in the store."""


class Closed(Refused):
    """Error for a store that has been closed. The caller must open a new store; OTLP senders are asked to retry."""


class Forbidden(Refused):
    """Error for a valid API key without permission: it lacks the scope, or is bound to another project."""


class TooLarge(Refused):
    """Error for a request that holds more than the server accepts at once. The caller must split it."""


class TooSlow(Refused):
    """Error for a query that exceeds the server's time limit. The same query fails again; a narrower one may succeed."""


class Unavailable(StoreError):
    """Temporary error: the queue or the disk is full, or the server cannot be reached. `retry_after` is in seconds."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Halted(Unavailable):
    """Error for a database file that is damaged, removed, replaced, or written by another process.

    The store acknowledges nothing more until an operator has repaired the file and restarted the process. Senders
    keep their data and retry.
    """

    def __init__(self, message: str, retry_after: float = 30.0) -> None:
        super().__init__(message, retry_after)


@contextmanager
def require_extra(extra: str, what: str) -> Iterator[None]:
    """Catch a failed import inside the block, and add the command that installs the missing extra to its message.

    `what` is the feature that needs the extra. Raises `ModuleNotFoundError` with the name of the missing module,
    as the import itself would.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "spanwise":
            raise
        raise ModuleNotFoundError(
            f"{what} needs {error.name!r}, which is not installed: pip install '.[{extra}]' in a checkout of Spanwise",
            name=error.name,
        ) from None
