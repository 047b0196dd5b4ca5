"""What a model does to each group: performance and gradients. Nothing here trains."""

from fairlib.diagnostics.evaluation import Predictions, group_performance, predict
from fairlib.diagnostics.gradients import group_gradients

__all__ = ["Predictions", "group_gradients", "group_performance", "predict"]
