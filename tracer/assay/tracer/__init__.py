"""Capture: `@trace`, spans, delivery. Imports nothing of the other folders."""
