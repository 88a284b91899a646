"""The evaluators that come with Assay."""
