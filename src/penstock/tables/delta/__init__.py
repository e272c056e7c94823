"""How a table is refreshed: only this package decides between FULL and DIFFERENTIAL."""
