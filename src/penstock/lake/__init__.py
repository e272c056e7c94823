"""The DuckLake catalog: snapshots over many tables, their files and changes, and our own rows."""
