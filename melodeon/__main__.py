"""`python -m melodeon` is `melodeon`."""

from melodeon.cli.main import main

if __name__ == "__main__":
    main()
