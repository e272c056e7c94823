"""HTTP: `http` is the HTTP server, `api` holds the routes, `push` the live streams."""
