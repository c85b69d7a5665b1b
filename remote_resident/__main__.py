"""`python -m remote_resident` is `tu`."""

from remote_resident.cli import start

if __name__ == "__main__":
    start()
