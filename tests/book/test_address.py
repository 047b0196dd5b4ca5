"""From one address follow all others; without it nothing points anywhere."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import address
import pytest
import yaml

import fairlib

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "book" / "tools" / "address.py"
TEXT = (ROOT / "_config.yml").read_text(encoding="utf-8")
CONFIG = yaml.safe_load(TEXT)
URL = CONFIG["repository"]["url"]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def at(url: str) -> dict:
    return {**copy.deepcopy(CONFIG), "repository": {"url": url}}


@pytest.mark.parametrize(
    ("url", "site"),
    [
        ("", ""),
        ("https://github.com/Some-Org/who.pays", "https://some-org.github.io/who.pays/"),
        ("https://github.com/org/repo/", "https://org.github.io/repo/"),
        ("https://github.com/org/repo.git", "https://org.github.io/repo/"),
        ("https://github.com/Org/Org.github.io", "https://org.github.io/"),
    ],
)
def test_the_site_follows_from_the_repository(url, site):
    assert address.site(at(url)) == site
    wheel = f"{site}wheel/who_pays-{fairlib.__version__}-py3-none-any.whl"
    assert address.wheel(at(url)) == (wheel if site else "")


@pytest.mark.parametrize(
    "url", ["github.com/org/repo", "https://example.org/repo", "https://github.com/org"]
)
def test_an_address_of_another_form_is_refused(url):
    with pytest.raises(
        ValueError, match=f"must be https://github.com/ORG/REPO or empty, got '{url}'"
    ):
        address.site(at(url))


def test_all_settings_follow_from_the_address():
    given = at("https://github.com/org/repo.git")
    before = copy.deepcopy(given)
    config = address.filled(given)
    assert given == before
    assert config["repository"] == {
        "url": "https://github.com/org/repo",
        "branch": "notebooks",
        "path_to_book": "",
    }
    assert (
        config["html"]["baseurl"]
        == config["sphinx"]["config"]["ogp_site_url"]
        == "https://org.github.io/repo/"
    )
    assert config["launch_buttons"]["colab_url"]
    assert config["html"]["use_repository_button"] and not config["html"]["use_edit_page_button"]
    assert config["sphinx"]["config"]["extensions"][:-1] == CONFIG["sphinx"]["config"]["extensions"]


def test_without_an_address_the_settings_are_those_of_the_file(tmp_path):
    source, target = tmp_path / "_config.yml", tmp_path / "filled.yml"
    source.write_text(
        re.sub(r"^  url: .*", '  url: ""', TEXT, flags=re.MULTILINE), encoding="utf-8"
    )
    subprocess.run([sys.executable, str(SCRIPT), str(source), str(target)], check=True)
    config = yaml.safe_load(target.read_text(encoding="utf-8"))
    assert config == at("")
    assert not any(value for name, value in config["html"].items() if name.endswith("_button"))
    assert not any(config["launch_buttons"].values()) and "baseurl" not in config["html"]


def test_an_announcement_stands_among_the_options_of_the_theme_and_replaces_none(tmp_path):
    target = tmp_path / "out.yml"
    subprocess.run(
        [sys.executable, str(SCRIPT), str(ROOT / "_config.yml"), str(target), "small <b>runs</b>"],
        check=True,
    )
    written = yaml.safe_load(target.read_text(encoding="utf-8"))
    assert (
        written["sphinx"]["config"]["html_theme_options"].pop("announcement") == "small <b>runs</b>"
    )
    assert written["execute"].pop("stderr_output") == "remove"
    written["execute"]["stderr_output"] = CONFIG["execute"]["stderr_output"]
    assert written == address.filled(CONFIG)


def test_files_that_others_read_as_they_stand_know_the_same_address():
    """GitHub and PyPI read these from the sources, where nothing follows from a setting: write it
    there too."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation.get("repository-code", "") == URL
    assert citation.get("url", "") == address.site(CONFIG)
    assert PYPROJECT.get("urls", {}).get("Source", "") == URL
    pictures = re.findall(
        r"!\[[^\]]*\]\(([^)]+)\)", (ROOT / "README.md").read_text(encoding="utf-8")
    )
    raw = URL.replace("https://github.com/", "https://raw.githubusercontent.com/")
    assert pictures and all(
        path.startswith(f"{raw}/main/" if URL else "book/images/") for path in pictures
    )


def test_the_version_is_the_same_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == fairlib.__version__
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(r"^## (\d+\.\d+)", changes, re.MULTILINE)[
        1
    ] == fairlib.__version__.removesuffix(".0")
