"""The dashboard's side of the server: twins of pages, and the one stream of all its tabs."""
