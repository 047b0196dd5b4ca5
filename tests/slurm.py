"""Sweep a small grid on a SLURM cluster of one node, with what goes wrong on clusters, and compare
with a local sweep.

``make test-slurm`` runs this, as root, where Debian's packages are installed: ``apt-get install
slurm-wlm munge``. It starts munged, slurmctld and slurmd in a temporary folder, on 127.0.0.1 only,
and sweeps eight short runs by the very command of `make sweep`. In the middle a job is cancelled,
the node is drained and resumed, and Snakemake is killed with -9 while jobs run; the same command is
then given again at once. In the end there must be one table, that of the local sweep, no run may
have been executed twice but the cancelled one, and nothing may be left in the queue. It takes some
five minutes on two cores, and gives up on any step after STEP seconds."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from toy_notebooks import write_notebook

ROOT = Path(__file__).resolve().parents[1]
STEP = 240  # Seconds that a step may take.
RUNS = 8
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "scontrol")
PLUGIN = (
    "snakemake-executor-plugin-slurm==2.8.0",
    "snakemake-executor-plugin-slurm-jobstep==0.6.1",
)
# As in book/how-to-run.md, and what makes it ask more often.
EXECUTOR = (
    "--executor slurm --jobs 50 --slurm-status-command squeue --slurm-init-seconds-before-status-checks 2 "
    "--seconds-between-status-checks 2 --latency-wait 5"
)
# Two jobs at a time, whatever the machine has. Neither systemd nor cgroups nor a database of
# accounts is needed.
SETTINGS = """\
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld}
SlurmdPort={slurmd}
SlurmUser=root
AuthInfo=socket={folder}/munge.socket
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
MpiDefault=none
ReturnToService=2
MinJobAge=3600
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=4000 State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=60 State=UP
"""
# A line in the file `executed` for each time that a run is begun.
NOTEBOOK = """\
import time
with open("executed", "a") as file:
    file.write(f"{seed}\\n")
time.sleep(seconds)
import pandas as pd
from whopays import record
record(pd.DataFrame({"seed": [seed], "square": [seed**2 / 3]}));"""
GRID = f"""\
table: results/toy/squares.csv
runs:
  - notebook: notebooks/toy/squares.ipynb
    grid: {{seed: {list(range(RUNS))}}}
