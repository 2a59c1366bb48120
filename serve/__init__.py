"""HTTP, processes, the wire's transport, CLI and metrics: builds every other layer, and holds the only async code."""
