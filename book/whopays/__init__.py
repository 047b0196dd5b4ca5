"""whopays: the workshop of the book, built on fairlib, which knows nothing of it.

Its modules:

- ``runs``: one notebook, executed safely and once; digests of what a run depends on
- ``grids``: many runs of a notebook, and the table gathered from them
- ``plan``: progress of a grid, and what it lacks on this machine
- ``recording``: a list of grids, run within a given time, without Snakemake
- ``verify``: a recorded table, run again and compared
- ``claims``: claims of ``book/claims.yml``, and their verdicts by recorded tables
- ``verdict``: rules that turn values over seeds into a verdict
- ``seeds``: tests over seeds: sign flips, power, false discoveries
- ``effects``: statistics: from a study's table to one number per seed
- ``ledger``: page, table and sections of all verdicts
- ``tables``: recorded tables on a page, and tables of means with intervals
- ``plots``: figures in one style, for all pages
- ``figures``: figures and tables of single pages, a module for a part of the book
- ``pages``: parameters as arguments, recorded tables with verdicts, rows for statistics
- ``labs``: exercises of the labs, and the check of an answer
- ``prose``: sentences of a page with computed numbers and verdicts
- ``cli``: the command ``whopays``: run, plan, gather, record, verify, ledger

A notebook hands its table over by :func:`record`, reads recorded ones by :mod:`whopays.tables`,
asks for verdicts by ``whopays.claims`` and draws by :mod:`whopays.plots`.
"""

import lazy_loader

# A module is imported when it is first used: the command and the Snakefile need no torch.
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    [
        *(
            "claims",
            "effects",
            "figures",
            "grids",
            "labs",
            "ledger",
            "pages",
            "plan",
            "plots",
            "prose",
        ),
        *("recording", "runs", "seeds", "tables", "verdict", "verify"),
    ],
    {"runs": ["record"]},
)
