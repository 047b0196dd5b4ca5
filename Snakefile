# Executes the notebooks, builds the book, runs sweeps. `make book` and `make sweep` call it with the flags it needs.
#
# Snakemake decides by time, content and parameters what to look at again; whether a notebook is executed again is then
# decided by `fairlib run` from the digests in run.json. So touched files, a fresh checkout or a lost .snakemake folder
# execute nothing, and an edit that is older than the build is noticed.

import shlex
import subprocess
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError

sys.path.insert(0, str(workflow.basedir))
from fairlib.evidence import grids, runs


def files(*names):
    """The files with these names and in these folders."""
    found = [path for name in names for path in [Path(name), *Path(name).rglob("*")] if path.is_file()]
    return sorted(str(path) for path in found if "__pycache__" not in path.parts)


def book_digest():
    """Of all that the pages are made from but the executed notebooks; the ledger also tells the claims' history."""
    command = ["git", "log", "-1", "--format=%H", "--", "book/claims.yml"]
    try:
        history = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except OSError:  # Without git the ledger says that it does not know the claims' history.
        history = "no git"
    return runs.digest_files(map(Path, PAGES + LIBRARY), Path()) + history


NOTEBOOKS = sorted(f"{path.parent.name}/{path.stem}" for path in Path().glob("notebooks/*/*.ipynb"))
EXECUTED = expand("_build/runs/{name}/{file}", name=NOTEBOOKS, file=["run.json", "notebook.ipynb"])
PAGES = files("_config.yml", "_toc.yml", "book", "results", "Snakefile")
LIBRARY = files("fairlib", "requirements.lock")


localrules: book, stage, html


rule book:
    input: "_build/html/index.html", EXECUTED


# Two notebooks at a time, each of which runs its seeds in as many processes as there are cores: while one imports and
# draws, which takes one core, the other trains. Snakemake also sets OMP_NUM_THREADS to `threads`.
# `update`: Snakemake leaves the outputs in place, for `fairlib run` to keep or to replace.
rule run:
    input: notebook="notebooks/{part}/{name}.ipynb", library=LIBRARY
    output:
        update("_build/runs/{part}/{name}/run.json"),
        update("_build/runs/{part}/{name}/notebook.ipynb"),
    log: "_build/logs/{part}/{name}.log"
    params: digest=lambda w: runs.digest(f"notebooks/{w.part}/{w.name}.ipynb", {})
    threads: max(1, (workflow.cores or 1) // 2)
    shell:
        """
        exec > {log} 2>&1
        fairlib run {input.notebook} -o _build/runs/{wildcards.part}/{wildcards.name} --force
        touch {output}
        """


rule stage:
    input: EXECUTED, PAGES, LIBRARY
    output: directory("_build/source")
    log: "_build/logs/stage.log"
    params: digest=book_digest(), names=NOTEBOOKS
    shell:
        """
        exec > {log} 2>&1
        mkdir {output}
        cp -r _config.yml _toc.yml book {output}
        for name in {params.names}; do
            mkdir -p {output}/notebooks/$(dirname $name)
            cp _build/runs/$name/notebook.ipynb {output}/notebooks/$name.ipynb
        done
        fairlib ledger {output}/book/ledger.md --notebooks {output}
        """


# Built aside and moved, so that no half of a book ever lies at _build/html. Everything is built anew (--all): Sphinx
# does not see all that a page depends on.
rule html:
    input: "_build/source"
    output: "_build/html/index.html"
    log: "_build/logs/html.log"
    params: digest=book_digest()
    shell:
        """
        exec > {log} 2>&1
        rm -rf _build/compile-*
        aside=$(mktemp -d _build/compile-XXXXXX)
        NO_COLOR=1 jupyter-book build _build/source --path-output $aside -W -n --keep-going --all
        test -f $aside/_build/html/index.html
        rm -rf _build/html
        mv $aside/_build/html _build/html
        rm -rf $aside
        """


# make sweep GRID=params/study/pruning/matthew-effect.yml
if "grid" in config:
    POINTS = {point.id: point for point in grids.expand(config["grid"])}
    FORCE = ["--force"] if config.get("force") else []
    FOLDER = next(iter(POINTS.values())).out.parent.as_posix()

    def outdated(point):
        finished = runs.read_run(point.out)
        return finished and finished["contents"] != runs.contents(point.notebook, point.parameters)

    if not FORCE and (old := [id for id, point in POINTS.items() if outdated(point)]):
        raise WorkflowError(
            f"{len(old)} of {len(POINTS)} runs are finished with other contents (notebook, tables, requirements or fairlib "
            f"have changed), the first is {FOLDER}/{old[0]}. FORCE=1 runs these again; 'fairlib gather {config['grid']}' "
            "takes finished runs as they are."
        )

    def command(wildcards):
        point = POINTS[wildcards.id]
        given = [word for name, value in point.parameters.items() for word in ("-p", name, str(value))]
        return shlex.join(["fairlib", "run", str(point.notebook), *given, "-o", str(point.out), *FORCE])

    localrules: sweep

    rule sweep:
        input: expand(f"{FOLDER}/{{id}}/run.json", id=POINTS)
        params: grid=shlex.quote(config["grid"])
        shell: "fairlib gather {params.grid}"

    # As many at a time as there are cores; `--set-threads point=4` gives each run more.
    rule point:
        input: lambda w: str(POINTS[w.id].notebook)
        output: update(f"{FOLDER}/{{id}}/run.json")
        log: f"{FOLDER}/logs/{{id}}.log"
        params:
            command=command,
            digest=lambda w: runs.digest(POINTS[w.id].notebook, POINTS[w.id].parameters),
        shell:
            """
            exec > {log} 2>&1
            {params.command}
            touch {output}
            """
