"""The topic protocol over HTTP: handlers beside their routes."""
