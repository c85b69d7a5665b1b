"""Change into a directory and remove it."""

import os
import tempfile
from pathlib import Path


def build(config):
    return None


def predict(model, request):
    gone = tempfile.mkdtemp()
    os.chdir(gone)
    Path(gone).rmdir()
    return {"fine": True}
