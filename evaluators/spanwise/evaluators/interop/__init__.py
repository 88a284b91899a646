"""Interoperability with evaluation products: imports of OpenAI Evals, and imports and exports of Inspect logs.

Modules, in the order in which data flows:

- `experiment_import`: Import of datasets and finished experiments in batches, from large files in bounded memory.
- `grader_templates`: Template strings of OpenAI's graders, and the formulas of multi graders.
- `openai_graders`: Graders of OpenAI Evals as evaluators, their similarity metrics included.
- `openai_evals`: Import of OpenAI Evals from exported files or from the API: dataset, graders and past runs.
- `eval_file_writer`: Evaluation files generated from imported evals.
- `inspect_import`: Import of Inspect logs (`.eval` and JSON): dataset, experiment, scores, errors and token usage.
- `inspect_export`: Export of an experiment to an Inspect log.
"""

from spanwise.evaluators.interop.eval_file_writer import write_eval_file
from spanwise.evaluators.interop.experiment_import import ImportReport
from spanwise.evaluators.interop.grader_templates import render_messages
from spanwise.evaluators.interop.inspect_export import export_inspect_log, write_inspect_log
from spanwise.evaluators.interop.inspect_import import import_inspect_log
from spanwise.evaluators.interop.openai_evals import OpenAIEval, fetch_openai_eval, import_openai_evals
from spanwise.evaluators.interop.openai_graders import UnconfirmedCode, digest_source, openai_grader

__all__ = [
    "ImportReport",
    "OpenAIEval",
    "UnconfirmedCode",
    "digest_source",
    "export_inspect_log",
    "fetch_openai_eval",
    "import_inspect_log",
    "import_openai_evals",
    "openai_grader",
    "render_messages",
    "write_eval_file",
    "write_inspect_log",
]
