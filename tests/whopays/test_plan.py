"""Operations and hours that a plan expects of a grid."""

from __future__ import annotations

from pathlib import Path

import pytest
from toy_notebooks import write_notebook

from whopays import cli, grids, plan, runs

ROOT = Path(__file__).parents[2]
PARAMETERS = (
    'data: str = "digits"\nmodels: str = "mlp,cnn"\nimage_size: int = 8\nseeds: int = 2\n'
    'epochs: int = 3\nlevels: str = "0.5,0.9"\nlengths: str = "2,4"\nmask_epochs: int = 1000\n'
    "limit: int = 0\nfirst_seed: int = 0"
)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with a grid of three runs, of two networks each, and a rule for its notebook."""
    monkeypatch.chdir(tmp_path)
    write_notebook(tmp_path / "toy.ipynb", parameters=PARAMETERS)
    (tmp_path / "params").mkdir()
    (tmp_path / "params" / "passes.yml").write_text(
        "images: {digits: 100}\n"
        "passes: {toy: epochs + levels * 10 + lengths_sum / 2 + mask_epochs}\n"
    )
    (tmp_path / "grid.yml").write_text(
        "table: toy.csv\nruns: [{notebook: toy.ipynb, grid: {first_seed: [0, 2, 4]}}]"
    )
    return tmp_path


def test_operations_are_passes_by_the_rule_times_images_seeds_and_those_of_an_image(project):
    mlp, cnn = plan.work(grids.expand("grid.yml"))
    assert (mlp.runs, mlp.network, mlp.size, cnn.network) == (3, "mlp", 8, "cnn")
    passes = 2 * 100 * (3 + 2 * 10 + 6 / 2 + 200)
    assert mlp.flops == pytest.approx(passes * mlp.each)
    assert cnn.most == pytest.approx((passes + 2 * 100 * 800) * cnn.each)
    # Six operations for each multiply-accumulate of the linear layers.
    weights = [p.numel() for p in plan._network("mlp", 8).parameters() if p.ndim == 2]
    assert mlp.each == 6 * sum(weights)


def test_fewer_images_and_a_notebook_without_a_rule_count_as_they_should(project):
    all_images = plan.work(grids.expand("grid.yml"))[0].flops
    grid = project / "grid.yml"
    grid.write_text(grid.read_text().replace("grid:", "parameters: {limit: 25}, grid:"))
    assert plan.work(grids.expand(grid))[0].flops == pytest.approx(all_images / 4)
    (project / "params" / "passes.yml").write_text("images: {}\npasses: {other: epochs}")
    assert plan.work(grids.expand(grid)) == []


def test_a_plan_prints_operations_and_hours_on_a_gpu(project, capsys):
    assert cli.main(["plan", "grid.yml"]) == 0
    found = plan.work(grids.expand("grid.yml"))
    low, most = (
        sum(3 * flops for flops in way) for way in zip(*[k[3:5] for k in found], strict=True)
    )
    lines = capsys.readouterr().out.splitlines()
    assert f"work    {low / 1e15:.3g} to {most / 1e15:.3g} PFLOP left" in lines[-4]
    hour = 99e12 * 3600
    assert lines[-1].startswith(f"hours   {low / hour:.3g} to {most / hour:.3g} on a GPU")


@pytest.mark.parametrize(
    ("grid", "petaflop"),
    # Counted by another hand.
    [("mitigation/t-tab-2", 0.2), ("mitigation/t-fig-7", 16.6), ("pruning/t-fig-1", 18.6)],
)
def test_grids_of_the_papers_are_as_much_work_as_was_counted_before(grid, petaflop):
    kinds = plan.work(grids.expand(ROOT / "params" / "paper" / f"{grid}.yml"))
    total = sum(kind.runs * kind.flops for kind in kinds) / 1e15
    assert total == pytest.approx(petaflop, rel=0.25)


def test_every_grid_of_a_paper_that_trains_a_network_has_a_rule():
    known = runs.read_yaml(ROOT / "params" / "passes.yml")["passes"]
    points = [grids.expand(grid)[0] for grid in ROOT.glob("params/paper/*/*.yml")]
    assert {point.notebook.stem for point in points} - set(known) == {"toy-boundary"}
