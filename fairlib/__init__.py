"""fairlib: who pays when a neural network is compressed?

Group effects of compression - measured with their uncertainty, explained, and mitigated - in a few names:
:func:`load` grouped data, :func:`build` and :func:`fit` a model, :func:`prune` or :func:`linearize` it, :func:`audit`
what that did to each group, or run a whole :func:`study`.
"""

import lazy_loader

from fairlib import _namesake  # noqa: F401  It warns.

# The names stand in __init__.pyi, for type checkers too. A module is imported when one of its names is first used: the
# console command and the Snakefile need no torch, which takes seconds.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
