"""The evaluators that come with Spanwise."""
