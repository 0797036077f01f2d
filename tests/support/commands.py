"""Commands as a shell would run them."""

from click.testing import Result
from typer.testing import CliRunner

from gradscore_cli.main import app


def cli(*given: object, **environment: str) -> Result:
    """How a command ends, and what it prints."""
    return CliRunner().invoke(app, [*map(str, given)], env=environment)


def printed(*given: object) -> str:
    """What a command prints that may run code, and ends well."""
    result = cli(*given, GRADSCORE_TRUST_CODE="1")
    assert result.exit_code == 0, result.output
    return result.stdout


def words(result: Result) -> str:
    """All that a command printed, on one line."""
    return " ".join(result.output.split())