"""
BEGAN = time.monotonic()


def say(text: str) -> None:
    print(f"{time.monotonic() - BEGAN:5.0f} s  {text}", flush=True)


def wait(
    what: str, condition: Callable[[], object], during: subprocess.Popen | None = None
) -> None:
    """Wait until a condition holds, at most as long as a process runs."""
    end = time.monotonic() + STEP
    while not condition():
        if time.monotonic() > end or (during and during.poll() is not None):
            raise SystemExit(f"not seen in {STEP} s, or before the sweep ended: {what}")
        time.sleep(0.2)
    say(what)


def check(what: str, holds: object) -> None:
    if not holds:
        raise SystemExit(f"this does not hold: {what}")
    say(what)


def output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def jobs(state: str = "all") -> list[str]:
    """The numbers of the jobs in the queue."""
    return output(
        "squeue", "--noheader", "--format=%i", f"--states={state}" if state != "all" else "--all"
    ).split()


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """Start the daemons in a new folder, give the name of the node, and stop them in the end."""
    host, started = output("hostname", "--short").strip(), []
    for name in ("state", "spool", "bin"):
        (folder / name).mkdir(parents=True)
    key, settings, socket_ = folder / "munge.key", folder / "slurm.conf", folder / "munge.socket"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    ctld, slurmd = free_ports(2)
    settings.write_text(SETTINGS.format(host=host, folder=folder, ctld=ctld, slurmd=slurmd))
    os.environ["SLURM_CONF"] = str(settings)
    # The plugin takes the variables of SLURM, this one too, from the srun in its jobs.
    srun = folder / "bin" / "srun"
    srun.write_text(f'#!/bin/sh\nSLURM_CONF={settings} exec {shutil.which("srun")} "$@"\n')
    srun.chmod(0o755)
    os.environ["PATH"] = f"{srun.parent}:{os.environ['PATH']}"
    places = [f"--{name}-file={folder}/munge.{name}" for name in ("pid", "log", "seed")]
    daemons = [
        ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={socket_}", *places],
        ["slurmctld", "-D", "-c"],
        ["slurmd", "-D", "-c"],
    ]
    try:
        for daemon in daemons:
            with (folder / f"{daemon[0]}.log").open("wb") as log:
                started.append(subprocess.Popen(daemon, stdout=log, stderr=log))
            if daemon[0] == "munged":
                wait("munged answers", lambda: Path(socket_).exists())
        wait("the node is idle", lambda: "idle" in ask("sinfo", "--noheader", "--format=%T"))
        theirs = {connection.laddr.ip for one in started for connection in listening(one.pid)}
        check(f"the daemons listen on {', '.join(sorted(theirs))} only", theirs == {"127.0.0.1"})
        yield host
    finally:
        for number in jobs() if len(started) == len(daemons) else []:
            subprocess.run(["scancel", number], timeout=60)
        end = time.monotonic() + 30
        while len(started) == len(daemons) and jobs() and time.monotonic() < end:
            time.sleep(0.5)
        for daemon in reversed(started):
            daemon.terminate()
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        say("the daemons have ended")


def ask(*command: str) -> str:
    """The answer of a command that may fail as long as the daemons are starting."""
    return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout


def listening(process: int) -> list:
    return [
        one
        for one in psutil.Process(process).net_connections("inet")
        if one.status == psutil.CONN_LISTEN
    ]


def make_project(folder: Path) -> Path:
    """A project with a grid of short runs, and what `make sweep` needs."""
    parameters = "seed: int = 0  # seed\nseconds: float = 6.0  # how long it takes"
    write_notebook(folder / "notebooks" / "toy" / "squares.ipynb", NOTEBOOK, parameters=parameters)
    (folder / "params").mkdir()
    (folder / "params" / "toy.yml").write_text(GRID)
    for name in ("Makefile", "Snakefile", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "book" / "tools", folder / "book" / "tools")
    (folder / ".venv").symlink_to(ROOT / ".venv")
    return folder


def sweep(project: Path, *settings: str) -> subprocess.Popen:
    """Start `make sweep`; its output goes to the file `said`."""
    words = ["make", "sweep", "GRID=params/toy.yml", "CORES=2", *settings]
    with (project / "said").open("ab") as said:
        return subprocess.Popen(
            words, cwd=project, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
        )


def finished(project: Path) -> set[Path]:
    return set(project.glob("_build/sweeps/toy/*/run.json"))


def endure(project: Path, node: str, started: list[subprocess.Popen]) -> int:
    """Sweep, and let things go wrong in the middle; give the number of runs that were finished at
    the kill."""
    started.append(first := sweep(project, f"SNAKEMAKE={EXECUTOR}"))
    said = project / "said"
    wait("a run has finished", lambda: finished(project), first)
    wait("jobs run and wait", lambda: jobs("RUNNING") and jobs("PENDING"), first)
    begun = jobs("RUNNING")[-1]
    output("scancel", begun)
    wait(
        f"job {begun} is cancelled, and Snakemake has noticed",
        lambda: "Error in rule point" in said.read_text(),
    )

    output("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
    wait("the node is drained: no job runs", lambda: not jobs("RUNNING"))
    before, waiting = len(finished(project)), len(jobs("PENDING"))
    time.sleep(5)
    check(f"{waiting} jobs wait, {before} runs are finished", waiting and not jobs("RUNNING"))
    output("scontrol", "update", f"nodename={node}", "state=resume")
    wait("resumed: a further run has finished", lambda: len(finished(project)) > before, first)
    wait("jobs run", lambda: jobs("RUNNING"), first)
    (snakemake,) = psutil.Process(first.pid).children()
    check("Snakemake is at work", "snakemake" in " ".join(snakemake.cmdline()))
    snakemake.send_signal(signal.SIGKILL)
    first.wait(STEP)
    kept = len(finished(project))
    say(
        f"Snakemake is killed: {kept} runs are finished, {len(jobs())} jobs are in the queue; the sweep starts again"
    )
    started.append(again := sweep(project, f"SNAKEMAKE={EXECUTOR}"))
    wait("the sweep has ended", lambda: again.poll() is not None)
    check("it ended well", again.returncode == 0)
    return kept


def compare(project: Path, local: Path) -> None:
    """Check that there is one table, that of the local sweep, from runs that were executed once."""
    table, other = (folder / "results" / "toy" / "squares.csv" for folder in (project, local))
    check(
        "the table is that of the local sweep, byte for byte",
        table.read_bytes() == other.read_bytes(),
    )
    check(f"all {RUNS} runs are in it", len(table.read_text().splitlines()) == RUNS + 1)
    check("it is the only one", len(list((project / "results").rglob("*.csv"))) == 1)
    wait("the queue is empty", lambda: not jobs())
    begun = Counter((project / "executed").read_text().split())
    twice = {seed: count for seed, count in begun.items() if count > 1}
    once = len(begun) == RUNS and sum(begun.values()) <= RUNS + 1
    check(f"each run was executed once, but at most the cancelled one ({twice or 'none'})", once)
    left = [
        path.name
        for path in project.glob("_build/sweeps/toy/*")
        if re.search(r"\.tmp-|\.lock$", path.name)
    ]
    check("no half of a run is left", not left)


def main() -> int:
    os.environ["PATH"] = f"{ROOT}/.venv/bin:{os.environ['PATH']}:/usr/sbin:/sbin"
    missing = [name for name in PROGRAMS if not shutil.which(name)]
    if missing or os.geteuid():
        print(
            f"needs root and {', '.join(missing) or 'nothing else'}; on Debian: apt-get install slurm-wlm munge"
        )
        return 2
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    started: list[subprocess.Popen] = []
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    try:
        install = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--target",
            str(folder / "plugin"),
        ]
        subprocess.run([*install, *PLUGIN], check=True, timeout=STEP)
        os.environ["PYTHONPATH"] = f"{ROOT}:{folder / 'plugin'}"
        local, project = make_project(folder / "local"), make_project(folder / "project")
        started.append(alone := sweep(local))
        wait("the local sweep has ended", lambda: alone.poll() is not None)
        check("it ended well", alone.returncode == 0)
        with cluster(folder / "cluster") as node:
            endure(project, node, started)
            compare(project, local)
    except BaseException:
        for path in [*folder.glob("*/said"), *folder.glob("cluster/*.log")]:
            print(
                f"--- {path.relative_to(folder)} ends with",
                *path.read_text().splitlines()[-40:],
                sep="\n",
            )
        raise
    finally:
        for one in started:
            if one.poll() is None:
                os.killpg(one.pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)
    say("passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
