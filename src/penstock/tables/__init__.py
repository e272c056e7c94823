"""Stream tables: physical tables that stay equal to their query at a recorded input position.

`core` decides and does no IO: definitions become a graph, the graph becomes execution units, and
events become effects. `query` reads SQL text, `delta` decides how a table is refreshed, `rows`
holds all SQL of the catalog. A `coordinator` dispatches units to `worker` processes; `warehouse` is
the Python API over all of it.
"""
