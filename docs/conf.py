"""Configuration of Sphinx. The pages use the installed package: its docstrings, and pictures of its geometry."""

import sys
from pathlib import Path
from types import ModuleType

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.directives.patches import Figure
from sphinx.environment import BuildEnvironment
from sphinx.errors import ConfigError
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

here = Path(__file__).parent
sys.path.insert(0, str(here))

if not (here.parent / "CHANGELOG.md").exists():
    raise ConfigError(
        f"{here.parent} has no CHANGELOG.md, which is one of the pages: make the pages within a checkout, of which the "
        "folder docs alone is not enough"
    )

try:
    import mpi4py

    mpi4py.rc.initialize = False  # where pages are made, MPI need not be able to start
    import habits
    import performance
    import pictures
    import torch_nn
    import window_layers

    import distdl
except ImportError as error:
    raise ConfigError(
        "the pages are made from the installed package and its compiled extension; install them first, from the root "
        f"of a checkout: pip install '.[mpich,docs]'. {error}"
    ) from error
project = "DistDL"
author = "The DistDL authors"
copyright = author
release = distdl.__version__
version = release

extensions = ["sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon", "myst_parser"]
exclude_patterns = ["_build", "_generated", "notes", "programs"]
source_suffix = {".rst": "restructuredtext", ".md": "markdown"}
highlight_language = "python"
suppress_warnings = ["myst.xref_missing"]
trim_footnote_reference_space = True  # so that no line breaks before the number

html_theme = "furo"
html_title = f"DistDL {release}"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["pictures.css"]
html_math_renderer = "mathml"

autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
autosummary_generate = False
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_custom_sections = ["Shape"]


class Picture(Figure):
    """A figure of pictures.py, by its name: one image for the light theme and one image for the dark theme."""

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        self.arguments[0] = f"/_generated/{name}-light.svg"
        (figure,) = super().run()
        light = next(iter(figure.findall(nodes.image)))
        light["classes"].append("only-light")
        dark = light.deepcopy()
        dark["uri"] = f"/_generated/{name}-dark.svg"
        dark["classes"][-1] = "only-dark"
        light.parent.insert(light.parent.index(light) + 1, dark)
        return [figure]


def write_inline_math(translator: HTML5Translator, node: nodes.math) -> None:
    """MathML, which browsers show without a script from another server."""
    translator.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def write_math_block(translator: HTML5Translator, node: nodes.math_block) -> None:
    translator.body.append(f"<p>{tex2mathml(node.astext(), as_block=True)}</p>")
    raise nodes.SkipNode


def check_that_all_is_documented(app: Sphinx, env: BuildEnvironment) -> None:
    documented = env.domains.python_domain.objects
    for module in (distdl, distdl.nn, distdl.functional):
        for name in module.__all__:
            full_name = f"{module.__name__}.{name}"
            if full_name not in documented and not isinstance(getattr(module, name), ModuleType):
                logging.getLogger(__name__).warning("%s is public, but on none of the API pages", full_name)


def write_families(folder: Path) -> None:
    """A file for each family of layers, with the documentation of its classes."""
    for module in vars(distdl.nn).values():
        if isinstance(module, ModuleType) and hasattr(module, "__all__"):
            text = "\n\n".join(f".. autoclass:: distdl.nn.{name}" for name in module.__all__)
            (folder / f"family-{module.__name__.rpartition('.')[2]}.rst").write_text(text + "\n")


def setup(app: Sphinx) -> None:
    pictures.draw_all(here / "_generated")
    performance.write_all(here / "_generated")
    window_layers.write_all(here / "_generated")
    habits.write(here / "_generated" / "habits.rst")
    torch_nn.write(here / "_generated" / "torch_nn.rst")
    write_families(here / "_generated")
    app.add_directive("picture", Picture)
    app.add_html_math_renderer("mathml", (write_inline_math, None), (write_math_block, None))
    app.connect("env-check-consistency", check_that_all_is_documented)
