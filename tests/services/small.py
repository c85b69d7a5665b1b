"""A small service: `small.py PORT NAME=VALUE...`, standard library, starts fast.

`bind_s`, `ready_s`: seconds until it listens, until its route says 200; `after`: a file
without which it does not. `slow_s`: how
long each answer takes. `once`: 200 once, then 503 for this many answers. `alone`: a file
that only one service at a time may lock; who finds it locked writes to `FILE.two`.
`tells`: a file for the time at which it listens. `stays`: ignores SIGTERM. `silent`: connections are taken and not answered this many times.
"""

import contextlib
import fcntl
import os
import signal
import socket
import sys
import threading
import time

port = int(sys.argv[1])
options = dict(word.split("=", 1) for word in sys.argv[2:])
begun = time.monotonic()
answers = 0
alone = options.get("alone")


def leave(*_: object) -> None:
    os._exit(0)


def answer(sock: socket.socket) -> None:
    global answers
    with contextlib.suppress(OSError), sock:
        path = sock.recv(65536).split(b" ")[1].decode()
        status, body = 200, str(os.getpid())
        if path == "/die":
            os._exit(3)
        if path == "/answers":
            body = str(answers)
        if path == "/env":
            body = "\n".join(f"{k}={v}" for k, v in os.environ.items())
        if path == "/ready":
            answers += 1
            time.sleep(float(options.get("slow_s", 0)))
            late = time.monotonic() - begun < float(options.get("ready_s", 0))
            late = late or not os.path.exists(options.get("after", "/"))  # noqa: PTH110 - starts fast
            flaps = 1 < answers <= 1 + int(options.get("once", 0))
            status = 503 if late or flaps else 200
        head = f"HTTP/1.1 {status} x\r\nContent-Length: {len(body)}\r\n\r\n"
        sock.sendall(f"{head}{body}".encode())


if alone:
    lock = os.open(alone, os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        with open(f"{alone}.two", "a") as file:  # noqa: PTH123 - starts fast
            file.write(f"{port}\n")
signal.signal(signal.SIGTERM, signal.SIG_IGN if "stays" in options else leave)
time.sleep(float(options.get("bind_s", 0)))
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("127.0.0.1", port))
listener.listen(64)
if "tells" in options:
    with open(options["tells"], "w") as file:  # noqa: PTH123 - starts fast
        file.write(f"{time.time()}\n")
while True:
    taken, _ = listener.accept()
    if int(options.get("silent", 0)) > answers:
        answers += 1
        continue
    threading.Thread(target=answer, args=[taken], daemon=True).start()
