"""`python -m gradscore`: the command line."""

from runpy import run_module

if __name__ == "__main__":
    run_module("gradscore_cli", run_name="__main__")
