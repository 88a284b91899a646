"""Test kit for applications: judges with scripted replies."""

from spanwise.evaluators.judges import Ask, Completion, Token, scripted

__all__ = ["Ask", "Completion", "Token", "scripted"]
