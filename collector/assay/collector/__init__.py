"""Keep: records, OTLP receiver, dialects, stores, statistics, API, client, pages."""
