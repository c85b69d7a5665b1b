"""`tu remote endpoint connect`: enable endpoints of one mode."""

from typing import Any

from remote_resident.cli.answer import Answer, Asked


def arguments(parser: Any) -> None:
    """Say what may be typed."""
    parser.add_argument(
        "--mode",
        choices=("local", "url"),
        required=True,
        help="local: services of this host; url: a host's, over https",
    )
    parser.add_argument(
        "--host", metavar="H", help="mode url: the host, with its :PORT"
    )
    parser.add_argument(
        "--credential-file",
        metavar="F",
        help="a file that holds the credential, or - for standard input; "
        "else the one that is kept",
    )


def run(asked: Asked) -> Answer:
    """Keep the credential, then tell the daemon."""
    from remote_resident.endpoints import client, credentials

    file = asked.credential_file
    value = None if file is None else credentials.from_file(file)
    settings = client.connect(asked.mode, host=asked.host, credential=value)
    where = f" on {asked.host}" if asked.host else ""
    return Answer(document=settings, text=f"connected: mode {asked.mode}{where}")
