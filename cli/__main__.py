"""`python -m gradscore_cli`."""

from .entry import main

if __name__ == "__main__":
    main()
