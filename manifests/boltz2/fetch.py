"""Fetch what Boltz-2 loads with the package's own downloader, into BOLTZ_CACHE."""

import os
import urllib.request
from pathlib import Path


def main():
    """Ask for every part once; what is there is left as it is."""
    from boltz import main as boltz

    cache = Path(os.environ["BOLTZ_CACHE"])
    cache.mkdir(parents=True, exist_ok=True)
    boltz.download_boltz2(cache)
    # the package fetches it only together with the checkpoint of Boltz-1
    dictionary = cache / "ccd.pkl"
    if not dictionary.exists():
        part = dictionary.with_suffix(".part")
        urllib.request.urlretrieve(boltz.CCD_URL, part)
        part.replace(dictionary)


if __name__ == "__main__":
    main()
