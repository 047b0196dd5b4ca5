"""Adapters of an audit: models and labels of any kind become predictions and ground truth.

All guessing is here, a file a subject: kinds of models, scores and labels, layouts of ONNX inputs,
columns of tables, files of weights."""
