"""What the daemon writes down of an endpoint, so that the next daemon can go on."""

from dataclasses import asdict
from typing import Any

from remote_resident import room
from remote_resident.endpoints.listener import Listener, Owner
from remote_resident.endpoints.readiness import alive, identify
from remote_resident.endpoints.record import Endpoint
from remote_resident.endpoints.service import Service
from remote_resident.endpoints.store import Store
from remote_resident.endpoints.swap import Event, Failure, Phase, State, move
from remote_resident.errors import ProviderError


def write(
    store: Store, name: str, phase: Phase, service: Service | None, since: float | None
) -> None:
    """Write down a phase and the service that it is of; nothing of one that is stopped.

    `since` is when the phase began, in seconds since the epoch; None: not known.
    """
    if phase.state is State.STOPPED:
        store.set_note(name, None)
        return
    note: dict[str, Any] = {
        "state": phase.state.value,
        "left": phase.left,
        "since": since,
        "failure": None if phase.failure is None else asdict(phase.failure),
        "start": None if phase.start is None else asdict(phase.start),
        "boot_id": room.boot_id(),
    }
    if service is not None:
        note |= {
            "instance": service.instance,
            "begun": service.begun,
            "record": service.endpoint.as_dict(),
            "listener": _noted(service.listener),
        }
    store.set_note(name, note)


def _noted(listener: Listener | None) -> dict[str, Any] | None:
    if listener is None:
        return None
    return {
        "inodes": sorted(listener.inodes),
        "owners": [asdict(owner) for owner in listener.owners],
        "container": listener.container,
    }


def adopted(store: Store, endpoint: Endpoint) -> tuple[Phase, Service | None]:
    """Find what the last daemon left of an endpoint: its phase now, and the service.

    READY: the noted listener is still there and is that start's; one without a listener
    has died meanwhile. STARTING: the start goes on. STOPPING: it is to be stopped, by
    the bytes that started it; without a listener a stop of it has begun before. What is
    noted of other bytes than the registered ones is never ready.
    """
    try:
        note = store.note(endpoint.name)
    except ProviderError as exc:
        # a stop puts it aside: until then nothing says that nothing runs
        return _failed(str(exc), f"tu remote endpoint stop {endpoint.name}"), None
    if note is None:
        return Phase(), None
    try:
        service, phase = _read(note)
    except (KeyError, TypeError, ValueError, ProviderError) as exc:
        return _failed(f"{endpoint.name}: a note that cannot be read ({exc})"), None
    if note.get("boot_id") != room.boot_id():
        return _of_earlier_boot(phase), None
    if service is None:
        return phase if phase.state is State.FAILED else Phase(), None
    return _now(store, endpoint, phase, service)


def _of_earlier_boot(phase: Phase) -> Phase:
    """Give the phase now that nothing of it runs."""
    if phase.left or phase.state is State.STOPPING:
        phase, _ = move(phase, Event.GONE)
    return phase if phase.state is State.FAILED else Phase()


def since(store: Store, name: str, state: State) -> float | None:
    """Say since when an endpoint is as the last daemon noted it; None: not known."""
    try:
        note = store.note(name) or {}
    except ProviderError:
        return None
    found = note.get("since")
    same = note.get("state") == state.value
    return float(found) if same and isinstance(found, int | float) else None


def _now(
    store: Store, endpoint: Endpoint, phase: Phase, service: Service
) -> tuple[Phase, Service | None]:
    approved = store.approved(endpoint.name, service.endpoint.digest)
    if not approved or service.endpoint.name != endpoint.name:
        text = f"{endpoint.name}: a note of bytes that nobody approved"
        return _failed(text), None
    if phase.state is State.FAILED:
        return phase, service
    if phase.state is State.STOPPING:
        service.listener = None
        return phase, service
    if service.endpoint.digest != endpoint.digest:
        return Phase(state=State.STOPPING), service
    noted, service.listener = service.listener, None
    if phase.state is State.STARTING:
        is_alive = alive(endpoint, service.instance, service.env())
        return Phase(state=State.STARTING if is_alive else State.READY), service
    found = identify(endpoint, service.instance, service.env())
    if found is not None and noted is not None and _same(noted, found):
        service.listener = found
    return Phase(state=State.READY), service


def _same(noted: Listener, found: Listener) -> bool:
    """Say whether who listens now is who was confirmed."""
    if noted.container is not None or found.container is not None:
        return noted.container == found.container
    return bool(noted.inodes & found.inodes)


def _read(note: dict[str, Any]) -> tuple[Service | None, Phase]:
    phase = Phase(
        state=State(note["state"]),
        failure=_failure(note.get("failure")),
        left=bool(note.get("left")),
        start=_failure(note.get("start")),
    )
    if note.get("record") is None:
        return None, phase
    service = Service(
        endpoint=Endpoint.from_dict(note["record"]),
        instance=str(note["instance"]),
        begun=float(note["begun"]),
        listener=_listener(note.get("listener")),
    )
    return service, phase


def _failure(noted: dict[str, Any] | None) -> Failure | None:
    return None if noted is None else Failure(**noted)


def _listener(noted: dict[str, Any] | None) -> Listener | None:
    if noted is None:
        return None
    return Listener(
        inodes=frozenset(noted["inodes"]),
        owners=tuple(Owner(**owner) for owner in noted["owners"]),
        container=noted["container"],
    )


def _failed(text: str, next_command: str | None = None) -> Phase:
    failure = Failure(reason="stop_failed", text=text, next=next_command)
    return Phase(state=State.FAILED, failure=failure, left=True)
