"""The port is taken before anything large is loaded."""

import errno
import socket

from corymb.serve.config import ConfigError, HttpConfig


def listen(http: HttpConfig) -> socket.socket:
    """Takes the port. Clients that come before the server is up wait in the backlog. Raises ConfigError."""
    try:
        [(family, kind, protocol, _, where), *_] = socket.getaddrinfo(http.host, http.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(f"--host {http.host}: {error.strerror or error}.") from error
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(where)
        # Two servers may both bind the port; only one can listen on it.
        sock.listen(2048)
    except OSError as error:
        sock.close()
        raise ConfigError(_refusal(http, error)) from error
    sock.setblocking(False)
    return sock


def _refusal(http: HttpConfig, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"Port {http.port} on {http.host} is in use; choose another with --port, or 0 for any free one."
    if error.errno == errno.EACCES:
        return f"Port {http.port} needs more rights than this user has; choose one above 1023 with --port."
    return f"Cannot listen on {http.host}:{http.port}: {error.strerror or error}; see --host and --port."
