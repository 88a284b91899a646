"""The test kit: judges that say what a test has written down."""

from spanwise.evaluators.judges import Ask, Completion, Token, scripted

__all__ = ["Ask", "Completion", "Token", "scripted"]
