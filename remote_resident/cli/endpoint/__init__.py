"""`tu remote endpoint`: model services that the host daemon owns."""

COMMANDS: dict[str, str] = {
    "connect": "enable endpoints: of this host, or of a host that you name",
    "disconnect": "stop every service of this host and forget every endpoint",
    "compose": "write the start and stop script of a container",
    "register": "register an endpoint, once its scripts were read and approved",
    "list": "list the endpoints",
    "show": "show all that is registered of an endpoint",
    "run": "run a command on an endpoint, which is swapped in first",
    "stop": "stop an endpoint's service",
    "remove": "stop an endpoint's service and forget the endpoint",
    "logs": "show what an endpoint's scripts and service wrote",
}
"""Each is the module of that name here, with `arguments(parser)` and `run(asked)`."""
