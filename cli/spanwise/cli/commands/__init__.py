"""Command groups of the `spanwise` command, one module each.

Modules, in the order in which data flows:

- `serve`: `spanwise serve`: collector server, optional monitor, pickup of spooled data.
- `traces`: `spanwise traces`: list, aggregate, show as a tree, follow, reconcile with started spans, delete.
- `feedback`: `spanwise feedback`: add, list and delete feedback; where it is forwarded.
- `doctor`: `spanwise doctor`: missing fields per sender and other problems of the collector.
- `datasets`: `spanwise datasets`: list, show, import, export, compare, make from traces, generate.
- `evaluators`: `spanwise evaluators`: list, show, and score one trace or session.
- `eval_file`: `spanwise eval PATH`: evaluations defined in Python files, with a quality gate for CI.
- `experiments`: `spanwise experiments`: list, show, errors, compare, analyze, score, export, delete.
- `imports`: `spanwise import`: OpenAI Evals from files or the API, and Inspect logs.
- `judges`: `spanwise judges`: label cases in the terminal, calibrate judges against the labels.
- `monitor`: `spanwise monitor`: run the rules of a file; list, pause, resume and remove rules.
- `monitor_health`: Health endpoints of `spanwise monitor`: /healthz and /readyz on a port of this machine.
- `monitor_reports`: `spanwise monitor status`, `why`, `check` and `diff`: reports on rules and their decisions.
- `alerts`: `spanwise alerts`: list, show, check, test, acknowledge and snooze alerts.
- `db`: `spanwise db`: sizes, retention, deletion, export, import, check, recovery, backup, SQL, flat tables.
- `keys`: `spanwise keys`: create, list and revoke API keys; audit log.
- `spool`: `spanwise spool`: list, send and clear what tracers spooled on disk.
- `models_and_caches`: `spanwise models` and `spanwise cache`: preset models; cached judge answers and vectors.
- `mcp`: `spanwise mcp`: Model Context Protocol server, over stdio or HTTP.
- `demo`: `spanwise demo`: traced and evaluated demo application with its server.
"""

# Modules that other packages may import; the others are internal
SHARED_MODULES = [
    "doctor",
    "monitor_health",
]
