# Executes the notebooks, builds the book, runs sweeps. `make book` and `make sweep` call it with the flags it needs.
# `--config quick=1` runs the notebooks with their smoke parameters, and keeps all of that build in _build/quick.
#
# Snakemake decides by time, content and parameters what to look at again; whether a notebook is executed again is then
# decided by `whopays run` from the digests in run.json. So touched files, a fresh checkout or a lost .snakemake folder
# execute nothing, and an edit that is older than the build is noticed. The library is one stamp instead of its files:
# Snakemake would look at each of them for each page, over and over.

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from snakemake.exceptions import WorkflowError

sys.path[:0] = [str(workflow.basedir), f"{workflow.basedir}/book"]
from whopays import grids, runs


def files(*names):
    """The files with these names and in these folders."""
    found = [path for name in names for path in [Path(name), *Path(name).rglob("*")] if path.is_file()]
    return sorted(str(path) for path in found if "__pycache__" not in path.parts)


def stamp(name, paths):
    """The file with the digest of others: written, and so newer than the runs, when that has changed."""
    path, digest = Path(BUILD, name), runs.digest_files(map(Path, paths), Path())
    if not path.is_file() or path.read_text() != digest:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(digest)
    return str(path)


def book_digest():
    """Of all that the pages are made from but the executed notebooks; the ledger also tells the claims' history."""
    command = ["git", "log", "-1", "--format=%H", "--", "book/claims.yml"]
    try:
        history = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except OSError:  # Without git the ledger says that it does not know the claims' history.
        history = "no git"
    return runs.digest_files(map(Path, PAGES + LIBRARY), Path()) + history


QUICK = bool(config.get("quick"))
BUILD = "_build/quick" if QUICK else "_build"
# Where the tables of the ledger are looked for: in a quick build only the recorded ones and the runs of the theory,
# which has no smoke parameters.
TABLES = f"{BUILD}/tables" if QUICK else "."
MARK = (
    "A quick build: its runs are too small for any conclusion. The recorded tables and the verdicts from them are the "
    "real ones; make book runs every page in full."
) if QUICK else ""
NOTEBOOKS = sorted(f"{path.parent.name}/{path.stem}" for path in Path().glob("notebooks/*/*.ipynb"))
EXECUTED = expand(f"{BUILD}/runs/{{name}}/{{file}}", name=NOTEBOOKS, file=["run.json", "notebook.ipynb"])
PAGES = files("_config.yml", "_toc.yml", "book", "results", "Snakefile")
LIBRARY = files("fairlib", "book/whopays", "requirements.lock")
STAMP = stamp("library.txt", LIBRARY)


localrules: book, stage, html, plain


def smoke(wildcards):
    """The file of smoke parameters, for a quick build of a page that has one."""
    return files(f"params/smoke/{wildcards.part}/{wildcards.name}.yml") if QUICK else []


def given(wildcards):
    """The values of parameters that a page runs with in place of its defaults."""
    return {name: value for path in smoke(wildcards) for name, value in runs.read_yaml(path).items()}


rule book:
    input: f"{BUILD}/html/index.html", f"{BUILD}/plain", EXECUTED


# Pages and their kernels start as forks of one process that has imported their libraries. It ends when Snakemake does:
# then its standard input ends. OpenMP counts its threads when a library is imported.
FORKS = []
onstart:
    # The path of a socket has at most 107 bytes.
    if sys.platform == "linux" and "grid" not in config and len(tempfile.gettempdir()) < 80:
        folder = tempfile.TemporaryDirectory()
        command = ["-P", os.path.abspath("book/whopays/forks.py"), f"{folder.name}/socket"]
        os.environ["OMP_NUM_THREADS"] = f"{max(1, workflow.cores // 2)}"
        # From 3.12 on Python warns of a fork beside threads; there is one, of the allocator of pyarrow.
        quiet = ["-W", "ignore:This process:DeprecationWarning"]
        server = subprocess.Popen([sys.executable, *quiet, *command], stdin=subprocess.PIPE, start_new_session=True)
        os.environ["WHOPAYS_FORKS"] = shlex.join([sys.executable, "-S", *command])
        FORKS.extend([folder, server])


