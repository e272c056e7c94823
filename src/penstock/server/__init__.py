"""Everything HTTP: `http` is a server of its own, `api` the routes, `push` the live streams."""
