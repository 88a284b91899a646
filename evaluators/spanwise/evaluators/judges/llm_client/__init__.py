"""LLM client of the judges: settings, calls, cache, budget, rate limiting, backends, reply parsing.

Modules, in the order in which data flows:

- `judge_settings`: Settings of judges: model, endpoint, key, price and limits; ledgers that reserve and settle cost.
- `judge_call`: Judge, and a call of it: cache, single flight, budget, rate limit, attempts, parsing; dry run.
- `chat_completions`: Questions and answers of judges, the chat-completion format, and parsing of JSON replies.
- `answer_cache`: Answer cache: successful replies of judges in one SQLite file per user.
- `judge_rate_limiter`: Rate limiter per endpoint, model and key: concurrency, adaptive pace, and
  Retry-After headers.
- `openai_backend`: Backend for OpenAI-compatible endpoints: unsupported parameters, classification of errors.
- `function_backend`: Backend for Python functions and Haystack generators.
- `scripted_judge`: Scripted judge for tests: replies in a fixed order or from a function.
- `judge_event_loop`: Event loop of the judges: one daemon thread per process, with its clients and fork
  handling.
"""

# Modules that other packages may import; the others are internal
SHARED_MODULES = [
    "answer_cache",
    "chat_completions",
    "judge_call",
    "judge_event_loop",
    "judge_rate_limiter",
    "judge_settings",
    "openai_backend",
    "scripted_judge",
]
