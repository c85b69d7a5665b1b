"""Fetch what Chai-1 loads with the package's own downloader, into CHAI_DOWNLOADS_DIR."""


def main():
    """Ask for every part once; what is there is left as it is."""
    from chai_lab.data.dataset.embeddings import esm
    from chai_lab.utils import paths

    for part in (
        "feature_embedding",
        "bond_loss_input_proj",
        "token_embedder",
        "trunk",
        "diffusion_module",
        "confidence_head",
    ):
        paths.chai1_component(f"{part}.pt")
    paths.cached_conformers.get_path()
    language_model = "traced_sdpa_esm2_t36_3B_UR50D_fp16.pt"
    paths.download_if_not_exists(esm.ESM_URL, esm.esm_cache_folder / language_model)


if __name__ == "__main__":
    main()
