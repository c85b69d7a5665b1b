"""A failure on its way through the daemon's socket: to its JSON shape, and back."""

from collections.abc import Mapping
from typing import Any

from remote_resident.errors import (
    OUR_ERROR,
    REASONS,
    Problem,
    ProviderError,
    UsageError,
    refusal,
)

NOT_FOUND, TYPED_WRONGLY, CONFLICT, INTERNAL = 404, 400, 409, 500


class DaemonError(ProviderError):
    """The daemon itself broke; its traceback is in its log."""

    exit_code = OUR_ERROR


def status_of(exc: ProviderError) -> int:
    """Give the HTTP status of a failure."""
    if exc.reason == "unknown_name":
        return NOT_FOUND
    if isinstance(exc, UsageError | ValueError) or exc.reason == "bad_request":
        return TYPED_WRONGLY
    return CONFLICT


def document_of(exc: ProviderError) -> dict[str, Any]:
    """Give the failure shape of the command line, the next command of each problem kept."""
    problems = [{**p.as_dict(), "next": p.next} for p in exc.problems]
    return refusal(exc.reason, str(exc), next=exc.next, problems=problems)


def internal(exc: BaseException, log: str) -> dict[str, Any]:
    """Give the failure shape of a bug of ours."""
    told = f"{type(exc).__name__}: {exc}; its traceback is in {log}"
    return refusal("internal", told)


def error_of(status: int, document: Mapping[str, Any]) -> ProviderError:
    """Build the error that an answer stands for, whatever its shape."""
    kind = {NOT_FOUND: UsageError, TYPED_WRONGLY: UsageError, INTERNAL: DaemonError}
    reason = document.get("reason")
    text = document.get("error")
    return kind.get(status, ProviderError)(
        text if isinstance(text, str) else f"the daemon answered {status}",
        reason=reason if reason in REASONS else "internal",
        next=document.get("next"),
        problems=[Problem(**problem) for problem in document.get("problems") or ()],
    )
