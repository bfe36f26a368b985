"""`python -m proxy`: the same as the command `reasoning-proxy`."""

from proxy.cli import main

if __name__ == "__main__":
    main(prog_name="reasoning-proxy")
