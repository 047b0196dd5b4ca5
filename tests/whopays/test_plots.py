from __future__ import annotations

import itertools
import re

import numpy as np
import pandas as pd
import pytest

from fairlib import statistics
from whopays import plots


def test_by_level_draws_means_and_t_intervals():
    values = pd.DataFrame({0.5: [0.1, 0.2, 0.3], 0.9: [0.4, 0.5, 0.9]})
    _, (axis,) = plots.new_figure()
    plots.line(axis, values, label="a")
    line, _, (bars,) = axis.containers[0]
    np.testing.assert_allclose(line.get_xydata(), [[0.5, 0.2], [0.9, 0.6]])
    for level, segment in zip(values, bars.get_segments(), strict=True):
        interval = statistics.t_interval(values[level])
        np.testing.assert_allclose(segment[:, 1], [interval.low, interval.high])


def test_by_level_draws_two_columns_of_one_level():
    _, (axis,) = plots.new_figure()
    plots.line(axis, pd.DataFrame([[1.0, 2.0, 3.0], [3.0, 4.0, 5.0]], columns=[10.0, 10.0, 20.0]))
    assert axis.lines[0].get_xydata().tolist() == [[10, 2], [10, 3], [20, 4]]


def test_relu_traffic_is_the_slope_within_networks_times_the_relus():
    kept = np.array([0, 50, 100])
    small = pd.DataFrame(
        {"network": "small", "batch": 1, "relus": kept, "bytes_sent": 7_000 + 90 * kept}
    )
    large = pd.DataFrame(
        {"network": "large", "batch": 4, "relus": 10 * kept, "bytes_sent": 4 * (10 + 900 * kept)}
    )
    other = small.assign(bytes_sent=500 * kept, protocol="OTHER")
    runs = pd.concat([small, large]).assign(protocol="CHEETAH")
    figure, (axis,) = plots.new_figure()
    plots.shares(axis, [0.5, 0.02, 0.5], "kept")
    axis.set_xlim(0.01, 1)
    plots.relu_traffic(axis, 2_000, pd.concat([runs, other]).assign(image_size=8))
    figure.canvas.draw()
    assert axis.get_xticks().tolist() == [0.02, 0.5] and axis.get_xlabel() == "kept, %"
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["2", "50"]
    (above,) = axis.child_axes
    assert [tick.get_text() for tick in above.get_xticklabels()] == ["3.6", "90"]
    np.testing.assert_allclose(above.get_xlim(), [1.8, 180])
    assert above.get_xlabel() == "kB an image (Cheetah)"


def test_figures_are_white_in_dark_mode_too():
    figure, axes = plots.new_figure(2)
    assert figure.get_facecolor() == (1, 1, 1, 1) and len(axes) == 2


def test_provenance_is_on_the_figure():
    figure, _ = plots.new_figure()
    plots.provenance(figure, "digits, cnn, 10 seeds")
    assert "digits, cnn, 10 seeds" in [text.get_text() for text in figure.texts]


def test_thirds_are_the_means_over_seeds_of_the_groups_that_are_smallest_and_largest_elsewhere():
    rows = [
        {"setting": setting, "seed": seed, "stage": stage, "level": level, "split": split, "group": group,
         "size": size, "accuracy": accuracy - loss * (stage == "compressed") * (1 + seed)}
        for setting, loss_of_small in (("unequal", 0.3), ("equal", 0.1))
        for seed in (0, 1)
        for stage, level in (("control", 0.0), ("compressed", 0.9))
        for split in ("train", "test")
        for group, size, accuracy, loss in (("a", 90, 0.9, 0.1), ("b", 50, 0.9, 0.2), ("c", 10, 0.8, loss_of_small))
    ]  # fmt: skip
    _, axes = plots.new_figure(2)
    for axis, setting in zip(axes, ("unequal", "equal"), strict=True):
        plots.thirds(
            axis, pd.DataFrame(rows), where={"setting": setting}, rank_where={"setting": "unequal"}
        )
    heights = [[line.get_ydata()[0] for line, *_ in axis.containers] for axis in axes]
    np.testing.assert_allclose(heights, [[-0.15, -0.45], [-0.15, -0.15]])
    assert axes[0].get_legend_handles_labels()[1] == [
        "largest third (n=90)",
        "smallest third (n=10)",
    ]


