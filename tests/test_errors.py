"""Every refusal carries a reason of the list and the next command to type."""

import pytest

from remote_resident import client, errors
from remote_resident.cli import main
from remote_resident.errors import NEXT, REASONS, Problem, ProviderError
from remote_resident.worker_side import protocol


def kinds() -> list[type[ProviderError]]:
    waiting, found = [ProviderError], []
    while waiting:
        kind = waiting.pop()
        found.append(kind)
        waiting += kind.__subclasses__()
    return [kind for kind in found if kind.__init__ is ProviderError.__init__]


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
def test_whatever_is_refused_has_a_next_command(kind: type[ProviderError]) -> None:
    assert kind("without a reason").next
    assert all(kind("why", reason=reason).next for reason in REASONS - {"interrupted"})
    assert kind("why", "timeout").reason == "timeout"


def test_errors_that_are_made_otherwise_have_one_too() -> None:
    found = protocol.ProtocolError("torn", received=1)

    told = client.ProtocolError(found)
    assert (told.next, told.reason) == ("tu remote ps", "protocol_error")
    assert isinstance(told, errors.ProtocolError) and told.received == 1
    assert errors.AdmissionRefused("full", verdict=None, reason="no_room").next


@pytest.mark.parametrize(
    "name",
    "ManifestError ExecEnvironmentError KitUnavailable AdmissionRefused "
    "WorkerStartError WorkerRequestError ProtocolError".split(),
)
def test_every_exception_that_somebody_catches_is_there_with_its_base(
    name: str,
) -> None:
    kind = getattr(errors, name)

    assert issubclass(kind, ProviderError)
    assert issubclass(kind, ValueError if name == "ManifestError" else RuntimeError)


def test_the_next_command_is_the_nearest_that_is_known() -> None:
    silent = Problem(step="kit", reason="kit_dirty", text="dirty")
    told = Problem(step="kit", reason="kit_dirty", text="dirty", next="git status")

    assert ProviderError("x", next="a", problems=[told]).next == "a"
    assert ProviderError("x", problems=[silent, told]).next == "git status"
    assert ProviderError("x", problems=[silent]).next == NEXT["kit_dirty"]


@pytest.mark.parametrize("command", sorted(set(NEXT.values())))
def test_what_is_to_be_typed_next_is_a_command(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    program, *words = command.split()

    assert program == "df" or main([*words, "--help"]) == 0
    assert program in ("df", "tu")
