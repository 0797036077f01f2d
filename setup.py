"""What pyproject.toml cannot say: a wheel brings the manual, which `gradscore docs` shows, and its data."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class WithPages(build_py):
    """Copies docs/ into the package of the command line; an installation that is editable reads docs/ itself."""

    def run(self) -> None:
        """Builds as ever, and adds the pages."""
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib) / "gradscore_cli" / "pages"
        target.mkdir(parents=True, exist_ok=True)
        for page in (page for kind in ("md", "ipynb", "csv") for page in Path("docs").glob(f"*.{kind}")):
            self.copy_file(str(page), str(target / page.name))


setup(cmdclass={"build_py": WithPages})