def drawn(axis):
    """By label, what stands in error bars: the points, and the ends of their bars."""
    found = {}
    for container in axis.containers:
        line, _, bars = container
        ends = [segment.tolist() for collection in bars for segment in collection.get_segments()]
        found[container.get_label()] = (line.get_xydata(), ends)
    return found


def test_lines_stand_side_by_side_with_looks_of_their_own():
    one, two = pd.DataFrame({0.5: [1.0, 2.0]}), pd.DataFrame({0.5: [3.0, 5.0]})
    _, (left, right) = plots.new_figure(2)
    plots.lines(left, {"one": one, "two": two}, apart=0.1, looks={"two": ("#123456", "v")})
    assert [points[0].round(9).tolist() for points, _ in drawn(left).values()] == [
        [0.45, 1.5],
        [0.55, 4.0],
    ]
    assert (
        left.containers[1][0].get_color() == "#123456" and left.containers[1][0].get_marker() == "v"
    )
    assert list(left.lines[-1].get_ydata()) == [0, 0]
    right.set_xscale("log")
    plots.lines(right, {"one": one, "two": two}, apart=3, zero=False)
    np.testing.assert_allclose(
        [points[0] for points, _ in drawn(right).values()], [[0.25, 1.5], [1, 4]]
    )
    assert [container[0].get_color() for container in right.containers] == list(plots.PALETTE[:2])
    assert list(one) == [0.5]


def test_intervals_are_rows_of_means_with_t_intervals():
    a, b, c = [0.1, 0.3], [0.2, 0.6], [0.5, 0.9]
    figure, (axis,) = plots.new_figure()
    plots.intervals(axis, {"one": {"x": a, "y": b}, "two $": {"y": c}}, zero=None)
    found = drawn(axis)
    np.testing.assert_allclose(found["x"][0], [[0.2, -0.11]])
    np.testing.assert_allclose(found["y"][0], [[0.4, 0.11], [0.7, 1.0]])
    for values, segment in zip([b, c], found["y"][1], strict=True):
        np.testing.assert_allclose([x for x, _ in segment], statistics.t_interval(values)[1:])
    assert [tick.get_text() for tick in axis.get_yticklabels()] == ["one", r"two \$"]
    assert axis.get_ylim() == (1.5, -0.5) and len(axis.lines) == len(axis.containers) * 3
    figure, (axis,) = plots.new_figure()
    plots.intervals(axis, {"one": a, "alone": [0.4]})
    points, _ = next(iter(drawn(axis).values()))
    np.testing.assert_allclose(points, [[0.2, 0], [0.4, 1]])
    assert list(axis.lines[-1].get_xdata()) == [0, 0]
    figure.canvas.draw()


def test_a_cross_has_intervals_in_both_directions():
    x, y = [1.0, 3.0], [10.0, 20.0]
    figure, (axis,) = plots.new_figure()
    assert plots.mean_point(axis, x, y, label="a") == (2.0, 15.0)
    _, (across, up) = drawn(axis)["a"]
    np.testing.assert_allclose(across, [[end, 15.0] for end in statistics.t_interval(x)[1:]])
    np.testing.assert_allclose(up, [[2.0, end] for end in statistics.t_interval(y)[1:]])
    plots.mean_point(axis, [1.0], [2.0])
    figure.canvas.draw()


def panel(control=0.0, level=0.9):
    """Three groups and two seeds, whose sizes change places; compressed, b loses .2 and the others
    .1."""
    sizes = {0: {"a": 90, "b": 50, "c": 10}, 1: {"a": 10, "b": 50, "c": 80}}
    rows = [
        {"seed": seed, "when": "never", "stage": stage, "level": at, "split": split, "group": group, "size": size,
         "train_size": size, "accuracy": 0.8 - (stage == "compressed") * (0.2 if group == "b" else 0.1)}
        for seed, counts in sizes.items()
        for group, size in counts.items()
        for stage, at in (("dense", control), ("control", control), ("compressed", level))
        for split in ("train", "test")
    ]  # fmt: skip
    return pd.DataFrame(rows)


