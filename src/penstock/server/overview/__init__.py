"""How things stand: parts, pipeline, tables, what waits and why, and the sentence about it all."""
