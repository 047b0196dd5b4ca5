"""Warn if the other distribution that installs a package called ``fairlib`` is installed too.

That one is called ``fairlib`` on PyPI; this one is called ``who-pays``. An installer lets either
overwrite files of the other. If the other came last, its ``__init__`` has replaced ours: so
:mod:`fairlib.environment` and the console command import this file, too."""

import warnings
from importlib import metadata

for other in metadata.distributions(name="fairlib"):
    warnings.warn(
        f"another distribution called 'fairlib' ({other.version}) is installed; it and 'who-pays' "
        "both install the package fairlib, and either may have overwritten files of the other: "
        "uninstall both, then install 'who-pays' again",
        stacklevel=3,
    )
