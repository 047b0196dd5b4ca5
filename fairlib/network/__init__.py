"""What a network is made of, and how it is cut: masks, gates, channels, compaction, evaluation."""

from fairlib.network import channels, compaction, evaluation, gates, masks, memory, relu_calls, restore, stacking

__all__ = ["channels", "compaction", "evaluation", "gates", "masks", "memory", "relu_calls", "restore", "stacking"]
