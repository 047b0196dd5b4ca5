"""Random gates: the baseline that any method has to beat."""

from torch import nn

from fairlib.network import gates


def random_gates(
    model: nn.Module, *, relus: int, seed: int = 0, granularity: str = "pixel"
) -> nn.Module:
    """Keep ReLUs that are drawn uniformly without replacement.

    Args:
        model: A model with gates; not changed.
        relus: Largest number of ReLUs to keep; single pixels are kept to exactly this number.
        seed: Seed of the random choice. With one seed, the pixels kept by a smaller budget are
            among those kept by a larger one.
        granularity: What is kept as a whole: ``"pixel"``, ``"channel"`` or ``"layer"``. A channel
            or layer that does not fit into the rest of the budget is skipped.

    Returns:
        A copy in eval mode; nothing is trained.

    Raises:
        ValueError: If ``granularity`` is unknown, or ``relus`` is negative or more than the model
            has.
    """
    return gates.with_gates(
        model, gates.keep_relus(model, gates.drawn(model, granularity, seed), relus)
    )
