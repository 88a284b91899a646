"""What a store holds as lines of a file, and back: OTLP, which other tools read, or every record as JSON."""

from spanwise.collector.exchange._out import FORMATS, exported, written
from spanwise.collector.exchange._take import Taken, take

__all__ = ["FORMATS", "Taken", "exported", "take", "written"]
