"""HTTP/1.1: the server with its limits, and the client. Knows no guest."""
