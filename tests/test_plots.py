from __future__ import annotations

import json

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from fairlib import environment, plots, statistics


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


def test_by_level_draws_two_columns_of_one_level():
    figure, (axis,) = plots.new_figure()
    plots.by_level(axis, pd.DataFrame([[1.0, 2.0, 3.0], [3.0, 4.0, 5.0]], columns=[10.0, 10.0, 20.0]))
    assert axis.lines[0].get_xydata().tolist() == [[10, 2], [10, 3], [20, 4]]
    plt.close(figure)


def test_relu_traffic_is_the_slope_within_networks_times_the_relus():
    kept = np.array([0, 50, 100])
    small = pd.DataFrame({"network": "small", "batch": 1, "relus": kept, "bytes_sent": 7_000 + 90 * kept})
    large = pd.DataFrame({"network": "large", "batch": 4, "relus": 10 * kept, "bytes_sent": 4 * (10 + 900 * kept)})
    other = small.assign(bytes_sent=500 * kept, protocol="OTHER")
    runs = pd.concat([small, large]).assign(protocol="CHEETAH")
    figure, (axis,) = plots.new_figure()
    plots.shares(axis, [0.5, 0.02, 0.5], "kept")
    axis.set_xlim(0.01, 1)
    plots.relu_traffic(axis, 2_000, pd.concat([runs, other]).assign(image_size=8))
    figure.canvas.draw()
    assert axis.get_xticks().tolist() == [0.02, 0.5] and axis.get_xlabel() == "kept"
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["2 %", "50 %"]
    (above,) = axis.child_axes
    assert [tick.get_text() for tick in above.get_xticklabels()] == ["3.6", "90"]
    np.testing.assert_allclose(above.get_xlim(), [1.8, 180])
    assert above.get_xlabel() == "kB for the ReLUs of an image (Cheetah)"
    with pytest.raises(ValueError, match="unknown protocol 'cheetah'; known: CHEETAH"):
        plots.relu_traffic(axis, 2_000, runs, "cheetah")
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


def test_accuracy_changes_draws_the_mean_over_seeds_of_smallest_and_largest():
    rows = [
        {"setting": setting, "seed": seed, "stage": stage, "level": level, "split": split, "group": group,
         "size": size, "accuracy": accuracy - loss * (stage == "compressed") * (1 + seed)}
        for setting, loss_of_small in (("unequal", 0.3), ("equal", 0.1))
        for seed in (0, 1)
        for stage, level in (("control", 0.0), ("compressed", 0.9))
        for split in ("train", "test")
        for group, size, accuracy, loss in (("a", 90, 0.9, 0.1), ("b", 50, 0.9, 0.2), ("c", 10, 0.8, loss_of_small))
    ]  # fmt: skip
    figure, axes = plots.new_figure(2)
    plots.accuracy_changes(axes, pd.DataFrame(rows))
    heights = [[line.get_ydata()[0] for line, *_ in axis.containers] for axis in axes]
    np.testing.assert_allclose(heights, [[-0.15, -0.45], [-0.15, -0.15]])
    assert [axis.get_title() for axis in axes] == ["unequal group sizes", "equal group sizes"]
    assert [text.get_text() for text in axes[0].get_legend().get_texts()] == ["largest third", "smallest third"]
    plt.close(figure)


@pytest.mark.parametrize(("dirty", "expected"), [(False, "commit 0123456, "), (True, "commit 0123456 with changes, ")])
def test_a_recorded_source_names_its_commit_and_whether_files_had_changed(tmp_path, dirty, expected):
    described = environment.describe("cpu") | {"commit": "0123456789abcdef", "dirty": dirty}
    (tmp_path / "table.json").write_text(json.dumps(described))
    table = pd.DataFrame({"data": ["digits"], "model": ["cnn"], "method": ["prune:magnitude"], "seed": [0]})
    assert expected in plots.source(table, "embedded study", tmp_path / "table.json")
