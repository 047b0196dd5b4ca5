"""Random gates: the baseline that knows nothing."""

from torch import nn

from fairlib.network import gates


def random(model: nn.Module, *, relus: int, seed: int = 0, granularity: str = "pixel") -> nn.Module:
    """Keep ReLUs that are drawn uniformly, without replacement.

    Args:
        model: With gates; left as it is.
        relus: How many to keep at most; of single pixels exactly so many.
        seed: Of the draw; of two budgets with one seed the smaller one's ReLUs are among the larger one's, of single
            pixels.
        granularity: ``"pixel"``, or ``"channel"`` and ``"layer"``, which are kept as a whole where they fit.

    Returns:
        A copy in eval mode; nothing is trained.
    """
    return gates.apply(model, gates.keep_relus(model, gates.drawn(model, granularity, seed), relus))
