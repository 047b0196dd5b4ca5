"""What a network is made of, and how it is cut: masks, gates, channels, compaction, evaluation."""
