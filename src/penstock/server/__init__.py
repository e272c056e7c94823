"""Everything HTTP: messages, routes and answers here, sockets and the event loop in `shell`."""
