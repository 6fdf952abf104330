"""The documentation as a site: ``make docs``."""

from __future__ import annotations

import django
from django.conf import settings
from sphinx.application import Sphinx

project = "celery-dedupe"
author = "celery-dedupe developers"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = project
html_show_copyright = False

myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"

# The pages on Django's side of things import its models.
settings.configure(INSTALLED_APPS=["celery_dedupe.django"])
django.setup()


def setup(app: Sphinx) -> None:
    """Pages link to the README as it lies beside this folder. On the site it is the page ``overview``."""

    def link_to_overview(app: Sphinx, page: str, text: list[str]) -> None:
        text[0] = text[0].replace("](../README.md", "](overview.md")

    app.connect("source-read", link_to_overview)
