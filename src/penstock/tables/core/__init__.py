"""What the coordinator decides, as pure state: graph, units, due-ness, verdicts, dispatch."""
