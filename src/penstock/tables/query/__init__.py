"""Analysis of query text without an engine: relations, columns, order, volatility."""
