"""Adapters of an audit: models and labels of any kind become predictions and ground truth.

All guessing is here, a file a subject: kinds of models, scores and labels, layouts of ONNX inputs,
columns of tables, files of weights."""

from fairlib.auditing.adapters.models import Query, held, is_module, read_answers, read_model
from fairlib.auditing.adapters.scores import SCORES, is_scores, read_scores
from fairlib.auditing.adapters.truth import check_data, ground_truth

__all__ = [
    "SCORES",
    "Query",
    "check_data",
    "ground_truth",
    "held",
    "is_module",
    "is_scores",
    "read_answers",
    "read_model",
    "read_scores",
]
