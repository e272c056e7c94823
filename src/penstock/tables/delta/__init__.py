"""How a table is refreshed: this package alone decides between FULL and DIFFERENTIAL."""
