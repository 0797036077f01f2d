"""Tables in pages of the documentation, made anew by the scripts that print them."""

from pathlib import Path


def put_table(script: str, text: str, page: Path | None) -> None:
    """Prints a table, and puts it between the marks of `script` in a page if one is given."""
    print(text)
    if page is None:
        return
    begin, end = f"<!-- {script} begins -->", f"<!-- {script} ends -->"
    before, mark, rest = page.read_text().partition(begin)
    if not mark or end not in rest:
        raise SystemExit(f"{page} has no place for the table: put {begin} and {end} on lines of their own")
    page.write_text(f"{before}{begin}\n{text}\n{end}{rest.partition(end)[2]}")
