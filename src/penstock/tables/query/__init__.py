"""What the text of a query says, told without an engine: relations, columns, order, volatility."""
