"""Programs, assembled from settings: server, ingest, tables, and `up`, which runs them all."""
