"""Server-rendered pages over the stores."""

from spanwise.collector.pages._forms import read_form
from spanwise.collector.pages._router import ROUTES, not_found, refusal, router, sign_in

__all__ = ["ROUTES", "not_found", "read_form", "refusal", "router", "sign_in"]
