"""Entry point of `python -m spanwise`, which is the `spanwise` command."""

from spanwise.cli import main

if __name__ == "__main__":
    main()
