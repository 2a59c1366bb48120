"""`python -m corymb.serve` is `serve`."""

from corymb.serve.cli import main

if __name__ == "__main__":
    main()
