"""Parts of a network and how they are cut: masks, gates, quantizers, factors, channels; and cost,
export, evaluation."""

from fairlib.network import (
    channels,
    compaction,
    cost,
    evaluation,
    export,
    factors,
    gates,
    keeping,
    masks,
    memory,
    quantizers,
    relu_calls,
    restore,
    stacking,
)

__all__ = [
    "channels", "compaction", "cost", "evaluation", "export", "factors", "gates", "keeping",
    "masks", "memory", "quantizers", "relu_calls", "restore", "stacking",
]  # fmt: skip
