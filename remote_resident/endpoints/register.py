"""Whether a registration may stand: the rules, the lint, the person's approval."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from remote_resident.endpoints.card import card
from remote_resident.endpoints.lint import Finding, lint_endpoint
from remote_resident.endpoints.record import Endpoint, Location, host_fault
from remote_resident.endpoints.store import Settings, Store
from remote_resident.errors import Problem, ProviderError, UsageError, summary

CONNECT = "tu remote endpoint connect --mode local --credential-file FILE"
CONNECT_URL = "tu remote endpoint connect --mode url --host HOST --credential-file FILE"
_MODES: dict[Location, str] = {"local": "local", "remote": "url"}


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedsApproval:
    """A registration that a person has to read first."""

    endpoint: Endpoint
    findings: list[Finding]
    approve: str | None
    """The digest that was approved instead; None: none was."""

    @property
    def card(self) -> str:
        """Give what the person reads."""
        return card(self.endpoint, self.findings)

    @property
    def digest(self) -> str:
        """Give the digest that approves it."""
        return self.endpoint.digest

    def refusal(self) -> ProviderError:
        """Give the error: its one problem's text is the card, `wanted` the digest."""
        name = self.endpoint.name
        found = f"approved {self.approve}" if self.approve else "bytes nobody approved"
        problem = Problem(
            step="runtime",
            reason="not_approved",
            text=self.card,
            name=name,
            wanted=self.digest,
            found=self.approve,
        )
        return ProviderError(
            f"{name}: {found} found, approval of {self.digest} wanted",
            reason="not_approved",
            # who typed a command gets that one back, from the command line
            next=f'register(..., approve="{self.digest}")',
            problems=[problem],
        )


def decide(
    store: Store, fields: Mapping[str, object], approve: str | None = None
) -> Endpoint | NeedsApproval:
    """Judge a registration; an approval that fits is kept, nothing else is written.

    Gives the endpoint where it is approved: its keeper still has to keep it.
    `approve` is the digest of the card that a person read. Raises ProviderError:
    `not_connected`, `wrong_mode`, `lint`, `port_taken`, and UsageError
    (`bad_request`) with every fault of the fields.
    """
    settings = connected(store.settings())
    if "service_dir" in fields:
        raise _wrong(
            "endpoint: service_dir: found, the name's own wanted", "service_dir"
        )
    endpoint = Endpoint.from_dict(fields)
    _refuse_other_mode(settings, endpoint)
    _refuse_shared_port(endpoint, store.registrations().endpoints.values())
    findings = lint_endpoint(endpoint)
    _refuse_mistakes(endpoint, findings)
    if not store.approved(endpoint.name, endpoint.digest):
        if approve != endpoint.digest:
            return NeedsApproval(endpoint=endpoint, findings=findings, approve=approve)
        store.approve(endpoint.name, endpoint.digest)
    return endpoint


def refuse_unfit(mode: object, host: object) -> None:
    """Raise UsageError (`bad_request`) for no mode, or a host that does not go with it."""
    fault = None
    if mode not in ("local", "url"):
        fault = f"mode: {mode!a} found, local or url wanted"
    elif mode == "local":
        fault = None if host is None else "host: found, none wanted in mode local"
    elif not isinstance(host, str):
        fault = "host: missing, wanted in mode url"
    elif said := host_fault(host):
        fault = f"host: {said}"
    if fault is not None:
        raise UsageError(
            fault, reason="bad_request", next="tu remote endpoint connect --help"
        )


def connected(settings: Settings, mode: str | None = None) -> Settings:
    """Give the settings back where endpoints are connected, in a mode if one is named.

    Raises ProviderError (`not_connected`, `wrong_mode`).
    """
    if settings.mode is None:
        raise ProviderError(
            "endpoints: not connected, mode local or url wanted",
            reason="not_connected",
            next=CONNECT_URL if mode == "url" else CONNECT,
        )
    if mode is not None and settings.mode != mode:
        raise ProviderError(
            f"endpoints: mode {settings.mode} found, mode {mode} wanted",
            reason="wrong_mode",
            next=CONNECT if mode == "local" else CONNECT_URL,
        )
    return settings


def row(
    endpoint: Endpoint,
    state: str,
    *,
    since: float | None = None,
    cause: str | None = None,
) -> dict[str, object]:
    """Give what `list` and `show` say of an endpoint.

    `since` is seconds since the epoch, None: not known; `cause` one line, None: none.
    """
    shown = ("name", "url", "port", "location", "digest", "credential", "skill")
    scripts = ("start", "stop", "live", "service_dir")
    return {
        **{key: getattr(endpoint, key) for key in (*shown, *scripts)},
        "state": state,
        "since": since,
        "cause": cause,
        "lint": [finding.as_dict() for finding in lint_endpoint(endpoint)],
    }


def _refuse_other_mode(settings: Settings, endpoint: Endpoint) -> None:
    wanted = _MODES[endpoint.location]
    if settings.mode != wanted:
        error = f"{endpoint.name}: url: {endpoint.url} found in mode {settings.mode}"
        raise ProviderError(
            f"{error}, mode {wanted} wanted",
            reason="wrong_mode",
            next=CONNECT if wanted == "local" else CONNECT_URL,
        )
    if endpoint.location == "remote" and endpoint.authority != settings.host:
        raise _wrong(
            f"{endpoint.name}: url: host {endpoint.authority} found, "
            f"{settings.host} wanted, the connected one",
            "url",
        )


def _refuse_shared_port(endpoint: Endpoint, others: Iterable[Endpoint]) -> None:
    for other in others:
        shared = other.port is not None and other.port == endpoint.port
        if shared and other.name != endpoint.name:
            raise ProviderError(
                f"{endpoint.name}: url: port {endpoint.port} found, which is "
                f"{other.name}'s, another wanted",
                reason="port_taken",
                next=f"tu remote endpoint show {other.name}",
            )


def _refuse_mistakes(endpoint: Endpoint, findings: list[Finding]) -> None:
    problems = [
        Problem(
            step="runtime",
            reason="lint",
            text=f"{endpoint.name}: {found.script}:{found.line}: {found.text}",
            line=found.line,
            name=found.rule,
            path=found.script,
        )
        for found in findings
        if found.refused
    ]
    if problems:
        raise ProviderError(summary(problems), reason="lint", problems=problems)


def _wrong(text: str, field: str) -> UsageError:
    problem = Problem(step="runtime", reason="bad_request", text=text, name=field)
    return UsageError(text, reason="bad_request", problems=[problem])