# Two notebooks at a time, each of which runs its seeds in as many processes as there are cores: while one imports and
# draws, which takes one core, the other trains. Snakemake also sets OMP_NUM_THREADS to `threads`.
# `update`: Snakemake leaves the outputs in place, for `whopays run` to keep or to replace.
rule run:
    input: notebook="notebooks/{part}/{name}.ipynb", smoke=smoke, library=STAMP
    output:
        update(f"{BUILD}/runs/{{part}}/{{name}}/run.json"),
        update(f"{BUILD}/runs/{{part}}/{{name}}/notebook.ipynb"),
    log: f"{BUILD}/logs/{{part}}/{{name}}.log"
    params:
        digest=lambda w: runs.digest_values(runs.contents(f"notebooks/{w.part}/{w.name}.ipynb", given(w))),
        smoke=lambda w: [word for path in smoke(w) for word in ("-f", path)],
    threads: max(1, (workflow.cores or 1) // 2)
    message: "{wildcards.part}/{wildcards.name}"
    shell:
        """
        exec > {log} 2>&1
        export WHOPAYS_SECONDS={BUILD}/seconds/{wildcards.part}-{wildcards.name}.tsv
        mkdir -p {BUILD}/seconds
        rm -f $WHOPAYS_SECONDS
        eval "${{WHOPAYS_FORKS:-python -m}} whopays run {input.notebook} {params.smoke} \
            -o {BUILD}/runs/{wildcards.part}/{wildcards.name} --force"
        touch {output}
        """


rule stage:
    input: EXECUTED, STAMP, pages=stamp("pages.txt", PAGES)
    output: directory(f"{BUILD}/source")
    log: f"{BUILD}/logs/stage.log"
    benchmark: f"{BUILD}/seconds/stage.tsv"
    params: digest=book_digest(), names=NOTEBOOKS, mark=shlex.quote(MARK)
    message: "stage"
    shell:
        """
        exec > {log} 2>&1
        mkdir {output}
        cp -r _toc.yml book {output}
        python book/tools/address.py _config.yml {output}/_config.yml {params.mark}
        python book/tools/front.py {output} & front=$!
        trap 'kill $front 2> /dev/null || true' EXIT
        for name in {params.names}; do
            mkdir -p {output}/notebooks/$(dirname $name)
            cp {BUILD}/runs/$name/notebook.ipynb {output}/notebooks/$name.ipynb
        done
        if [ {TABLES} != . ]; then
            rm -rf {TABLES}
            mkdir -p {TABLES}/_build/runs
            ln -s "$PWD/results" {TABLES}/results
            ln -s "$PWD/{BUILD}/runs/theory" {TABLES}/_build/runs/theory
        fi
        python -c "if True:
            from whopays import ledger
            ledger.write('book/claims.yml', '{TABLES}', out='{output}/book/ledger.md', notebooks='{output}',
                         csv='{output}/ledger.csv')"
        wait $front
        python book/tools/scale.py {output}/book/_front {output}/ledger.csv
        python book/tools/papers.py {output}/book/_front {output}/ledger.csv
        """


# Built aside and moved, so that no half of a book ever lies at _build/html. Everything is built anew (--all): Sphinx
# does not see all that a page depends on.
rule html:
    input: f"{BUILD}/source"
    output: f"{BUILD}/html/index.html"
    log: f"{BUILD}/logs/html.log"
    benchmark: f"{BUILD}/seconds/html.tsv"
    params: digest=book_digest()
    message: "html"
    shell:
        """
        exec > {log} 2>&1
        rm -rf {BUILD}/compile-*
        aside=$(mktemp -d {BUILD}/compile-XXXXXX)
        NO_COLOR=1 jupyter-book build {BUILD}/source --path-output $aside -W -n --keep-going --all
        test -f $aside/_build/html/index.html
        rm -rf {BUILD}/html
        mv $aside/_build/html {BUILD}/html
        rm -rf $aside
        """


# Also what the download buttons of the pages give.
rule plain:
    input: f"{BUILD}/html/index.html"
    output: directory(f"{BUILD}/plain")
    log: f"{BUILD}/logs/plain.log"
    benchmark: f"{BUILD}/seconds/plain.tsv"
    params: digest=book_digest()
    message: "plain"
    shell: "python book/tools/plain.py {BUILD} > {log} 2>&1"


# make sweep GRID=params/study/pruning/matthew-effect.yml
if "grid" in config:
    POINTS = {point.id: point for point in grids.expand(config["grid"])}
    FORCE = ["--force"] if config.get("force") else []
    FOLDER = grids.runs_folder(config["grid"]).as_posix()
    UNFIT = grids.unfit(POINTS.values())

    if not FORCE and (old := {id: why for id, why in UNFIT.items() if why != grids.UNFINISHED}):
        raise WorkflowError(grids.refusal(config["grid"], old))

    def command(wildcards):
        return shlex.join(["whopays", *grids.command(POINTS[wildcards.id]), *FORCE])

    localrules: sweep

    rule sweep:
        input: expand(f"{FOLDER}/{{id}}/run.json", id=UNFIT)
        params: grid=shlex.quote(config["grid"])
        shell: "whopays gather {params.grid}"

    # As many at a time as there are cores; `--set-threads point=4` gives each run more. Only the runs in UNFIT are asked
    # for, and `make sweep` forces this rule, since an outdated or damaged run.json exists.
    rule point:
        output: update(f"{FOLDER}/{{id}}/run.json")
        log: f"{FOLDER}/logs/{{id}}.log"
        params: command=command
        message: "{wildcards.id}"
        shell: "{params.command} > {log} 2>&1"