def test_thirds_of_a_linearization_stand_over_budgets_with_everybody():
    _, (axis,) = plots.new_figure()
    plots.thirds(axis, panel(control=1.0, level=0.1), everybody=True)
    found = drawn(axis)
    assert list(found) == ["all", "largest third (n=85)", "smallest third (n=10)"]
    everybody = -np.mean(
        [(90 * 0.1 + 50 * 0.2 + 10 * 0.1) / 150, (10 * 0.1 + 50 * 0.2 + 80 * 0.1) / 140]
    )
    np.testing.assert_allclose(
        [points[0] for points, _ in found.values()], [[0.1, everybody]] + [[0.1, -0.1]] * 2, 0.03
    )
    assert axis.get_xscale() == "log" and axis.get_xlabel() == "ReLUs kept, %"
    assert axis.xaxis_inverted() and axis.get_xticklabels()[0].get_text() == "10"
    assert axis.get_ylabel() == f"{plots.CHANGE_LABEL}, points"
    assert axis.yaxis.get_major_formatter()(-0.031) == "-3.1"


def test_groups_are_drawn_by_name_or_by_their_size_in_each_seed():
    _, (left, right) = plots.new_figure(2)
    rows = panel()[lambda table: table["split"] == "test"]
    plots.groups(left, rows, "accuracy")
    found = drawn(left)
    assert list(found) == ["a (n=50)", "b (n=50)", "c (n=45)"]
    np.testing.assert_allclose(
        [points[:, 1] for points, _ in found.values()], [[0.8, 0.7], [0.8, 0.6], [0.8, 0.7]]
    )
    plots.groups(right, rows, "train_size", extremes=True)
    found = drawn(right)
    assert list(found) == ["largest (n=85)", "middle (n=50)", "smallest (n=10)"]
    np.testing.assert_allclose(
        [points[:, 1] for points, _ in found.values()], [[85, 85], [50, 50], [10, 10]]
    )
    assert right.get_xlabel() == "weights kept, %"


def test_of_two_groups_there_is_no_middle_one():
    _, (axis,) = plots.new_figure()
    rows = panel()[lambda table: (table["split"] == "test") & (table["group"] != "b")]
    plots.groups(axis, rows, "accuracy", extremes=True)
    assert [name.split()[0] for name in drawn(axis)] == ["largest", "smallest"]


def test_an_axis_of_sizes_has_three_ticks():
    _, (axis,) = plots.new_figure()
    plots.size_axis(axis, [1200.4, 10, 70, 30, 10])
    assert axis.get_xticks().tolist() == [10, 70, 1200.4] and axis.get_xscale() == "log"
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["10", "70", "1,200"]


def test_a_legend_names_what_several_axes_show_once():
    figure, axes = plots.new_figure(2)
    for axis, labels in zip(axes, ("ab", "bc"), strict=True):
        for label in labels:
            axis.plot([0], [0], label=label)
    plots.legend(figure, "who")
    (found,) = figure.legends
    assert [text.get_text() for text in found.get_texts()] == ["a", "b", "c"]
    assert found.get_title().get_text() == "who"


def test_provenance_words_tables_and_takes_what_words_itself():
    table = pd.DataFrame(
        {"data": ["digits"], "model": ["cnn"], "method": ["prune:magnitude"], "seed": [0]}
    )
    figure, _ = plots.new_figure()
    plots.provenance(figure, table, "and one more")
    assert f"{plots.source(table, 'this run')}\nand one more" in [
        text.get_text() for text in figure.texts
    ]


def test_more_than_three_methods_are_counted_by_arm():
    few = pd.DataFrame(
        {"data": "digits", "model": "cnn", "method": ["c", "a", "b", "b"], "seed": [0, 0, 1, 1]}
    )
    assert plots.source(few).startswith("digits, cnn, a, b, c, 2 seeds")
    many = few.assign(method=list("abcd"))
    assert "cnn, 4 methods, 2 seeds" in plots.source(many.assign(stage="compressed"))
    arms = pd.DataFrame(
        {"pruner": ["P&F", "F&P", "BiFP", "control"], "stage": ["compressed"] * 3 + ["control"]}
    )
    assert "cnn, 3 methods, 2 seeds" in plots.source(many.join(arms))
    unstaged = (
        many.join(arms["pruner"].rename("arm"))
        .assign(level=[0.9, 0.9, 0.9, 0.0])
        .drop(columns="method")
    )
    assert "cnn, 3 methods, 2 seeds" in plots.source(unstaged)


