"""Modules run as forks: as python -m would run them, and by it where nobody serves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from whopays import forks

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="pages fork on Linux"),
    pytest.mark.xdist_group("forks"),
]
TOY = """import os, signal, sys, time
signal.signal(signal.SIGINT, lambda *_: sys.exit(5))
print(os.getppid(), "pandas" in sys.modules, os.getcwd(), *sys.argv[1:], flush=True)
time.sleep(float(sys.argv[1]))
sys.exit(3)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The process that forks, in a folder with a module."""
    folder = tmp_path_factory.mktemp("forks")
    (folder / "toy.py").write_text(TOY)
    paths = {"PYTHONPATH": f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-P", forks.__file__, folder / "socket"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=os.environ | paths) as process:
        while not (folder / "socket").exists():
            time.sleep(0.01)
        yield process
        process.stdin.close()
        assert process.wait(20) == 0


def ask(server, folder, name: str, *arguments: str) -> subprocess.Popen:
    socket = server.args[-1].with_name(name)
    command = [sys.executable, "-S", "-P", forks.__file__, socket, "toy", *arguments]
    paths = {"PYTHONPATH": f"{socket.parent}"}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=folder, env=os.environ | paths
    )


@pytest.mark.parametrize(("name", "forked"), [("socket", True), ("nobody", False)])
def test_a_module_runs_and_its_status_comes_back(server, tmp_path, name, forked):
    with ask(server, tmp_path, name, "0", "b") as asked:
        parent, *said = asked.stdout.readline().split()
    assert said == [f"{forked}", f"{tmp_path}", "0", "b"] and asked.returncode == 3
    assert (int(parent) == server.pid) is forked


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 5), (signal.SIGKILL, -9)])
def test_an_interrupt_and_the_end_of_who_asked_reach_it(server, tmp_path, number, status):
    with ask(server, tmp_path, "socket", "60") as asked:
        asked.stdout.readline()
        asked.send_signal(number)
        assert asked.wait(20) == status
        # The fork holds the other end of this pipe: it has ended.
        assert asked.stdout.read() == ""
