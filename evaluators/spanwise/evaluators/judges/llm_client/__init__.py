"""LLM client of the judges: settings, calls, cache, budget, rate limiting, backends, reply parsing.

Modules, in the order in which data flows:

- `judge_settings`: Settings of judges: model, endpoint, key, price and limits, from arguments or the environment. The
  prices give the cost of a call.
- `judge_call`: Judge, and a call of it from top to bottom: cache, single flight, budget, rate limit,
  attempts, parsing.
- `chat_completions`: Questions, completions and answers of judges, and the chat-completion format of
  OpenAI.
- `answer_cache`: Answer cache: successful replies of judges in one SQLite file per user.
- `judge_budget`: Budget of judges: ledgers that reserve the maximum cost of a call and settle its actual cost.
- `judge_dry_run`: Dry run of judges: counts and prices questions, and answers them with sample values of
  their schema.
- `judge_rate_limiter`: Rate limiter per endpoint, model and key: concurrency, adaptive pace, and
  Retry-After headers.
- `endpoint_errors`: Classification of endpoint errors: transient or permanent, possibly billed, and their messages.
- `openai_backend`: Backend for OpenAI-compatible endpoints, with detection of unsupported parameters.
- `function_backend`: Backend for Python functions and Haystack generators.
- `scripted_judge`: Scripted judge for tests: replies in a fixed order or from a function.
- `reply_parsing`: Reply parsing: strict and lenient reading of JSON replies, tolerated deviations, quoted
  verdicts.
- `judge_event_loop`: Event loop of the judges: one daemon thread per process, with its clients and fork
  handling.
"""

# Modules that other packages may import; the others are internal
SHARED_MODULES = [
    "answer_cache",
    "chat_completions",
    "judge_budget",
    "judge_call",
    "judge_dry_run",
    "scripted_judge",
]
