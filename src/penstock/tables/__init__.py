"""Stream tables as pure state: what they are, what they read, when they are due, who runs next.

Nothing here does IO or tells time. Definitions become a graph, the graph becomes execution units,
and the coordinator's core turns events into effects that a shell carries out.
"""
