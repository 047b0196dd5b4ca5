"""whopays: the workshop of the book. Runs and grids, recorded tables, claims and their verdicts,
figures, the ledger.

It builds on :mod:`fairlib`, which knows nothing of it. A notebook hands its table over by
:func:`record`, reads recorded ones by :mod:`whopays.tables`, asks for verdicts by
:mod:`whopays.claims` and draws by :mod:`whopays.plots`."""

import lazy_loader

# A module is imported when it is first used: the command and the Snakefile need no torch.
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    ["claims", "effects", "grids", "ledger", "plots", "prose", "runs", "seeds", "tables", "verify"],
    {"runs": ["record"]},
)