def test_scatter_draws_a_row_each_in_the_color_of_its_seed():
    _, (axis,) = plots.new_figure()
    rows = pd.DataFrame({"seed": [0, 0, 1], "loss": [1.0, 2.0, 3.0], "norm": [4.0, 5.0, 6.0]})
    plots.scatter(axis, rows, "loss", "norm")
    points = axis.collections[0]
    assert points.get_offsets().tolist() == [[1, 4], [2, 5], [3, 6]]
    first, second, third = map(tuple, points.get_facecolors())
    assert first == second != third


def test_matrix_writes_each_number_into_its_cell():
    _, (axis,) = plots.new_figure()
    names = ["size", "gradient_norm"]
    plots.matrix(axis, pd.DataFrame([[1.0, -0.25], [-0.5, 1.0]], names, names))
    assert {text.get_position(): text.get_text() for text in axis.texts} == {
        (0, 0): "1.00", (1, 0): "-0.25", (0, 1): "-0.50", (1, 1): "1.00"
    }  # fmt: skip
    assert [label.get_text() for label in axis.get_yticklabels()] == ["size", "gradient norm"]


def test_several_rows_of_axes_are_given_back_row_by_row():
    _, axes = plots.new_figure(3, rows=2)
    places = [axis.get_subplotspec() for axis in axes]
    found = [(place.rowspan.start, place.colspan.start) for place in places]
    assert found == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


def test_groups_are_split_from_the_largest_to_the_smallest_with_their_training_sizes():
    rows = panel()[lambda table: table["seed"] == 0]
    parts = plots.split_by_group(rows)
    assert list(parts) == ["a (n=90)", "b (n=50)", "c (n=10)"]
    assert set(parts["c (n=10)"]["group"]) == {"c"} and sum(map(len, parts.values())) == len(rows)


def test_an_axis_names_the_groups_that_have_nothing_to_lose():
    _, (one, other) = plots.new_figure(2)
    study = panel().replace({"group": {"c": "x$"}})
    study.loc[study["group"] == "x$", "accuracy"] = 0.05
    one.set_title("unequal")
    plots.floor(one, study, when="never")
    plots.floor(other, study[study["group"] != "x$"])
    assert one.get_title() == "unequal\nat the floor: x\\$"
    assert other.get_title() == ""


def test_accuracy_stands_beside_the_logarithm_of_another_column_on_the_training_set():
    study = panel().assign(norm=lambda table: np.where(table["split"] == "train", 100.0, 1.0))
    figure = plots.beside_accuracy(study, "norm", "norm", extremes=False, when="never")
    left, right = (drawn(axis) for axis in figure.axes)
    np.testing.assert_allclose(left["b (n=50)"][0][:, 1], [0.8, 0.6])
    assert list(right) == list(left) == ["a (n=50)", "b (n=50)", "c (n=45)"]
    np.testing.assert_allclose([points[:, 1] for points, _ in right.values()], 2)
    assert [axis.get_ylabel() for axis in figure.axes] == ["test accuracy, %", "norm, training set"]


def test_rows_are_groups_by_name_or_where_sizes_change_with_the_seed_by_rank():
    rows = panel()[lambda table: (table["split"] == "test") & (table["stage"] == "compressed")]
    _, (left, right) = plots.new_figure(2)
    both = pd.concat([rows.assign(kind="one"), rows.assign(kind="other", train_size=7)])
    plots.by_name(left, both, "accuracy", "accuracy", by="kind")
    names = [label.get_text() for label in left.get_yticklabels()]
    assert names[:3] == ["rank 1 (n=85)", "rank 2 (n=50)", "rank 3 (n=10)"]
    assert names[3:] == ["a (n=7)", "b (n=7)", "c (n=7)"] and left.get_xlabel() == "accuracy, %"
    np.testing.assert_allclose(drawn(left)["other"][0], [[0.7, 3], [0.6, 4], [0.7, 5]])
    plots.by_name(right, rows, "train_size", "images", by="stage")
    np.testing.assert_allclose(drawn(right)["compressed"][0][:, 0], [85, 50, 10])


