"""The memory of a smoke: what grows, and what is above its budget."""

import subprocess
from pathlib import Path

from small_smoke import answering, late_s, provider, smoked

from remote_resident import manifest


def test_memory_that_every_request_adds_is_a_leak(tmp_path: Path) -> None:
    # one step of a cache is none: see test_answer
    worker = answering('{"answer": 42}', before='model.extend(b"x" * 2**25)')
    tiny = provider(tmp_path, worker, smoke={"repeat": 4})
    result = smoked(tiny)
    assert (result.verdict, result.reason) == ("failed", "grows")
    assert "(smoke.max_growth_mib)" in result.lines[0]
    found = float(result.lines[0].removeprefix("grows: tiny: ").split()[0])
    assert 28 < found < 80


def test_a_peak_that_is_over_before_the_answer_counts_against_the_budget(
    tmp_path: Path,
) -> None:
    before = 'len(b"x" * 2**27)'
    worker = answering('{"answer": 42}', before=before)
    result = smoked(provider(tmp_path, worker, host={"ram_budget_gb": 0.1}))
    assert (result.verdict, result.reason) == ("failed", "over_budget")
    assert "host.ram_budget_gb: 0.1 GiB declared, 0." in result.lines[0]
    edit, _, again = result.lines[-1].removeprefix("next: ").partition(" && ")
    subprocess.run(edit, shell=True, check=True)
    raised = manifest.load(tmp_path / "manifests/tiny/provider.toml")
    assert (raised.host_ram_budget_gb or 0) > 0.125
    assert again == "doit setup:tiny"


def test_a_childs_memory_counts_against_the_budget(tmp_path: Path) -> None:
    # long enough to be seen; in the fresh process nobody looks
    child = f"x = b'x' * 2**27; import time; time.sleep({late_s() / 2})"
    before = (
        "import subprocess, sys; request['output_dir'].endswith('first') and "
        f'subprocess.run([sys.executable, "-c", "{child}"])'
    )
    worker = answering('{"answer": 42}', before=before)
    tiny = provider(tmp_path, worker, host={"ram_budget_gb": 0.1}, smoke={"repeat": 0})
    assert smoked(tiny).reason == "over_budget"
