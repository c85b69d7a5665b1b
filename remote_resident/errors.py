"""What can be wrong, as data: problems, the closed list of reasons, the exceptions."""

import builtins
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

REASONS: frozenset[str] = frozenset(
    # manifest
    "manifest_invalid slug_mismatch operation_claimed_twice file_missing lock_missing "
    "lock_unhashed lock_invalid kit_invalid worker_imports "
    # preflight
    "os_unsupported python_unset python_missing python_version python_is_ours no_gpu "
    "driver_too_old isolation_not_backed capacity_too_small disk_full git_missing "
    "container_missing probe_timeout environment_names "
    # environment
    "lock_unsatisfied install_failed verify_failed image_missing image_digest "
    # kit
    "kit_unreachable kit_dirty kit_wrong_commit kit_not_installed kit_unavailable "
    # weights
    "absent size digest not_a_file unreadable changed_while_read not_unpacked "
    "fetch_failed "
    # smoke
    "timeout start_failed request_failed outputs_missing keys_missing answer_wrong "
    "not_deterministic over_budget grows stale "
    # runtime
    "no_room budget_unknown not_shareable crash_loop queue_full request_timeout "
    "worker_died stopping too_large bad_request protocol_error not_running "
    "start_timeout stale_worker socket_path locked "
    # jobs
    "job_exists bad_job_id cancelled lost unauthorized "
    # endpoints
    "not_connected wrong_mode not_approved lint port_taken not_ready stop_failed "
    "cell_failed cell_timeout "
    # any
    "unknown_name interrupted internal".split()
)
"""Every reason token there is; docs/reasons.md lists each with its cure."""

HELP = "tu remote --help"
_NEXT_OF = {
    HELP: "unknown_name bad_request too_large",
    "tu remote room": "no_room budget_unknown not_shareable capacity_too_small no_gpu "
    "driver_too_old isolation_not_backed",
    "tu remote ps": "crash_loop queue_full request_timeout worker_died stopping "
    "protocol_error not_running start_timeout start_failed stale_worker socket_path "
    "locked request_failed timeout",
    "tu remote job list": "job_exists bad_job_id cancelled lost unauthorized",
    "tu remote endpoint list": "not_connected wrong_mode not_approved lint port_taken not_ready "
    "stop_failed cell_failed cell_timeout",
    "df -h": "disk_full",
}
LOOK = "tu remote check"
NEXT: dict[str, str] = {
    **dict.fromkeys(REASONS - {"interrupted"}, LOOK),
    **{
        reason: command
        for command, reasons in _NEXT_OF.items()
        for reason in reasons.split()
    },
}
"""What to type where the one who refused names nothing nearer; who interrupts a command
knows what to do."""

OK, REFUSED, OUR_ERROR, USAGE = 0, 1, 2, 3
"""Exit codes; 129, 130 and 143 are the signals'."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is not as declared."""

    step: str
    """manifest, preflight, environment, kit, weights, smoke, measured or runtime."""
    reason: str
    """One of REASONS."""
    text: str
    """The whole sentence that a person sees, numbers unrounded."""
    path: str | None = None
    line: int | None = None
    name: str | None = None
    wanted: str | int | float | None = None
    found: str | int | float | None = None
    next: str | None = None
    """The command to type next; not part of the JSON shape of a problem."""

    def as_dict(self) -> dict[str, str | int | float | None]:
        """Give the JSON shape of a problem."""
        return {
            "step": self.step,
            "reason": self.reason,
            "text": self.text,
            "path": self.path,
            "line": self.line,
            "name": self.name,
            "wanted": self.wanted,
            "found": self.found,
        }


class ProviderError(Exception):
    """Base of all that is refused with a reason; `next` is the command to type.

    None only where the reason is `interrupted`.
    """

    default_reason = "internal"
    exit_code = REFUSED

    def __init__(
        self,
        message: str,
        reason: str | None = None,
        *,
        next: str | None = None,
        problems: Sequence[Problem] = (),
    ) -> None:
        super().__init__(message)
        self.problems = list(problems)
        first = self.problems[0] if self.problems else None
        self.reason = reason or (first.reason if first else self.default_reason)
        told = [next, *(problem.next for problem in self.problems)]
        self.next = builtins.next(filter(None, told), NEXT.get(self.reason))

    def as_problem(self, step: str, text: str = "") -> Problem:
        """Give the same as a problem of a step, in its words or in `text`."""
        said = text or str(self)
        return Problem(step=step, reason=self.reason, text=said, next=self.next)


def refusal(
    reason: str,
    error: str,
    *,
    next: str | None = None,
    problems: Sequence[Mapping[str, object]] = (),
) -> dict[str, Any]:
    """Give the JSON shape of a failure, of the command line and of the host daemon."""
    return {
        "ok": False,
        "reason": reason,
        "error": error,
        "problems": list(problems),
        "next": next,
    }


def summary(problems: Sequence[Problem]) -> str:
    """Give the sentence of an error that has problems: the first, and how many more."""
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{problems[0].text}{more}"


class ManifestError(ProviderError, ValueError):
    """A provider.toml is not well formed; `problems` holds every fault of the file."""

    default_reason = "manifest_invalid"
    exit_code = USAGE


class UsageError(ProviderError, RuntimeError):
    """What was typed names nothing, or is no usage."""

    default_reason = "unknown_name"
    exit_code = USAGE


class ExecEnvironmentError(ProviderError, RuntimeError):
    """The declared execution environment is not there."""

    default_reason = "python_missing"


class KitUnavailable(ProviderError, RuntimeError):
    """The kit refused or could not be asked."""

    default_reason = "kit_unavailable"


class AdmissionRefused(ProviderError, RuntimeError):
    """There is no room; `verdict` has every number."""

    default_reason = "no_room"

    def __init__(self, message: str, *, verdict: object, reason: str) -> None:
        super().__init__(message, reason=reason, next="tu remote room")
        self.verdict = verdict


class WorkerStartError(ProviderError, RuntimeError):
    """A worker did not come to accept requests."""

    default_reason = "start_failed"


class ProtocolError(ProviderError, RuntimeError):
    """What came from a worker, or was to be sent, is not the protocol."""

    default_reason = "protocol_error"


class WorkerRequestError(ProviderError, RuntimeError):
    """A request was refused, failed, or lost its worker."""

    default_reason = "request_failed"