def budgets(accuracies, train_sizes, levels=(1.0, 0.1, 0.02)):
    """Test rows of two seeds: by group the accuracy under the control, which falls by .1 from level
    to level."""
    return pd.DataFrame(
        {"seed": seed, "stage": "control" if level == 1 else "compressed", "level": level, "split": "test",
         "group": group, "size": 10, "train_size": train_sizes[(place + seed) % len(train_sizes)],
         "before": 2 * accuracy, "accuracy": accuracy - 0.1 * step * (1 + seed)}
        for seed in (0, 1)
        for step, level in enumerate(levels)
        for place, (group, accuracy) in enumerate(accuracies.items())
    )  # fmt: skip


def texts(figure):
    """The entries of the legends of the parts of a figure."""
    legends = [legend for part in figure.subfigs for legend in part.legends]
    return [[text.get_text() for text in legend.get_texts()] for legend in legends]


def test_over_budgets_draws_every_group_and_marks_those_at_the_floor():
    faces = budgets({"a": 0.9, "b $": 0.6, "c": 0.05}, [50, 50, 50])
    dense = faces[faces["stage"] == "control"].assign(stage="dense", accuracy=7.0)
    columns = {"one": "accuracy", "two": "before"}
    figure = plots.over_budgets(
        {"race": dict.fromkeys(columns, pd.concat([dense, faces]))}, columns
    )
    left, right = figure.axes
    assert (left.get_ylabel(), left.get_title(), right.get_title()) == ("race", "one, %", "two")
    assert texts(figure) == [["a (n=50)", r"b \$ (n=50)", "c (n=50), at the floor"]]
    points, _ = drawn(left)["a (n=50)"]
    np.testing.assert_allclose(points[:, 1], [0.9 - 0.3, 0.9 - 0.15, 0.9])
    assert points[:, 0] == pytest.approx([0.02, 0.1, 1], rel=0.1)
    assert [tick.get_text() for tick in left.get_xticklabels()] == ["2", "10", "100"]
    assert (
        left.xaxis_inverted()
        and left.get_xlabel() == "ReLUs kept, %"
        and not left.get_shared_y_axes().joined(left, right)
    )


def test_relative_drops_are_in_percent_and_leave_out_groups_at_the_floor():
    faces = budgets({"a": 0.5, "c": 0.05}, [50, 50])
    rows = {"race": {"snl": faces, "random": faces}, "age": {"snl": faces[faces["level"] != 0.1]}}
    figure = plots.over_budgets(rows, before="before")
    first, second, third = figure.axes
    label = "c (n=50), at the floor: left out"
    assert texts(figure) == [["a (n=50)", label]]
    points, ends = drawn(second)["a (n=50)"]
    np.testing.assert_allclose(
        points[:, 1], [100 * (1 - (0.5 - fall) / 1.0) for fall in (0.3, 0.15, 0)]
    )
    assert ends[-1][1][1] == pytest.approx(50) and len(drawn(second)[label][0]) == 0
    assert first.get_shared_y_axes().joined(first, second) and not first.get_shared_y_axes().joined(
        first, third
    )
    assert first.get_xlabel() == third.get_xlabel() == "ReLUs kept, %"


def test_of_many_groups_the_ends_of_each_seed_are_drawn_over_budgets():
    many = budgets(
        {name: 0.3 + 0.1 * place for place, name in enumerate("abcdef")}, [60, 50, 40, 30, 20, 10]
    )
    figure = plots.over_budgets({"norm": {"digits": many}}, {"norm": "accuracy"})
    (axis,), (names,) = figure.axes, texts(figure)
    assert names == [
        "largest (n=60)",
        "second largest (n=50)",
        "second smallest (n=20)",
        "smallest (n=10)",
    ]
    at_control = {name: points[-1, 1] for name, (points, _) in drawn(axis).items()}
    expected = {"largest (n=60)": (0.3 + 0.8) / 2, "smallest (n=10)": (0.8 + 0.7) / 2}
    assert {name: at_control[name] for name in expected} == pytest.approx(expected)


