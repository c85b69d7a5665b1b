"""Write to its callers what is no reply: half a line, garbage, or far too much."""

import os
import socket
import stat
from pathlib import Path


def build(config):
    return None


def callers():
    for fd in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        try:
            if not stat.S_ISSOCK(os.fstat(fd).st_mode):
                continue
            sock = socket.socket(fileno=os.dup(fd))
            if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                continue
        except OSError:
            continue
        sock.setblocking(True)
        yield sock


def predict(model, request):
    if "how" not in request:
        return {"fine": True}
    for sock in list(callers()):
        if request["how"] == "half":
            sock.sendall(b'{"ok": tr')
            os._exit(9)
        if request["how"] == "garbage":
            sock.sendall(b"\xff\xfe no json\n")
        if request["how"] == "flood":
            try:
                sock.sendall(b"x" * (65 << 20))
            except OSError:
                continue
    return {}
