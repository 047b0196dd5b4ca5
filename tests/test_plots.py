from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from fairlib import plots, statistics


def test_by_level_draws_means_and_t_intervals():
    values = pd.DataFrame({0.5: [0.1, 0.2, 0.3], 0.9: [0.4, 0.5, 0.9]})
    figure, (axis,) = plots.new_figure()
    plots.by_level(axis, values, label="a")
    line, _, (bars,) = axis.containers[0]
    np.testing.assert_allclose(line.get_xydata(), [[0.5, 0.2], [0.9, 0.6]])
    for level, segment in zip(values, bars.get_segments(), strict=True):
        interval = statistics.t_interval(values[level])
        np.testing.assert_allclose(segment[:, 1], [interval.low, interval.high])
    plt.close(figure)


def test_figures_are_white_in_dark_mode_too():
    figure, axes = plots.new_figure(2)
    assert figure.get_facecolor() == (1, 1, 1, 1) and len(axes) == 2
    plt.close(figure)


def test_provenance_is_on_the_figure():
    figure, _ = plots.new_figure()
    plots.provenance(figure, "digits, cnn, 10 seeds")
    assert "digits, cnn, 10 seeds" in [text.get_text() for text in figure.texts]
    plt.close(figure)