def test_a_figure_has_a_shape_for_a_laptop_and_one_for_a_phone():
    figure, axes = plots.new_figure(3, width=12.0, sharey=True)
    table = pd.DataFrame({0.0: [0.1, 0.2], 0.9: [0.2, 0.4], 0.98: [0.3, 0.4]})
    for axis in axes:
        plots.shares(axis, table, "weights kept", pruned=True)
        plots.lines(axis, {"linearize:random": table})
    plots.accuracy(axes[0].yaxis, plots.DROPS)
    plots.legend(figure, "lottery")
    plots.provenance(figure, "digits, cnn, prune:magnitude, 5 seeds, real-data run", "short")
    drawing = plots.shapes(figure)["image/svg+xml"]
    widths = [float(width) / 72 for width in re.findall(r'<svg [^>]*width="([.\d]+)pt', drawing)]
    assert widths == pytest.approx([plots.WIDTH, plots.PHONE], abs=0.3)
    # Codes are words, lines break where the shape ends, and each stacked panel has its labels.
    assert "lottery tickets" in drawing and "tickets tickets" not in drawing
    assert drawing.count("random gates") == 2 and figure.get_supxlabel().endswith(
        "real images\nshort"
    )
    assert {axis.get_ylabel() for axis in axes} == {axes[0].get_ylabel()}
    assert [axis.get_subplotspec().get_geometry()[:2] for axis in axes] == [(3, 1)] * 3
    # Compression grows to the right, and what is close to nothing is apart.
    at = [axes[0].transData.transform((level, 0))[0] for level in table]
    assert at[2] - at[1] == pytest.approx((at[1] - at[0]) * np.log10(5))
    assert [tick.get_text() for tick in axes[0].get_xticklabels()] == ["2", "10", "100"]


def test_ten_groups_have_ten_looks():
    rows = pd.DataFrame(
        {"seed": 0, "group": list("abcdefghij"), "train_size": range(10, 0, -1), "loss": 1.0}
    )
    _, (axis,) = plots.new_figure()
    plots.crosses(axis, pd.concat([rows, rows.assign(seed=1, loss=2.0)]), "train_size", "loss")
    points = [container[0] for container in axis.containers]
    assert len({(point.get_color(), point.get_marker()) for point in points}) == 10


def ways() -> pd.DataFrame:
    """Two arms, two levels, two seeds and three groups, whose drops are known."""
    rows = []
    for seed, arm, (level, kept), (group, size, base, fall) in itertools.product(
        (0, 1),
        ("one", "other"),
        ((32, 1.0), (4, 0.2), (2, 0.1)),
        (("a", 90, 0.9, 1), ("b", 60, 0.8, 2), ("c", 10, 0.7, 6)),
    ):
        lost = 0 if level == 32 else fall * (0.02 if arm == "one" else 0.03) / level
        row = {
            "seed": seed,
            "arm": arm,
            "level": float(level),
            "kept": kept,
            "group": group,
            "size": size,
            "when": "never",
        }
        row |= {
            "stage": "control" if level == 32 else "compressed",
            "accuracy": base - lost + 0.01 * seed,
            "loss": 1.0,
        }
        rows += [row | {"split": split} for split in ("train", "test")]
    return pd.DataFrame(rows)


def test_arms_are_drawn_over_bytes_with_every_group():
    figure = plots.arms(ways(), {"other": "the other", "one": "the one"})
    left, right = figure.axes
    assert [axis.get_title() for axis in (left, right)] == ["the other", "the one"]
    points, _ = drawn(left)["c (n=10)"]
    assert points[:, 0] == pytest.approx([0.1, 0.2, 1], rel=0.05)
    np.testing.assert_allclose(points[:, 1], [-9, -4.5, 0], atol=1e-9)
    assert left.xaxis_inverted() and left.get_xlabel() == "bytes kept, %"
    assert [tick.get_text() for tick in left.get_xticklabels()] == ["10", "20", "100"]
    assert figure.legends[0].get_title().get_text() == "group (training images)"


def test_prices_have_a_row_for_each_arm():
    left, right = plots.prices(ways()).axes
    assert [tick.get_text() for tick in left.get_yticklabels()] == ["one", "other"]
    assert set(drawn(left)) == set(drawn(right)) == {"2", "4"}
