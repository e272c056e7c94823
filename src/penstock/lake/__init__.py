"""DuckLake catalog: snapshots over many tables, their files and changes, plus Penstock's rows."""
