"""`tu remote endpoint`: model services that the host daemon owns."""

COMMANDS: dict[str, str] = {}
"""Each is the module of that name here, with `arguments(parser)` and `run(asked)`."""
