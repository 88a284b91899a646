"""Server-rendered HTML pages over the stores.

Modules, in the order in which data flows:

- `page_router`: Page routes: views, form submissions and their CSRF checks, error pages.
- `session_pages`: Session list, and a session shown as a conversation.
- `experiment_pages`: Dataset, experiment and comparison pages.
- `alert_pages`: Alert list with the state of each group, and one alert with its history.
- `rule_pages`: Rule list with funnels and costs, and one rule: strata, scores over time, spend, decisions with their scores.
- `version_page`: Comparison of two versions of an application in production, by the scores of one rule.
- `spend_page`: Spend of rules on judge calls: chart over time, table by rule, evaluator, model or project, and budgets.
"""

from spanwise.collector.pages.components.rendering import has_scripts
from spanwise.collector.pages.experiment_pages import AnalysisRenderer
from spanwise.collector.pages.page_router import (
    PAGE_ROUTES,
    create_router,
    read_form,
    render_not_found,
    render_refusal,
    render_sign_in,
)

__all__ = [
    "PAGE_ROUTES",
    "AnalysisRenderer",
    "create_router",
    "has_scripts",
    "read_form",
    "render_not_found",
    "render_refusal",
    "render_sign_in",
]

# Modules that other packages may import; the others are internal
SHARED_MODULES = [
    "page_router",
]
