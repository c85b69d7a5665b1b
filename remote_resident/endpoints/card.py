"""The card: what a person reads before an endpoint is registered, and the question."""

import sys
from collections.abc import Sequence
from typing import TextIO

from remote_resident.endpoints.lint import Finding
from remote_resident.endpoints.record import Endpoint


def card(endpoint: Endpoint, findings: Sequence[Finding]) -> str:
    """Show all that is approved, every byte of it safe on a terminal."""
    lines = [f"{title:<18} {escaped(value)}" for title, value in _facts(endpoint)]
    for title, script in (("start", endpoint.start), ("stop", endpoint.stop)):
        if script is not None:
            lines += ["", *_script(title, script)]
    lines += ["", *(_finding(finding) for finding in findings)]
    if not findings:
        lines.append("findings           none")
    lines += ["", f"digest             {endpoint.digest}"]
    return "\n".join(lines)


def escaped(text: str) -> str:
    """Show what is not plain ASCII as Python would write it; tabs stay."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char if char == "\t" or (char.isascii() and char.isprintable()) else _code(char)
        for char in text
    )


def at_terminal(stdin: TextIO | None = None, stderr: TextIO | None = None) -> bool:
    """Say whether there is a person to ask: one who reads, and one who can answer."""
    asked = (stdin or sys.stdin, stderr or sys.stderr)
    return all(stream is not None and stream.isatty() for stream in asked)


def ask(
    question: str, stdin: TextIO | None = None, stderr: TextIO | None = None
) -> bool:
    """Ask a person; only a yes is a yes, an end of the input is a no."""
    stdin, stderr = stdin or sys.stdin, stderr or sys.stderr
    stderr.write(f"{question} [y/N] ")
    stderr.flush()
    answer = stdin.readline()
    if not answer.endswith("\n"):
        stderr.write("\n")
    return answer.strip().lower() in ("y", "yes")


def _code(char: str) -> str:
    return ascii(char)[1:-1]


def _facts(endpoint: Endpoint) -> list[tuple[str, str]]:
    local = endpoint.location == "local"
    goes_to = "the start script alone" if local else "the cell alone, as INFER_API_KEY"
    facts = [
        ("endpoint", endpoint.name),
        ("location", endpoint.location),
        ("url", endpoint.url),
        ("port", str(endpoint.port) if local else None),
        ("service directory", endpoint.service_dir),
        ("credential", f"{endpoint.credential}, to {goes_to}"),
        ("skill", endpoint.skill),
        ("readiness route", endpoint.live),
        ("start timeout", f"{endpoint.start_timeout_s} s" if local else None),
        ("stop timeout", f"{endpoint.stop_timeout_s} s" if local else None),
        ("stays idle for", _stays(endpoint) if local else None),
        ("device memory", _budget(endpoint.vram_budget_gb)),
        ("host memory", _budget(endpoint.ram_budget_gb)),
    ]
    return [(title, value) for title, value in facts if value is not None]


def _stays(endpoint: Endpoint) -> str:
    return f"{endpoint.ttl_s} s" if endpoint.ttl_s else "ever"


def _budget(gigabytes: float | None) -> str:
    return "not declared" if gigabytes is None else f"{gigabytes} GiB"


def _script(title: str, script: str) -> list[str]:
    lines = script.split("\n")
    whole = not lines[-1]
    if whole:
        lines.pop()
    width = len(str(len(lines)))
    shown = [f"{at:>{width}} | {escaped(line)}" for at, line in enumerate(lines, 1)]
    if not whole:
        shown.append(f"{'':>{width}} | (no line end)")
    size = len(script.encode("utf-8", "surrogatepass"))
    return [f"{title} script ({len(lines)} lines, {size} bytes)", *shown]


def _finding(finding: Finding) -> str:
    refused = ", refused" if finding.refused else ""
    where = f"{finding.script}:{finding.line}"
    return f"finding            {where}: {finding.text} ({finding.rule}{refused})"
