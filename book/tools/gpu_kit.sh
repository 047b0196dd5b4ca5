#!/usr/bin/env bash
# Record the grids of this kit on this machine: bash record [--minutes 13] [--device cpu] [--at-once 1] [GRID ...]
#
# Needs bash, tar and a Python (PYTHON=, python3 by default) with torch and the rest of scientific Python, but neither a
# network nor Jupyter. The results go to $OUT, or to the folder `out` beside this file. What is finished stays in the
# folder `work` ($WORK), so that a second call goes on where the first one stopped.
set -euo pipefail
kit=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python3} work=${WORK:-$kit/work} out=${OUT:-$kit/out}
mkdir -p "$work/project" "$out"
work=$(cd "$work" && pwd) out=$(cd "$out" && pwd)

# A kit that was packed anew replaces the project, but not its finished runs.
if ! cmp -s "$kit/made" "$work/made"; then
    find "$work/project" -mindepth 1 -maxdepth 1 ! -name _build -exec rm -rf {} +
    for archive in "$kit"/*.tar.gz; do tar -xzf "$archive" -C "$work/project"; done
    cp "$kit/made" "$work/made"
fi

# Before site-packages, but with nothing in it that is already there: no package of this machine gets another version.
export PYTHONPATH="$work/project:$work/project/book:$work/site${PYTHONPATH:+:$PYTHONPATH}"
missing=$("$python" - "$kit" <<'END'
import re
import sys
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path

kit = Path(sys.argv[1])
version, *large = (kit / "needs").read_text().split()
lacks = [name for name in large if find_spec(name) is None]
if lacks:
    sys.exit(f"this machine's {sys.executable} lacks {', '.join(lacks)}, too large for the kit; PYTHON= names another")
there = {re.sub("[-_.]+", "-", found.name).lower() for found in distributions() if found.name}
wheels = sorted(kit.glob("wheels/*.whl"))
missing = [wheel for wheel in wheels if re.sub("[_.]+", "-", wheel.name.split("-")[0]).lower() not in there]
here = "{}.{}".format(*sys.version_info)
if missing and here != version:
    sys.exit(f"the kit has packages for Python {version}, and this is {here}: make gpu-kit TARGET={here} packs another")
print("\n".join(map(str, missing)))
END
)
if [ -n "$missing" ]; then
    mapfile -t wheels <<< "$missing"
    PIP_ROOT_USER_ACTION=ignore "$python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps \
        --no-compile --target "$work/site" "${wheels[@]}"
fi

# The kit has no git: runs learn their commit from here, and not from a repository in which the kit may lie.
export FAIRLIB_CACHE=${FAIRLIB_CACHE:-$work/cache} WHOPAYS_COMMIT=$(head -n 1 "$kit/made") GIT_CEILING_DIRECTORIES=$work
cd "$work/project"
mkdir -p params
cp "$kit/grids.txt" params/gpu-list.txt
exec "$python" -m whopays record -o "$out" --minutes 13 --spent "$SECONDS" "$@"
