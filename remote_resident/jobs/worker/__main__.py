"""Start a job worker, by path or as a module."""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120

if __package__:
    from .start import run
else:
    # by path: what lies here must not shadow a module of the model's stack
    sys.path[:] = [
        place
        for place in sys.path
        if os.path.abspath(place) != HERE  # noqa: PTH100
    ]
    package = type(sys)("job_worker")
    package.__path__ = [HERE]
    sys.modules[package.__name__] = package
    from job_worker.start import run  # type: ignore[import-not-found, no-redef]

if __name__ == "__main__":
    run()
