"""What a network is made of, how it is cut, and what it costs: masks, gates, quantizers, factors,
channels, exports."""

from fairlib.network import (
    channels,
    compaction,
    cost,
    evaluation,
    export,
    factors,
    gates,
    masks,
    memory,
    quantizers,
    relu_calls,
    restore,
    stacking,
)

__all__ = [
    "channels", "compaction", "cost", "evaluation", "export", "factors", "gates", "masks", "memory", "quantizers",
    "relu_calls", "restore", "stacking",
]  # fmt: skip
