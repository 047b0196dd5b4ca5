"""Python modules run as forks of one process that has imported what pages need, on Linux.

``forks.py SOCKET`` imports and serves until its standard input ends. ``forks.py SOCKET MODULE
ARGUMENT...`` does what ``python -m MODULE ARGUMENT...`` does, in a fork, or by itself if nobody
serves. Imports cost a page and its kernel six seconds of CPU, most of what a small page takes. Each
fork is a process of its own, so no page sees what another one did; what they share is memory with
code.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys

IMPORTED = (
    "fairlib.studies",
    "ipykernel.kernelapp",
    "matplotlib.backends.backend_svg",
    "matplotlib.pyplot",
    "papermill",
    "scipy.stats",
    "torch._dynamo",
    "whopays.cli",
    "whopays.pages",
)


def serve(path: str) -> None:
    """Import, then fork for each program that asks at a socket, until standard input ends."""
    import importlib

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        # Programs that ask before the imports are done wait in line.
        server.bind(path)
        server.listen(64)
        # Read at import: which process may not end before a kernel, and where figures are shown.
        # The module that shows them is not imported here, since it looks for its kernel at import.
        os.environ["JPY_PARENT_PID"] = f"{os.getpid()}"
        os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
        for name in IMPORTED:
            importlib.import_module(name)
        # Imported outside of a kernel, pandas would cut tables to the width of a terminal.
        sys.modules["pandas"].set_option("display.max_columns", 20)
        # The system forgets forks that have ended.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while server in select.select([server, sys.stdin], [], [])[0]:
            link = server.accept()[0]
            if not os.fork():
                server.close()
                run(link)
            link.close()


def run(link: socket.socket) -> None:
    """Run the module that a client asks for, with the client's folder, environment and files.

    Seconds of CPU and of the clock are added to the file that the variable ``WHOPAYS_SECONDS``
    names. An interrupt of the client comes as a byte over the link. Its death cannot be told: the
    link ends then, and so does the fork.

    Args:
        link: Connection to the client, which sent one message with its standard files.
    """
    import atexit
    import resource
    import runpy
    import time
    from threading import Thread

    ended, status, start = False, 1, time.monotonic()

    def watch() -> None:
        while link.recv(1):
            os.kill(os.getpid(), signal.SIGINT)
        if not ended:
            os.kill(os.getpid(), signal.SIGTERM)

    def tell() -> None:
        nonlocal ended
        ended = True
        link.send(bytes([status % 256]))

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    message, files, *_ = socket.recv_fds(link, 1 << 20, 3)
    if not message:
        sys.exit()
    for place, file in enumerate(files):
        os.dup2(file, place)
    folder, environment, sys.argv[:] = json.loads(message)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    Thread(target=watch, daemon=True).start()
    # Told at the very end: what the module registers to be done at its exit is done before.
    atexit.register(tell)
    try:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else bool(end.code)
        raise
    finally:
        if note := os.environ.get("WHOPAYS_SECONDS"):
            whose = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
            cpu = sum(sum(resource.getrusage(who)[:2]) for who in whose)
            with open(note, "a", encoding="utf-8") as table:
                table.write(f"{sys.argv[0]}\t{cpu:.1f}\t{time.monotonic() - start:.1f}\n")
    sys.exit()


def ask(path: str, arguments: list[str]) -> int:
    """Have a module run by the process that serves; return its exit status.

    Args:
        path: Path of the socket.
        arguments: Name of the module and its arguments.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
        message = json.dumps([os.getcwd(), dict(os.environ), arguments])
        try:
            link.connect(path)
            socket.send_fds(link, [message.encode()], [0, 1, 2])
        except OSError:
            os.execv(sys.executable, [sys.executable, "-m", *arguments])
        signal.signal(signal.SIGINT, lambda *_: link.send(b"i"))
        parent = os.getppid()
        while not select.select([link], [], [], 1)[0]:
            if os.getppid() != parent:
                return 1
        return int.from_bytes(link.recv(1) or b"\1", "big")


if __name__ == "__main__":
    if sys.argv[2:]:
        sys.exit(ask(sys.argv[1], sys.argv[2:]))
    serve(sys.argv[1])
