"""Who is on a worker's socket: by its own answer, else by what it was started as."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from remote_resident import client, processes
from remote_resident.client import Message
from remote_resident.errors import WorkerRequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Who is on the socket."""

    slug: str | None
    tree: str | None
    instance: str | None
    inputs: str | None
    pid: int | None
    """As seen from here; None: not visible."""
    busy: bool
    leaving: bool = False
    confirmed: bool = True
    reply: Message = field(default_factory=dict)

    @classmethod
    def by_reply(cls, reply: Message, pid: int | None) -> "Found":
        """Take what it answered to a ping."""
        return cls(
            slug=reply.get("slug"),
            tree=reply.get("tree"),
            instance=reply.get("instance"),
            inputs=reply.get("inputs"),
            # not the pid in its reply, which may count in another namespace
            pid=pid,
            busy=bool(reply.get("queue") or reply.get("busy_since") is not None),
            leaving=reply.get("stopping") is True,
            reply=reply,
        )

    @classmethod
    def by_marks(cls, marks: Mapping[str, str], pid: int | None) -> "Found":
        """Take what it was started as, where it does not answer."""
        return cls(
            slug=marks.get("resident-slug"),
            tree=marks.get("resident-tree"),
            instance=marks.get("resident-instance"),
            inputs=marks.get("inputs"),
            pid=pid,
            busy=True,
            confirmed=False,
        )

    def stranger(self) -> str:
        """Name who is no worker that can be recognised."""
        seen = "a process not visible from here" if self.pid is None else self.pid
        return f"nobody although it accepts ({seen})"

    def state(self) -> str:
        """Name its state."""
        if self.leaving:
            return "leaving"
        if not self.confirmed:
            return "busy, unconfirmed"
        return "busy" if self.busy else "ready"


def find(path: Path, timeout_s: float) -> Found | None:
    """Ask who answers on a socket; None: nobody.

    Raises WorkerRequestError (`socket_path`) for who is not a worker of this user.
    """
    try:
        reply, pid = client.ask(path, "ping", timeout_s)
    except client.Gone:
        return None
    except client.Silent as exc:
        # its interpreter is busy: the kernel knows what it was started as
        marks = {} if exc.pid is None else processes.marks(exc.pid)
        return Found.by_marks(marks, exc.pid)
    except client.ProtocolError as exc:
        raise WorkerRequestError(f"{path}: {exc}", reason="socket_path") from None
    return Found.by_reply(reply, pid)
