"""What the coordinator decides, as pure state: graph, units, schedules, verdicts, dispatch."""
