"""Fill in the settings that follow from `repository.url` in `_config.yml`, if it is set.

`python book/tools/address.py _config.yml OUT.yml [ANNOUNCEMENT]` writes the settings that the book
is built with; an announcement stands above every page.
"""

from __future__ import annotations

import copy
import re
import sys
from pathlib import Path
from typing import Any

import yaml

VERSION = Path(__file__).parents[2] / "fairlib" / "_version.py"


def repository(config: dict[str, Any]) -> tuple[str, str] | None:
    """Return the names of the organization and the repository; None without an address.

    Raises:
        ValueError: If the repository is not at https://github.com/ORG/REPO.
    """
    url = config["repository"]["url"]
    found = re.fullmatch(r"https://github\.com/([\w-]+)/([\w.-]+?)(?:\.git)?/?", url)
    if url and not found:
        raise ValueError(
            "repository.url in _config.yml must be https://github.com/ORG/REPO or empty, got "
            f"{url!r}"
        )
    return (found[1], found[2]) if found else None


def site(config: dict[str, Any]) -> str:
    """Return the address of the published book, with a slash at its end; empty without one."""
    names = repository(config)
    if not names:
        return ""
    # A repository that is named after the host is published at its top.
    host = f"{names[0].lower()}.github.io"
    return f"https://{host}/" if names[1].lower() == host else f"https://{host}/{names[1]}/"


def wheel(config: dict[str, Any]) -> str:
    """Return the address of fairlib's wheel, published with the book; empty without one."""
    # Read as text: importing fairlib takes seconds, and needs its dependencies.
    (version,) = re.findall(r'__version__ = "([^"]+)"', VERSION.read_text(encoding="utf-8"))
    return f"{site(config)}wheel/who_pays-{version}-py3-none-any.whl" if site(config) else ""


def filled(config: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of the settings with all that follows from the address."""
    config, address = copy.deepcopy(config), site(config)
    if not address:
        return config
    # Colab opens the plain notebooks, which are pushed to a branch of their own.
    url = "https://github.com/" + "/".join(repository(config))
    config["repository"] |= {"url": url, "branch": "notebooks", "path_to_book": ""}
    config["html"] |= {"baseurl": address, "use_repository_button": True, "use_issues_button": True}
    config["launch_buttons"] |= {"colab_url": "https://colab.research.google.com"}
    sphinx = config["sphinx"]["config"]
    sphinx["extensions"] = [*sphinx["extensions"], "sphinxext.opengraph"]
    sphinx |= {
        "ogp_site_url": address,
        "ogp_site_name": config["title"],
        "ogp_social_cards": {"enable": False},
    }
    return config


def main(source: str, target: str, announcement: str = "") -> None:
    config = filled(yaml.safe_load(Path(source).read_text(encoding="utf-8")))
    if announcement:
        config["sphinx"]["config"]["html_theme_options"]["announcement"] = announcement
        config["execute"]["stderr_output"] = (
            "remove"  # Runs that are too small warn of it; no such run is published.
        )
    Path(target).write_text(
        yaml.safe_dump(config, sort_keys=False, allow_unicode=True), encoding="utf-8"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
